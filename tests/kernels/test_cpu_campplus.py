"""CAM++ kernels on the CPU against plain float64 numpy, and the promise that neighbours never change a bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tools import campplus_reference

from diarize.backend.cpu import CpuBackend
from diarize.layers import Op
from diarize.model.campplus import CampPlusEmbedder, campplus_layers
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
