"""How loud a recording is over time, in a few thousand bytes however long it is: what a viewer draws as a waveform."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..audio import open_audio
from ..framing import SAMPLE_RATE

# 5 ms, finer than a screen shows but for the closest look.
_FINEST_SAMPLES = 80
_MAX_BINS = 1 << 17


@dataclass(frozen=True)
class Peaks:
    """Loudness of a recording: `values` (num_bins,) uint8, 255 for its loudest moment; `seconds` is the width of a bin.

    Each value is the largest absolute sample of its bin.
    """

    values: np.ndarray
    seconds: float


def read_peaks(path: str | os.PathLike[str], channel: int | None = None) -> Peaks:
    """Peaks of the recording at `path`, of one channel (counted from 1) or of the mean of all.

    The recording is decoded once more, block by block; an hour of flac takes about a second.

    Raises
    ------
    AudioError
        As `diarize.audio.open_audio`, or damage found while decoding.
    """
    with open_audio(path, channel) as reader:
        return peaks_of(reader)


def peaks_of(blocks: Iterable[np.ndarray], max_bins: int = _MAX_BINS) -> Peaks:
    """Peaks of the concatenation of `blocks`, each (num_samples,) float32 at 16 kHz, in at most `max_bins` bins.

    Bins are 5 ms wide; where that gives too many, twice as wide until they fit. `max_bins` is even.
    """
    bins = np.zeros(max_bins, np.float32)
    filled = 0
    width = _FINEST_SAMPLES
    rest = np.zeros(0, np.float32)
    for block in blocks:
        samples = np.abs(np.concatenate([rest, block]))
        while len(samples) // width > max_bins - filled:
            # All bins filled so far are pairs of the wider ones, but for an odd last one, which waits as samples.
            odd = filled % 2
            samples = np.concatenate([_as_samples(bins[filled - odd : filled], width), samples])
            filled //= 2
            bins[:filled] = bins[: 2 * filled].reshape(-1, 2).max(axis=1)
            width *= 2
        count = len(samples) // width
        bins[filled : filled + count] = samples[: count * width].reshape(count, width).max(axis=1)
        filled += count
        rest = samples[count * width :]
    values = bins[:filled]
    if len(rest):
        values = np.append(values, rest.max())
    loudest = float(values.max()) if len(values) else 0.0
    scaled = values * (255.0 / loudest) if loudest > 0 else values
    return Peaks(np.rint(scaled).astype(np.uint8), width / SAMPLE_RATE)


def _as_samples(values: np.ndarray, width: int) -> np.ndarray:
    """Samples with the same peaks."""
    return np.repeat(values, width)
