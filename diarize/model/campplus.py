"""CAM++ speaker embeddings: 192 values from the filterbank frames in which one speaker speaks.

Responsible for the network's layers and for gathering frames; which frames belong to whom is decided elsewhere.

References
----------
Wang et al. 2023, CAM++: A Fast and Efficient Network for Speaker Verification Using Context-Aware Masking.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..backend.base import Backend, Buffer
from ..framing import FRAMES_PER_WINDOW, WINDOW_SAMPLES
from ..layers import Layer, Op
from .fbank import FRAME_STEP, NUM_MELS, Filterbank, num_frames

DIMENSION = 192
MIN_FRAMES = 20
BLOCKS = ((12, 1), (24, 2), (16, 2))
"""Layers and dilation of the three dense blocks."""
WINDOW_FRAMES = num_frames(WINDOW_SAMPLES)
FRAME_OF = np.arange(WINDOW_FRAMES) * FRAMES_PER_WINDOW // WINDOW_FRAMES
"""Frame of the mask for each filterbank frame of a window."""
_EPSILON = 1e-5

# Sequences share one column axis: starts are multiples of 4 with at least 4 free columns before each, and the axis is
# a multiple of 240 columns plus 8, so that any register tile of 8, 10 or 12 rows fits behind the last one.
_ALIGNMENT = 4
_CAPACITY = 240
# Sequences of one or more windows go through the network together up to this many frames: register tiles are then full
# and the weights are read once for more rows (measured: 83 us a frame at 300 frames, 76 to 78 from 900 to 2,900).
_BATCH_FRAMES = 1_440


class CampPlusEmbedder:
    """Embeddings of local speakers with CAM++ on a backend; may be called from several threads at once.

    `weights` are the tensors of the original checkpoint by name, batch norms not folded.
    """

    dimension = DIMENSION

    def __init__(self, weights: Mapping[str, np.ndarray], backend: Backend) -> None:
        self._backend = backend
        self._filterbank = Filterbank("povey", backend)
        self._run = {layer.id: backend.prepare(layer) for layer in campplus_layers(weights)}
        self._buffers = threading.local()

    def embed(self, samples: np.ndarray, num_windows: int, step_samples: int, masks: np.ndarray) -> np.ndarray:
        """One embedding for each local speaker of each window.

        Parameters
        ----------
        samples
            (num_samples,) float32, 16 kHz; taken as zero past their end.
        num_windows, step_samples
            Windows of 10 s start every `step_samples`.
        masks
            (num_windows, 3, 589) bool: the frames to take the embedding from.

        Returns
        -------
        np.ndarray
            (num_windows, 3, 192) float32, not normalised; NaN where fewer than 20 filterbank frames are left.
        """
        out = np.full((*masks.shape[:2], DIMENSION), np.nan, np.float32)
        places: list[tuple[int, int]] = []
        gathered: list[np.ndarray] = []
        for window, features in enumerate(self._window_features(samples, num_windows, step_samples)):
            for local, mask in enumerate(masks[window]):
                frames = features[mask[FRAME_OF]]
                if len(frames) < MIN_FRAMES:
                    continue
                if gathered and sum(map(len, gathered)) + len(frames) > _BATCH_FRAMES:
                    out[tuple(zip(*places, strict=True))] = self.embed_many(gathered)
                    places, gathered = [], []
                places.append((window, local))
                gathered.append(frames)
        if gathered:
            out[tuple(zip(*places, strict=True))] = self.embed_many(gathered)
        return out

    def features(self, samples: np.ndarray) -> np.ndarray:
        """Log-mel frames (num_frames, 80) float32 of `samples`, mean not subtracted."""
        return self._filterbank.features(samples)

    def embed_features(self, features: np.ndarray) -> np.ndarray:
        """Embedding (192,) float32 of one sequence of log-mel frames (at least 20, 80); its mean is subtracted here."""
        return self.embed_many([features])[0]

    def embed_many(self, sequences: Sequence[np.ndarray]) -> np.ndarray:
        """Embeddings (N, 192) float32 of N sequences (at least 20, 80) float32; each as if it were alone."""
        spans = _spans([len(sequence) for sequence in sequences])
        columns = -(-int(spans[-1].sum()) // _CAPACITY) * _CAPACITY + 2 * _ALIGNMENT
        features = np.zeros((columns, NUM_MELS), np.float32)
        for (start, length), sequence in zip(spans, sequences, strict=True):
            mean = sequence.mean(axis=0, dtype=np.float64).astype(np.float32)
            features[start : start + length] = sequence - mean
        return self._forward(features, spans)

    def _window_features(self, samples: np.ndarray, num_windows: int, step_samples: int) -> Iterator[np.ndarray]:
        padded = np.zeros((num_windows - 1) * step_samples + WINDOW_SAMPLES, np.float32)
        padded[: len(samples)] = samples[: len(padded)]
        if step_samples % FRAME_STEP:
            for window in range(num_windows):
                yield self.features(padded[window * step_samples :][:WINDOW_SAMPLES])
            return
        features = self.features(padded)
        for window in range(num_windows):
            yield features[window * step_samples // FRAME_STEP :][:WINDOW_FRAMES]

    def _forward(self, features: np.ndarray, spans: np.ndarray) -> np.ndarray:
        run, put = self._run, self._backend.put
        head, narrow, middle, wide, last = self._workspace(len(features))
        columns = put(spans)
        rows = put(np.stack([spans[:, 0] // 2, -(-spans[:, 1] // 2)], axis=1))
        run["head"]([put(features), columns], [head])
        run["tdnn"]([head, rows], [narrow])
        run["block1"]([rows], [narrow])
        run["transit1"]([narrow, rows], [middle])
        run["block2"]([rows], [middle])
        run["transit2"]([middle, rows], [wide])
        run["block3"]([rows], [wide])
        run["transit3"]([wide, rows], [last])
        pooled = put(np.empty((len(spans), 2 * 512), np.float32))
        run["pool"]([last, rows], [pooled])
        out = put(np.empty((len(spans), DIMENSION), np.float32))
        run["dense"]([pooled], [out])
        return self._backend.get(out)

    def _workspace(self, columns: int) -> list[Buffer]:
        """Activations of the calling thread, at least `columns` long: head, each block, the pooling."""
        if getattr(self._buffers, "columns", 0) < columns:
            rows = columns // 2
            shapes = [(columns, 320), (rows, 512), (rows, 1024), (rows, 1024), (rows, 512)]
            self._buffers.arrays = [self._backend.put(np.zeros(shape, np.float32)) for shape in shapes]
            self._buffers.columns = columns
        return self._buffers.arrays


def _spans(lengths: Sequence[int]) -> np.ndarray:
    """(N, 2) int64 first column and length of each sequence on the shared axis."""
    spans, free = [], 0
    for length in lengths:
        start = -(-(free + _ALIGNMENT) // _ALIGNMENT) * _ALIGNMENT
        spans.append((start, length))
        free = start + length
    return np.array(spans, np.int64)


def campplus_layers(weights: Mapping[str, np.ndarray]) -> list[Layer]:
    """The network in order: head, tdnn, block1, transit1, block2, transit2, block3, transit3, pool, dense."""
    layers = [_head(weights)]
    scale, shift = _affine(weights, "xvector.tdnn.nonlinear.batchnorm")
    tdnn = weights["xvector.tdnn.linear.weight"] * scale[:, None, None]
    layers.append(Layer("tdnn", Op.CAM_TDNN, _float32(weight=tdnn, bias=shift)))
    for number, (depth, dilation) in enumerate(BLOCKS, start=1):
        parts: dict[str, np.ndarray] = {}
        for index in range(depth):
            parts |= _dense_layer(weights, f"xvector.block{number}.tdnnd{index + 1}", f"{index}.")
        layers.append(Layer(f"block{number}", Op.CAM_BLOCK, _float32(**parts), {"layers": depth, "dilation": dilation}))
        layers.append(_transit(weights, number))
    layers.append(Layer("pool", Op.STATISTICS))
    scale, shift = _affine(weights, "xvector.dense.nonlinear.batchnorm")
    dense = weights["xvector.dense.linear.weight"][:, :, 0] * scale[:, None]
    # The PLDA that ships with this network was trained on embeddings behind a ReLU, so they keep it.
    layers.append(Layer("dense", Op.LINEAR, _float32(weight=dense, bias=shift), {"activation": "relu"}))
    return layers


def _head(weights: Mapping[str, np.ndarray]) -> Layer:
    parts: dict[str, np.ndarray] = {}

    def add(name: str, conv: str, norm: str) -> None:
        scale, shift = _affine(weights, norm)
        parts[name] = weights[f"{conv}.weight"] * scale[:, None, None, None]
        parts[f"{name}_bias"] = shift

    add("stem", "head.conv1", "head.bn1")
    for stage, number in ((1, 0), (2, 3)):
        block = f"head.layer{stage}"
        add(f"strided.{stage - 1}", f"{block}.0.conv1", f"{block}.0.bn1")
        add(f"one.{stage - 1}", f"{block}.0.shortcut.0", f"{block}.0.shortcut.1")
        add(f"square.{number}", f"{block}.0.conv2", f"{block}.0.bn2")
        add(f"square.{number + 1}", f"{block}.1.conv1", f"{block}.1.bn1")
        add(f"square.{number + 2}", f"{block}.1.conv2", f"{block}.1.bn2")
    add("strided.2", "head.conv2", "head.bn2")
    return Layer("head", Op.CAM_HEAD, _float32(**parts))


def _dense_layer(weights: Mapping[str, np.ndarray], source: str, prefix: str) -> dict[str, np.ndarray]:
    scale, shift = _affine(weights, f"{source}.nonlinear1.batchnorm")
    inner_scale, inner_shift = _affine(weights, f"{source}.nonlinear2.batchnorm")
    cam = f"{source}.cam_layer"
    return {
        f"{prefix}scale": scale,
        f"{prefix}shift": shift,
        f"{prefix}linear": weights[f"{source}.linear1.weight"][:, :, 0] * inner_scale[:, None],
        f"{prefix}linear_bias": inner_shift,
        f"{prefix}local": weights[f"{cam}.linear_local.weight"],
        f"{prefix}context1": weights[f"{cam}.linear1.weight"][:, :, 0],
        f"{prefix}context1_bias": weights[f"{cam}.linear1.bias"],
        f"{prefix}context2": weights[f"{cam}.linear2.weight"][:, :, 0],
        f"{prefix}context2_bias": weights[f"{cam}.linear2.bias"],
    }


def _transit(weights: Mapping[str, np.ndarray], number: int) -> Layer:
    source = f"xvector.transit{number}"
    scale, shift = _affine(weights, f"{source}.nonlinear.batchnorm")
    weight = weights[f"{source}.linear.weight"][:, :, 0]
    if number < len(BLOCKS):
        return Layer(
            f"transit{number}",
            Op.CAM_TRANSIT,
            _float32(scale=scale, shift=shift, weight=weight),
            {"activation": "none"},
        )
    # Behind the last one comes a batch norm, which folds into it, and a ReLU.
    out_scale, bias = _affine(weights, "xvector.out_nonlinear.batchnorm")
    folded = _float32(scale=scale, shift=shift, weight=weight * out_scale[:, None], bias=bias)
    return Layer(f"transit{number}", Op.CAM_TRANSIT, folded, {"activation": "relu"})


def _affine(weights: Mapping[str, np.ndarray], norm: str) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift, float64, that a batch norm in inference amounts to."""
    mean, variance = (weights[f"{norm}.running_{part}"].astype(np.float64) for part in ("mean", "var"))
    scale = 1.0 / np.sqrt(variance + _EPSILON)
    if f"{norm}.weight" not in weights:
        return scale, -mean * scale
    scale = scale * weights[f"{norm}.weight"]
    return scale, weights[f"{norm}.bias"] - mean * scale


def _float32(**arrays: np.ndarray) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
