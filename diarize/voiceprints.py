"""One embedding for each speaker of a result, and the embeddings of its windows, in a fixed order of operations.

The clustering's own centroids come out of matrix products, whose last bits depend on the number of BLAS threads; what
users store and compare must not. So sums here run over windows in order, without BLAS.
"""

from __future__ import annotations

import numpy as np

from .framing import FRAME_STEP, Framing
from .rows import Rows, unit_rows
from .types import WindowEmbeddings


def voiceprints(rows: Rows, labels: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Unit embeddings (K, D) float64 of the speakers whose clusters are `clusters` (K,); zero where there is none.

    The direction of the mean of its windows' unit embeddings, each weighted by the frames in which the speaker talks
    alone there. `labels` (C, 3) clusters.
    """
    from .overlay import sum_rows

    own, alone = labels[rows.usable], rows.alone[rows.usable].astype(np.float64)
    prints = np.zeros((len(clusters), rows.units.shape[1]))
    for index, cluster in enumerate(clusters):
        mine = np.flatnonzero(own == cluster)
        weights = alone[mine]
        if not weights.any():
            weights[:] = 1.0
        sum_rows(rows.units, mine, weights, prints[index])
    return unit_rows(prints)


def window_embeddings(
    rows: Rows,
    embeddings: np.ndarray,
    labels: np.ndarray,
    clusters: np.ndarray,
    framing: Framing,
    offset: float = 0.0,
) -> WindowEmbeddings:
    """The usable ones of `embeddings` (C, 3, D) with their times, in the order of windows; the rest as `voiceprints`.

    `offset` (seconds) is where the first window starts.
    """
    own = labels[rows.usable]
    speakers = np.full(len(own), -1, np.int32)
    for index, cluster in enumerate(clusters):
        speakers[own == cluster] = index
    return WindowEmbeddings(
        np.nonzero(rows.usable)[0] * framing.step_seconds + offset,
        rows.alone[rows.usable] * FRAME_STEP,
        speakers,
        embeddings[rows.usable].astype(np.float32),
    )
