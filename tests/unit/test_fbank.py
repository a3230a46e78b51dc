"""The filterbank against a float64 one written from the definition, and its independence of what surrounds a frame."""

from __future__ import annotations

import numpy as np
import pytest

from diarize.errors import ModelError
from diarize.model.fbank import Filterbank, analysis_window, mel_filters, num_frames

# Float32 noise is largest where a band's energy almost cancels; spectra of real audio stay far below this.
LOG_TOLERANCE = 1e-3


def reference(samples: np.ndarray, window: str) -> np.ndarray:
    """Float64 log-mel energies by the textbook, frame by frame."""
    n = np.arange(400)
    weights = 0.54 - 0.46 * np.cos(2 * np.pi * n / 399)
    if window == "povey":
        weights = (0.5 - 0.5 * np.cos(2 * np.pi * n / 399)) ** 0.85
    rows = []
    edges = np.linspace(1127 * np.log(1 + 20 / 700), 1127 * np.log(1 + 8000 / 700), 82)
    for t in range(num_frames(len(samples))):
        frame = samples[160 * t : 160 * t + 400].astype(np.float64) * 32768
        frame = frame - frame.mean()
        frame = frame - 0.97 * np.concatenate([frame[:1], frame[:-1]])
        power = np.abs(np.fft.rfft(frame * weights, 512)) ** 2
        row = []
        for left, centre, right in zip(edges, edges[1:], edges[2:], strict=False):
            total = 0.0
            for k in range(256):
                mel = 1127 * np.log(1 + k * 31.25 / 700)
                if left < mel < right:
                    rising = mel <= centre
                    weight = (mel - left) / (centre - left) if rising else (right - mel) / (right - centre)
                    total += weight * power[k]
            row.append(np.log(max(total, 1.1920929e-07)))
        rows.append(row)
    return np.array(rows)


def speech_like(num_samples: int, seed: int = 0) -> np.ndarray:
    """Tones, a drifting level and noise: a wide dynamic range with an offset."""
    random = np.random.default_rng(seed)
    time = np.arange(num_samples) / 16_000
    tones = sum(np.sin(2 * np.pi * f * time + f) / (1 + f / 500) for f in (120, 240, 700, 1900, 3400, 6100))
    samples = 0.1 * tones * (1.2 + np.sin(9 * time)) + 0.003 * random.standard_normal(num_samples) + 0.01
    return samples.astype(np.float32)


@pytest.mark.parametrize("window", ["hamming", "povey"])
def test_matches_float64_reference(window: str) -> None:
    samples = speech_like(160 * 40 + 559)
    features = Filterbank(window).features(samples)
    expected = reference(samples, window)
    assert features.shape == expected.shape == (41, 80)
    assert features.dtype == np.float32
    assert np.abs(features - expected).max() < LOG_TOLERANCE


def test_windows_differ() -> None:
    samples = speech_like(1600)
    assert np.abs(Filterbank("hamming").features(samples) - Filterbank("povey").features(samples)).max() > 0.01


@pytest.mark.parametrize("first", [1, 7, 15, 16, 17, 33])
def test_frame_does_not_depend_on_its_stretch(first: int) -> None:
    samples = speech_like(160 * 60 + 400)
    filterbank = Filterbank()
    whole = filterbank.features(samples)
    for count in (1, 15, 16, 17, 27):
        part = filterbank.features(samples[160 * first : 160 * (first + count - 1) + 400])
        assert part.tobytes() == whole[first : first + count].tobytes()


@pytest.mark.parametrize(("samples", "frames"), [(0, 0), (399, 0), (400, 1), (559, 1), (560, 2)])
def test_edges_are_snipped(samples: int, frames: int) -> None:
    assert Filterbank().features(speech_like(samples)).shape == (frames, 80)


def test_silence_is_the_floor() -> None:
    features = Filterbank().features(np.zeros(720, np.float32))
    assert np.allclose(features, np.log(np.float32(1.1920929e-07)))


def test_matches_torchaudio() -> None:
    kaldi = pytest.importorskip("torchaudio.compliance.kaldi")
    torch = pytest.importorskip("torch")
    samples = speech_like(160 * 99 + 400)
    expected = kaldi.fbank(torch.from_numpy(samples)[None] * 32768, num_mel_bins=80, window_type="hamming", dither=0.0)
    assert np.abs(Filterbank().features(samples) - expected.numpy()).max() < LOG_TOLERANCE


def test_filters_cover_the_band() -> None:
    filters = mel_filters()
    assert filters.shape == (80, 256)
    assert (filters >= 0).all()
    assert (filters.sum(1) > 0).all()
    assert filters[:, 0].max() == 0


def test_unknown_window() -> None:
    with pytest.raises(ModelError, match="hann"):
        analysis_window("hann")
