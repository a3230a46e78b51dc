"""Clustering of community-1 (WeSpeaker embeddings): AHC, PLDA, VBx, constrained assignment.

References
----------
pyannote.audio 4.0.7, `pipelines/clustering.py`, VBx clustering with the released parameters; the numbered steps in
comments below are in its order.
"""

from __future__ import annotations

import numpy as np

from ..activity import active, alone_frames
from ..types import Clustering, SpeakerBounds
from .ahc import centroid_clusters
from .assign import UNASSIGNED, assign_best, assign_constrained
from .kmeans import euclidean_kmeans
from .plda import Plda, unit
from .training import CLEAN_FRAMES, shortage, training_set, widened
from .vbx import vbx

AHC_CUT = 0.6
FA = 0.07
FB = 0.8


def cluster(classes: np.ndarray, embeddings: np.ndarray, plda: Plda, bounds: SpeakerBounds) -> Clustering:
    """Cluster of every local speaker of every window.

    `classes` (C, F) uint8 powerset classes; `embeddings` (C, 3, D) float32, NaN rows where there is none.

    With fewer than two embeddings to learn from and no number asked for, everyone is one speaker. A number other than
    the automatic one is reached by k-means, from less clean embeddings if need be; a warning says where it is not.
    """
    speaks = active(classes)
    alone = alone_frames(classes)
    usable = np.isfinite(embeddings).all(axis=2) & speaks
    train = training_set(alone, usable, CLEAN_FRAMES[0])
    centroids = _automatic_centroids(train.take(embeddings), plda)
    wanted = bounds.clamp(len(centroids))
    warnings: tuple[str, ...] = ()
    constrained = True
    if wanted != len(centroids):
        train = widened(alone, usable, wanted)
        # k-means centroids are assigned without the one-to-one constraint.
        constrained = False
        if len(train):
            centroids = _forced_centroids(train.take(embeddings), min(wanted, len(train)))
        warnings = shortage(bounds, len(centroids), len(train))
    if len(centroids) == 1 and len(train) < 2:
        return Clustering(np.where(speaks, 0, UNASSIGNED).astype(np.int32), centroids, warnings)
    labels = _assign(embeddings, centroids, speaks, usable, constrained)
    return Clustering(labels, centroids, warnings)


def _automatic_centroids(train: np.ndarray, plda: Plda) -> np.ndarray:
    """Centroids (K, D) of the speakers that VBx keeps; one row for fewer than two embeddings, NaN for none."""
    if len(train) < 2:
        return train if len(train) else np.full((1, train.shape[1]), np.nan)
    # Initial clusters: unit embeddings, centroid linkage.
    initial = centroid_clusters(unit(train), AHC_CUT)
    found = vbx(plda.features(train), plda.phi, initial, FA, FB)
    # Mean of raw embeddings, weighted by responsibility.
    return (found.gamma.T @ train) / found.gamma.sum(axis=0)[:, None]


def _forced_centroids(train: np.ndarray, number: int) -> np.ndarray:
    """Means (number, D) of raw embeddings per k-means cluster of unit embeddings."""
    labels = euclidean_kmeans(unit(train), number)
    return np.stack([train[labels == k].mean(axis=0) for k in range(number)])


def similarity(embeddings: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """2 minus the cosine distance of every embedding to every centroid, (C, 3, K) float64; NaN rows stay NaN."""
    return 1.0 + unit(embeddings.astype(np.float64)) @ unit(centroids).T


def _assign(
    embeddings: np.ndarray, centroids: np.ndarray, speaks: np.ndarray, usable: np.ndarray, constrained: bool
) -> np.ndarray:
    """Labels (C, 3) int32 of all local speakers, silent ones `UNASSIGNED`."""
    scores = similarity(embeddings, centroids)
    lowest = scores[usable].min(initial=1.0)
    scores[~usable] = lowest
    # Below everything else, so that a silent local speaker never takes a cluster from a real one.
    scores[~speaks] = lowest - 1.0
    labels = assign_constrained(scores) if constrained else assign_best(scores)
    labels[~speaks] = UNASSIGNED
    return labels
