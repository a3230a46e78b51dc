"""ResNet34 against float64 sums over shifted images, and against torch where it is installed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from diarize.backend.cpu import CpuBackend
from diarize.errors import ModelError
from diarize.model.resnet34 import ResNet34Embedder, resnet34_layers, trunk_masks
from tests.tools.random_resnet34 import random_resnet34

Weights = dict[str, np.ndarray]

# Float32 through 36 convolutions, most of them by Winograd: about 1e-5 of the embedding's length.
RELATIVE_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_resnet34(3)


@pytest.fixture(scope="module")
def embedder(weights: Weights) -> ResNet34Embedder:
    return ResNet34Embedder(weights, CpuBackend())


def audio(seconds: float, seed: int = 0) -> np.ndarray:
    """Noise with a spectrum and a loudness that change several times a second."""
    random = np.random.default_rng(seed)
    size = int(seconds * 16_000)
    time = np.arange(size) / 16_000
    voice = sum(np.sin(2 * np.pi * k * 140 * time + np.sin(5 * time + k)) / k for k in range(1, 12))
    loudness = np.interp(
        time, np.arange(0, seconds + 1, 0.15)[: int(seconds / 0.15) + 2], random.random(int(seconds / 0.15) + 2)
    )
    return (0.2 * loudness * voice + 0.01 * random.standard_normal(size)).astype(np.float32)


def some_masks(num_windows: int, seed: int = 0) -> np.ndarray:
    """Speech of about a second each; the third speaker silent in even windows, nobody in window 1."""
    random = np.random.default_rng(seed)
    masks = np.repeat(random.random((num_windows, 3, 31)) < 0.5, 19, axis=2)[:, :, :589].copy()
    masks[::2, 2] = False
    if num_windows > 1:
        masks[1] = False
    return masks


def reference_trunk(weights: Weights, features: np.ndarray) -> np.ndarray:
    """Float64 trunk (2560, steps) of features (80, frames), channels first, batch norm applied as such."""
    tensors = {name.removeprefix("resnet."): value.astype(np.float64) for name, value in weights.items()}

    def convolve(x: np.ndarray, name: str, norm: str, stride: int) -> np.ndarray:
        kernel = tensors[f"{name}.weight"]
        size = kernel.shape[2]
        rows, columns = -(-x.shape[1] // stride), -(-x.shape[2] // stride)
        padded = np.pad(x, ((0, 0), (size // 2, size // 2), (size // 2, size // 2)))
        total = np.zeros((len(kernel), rows, columns))
        for i in range(size):
            for j in range(size):
                taps = padded[:, i : i + stride * rows : stride, j : j + stride * columns : stride]
                total += np.tensordot(kernel[:, :, i, j], taps[:, :rows, :columns], 1)
        gamma, beta, mean, variance = (
            tensors[f"{norm}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (total - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    x = np.maximum(convolve(features[None].astype(np.float64), "conv1", "bn1", 1), 0)
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            inner = np.maximum(convolve(x, f"{name}.conv1", f"{name}.bn1", stride), 0)
            branch = convolve(inner, f"{name}.conv2", f"{name}.bn2", 1)
            if stride == 2:
                x = convolve(x, f"{name}.shortcut.0", f"{name}.shortcut.1", stride)
            x = np.maximum(x + branch, 0)
    return x.reshape(2560, -1)


def reference_embedding(weights: Weights, trunk: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Float64 embedding from a trunk (2560, steps) and one speaker's weights (steps)."""
    v1, v2 = w.sum() + 1e-8, (w * w).sum()
    mean = trunk @ w / v1
    deviation = np.sqrt(((trunk - mean[:, None]) ** 2) @ w / (v1 - v2 / v1 + 1e-8))
    statistics = np.concatenate([mean, deviation])
    return weights["resnet.seg_1.weight"].astype(np.float64) @ statistics + weights["resnet.seg_1.bias"]


