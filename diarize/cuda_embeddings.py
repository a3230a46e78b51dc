"""How each embedding network reaches a GPU: from the masks of local speakers to what a lane computes, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from .model.campplus import DIMENSION, FRAME_OF, MIN_FRAMES
from .model.campplus_grid import PIECE_FRAMES, first_frames, grid_work
from .model.fbank import FRAME_STEP
from .model.resnet34 import trunk_masks


class EmbeddingLane(Protocol):
    """The part of a lane that embeds the stretch which was segmented last."""

    def embed(self, active: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ResNet34: embeddings (C, 3, 256) of active slots, and which windows must be computed again elsewhere."""

    def embed_sequences(self, numbers: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """CAM++: embeddings (N, 192) of sequences of frame numbers, and which must be computed again elsewhere."""


SlotEmbedding = Callable[[EmbeddingLane, np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""From a lane, masks (C, 3, 589) bool and the windows' step in samples to embeddings (C, 3, D) float32, NaN where there
is none, and the windows (C,) bool that left the range of the GPU's kernels."""


def embed_slots(lane: EmbeddingLane, masks: np.ndarray, step_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """With ResNet34: every slot with any frame, weighted by the trunk's steps."""
    return lane.embed(np.asarray(masks.any(axis=2)), trunk_masks(masks))


def embed_frames(lane: EmbeddingLane, masks: np.ndarray, step_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """With CAM++: every slot with enough of the filterbank's frames, which are gathered."""
    frames = masks[:, :, FRAME_OF]
    active = frames.sum(axis=2) >= MIN_FRAMES
    out, beyond = _nothing(masks)
    places = np.argwhere(active)
    if len(places):
        step = step_samples // FRAME_STEP
        numbers = [(window * step + np.flatnonzero(frames[window, local])).astype(np.int32) for window, local in places]
        out[active], flagged = lane.embed_sequences(numbers)
        beyond[places[flagged, 0]] = True
    return out, beyond


def embed_grid(lane: EmbeddingLane, masks: np.ndarray, step_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """With CAM++ in fast mode: averages of pieces on a grid, as `diarize.model.campplus_grid` says."""
    work = grid_work(masks, step_samples)
    if not len(work.wanted):
        return _nothing(masks)
    within = np.arange(PIECE_FRAMES, dtype=np.int32)
    rows, flagged = lane.embed_sequences([np.int32(first) + within for first in first_frames(work.wanted)])
    return work.averages(rows), work.windows_of(flagged)


def _nothing(masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.full((*masks.shape[:2], DIMENSION), np.nan, np.float32), np.zeros(len(masks), bool)
