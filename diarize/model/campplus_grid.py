"""The cheaper way to CAM++ embeddings: short pieces on a fixed grid, computed once and shared by all windows.

A piece is 1.5 s of audio; one starts every 0.5 s of the recording. What a window needs from its pieces is only how much
of each belongs to a local speaker, so that neighbouring windows share nearly all the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..backend.base import Backend
from ..errors import OptionError
from ..framing import WINDOW_SAMPLES
from .campplus import DIMENSION, FRAME_OF, WINDOW_FRAMES, CampPlusEmbedder
from .fbank import FRAME_STEP, num_frames

PIECE_SAMPLES = 24_000
PIECE_STEP = 8_000
PIECE_FRAMES = num_frames(PIECE_SAMPLES)
MIN_SHARE = 0.5
"""Smallest part of a piece that a local speaker must fill for the piece to count."""

_STEP_FRAMES = PIECE_STEP // FRAME_STEP
_FIRST_FRAMES = np.arange(0, WINDOW_FRAMES - PIECE_FRAMES + 1, _STEP_FRAMES)
# Pieces that go through the network together: about as many frames as one window, which the caches like best.
_BATCH = 6


class CampPlusGridEmbedder:
    """Embeddings of local speakers as weighted averages of piece embeddings; may be used from several threads at once.

    Takes the place of `CampPlusEmbedder` where speed matters more than the last point of accuracy.
    """

    dimension = DIMENSION

    def __init__(self, weights: Mapping[str, np.ndarray], backend: Backend) -> None:
        self._network = CampPlusEmbedder(weights, backend)

    def embed(self, samples: np.ndarray, num_windows: int, step_samples: int, masks: np.ndarray) -> np.ndarray:
        """One embedding for each local speaker of each window.

        Parameters
        ----------
        samples
            (num_samples,) float32, 16 kHz; taken as zero past their end.
        num_windows, step_samples
            Windows of 10 s start every `step_samples`, a multiple of 8,000, so that they share one grid.
        masks
            (num_windows, 3, 589) bool: the frames to take the embedding from.

        Returns
        -------
        np.ndarray
            (num_windows, 3, 192) float32: piece embeddings averaged with the cubed share of the piece that the mask
            covers as weight; NaN where no piece is covered by half.

        Raises
        ------
        OptionError
            `step_samples` is not a multiple of 8,000.
        """
        work = grid_work(masks, step_samples)
        return work.averages(self._piece_embeddings(samples, num_windows, step_samples, work.wanted))

    def _piece_embeddings(
        self, samples: np.ndarray, num_windows: int, step_samples: int, wanted: np.ndarray
    ) -> np.ndarray:
        """(len(wanted), 192) float32 for pieces counted from the first sample."""
        padded = np.zeros((num_windows - 1) * step_samples + WINDOW_SAMPLES, np.float32)
        padded[: len(samples)] = samples[: len(padded)]
        features = self._network.features(padded)
        starts = first_frames(wanted)
        out = np.empty((len(wanted), DIMENSION), np.float32)
        for first in range(0, len(wanted), _BATCH):
            batch = [features[start : start + PIECE_FRAMES] for start in starts[first : first + _BATCH]]
            out[first : first + len(batch)] = self._network.embed_many(batch)
        return out


@dataclass(frozen=True)
class GridWork:
    """Which pieces some windows need.

    `shares` (C, 3, 18) float64 as of `piece_shares`; `pieces` (C, 18) int64, their numbers from the first window's
    start; `wanted` (P,) int64, ascending, those that some local speaker fills by half.
    """

    shares: np.ndarray
    pieces: np.ndarray
    wanted: np.ndarray

    def averages(self, embeddings: np.ndarray) -> np.ndarray:
        """Embeddings (C, 3, D) float32 of the local speakers from those (P, D) of the wanted pieces, else NaN."""
        out = np.full((*self.shares.shape[:2], embeddings.shape[1]), np.nan, np.float32)
        for window, local in np.argwhere((self.shares >= MIN_SHARE).any(axis=2)):
            share = self.shares[window, local]
            used = share >= MIN_SHARE
            weight = share[used] ** 3
            found = embeddings[np.searchsorted(self.wanted, self.pieces[window, used])]
            # A plain sum over pieces in order: the same bits wherever the window lies in its stretch.
            out[window, local] = (weight[:, None] * found).sum(axis=0) / weight.sum()
        return out

    def windows_of(self, chosen: np.ndarray) -> np.ndarray:
        """Which windows (C,) bool use one of the `chosen` (P,) bool wanted pieces."""
        used = (self.shares >= MIN_SHARE).any(axis=1)
        return np.asarray((np.isin(self.pieces, self.wanted[chosen]) & used).any(axis=1))


def grid_work(masks: np.ndarray, step_samples: int) -> GridWork:
    """The pieces for `masks` (C, 3, 589) bool of windows every `step_samples`.

    Raises
    ------
    OptionError
        `step_samples` is not a multiple of 8,000.
    """
    if step_samples % PIECE_STEP:
        raise OptionError(f"window step is {step_samples} samples; the grid needs a multiple of {PIECE_STEP}")
    shares = piece_shares(masks)
    pieces = np.arange(len(masks))[:, None] * (step_samples // PIECE_STEP) + np.arange(len(_FIRST_FRAMES))
    return GridWork(shares, pieces, np.unique(pieces[(shares >= MIN_SHARE).any(axis=1)]))


def first_frames(pieces: np.ndarray) -> np.ndarray:
    """The filterbank frame with which each piece starts; it has `PIECE_FRAMES`."""
    return pieces * _STEP_FRAMES


def piece_shares(masks: np.ndarray) -> np.ndarray:
    """Part of each piece that each mask covers: (num_windows, 3, 589) bool to (num_windows, 3, 18) float64."""
    covered = np.zeros((*masks.shape[:2], WINDOW_FRAMES + 1))
    np.cumsum(masks[:, :, FRAME_OF], axis=2, out=covered[:, :, 1:])
    return (covered[:, :, _FIRST_FRAMES + PIECE_FRAMES] - covered[:, :, _FIRST_FRAMES]) / PIECE_FRAMES
