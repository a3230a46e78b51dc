"""Gathering frames for CAM++ embeddings, and agreement with embeddings of real recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diarize.backend.cpu import CpuBackend
from diarize.framing import FRAMES_PER_WINDOW
from diarize.model.campplus import CampPlusEmbedder
from diarize.model.fbank import Filterbank
from diarize.model.weights import load_campplus

STEP = 16_000


@pytest.fixture(scope="module")
def embedder() -> CampPlusEmbedder:
    return CampPlusEmbedder(load_campplus(), CpuBackend())


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    """12 s of noise whose loudness and colour change, so that every frame differs."""
    random = np.random.default_rng(5)
    noise = np.convolve(random.standard_normal(12 * 16_000), np.hanning(9), "same")
    return (0.05 * noise * (1.1 + np.sin(np.arange(len(noise)) / 1500.0))).astype(np.float32)


@pytest.fixture(scope="module")
def masks() -> np.ndarray:
    masks = np.zeros((3, 3, FRAMES_PER_WINDOW), bool)
    masks[:, 0, 40:130] = True
    masks[:, 0, 400:460] = True
    masks[1, 2, 130:400] = True
    masks[0, 1, :11] = True  # 19 filterbank frames: one too few
    masks[1, 1, :12] = True  # 21
    return masks


def test_frames_are_gathered_on_the_ten_millisecond_grid(
    embedder: CampPlusEmbedder, samples: np.ndarray, masks: np.ndarray
) -> None:
    found = embedder.embed(samples, 3, STEP, masks)
    features = Filterbank("povey").features(samples)
    chosen = [i for i in range(998) if masks[1, 0, i * 589 // 998]]
    expected = embedder.embed_features(features[100:1098][chosen])
    assert found.shape == (3, 3, 192)
    assert found.dtype == np.float32
    assert found[1, 0].tobytes() == expected.tobytes()


def test_too_few_frames_give_no_embedding(embedder: CampPlusEmbedder, samples: np.ndarray, masks: np.ndarray) -> None:
    found = embedder.embed(samples, 3, STEP, masks)
    missing = np.isnan(found).all(axis=2)
    assert missing.tolist() == [[False, True, True], [False, False, False], [False, True, True]]
    assert np.isfinite(found[~missing]).all()


def test_result_does_not_depend_on_the_cut_into_stretches(
    embedder: CampPlusEmbedder, samples: np.ndarray, masks: np.ndarray
) -> None:
    whole = embedder.embed(samples, 3, STEP, masks)
    apart = [embedder.embed(samples[w * STEP : w * STEP + 160_000], 1, STEP, masks[w : w + 1]) for w in range(3)]
    assert whole.tobytes() == np.concatenate(apart).tobytes()


def test_samples_past_the_end_count_as_zeros(
    embedder: CampPlusEmbedder, samples: np.ndarray, masks: np.ndarray
) -> None:
    padded = np.concatenate([samples[:100_000], np.zeros(60_000, np.float32)])
    short = embedder.embed(samples[:100_000], 1, STEP, masks[:1])
    assert short.tobytes() == embedder.embed(padded, 1, STEP, masks[:1]).tobytes()


def test_step_that_is_no_multiple_of_a_frame(
    embedder: CampPlusEmbedder, samples: np.ndarray, masks: np.ndarray
) -> None:
    found = embedder.embed(samples, 2, 15_001, masks[:2])
    expected = embedder.embed(samples[15_001:], 1, STEP, masks[1:2])
    assert found[1].tobytes() == expected[0].tobytes()


@pytest.mark.parametrize(
    ("fixture", "recording"),
    [("golden_sample.npz", "pyannote_sample/sample.flac"), ("golden_aepyx.npz", "voxconverse/aepyx.flac")],
)
def test_real_recordings(fixture: str, recording: str, shared: Path, embedder: CampPlusEmbedder) -> None:
    soundfile = pytest.importorskip("soundfile")
    golden = np.load(shared / "fixtures" / "campplus" / fixture)
    samples, _ = soundfile.read(shared / "data" / recording, dtype="float32")
    windows = np.arange(0, len(golden["segmentation"]), 20)
    for window in windows:
        active = golden["segmentation"][window].astype(bool)
        clean = active & (active.sum(axis=1, keepdims=True) == 1)
        mask = np.where(clean.sum(axis=0) > 2, clean, active).T
        found = embedder.embed(samples[window * STEP :], 1, STEP, mask[None])[0]
        expected = golden["embeddings"][window]
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        # The captured embeddings are themselves 2e-3 to 3e-3 away from a float64 run of the same weights, which the
        # kernels match to 5e-6; rounding the features to float16 alone moves an embedding by 8e-3.
        error = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert np.nanmax(error, initial=0.0) < 6e-3
