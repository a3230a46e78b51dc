"""Clustering of community-1 (WeSpeaker embeddings): AHC, PLDA, VBx, constrained assignment.

References
----------
pyannote.audio 4.0.7, `pipelines/clustering.py`, VBx clustering with the released parameters; the numbered steps in
comments below are in its order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..rows import Rows
from ..types import Clustering, SpeakerBounds
from .ahc import centroid_clusters
from .assign import UNASSIGNED, assign_best, assign_constrained
from .features import GrowingTerms
from .kmeans import euclidean_kmeans
from .plda import Plda, unit
from .training import CLEAN_FRAMES, TrainingSet, shortage, training_set, widened
from .vbx import vbx_of

if TYPE_CHECKING:
    from .preparation import Prepared

AHC_CUT = 0.6
FA = 0.07
FB = 0.8


def cluster(
    rows: Rows, embeddings: np.ndarray, plda: Plda, bounds: SpeakerBounds, prepared: Prepared | None = None
) -> Clustering:
    """Cluster of every local speaker of every window.

    `embeddings` (C, 3, D) float32, NaN rows where there is none, and their `rows`. `prepared`: what was found
    of the embeddings of `initial_training_set` as they came; used up.

    With fewer than two embeddings to learn from and no number asked for, everyone is one speaker. A number other than
    the automatic one is reached by k-means, from less clean embeddings if need be; a warning says where it is not.
    """
    train = initial_training_set(rows)
    centroids = _automatic_centroids(train.take(embeddings), plda, prepared)
    wanted = bounds.clamp(len(centroids))
    warnings: tuple[str, ...] = ()
    constrained = True
    if wanted != len(centroids):
        train = widened(rows.alone, rows.usable, wanted)
        # k-means centroids are assigned without the one-to-one constraint.
        constrained = False
        if len(train):
            centroids = _forced_centroids(train.take(embeddings), min(wanted, len(train)))
        warnings = shortage(bounds, len(centroids), len(train))
    if len(centroids) == 1 and len(train) < 2:
        return Clustering(np.where(rows.speaks, 0, UNASSIGNED).astype(np.int32), centroids, warnings)
    return Clustering(_assign(rows, centroids, constrained), centroids, warnings)


def initial_training_set(rows: Rows) -> TrainingSet:
    """The local speakers whose embeddings automatic clustering learns from."""
    return training_set(rows.alone, rows.usable, CLEAN_FRAMES[0])


def _automatic_centroids(train: np.ndarray, plda: Plda, prepared: Prepared | None = None) -> np.ndarray:
    """Centroids (K, D) of the speakers that VBx keeps; one row for fewer than two embeddings, NaN for none."""
    if len(train) < 2:
        return train if len(train) else np.full((1, train.shape[1]), np.nan)
    if prepared is None:
        growing = GrowingTerms(plda)
        growing.add(train)
        terms, neighbours = growing.finish(), None
    else:
        terms, neighbours = prepared.terms, prepared.neighbours
    # Initial clusters: unit embeddings, centroid linkage.
    initial = centroid_clusters(unit(train) if neighbours is None else neighbours, AHC_CUT)
    found = vbx_of(terms, initial, FA, FB)
    # Mean of raw embeddings, weighted by responsibility.
    return (found.gamma.T @ train) / found.gamma.sum(axis=0)[:, None]


def _forced_centroids(train: np.ndarray, number: int) -> np.ndarray:
    """Means (number, D) of raw embeddings per k-means cluster of unit embeddings."""
    labels = euclidean_kmeans(unit(train), number)
    return np.stack([train[labels == k].mean(axis=0) for k in range(number)])


def similarity(units: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """2 minus the cosine distance of every unit embedding (N, D) to every centroid (K, D), (N, K) float64."""
    return 1.0 + units @ unit(centroids).T


def _assign(rows: Rows, centroids: np.ndarray, constrained: bool) -> np.ndarray:
    """Labels (C, 3) int32 of all local speakers, silent ones `UNASSIGNED`."""
    found = similarity(rows.units, centroids)
    lowest = found.min(initial=1.0)
    scores = np.full((*rows.usable.shape, len(centroids)), lowest)
    scores[rows.usable] = found
    # Below everything else, so that a silent local speaker never takes a cluster from a real one.
    scores[~rows.speaks] = lowest - 1.0
    labels = assign_constrained(scores) if constrained else assign_best(scores)
    labels[~rows.speaks] = UNASSIGNED
    return labels
