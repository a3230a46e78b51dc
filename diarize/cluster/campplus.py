"""Clustering for the bundled CAM++ embeddings: average-linkage AHC, our PLDA, VBx, one-to-one assignment.

The cut over-splits on purpose; VBx joins what belongs together. Speakers come largest first, so that a tie anywhere
later goes to the larger one.
"""

from __future__ import annotations

import numpy as np

from ..framing import WINDOW_SECONDS, Framing
from ..rows import Rows
from ..types import Clustering, SpeakerBounds
from .ahc import average_clusters
from .assign import UNASSIGNED, assign_constrained
from .kmeans import spherical_kmeans
from .plda import Plda, unit
from .training import shortage, widened
from .vbx import vbx

AHC_CUT = 0.30
GRID_CUT = 0.25
FA = 1.0
FB = 2.0


def cluster(
    rows: Rows,
    embeddings: np.ndarray,
    duration_seconds: float,
    plda: Plda,
    bounds: SpeakerBounds,
    framing: Framing,
    cut: float = AHC_CUT,
) -> Clustering:
    """Cluster of every local speaker of every window.

    `embeddings` (C, 3, D) float32, NaN rows where there is none, and their `rows`; `duration_seconds` of audio; `cut`
    cosine distance, `GRID_CUT` for embeddings made of pieces on a grid.

    With fewer than two embeddings everyone is one speaker. A number other than the automatic one is reached by
    spherical k-means, from less clean embeddings if need be; a warning says where it is not.
    """
    speaks, alone, usable = rows.speaks, rows.alone, rows.usable
    train = widened(alone, usable, 2)
    if len(train) < 2:
        found = train.take(embeddings) if len(train) else np.zeros((1, embeddings.shape[2]))
        labels = np.where(speaks, 0, UNASSIGNED).astype(np.int32)
        return Clustering(labels, found, shortage(bounds, 1, len(train)))
    chosen = train.take(embeddings)
    # Each second of speech counts once, however much the windows overlap.
    coverage = max(duration_seconds, WINDOW_SECONDS) / (WINDOW_SECONDS * framing.num_windows)
    weights = _automatic_weights(chosen, plda, FA * coverage, cut)
    wanted = bounds.clamp(weights.shape[1])
    if wanted != weights.shape[1]:
        train = widened(alone, usable, wanted)
        chosen = train.take(embeddings)
        number = min(wanted, len(train))
        weights = np.eye(number)[spherical_kmeans(chosen, number)]
    centroids = (weights.T @ unit(chosen)) / weights.sum(axis=0)[:, None]
    labels = _assign(embeddings, centroids, speaks, usable)
    return Clustering(labels, centroids, shortage(bounds, len(centroids), len(train)))


def _automatic_weights(rows: np.ndarray, plda: Plda, fa: float, cut: float) -> np.ndarray:
    """Responsibilities (N, K) of the speakers that VBx keeps, largest speaker first."""
    initial = average_clusters(rows, cut)
    found = vbx(plda.features(rows), plda.phi, initial, fa, FB)
    return found.gamma[:, np.argsort(-found.pi[found.speakers], kind="stable")]


def _assign(embeddings: np.ndarray, centroids: np.ndarray, speaks: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Labels (C, 3) int32, silent local speakers `UNASSIGNED`; one left over takes its best cluster."""
    scores = unit(np.nan_to_num(embeddings.astype(np.float64))) @ unit(centroids).T
    lowest = scores[usable].min(initial=0.0)
    scores[~usable] = lowest
    # Below everything else, so that a silent local speaker never takes a cluster from a real one.
    scores[~speaks] = lowest - 1.0
    labels = assign_constrained(scores)
    left_over = (labels == UNASSIGNED) & usable
    labels[left_over] = scores[left_over].argmax(axis=1)
    labels[~speaks] = UNASSIGNED
    return labels
