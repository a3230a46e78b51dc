"""Kaldi-compatible log-mel filterbank: 80 bands, frames of 25 ms every 10 ms, without the mean subtraction.

Responsible for the numbers that define it (windows, mel triangles, floor); the arithmetic is a backend's.
"""

from __future__ import annotations

import numpy as np

from ..backend.base import Backend
from ..errors import ModelError
from ..layers import Layer, Op

NUM_MELS = 80
FRAME_LENGTH = 400
FRAME_STEP = 160
_FFT_LENGTH = 512
_SAMPLE_RATE = 16_000
_LOWEST_HZ, _HIGHEST_HZ = 20.0, 8_000.0
# Kaldi works on 16-bit sample values; its floor is float32's machine epsilon.
_SAMPLE_SCALE = 32_768.0
_FLOOR = 1.1920929e-07


def num_frames(num_samples: int) -> int:
    """Number of whole frames in `num_samples` samples.

    >>> [num_frames(n) for n in (399, 400, 559, 560, 160_000)]
    [0, 1, 1, 2, 998]
    """
    return max(0, (num_samples - FRAME_LENGTH) // FRAME_STEP + 1)


def analysis_window(name: str) -> np.ndarray:
    """(400,) float64 weights of the "hamming" or "povey" window, both symmetric.

    Raises
    ------
    ModelError
        Another name.
    """
    cosine = np.cos(2.0 * np.pi * np.arange(FRAME_LENGTH) / (FRAME_LENGTH - 1))
    if name == "hamming":
        return 0.54 - 0.46 * cosine
    if name == "povey":
        return (0.5 - 0.5 * cosine) ** 0.85
    raise ModelError(f"unknown analysis window {name!r}: choose hamming or povey")


def mel_filters() -> np.ndarray:
    """(80, 256) float64 triangular weights over the bins 0 .. 255 of a 512-point transform, HTK mel scale."""

    def mel(hertz: np.ndarray | float) -> np.ndarray:
        return 1127.0 * np.log1p(np.asarray(hertz) / 700.0)

    corners = np.linspace(mel(_LOWEST_HZ), mel(_HIGHEST_HZ), NUM_MELS + 2)
    left, centre, right = (corners[i : NUM_MELS + i, None] for i in range(3))
    bins = mel(np.arange(_FFT_LENGTH // 2) * (_SAMPLE_RATE / _FFT_LENGTH))
    return np.maximum(0.0, np.minimum((bins - left) / (centre - left), (right - bins) / (right - centre)))


def log_mel_layer(window: str) -> Layer:
    """The filterbank with the analysis window of this name as a layer."""
    # Scaling by a power of two is exact, so it may as well sit in the window.
    weights = {"window": analysis_window(window) * _SAMPLE_SCALE, "mel": mel_filters()}
    return Layer("fbank", Op.LOG_MEL, {name: a.astype(np.float32) for name, a in weights.items()}, {"floor": _FLOOR})


class Filterbank:
    """Log-mel features of audio, computed once for a stretch of any length.

    `window` is "hamming" (ResNet34) or "povey" (CAM++). Without a backend the CPU's kernel is used.

    References
    ----------
    Povey et al. 2011, The Kaldi speech recognition toolkit (feat/feature-fbank).
    """

    def __init__(self, window: str = "hamming", backend: Backend | None = None) -> None:
        layer = log_mel_layer(window)
        if backend is None:
            from ..backend.cpu import CpuBackend

            backend = CpuBackend()
        self._backend = backend
        self._run = backend.prepare(layer)

    def features(self, samples: np.ndarray) -> np.ndarray:
        """Log-mel energies of every whole frame.

        Parameters
        ----------
        samples
            (num_samples,) float32 in [-1, 1], 16 kHz.

        Returns
        -------
        np.ndarray
            (num_frames, 80) float32, natural logarithms. Frame t covers samples 160 t to 160 t + 399; its values do
            not depend on what surrounds it.
        """
        out = np.empty((num_frames(len(samples)), NUM_MELS), np.float32)
        buffer = self._backend.put(out)
        self._run([self._backend.put(np.ascontiguousarray(samples, np.float32))], [buffer])
        return self._backend.get(buffer)
