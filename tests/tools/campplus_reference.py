"""CAM++ in plain numpy float64, layer by layer from the checkpoint's tensors: the truth for the kernels' tests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Weights = Mapping[str, np.ndarray]


def embedding(weights: Weights, features: np.ndarray) -> np.ndarray:
    """Embedding (192,) of log-mel features (T, 80) whose mean is still to be subtracted."""
    features = features.astype(np.float64)
    return dense(weights, head(weights, (features - features.mean(axis=0)).T))


def head(weights: Weights, mel: np.ndarray) -> np.ndarray:
    """(320, T) from mean-normalised features (80, T); channel-major as in the checkpoint."""
    x = _relu(_norm(weights, "head.bn1", _conv2d(mel[None], weights["head.conv1.weight"])))
    for stage in ("head.layer1", "head.layer2"):
        for block in (0, 1):
            name, stride = f"{stage}.{block}", 2 - block
            y = _relu(_norm(weights, f"{name}.bn1", _conv2d(x, weights[f"{name}.conv1.weight"], stride)))
            y = _norm(weights, f"{name}.bn2", _conv2d(y, weights[f"{name}.conv2.weight"]))
            if block == 0:
                shortcut = np.tensordot(
                    weights[f"{name}.shortcut.0.weight"][:, :, 0, 0].astype(np.float64), x[:, ::2], 1
                )
                x = _norm(weights, f"{name}.shortcut.1", shortcut)
            x = _relu(x + y)
    x = _relu(_norm(weights, "head.bn2", _conv2d(x, weights["head.conv2.weight"], 2)))
    return x.reshape(-1, x.shape[2])


def dense(weights: Weights, x: np.ndarray) -> np.ndarray:
    """(192,) from the head's output (320, T)."""
    x = _conv1d(x, weights["xvector.tdnn.linear.weight"], stride=2)
    x = _relu(_norm(weights, "xvector.tdnn.nonlinear.batchnorm", x))
    for block, (layers, dilation) in enumerate(((12, 1), (24, 2), (16, 2)), start=1):
        for layer in range(1, layers + 1):
            x = np.concatenate([x, dense_layer(weights, f"xvector.block{block}.tdnnd{layer}", x, dilation)])
        name = f"xvector.transit{block}"
        x = _relu(_norm(weights, f"{name}.nonlinear.batchnorm", x))
        x = weights[f"{name}.linear.weight"][:, :, 0].astype(np.float64) @ x
    x = _relu(_norm(weights, "xvector.out_nonlinear.batchnorm", x))
    pooled = np.concatenate([x.mean(axis=1), x.std(axis=1, ddof=1)])
    pooled = weights["xvector.dense.linear.weight"][:, :, 0].astype(np.float64) @ pooled
    return _relu(_norm(weights, "xvector.dense.nonlinear.batchnorm", pooled))


def dense_layer(weights: Weights, name: str, x: np.ndarray, dilation: int) -> np.ndarray:
    """The 32 channels (32, T) that one dense layer makes of its input (C, T)."""
    hidden = _relu(_norm(weights, f"{name}.nonlinear1.batchnorm", x))
    hidden = weights[f"{name}.linear1.weight"][:, :, 0].astype(np.float64) @ hidden
    hidden = _relu(_norm(weights, f"{name}.nonlinear2.batchnorm", hidden))
    cam = f"{name}.cam_layer"
    context = np.empty_like(hidden)
    for start in range(0, hidden.shape[1], 100):
        context[:, start : start + 100] = hidden[:, start : start + 100].mean(axis=1, keepdims=True)
    context += hidden.mean(axis=1, keepdims=True)
    for number in (1, 2):
        weight, bias = weights[f"{cam}.linear{number}.weight"][:, :, 0], weights[f"{cam}.linear{number}.bias"]
        context = weight.astype(np.float64) @ context + bias[:, None]
        context = _relu(context) if number == 1 else 1.0 / (1.0 + np.exp(-context))
    return _conv1d(hidden, weights[f"{cam}.linear_local.weight"], dilation=dilation) * context


def _norm(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    mean, variance = (weights[f"{name}.running_{part}"].astype(np.float64) for part in ("mean", "var"))
    scale = weights.get(f"{name}.weight", np.ones_like(mean)) / np.sqrt(variance + 1e-5)
    shift = weights.get(f"{name}.bias", np.zeros_like(mean)) - mean * scale
    shape = (-1, *[1] * (x.ndim - 1))
    return x * scale.reshape(shape) + shift.reshape(shape)


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def _conv2d(x: np.ndarray, weight: np.ndarray, stride: int = 1) -> np.ndarray:
    """3x3, padding 1, stride over the first of the two axes: (C, H, W) to (C_out, H / stride, W)."""
    height, width = x.shape[1:]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    out = np.zeros((weight.shape[0], height // stride, width))
    for i in range(3):
        for j in range(3):
            out += np.tensordot(
                weight[:, :, i, j].astype(np.float64), padded[:, i : i + height : stride, j : j + width], 1
            )
    return out


def _conv1d(x: np.ndarray, weight: np.ndarray, stride: int = 1, dilation: int = 1) -> np.ndarray:
    taps = weight.shape[2]
    reach = (taps - 1) // 2 * dilation
    padded = np.pad(x, ((0, 0), (reach, reach)))
    length = (x.shape[1] - 1) // stride + 1
    out = np.zeros((weight.shape[0], length))
    for k in range(taps):
        out += weight[:, :, k].astype(np.float64) @ padded[:, k * dilation :: stride][:, :length]
    return out
