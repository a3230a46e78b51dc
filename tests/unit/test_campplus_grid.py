"""CAM++ embeddings from pieces on a half-second grid."""

from __future__ import annotations

import numpy as np
import pytest

from diarize.backend.cpu import CpuBackend
from diarize.errors import OptionError
from diarize.framing import FRAMES_PER_WINDOW
from diarize.model.campplus import CampPlusEmbedder
from diarize.model.campplus_grid import CampPlusGridEmbedder, piece_shares
from diarize.model.fbank import Filterbank
from diarize.model.weights import load_campplus


@pytest.fixture(scope="module")
def embedder() -> CampPlusGridEmbedder:
    return CampPlusGridEmbedder(load_campplus(), CpuBackend())


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    noise = np.random.default_rng(8).standard_normal(12 * 16_000)
    return (0.05 * noise * (1.1 + np.sin(np.arange(len(noise)) / 1500.0))).astype(np.float32)


@pytest.fixture(scope="module")
def masks() -> np.ndarray:
    masks = np.zeros((3, 3, FRAMES_PER_WINDOW), bool)
    masks[:, 0, 60:200] = True
    masks[1, 2, 400:] = True
    masks[2, 1, 300:340] = True  # 0.68 s: no piece is half full
    return masks


def test_shares_count_filterbank_frames(masks: np.ndarray) -> None:
    shares = piece_shares(masks)
    frames = masks[0, 0][np.arange(998) * 589 // 998]
    assert shares.shape == (3, 3, 18)
    assert shares[0, 0].tolist() == [frames[start : start + 148].sum() / 148 for start in range(0, 851, 50)]


def test_embedding_is_the_weighted_average_of_pieces(
    embedder: CampPlusGridEmbedder, samples: np.ndarray, masks: np.ndarray
) -> None:
    found = embedder.embed(samples, 3, 16_000, masks)[1, 0]
    features = Filterbank("povey").features(samples)[100:]
    network = CampPlusEmbedder(load_campplus(), CpuBackend())
    total, weights = np.zeros(192), 0.0
    for piece, share in enumerate(piece_shares(masks)[1, 0]):
        if share >= 0.5:
            total += share**3 * network.embed_features(features[50 * piece : 50 * piece + 148])
            weights += share**3
    assert weights > 1.0
    np.testing.assert_allclose(found, total / weights, rtol=1e-5, atol=1e-6)


def test_no_embedding_without_a_half_full_piece(
    embedder: CampPlusGridEmbedder, samples: np.ndarray, masks: np.ndarray
) -> None:
    found = embedder.embed(samples, 3, 16_000, masks)
    assert np.isnan(found).all(axis=2).tolist() == [[False, True, True], [False, True, False], [False, True, True]]


def test_result_does_not_depend_on_the_cut_into_stretches(
    embedder: CampPlusGridEmbedder, samples: np.ndarray, masks: np.ndarray
) -> None:
    whole = embedder.embed(samples, 3, 16_000, masks)
    apart = [embedder.embed(samples[w * 16_000 :][:160_000], 1, 16_000, masks[w : w + 1]) for w in range(3)]
    assert whole.tobytes() == np.concatenate(apart).tobytes()


def test_silence_needs_no_pieces(embedder: CampPlusGridEmbedder, samples: np.ndarray, masks: np.ndarray) -> None:
    assert np.isnan(embedder.embed(samples, 3, 16_000, np.zeros_like(masks))).all()


def test_step_off_the_grid_is_refused(embedder: CampPlusGridEmbedder, samples: np.ndarray, masks: np.ndarray) -> None:
    with pytest.raises(OptionError, match=r"12000.*multiple of 8000"):
        embedder.embed(samples, 3, 12_000, masks)
