"""CAM++ kernels on the CPU against plain float64 numpy, and the promise that neighbours never change a bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tools import campplus_reference

from diarize.backend.cpu import CpuBackend
from diarize.layers import Layer, Op
from diarize.model.campplus import BLOCKS, CampPlusEmbedder, campplus_layers
from diarize.model.weights import load_campplus

# Odd lengths, one frame around each 100-row context border (200 frames), and a whole window.
LENGTHS = (20, 21, 99, 100, 101, 199, 200, 201, 398, 399, 400, 998)

# float32 sums of up to 3,000 terms and two Winograd transforms in a row; measured 1e-6 to 5e-6.
TOLERANCE = 5e-5


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return load_campplus()


@pytest.fixture(scope="module")
def embedder(weights: dict[str, np.ndarray]) -> CampPlusEmbedder:
    return CampPlusEmbedder(weights, CpuBackend())


def sequence(length: int, seed: int = 0) -> np.ndarray:
    """Features with the level, spread and smoothness over time of real log-mel frames."""
    noise = np.random.default_rng([seed, length]).standard_normal((length + 4, 80))
    smooth = np.sum([noise[i : length + i] for i in range(5)], axis=0)
    return (5.0 + 1.2 * smooth).astype(np.float32)


@pytest.mark.parametrize("length", LENGTHS)
def test_embedding_equals_float64_reference(
    length: int, weights: dict[str, np.ndarray], embedder: CampPlusEmbedder
) -> None:
    features = sequence(length)
    expected = campplus_reference.embedding(weights, features)
    found = embedder.embed_features(features)
    assert found.shape == (192,)
    assert found.dtype == np.float32
    assert np.linalg.norm(found - expected) <= TOLERANCE * np.linalg.norm(expected)


def test_head_equals_float64_reference(weights: dict[str, np.ndarray]) -> None:
    layer = next(layer for layer in campplus_layers(weights) if layer.op is Op.CAM_HEAD)
    lengths, starts, columns = (67, 50), (4, 76), 248
    features = np.zeros((columns, 80), np.float32)
    for start, length in zip(starts, lengths, strict=True):
        features[start : start + length] = sequence(length) - 5.0
    out = np.full((columns, 320), np.nan, np.float32)
    CpuBackend().prepare(layer)([features, np.array(list(zip(starts, lengths, strict=True)))], [out])
    for start, length in zip(starts, lengths, strict=True):
        expected = campplus_reference.head(weights, features[start : start + length].T.astype(np.float64))
        found = out[start : start + length].reshape(length, 10, 32).transpose(2, 1, 0).reshape(320, length)
        assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()
    # The next layer reads two columns beyond a sequence and needs zeros there.
    assert not out[71:76].any()
    assert not out[126:128].any()


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_transit_equals_float64_product(activation: str) -> None:
    random = np.random.default_rng(3)
    lengths, starts, rows, channels, outputs = (10, 37, 1), (2, 14, 54), 124, 160, 128
    x = random.standard_normal((rows, channels)).astype(np.float32)
    scale, shift, bias = (random.standard_normal(n).astype(np.float32) for n in (channels, channels, outputs))
    weight = random.standard_normal((outputs, channels)).astype(np.float32)
    weights = {"scale": scale, "shift": shift, "weight": weight, "bias": bias}
    spans = np.array(list(zip(starts, lengths, strict=True)))
    out = np.full((rows, 2 * outputs), np.nan, np.float32)
    CpuBackend().prepare(Layer("transit", Op.CAM_TRANSIT, weights, {"activation": activation}))([x, spans], [out])
    exact = np.maximum(x.astype(np.float64) * scale + shift, 0.0) @ weight.T.astype(np.float64) + bias
    expected = np.maximum(exact, 0.0) if activation == "relu" else exact
    for start, length in spans:
        found = out[start : start + length, :outputs]
        # Sums of 160 terms of size 1 and Strassen's differences of them.
        assert np.abs(found - expected[start : start + length]).max() < 2e-4
    assert np.isnan(out[:, outputs:]).all()


@pytest.mark.parametrize("number", [0, 1])
def test_block_equals_float64_layers(number: int, weights: dict[str, np.ndarray]) -> None:
    layer = [layer for layer in campplus_layers(weights) if layer.op is Op.CAM_BLOCK][number]
    depth, dilation = BLOCKS[number]
    channels = layer.weights["0.scale"].size
    width = channels + 32 * depth
    spans = np.array([[2, 101], [106, 45], [154, 11]])
    x = np.full((244, width), np.inf, np.float32)
    for start, length in spans:
        x[start : start + length, :channels] = np.random.default_rng(length).standard_normal((length, channels))
    inputs = x.copy()
    CpuBackend().prepare(layer)([spans], [x])
    for start, length in spans:
        expected = inputs[start : start + length, :channels].T.astype(np.float64)
        for index in range(depth):
            name = f"xvector.block{number + 1}.tdnnd{index + 1}"
            expected = np.concatenate([expected, campplus_reference.dense_layer(weights, name, expected, dilation)])
        found = x[start : start + length]
        assert np.abs(found - expected.T).max() <= TOLERANCE * np.abs(expected).max()


def test_statistics_equal_float64() -> None:
    x = np.random.default_rng(4).standard_normal((40, 8)).astype(np.float32) + 3.0
    spans, out = np.array([[2, 2], [6, 30]]), np.empty((2, 16), np.float32)
    CpuBackend().prepare(Layer("pool", Op.STATISTICS))([x, spans], [out])
    for row, (start, length) in zip(out, spans, strict=True):
        part = x[start : start + length].astype(np.float64)
        np.testing.assert_allclose(row, np.concatenate([part.mean(axis=0), part.std(axis=0, ddof=1)]), rtol=1e-6)


def test_neighbours_do_not_change_a_bit(embedder: CampPlusEmbedder) -> None:
    sequences = [sequence(length, seed=1) for length in (21, 400, 103, 20, 201)]
    together = embedder.embed_many(sequences)
    alone = np.stack([embedder.embed_features(features) for features in sequences])
    backwards = embedder.embed_many(sequences[::-1])[::-1]
    assert together.tobytes() == alone.tobytes()
    assert together.tobytes() == np.ascontiguousarray(backwards).tobytes()


def test_two_threads_give_the_same_bytes(embedder: CampPlusEmbedder) -> None:
    batches = [[sequence(length, seed=seed) for length in (150 + seed, 61)] for seed in range(6)]
    expected = [embedder.embed_many(batch).tobytes() for batch in batches]
    with ThreadPoolExecutor(2) as pool:
        found = [result.tobytes() for result in pool.map(embedder.embed_many, batches)]
    assert found == expected