def window_weights(mask: np.ndarray) -> np.ndarray:
    """Float64 weights (125) of one mask (589)."""
    return np.array([mask[i * 589 // 125] for i in range(125)], np.float64)


def relative_error(value: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(value - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("frames", [1, 97])
def test_matches_float64_reference(embedder: ResNet34Embedder, weights: Weights, frames: int) -> None:
    features = embedder.filterbank.features(audio(frames / 100 + 0.02))[:frames]
    features -= features.mean(0) + 0.5
    steps = -(-frames // 8)
    masks = np.random.default_rng(0).random((3, steps)).astype(np.float32)
    masks[:, 0] = 1
    embeddings = embedder.project(embedder.statistics(features, masks))
    trunk = reference_trunk(weights, features.T)
    for mask, embedding in zip(masks, embeddings, strict=True):
        assert relative_error(embedding, reference_embedding(weights, trunk, mask)) < RELATIVE_TOLERANCE


def test_matches_torch(embedder: ResNet34Embedder, weights: Weights) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    tensors = {name.removeprefix("resnet."): torch.from_numpy(value) for name, value in weights.items()}

    def normalised(x: object, name: str, norm: str, stride: int) -> object:
        kernel = tensors[f"{name}.weight"]
        x = functional.conv2d(x, kernel, stride=stride, padding=kernel.shape[2] // 2)
        running = tensors[f"{norm}.running_mean"], tensors[f"{norm}.running_var"]
        return functional.batch_norm(x, *running, tensors[f"{norm}.weight"], tensors[f"{norm}.bias"])

    samples, masks = audio(10, seed=1), some_masks(1, seed=1)
    features = embedder.filterbank.features(samples)
    x = torch.from_numpy((features - features.mean(0)).T.copy())[None, None]
    with torch.no_grad():
        x = torch.relu(normalised(x, "conv1", "bn1", 1))
        for stage, blocks in enumerate((3, 4, 6, 3), start=1):
            for block in range(blocks):
                name = f"layer{stage}.{block}"
                stride = 2 if block == 0 and stage > 1 else 1
                inner = torch.relu(normalised(x, f"{name}.conv1", f"{name}.bn1", stride))
                branch = normalised(inner, f"{name}.conv2", f"{name}.bn2", 1)
                if stride == 2:
                    x = normalised(x, f"{name}.shortcut.0", f"{name}.shortcut.1", stride)
                x = torch.relu(x + branch)
    trunk = x.numpy().reshape(2560, -1).astype(np.float64)
    embeddings = embedder.embed(samples, 1, 16_000, masks)
    for speaker in range(2):
        expected = reference_embedding(weights, trunk, window_weights(masks[0, speaker]))
        assert relative_error(embeddings[0, speaker], expected) < RELATIVE_TOLERANCE


def test_empty_weights_give_the_bias(embedder: ResNet34Embedder, weights: Weights) -> None:
    features = np.random.default_rng(0).standard_normal((998, 80)).astype(np.float32)
    statistics = embedder.statistics(features, np.zeros((1, 125), np.float32))
    assert np.array_equal(embedder.project(statistics)[0], weights["resnet.seg_1.bias"])


def test_a_window_alone_is_the_same_bytes(embedder: ResNet34Embedder) -> None:
    samples, masks = audio(13), some_masks(4)
    together = embedder.embed(samples, 4, 16_000, masks)
    for w in range(4):
        alone = embedder.embed(samples[w * 16_000 : w * 16_000 + 160_000], 1, 16_000, masks[w : w + 1])
        assert alone.tobytes() == together[w : w + 1].tobytes()


def test_other_steps_agree_with_windows_alone(embedder: ResNet34Embedder) -> None:
    samples, masks = audio(11), some_masks(1).repeat(2, 0)
    together = embedder.embed(samples, 2, 15_999, masks)
    alone = embedder.embed(samples[15_999:], 1, 16_000, masks[1:])
    assert alone.tobytes() == together[1:].tobytes()


def test_silent_speakers_are_nan_and_silent_windows_are_skipped(
    embedder: ResNet34Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    statistics = embedder.statistics

    def counted(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
        seen.append(len(weights))
        return statistics(features, weights)

    monkeypatch.setattr(embedder, "statistics", counted)
    embeddings = embedder.embed(audio(12), 3, 16_000, some_masks(3))
    silent = np.array([[False, False, True], [True, True, True], [False, False, True]])
    assert np.array_equal(np.isnan(embeddings).all(2), silent)
    assert np.array_equal(np.isnan(embeddings).any(2), silent)
    assert seen == [2, 2]
    assert np.isnan(embedder.embed(audio(10), 1, 16_000, np.zeros((1, 3, 589), bool))).all()


def test_short_audio_is_padded_with_zeros(embedder: ResNet34Embedder) -> None:
    samples, masks = audio(4), some_masks(1)
    padded = np.concatenate([samples, np.zeros(96_000, np.float32)])
    assert embedder.embed(samples, 1, 16_000, masks).tobytes() == embedder.embed(padded, 1, 16_000, masks).tobytes()


def test_mask_steps() -> None:
    masks = np.arange(589)[None, None] % 7 == 0
    assert trunk_masks(masks)[0, 0].tolist() == [float((i * 589 // 125) % 7 == 0) for i in range(125)]


def test_prefix_is_optional(weights: Weights) -> None:
    plain = resnet34_layers({name.removeprefix("resnet."): value for name, value in weights.items()})
    assert len(plain) == 38
    for one, other in zip(plain, resnet34_layers(weights), strict=True):
        assert one == other
        assert all(np.array_equal(one.weights[name], other.weights[name]) for name in other.weights)


def test_missing_tensor(weights: Weights) -> None:
    damaged = {name: value for name, value in weights.items() if "layer3.2.bn1.bias" not in name}
    with pytest.raises(ModelError, match=r"layer3\.2\.bn1\.bias"):
        resnet34_layers(damaged)


def test_two_threads_give_the_same_bytes(embedder: ResNet34Embedder) -> None:
    samples, masks = audio(11), some_masks(1).repeat(2, 0)
    alone = embedder.embed(samples, 2, 16_000, masks)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: embedder.embed(samples, 2, 16_000, masks), range(2)))
    assert [embeddings.tobytes() for embeddings in both] == [alone.tobytes()] * 2
