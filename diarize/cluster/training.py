"""Which embeddings a clustering learns its speakers from, and what to say when there are too few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..types import SpeakerBounds

CLEAN_FRAMES = (118, 40, 10, 0)
"""Frames that a local speaker must have alone, 118 = 2.0 s first; the others only where that leaves too few."""


@dataclass(frozen=True)
class TrainingSet:
    """Embeddings chosen for training, window by window: `windows` and `locals_` (N,) int64 say where each is from."""

    windows: np.ndarray
    locals_: np.ndarray

    def __len__(self) -> int:
        return len(self.windows)

    def take(self, embeddings: np.ndarray) -> np.ndarray:
        """The chosen rows (N, D) float64 of `embeddings` (C, 3, D)."""
        return embeddings[self.windows, self.locals_].astype(np.float64)


def training_set(alone: np.ndarray, usable: np.ndarray, min_frames: int) -> TrainingSet:
    """Local speakers alone in at least `min_frames` frames.

    `alone` (C, 3) frames in which each is the only speaker, `usable` (C, 3) bool whether it has an embedding.
    """
    windows, locals_ = np.nonzero((alone >= min_frames) & usable)
    return TrainingSet(windows, locals_)


def widened(alone: np.ndarray, usable: np.ndarray, least: int) -> TrainingSet:
    """The strictest training set with at least `least` embeddings, else all that there are."""
    for min_frames in CLEAN_FRAMES:
        chosen = training_set(alone, usable, min_frames)
        if len(chosen) >= least:
            break
    return chosen


def shortage(bounds: SpeakerBounds, found: int, available: int) -> tuple[str, ...]:
    """One sentence if `found` speakers are fewer than asked for because only `available` embeddings exist."""
    if found >= bounds.minimum:
        return ()
    asked = str(bounds.minimum) if bounds.exact else f"at least {bounds.minimum}"
    stretches = "1 stretch" if available == 1 else f"{available} stretches"
    return (
        f"asked for {asked} speakers, found {found}: too little speech, "
        f"only {stretches} of one speaker in a window can be compared",
    )
