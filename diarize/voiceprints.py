"""One embedding for each speaker of a result, and the embeddings of its windows, in a fixed order of operations.

The clustering's own centroids come out of matrix products, whose last bits depend on the number of BLAS threads; what
users store and compare must not. So sums here run over windows in order, without BLAS.
"""

from __future__ import annotations

import numpy as np

from .activity import active, alone_frames
from .framing import FRAME_STEP, Framing
from .types import WindowEmbeddings


def usable_rows(classes: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
    """Which local speakers talk and have an embedding, (C, 3) bool; `classes` (C, 589), `embeddings` (C, 3, D)."""
    return np.asarray(np.isfinite(embeddings).all(axis=2) & active(classes))


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """`rows` (N, D) as float64 of length 1; rows of zeros stay."""
    values = rows.astype(np.float64)
    lengths = np.sqrt(np.square(values).sum(axis=1, keepdims=True))
    return np.asarray(values / np.where(lengths > 0, lengths, 1.0))


def voiceprints(classes: np.ndarray, embeddings: np.ndarray, labels: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Unit embeddings (K, D) float64 of the speakers whose clusters are `clusters` (K,); zero where there is none.

    The direction of the mean of its windows' unit embeddings, each weighted by the frames in which the speaker talks
    alone there. `classes` (C, 589) uint8, `embeddings` (C, 3, D) float32, `labels` (C, 3) clusters.
    """
    usable = usable_rows(classes, embeddings)
    alone = alone_frames(classes)
    prints = np.zeros((len(clusters), embeddings.shape[2]))
    for index, cluster in enumerate(clusters):
        mine = usable & (labels == cluster)
        weights = alone[mine].astype(np.float64)
        if not weights.any():
            weights[:] = 1.0
        prints[index] = np.add.reduce(unit_rows(embeddings[mine]) * weights[:, None], axis=0)
    return unit_rows(prints)


def window_embeddings(
    classes: np.ndarray,
    embeddings: np.ndarray,
    labels: np.ndarray,
    clusters: np.ndarray,
    framing: Framing,
    offset: float = 0.0,
) -> WindowEmbeddings:
    """The usable embeddings with their times, in the order of windows; arguments as for `voiceprints`.

    `offset` (seconds) is where the first window starts.
    """
    usable = usable_rows(classes, embeddings)
    windows = np.nonzero(usable)[0]
    speakers = np.full(len(windows), -1, np.int32)
    for index, cluster in enumerate(clusters):
        speakers[labels[usable] == cluster] = index
    return WindowEmbeddings(
        windows * framing.step_seconds + offset,
        alone_frames(classes)[usable] * FRAME_STEP,
        speakers,
        embeddings[usable].astype(np.float32),
    )
