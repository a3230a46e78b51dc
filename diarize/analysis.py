"""What the networks say about one stretch: powerset classes and one embedding for each active local speaker.

This is the part of the pipeline that worker threads run; it keeps no state between stretches.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .activity import embedding_masks
from .stretches import Stretch


class Segmenter(Protocol):
    """A segmentation network bound to a backend."""

    def classes(self, samples: np.ndarray, num_windows: int, step_samples: int) -> np.ndarray:
        """Powerset classes (num_windows, 589) uint8 of the windows that start every `step_samples`."""


class Embedder(Protocol):
    """An embedding network bound to a backend."""

    dimension: int

    def embed(self, samples: np.ndarray, num_windows: int, step_samples: int, masks: np.ndarray) -> np.ndarray:
        """Embeddings (num_windows, 3, dimension) float32; NaN rows where `masks` (num_windows, 3, 589) are empty."""


@dataclass(frozen=True)
class StretchResult:
    """Results for the windows of one stretch.

    `classes` (num_windows, 589) uint8, `embeddings` (num_windows, 3, D) float32 with NaN rows where there is none;
    the two durations are seconds of one worker.
    """

    first_window: int
    classes: np.ndarray
    embeddings: np.ndarray
    segmentation_seconds: float
    embedding_seconds: float


def analyse(stretch: Stretch, step_samples: int, segmenter: Segmenter, embedder: Embedder) -> StretchResult:
    """Segmentation and embeddings of one stretch."""
    started = time.perf_counter()
    classes = segmenter.classes(stretch.samples, stretch.num_windows, step_samples)
    segmented = time.perf_counter()
    embeddings = embedder.embed(stretch.samples, stretch.num_windows, step_samples, embedding_masks(classes))
    finished = time.perf_counter()
    return StretchResult(stretch.first_window, classes, embeddings, segmented - started, finished - segmented)
