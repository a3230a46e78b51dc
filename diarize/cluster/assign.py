"""Which cluster each local speaker of each window belongs to, given its score with every cluster.

Within a window two local speakers are two people, so the constrained form gives them different clusters.
"""

from __future__ import annotations

import numpy as np

from ..framing import LOCAL_SPEAKERS

UNASSIGNED = -2
"""Label of a silent or dropped local speaker."""


def assign_best(scores: np.ndarray) -> np.ndarray:
    """The best cluster of every local speaker on its own, (C, 3) int32; equal scores go to the lowest index.

    `scores` (C, 3, K), larger is closer.
    """
    return scores.argmax(axis=2).astype(np.int32)


def assign_constrained(scores: np.ndarray) -> np.ndarray:
    """Different clusters for the local speakers of a window, of the largest total score, (C, 3) int32.

    With fewer clusters than local speakers, those left over get `UNASSIGNED`. The optimum is exact; among equal
    totals the one with the lowest clusters, first local speaker first, is taken. `scores` (C, 3, K), no NaN.
    """
    num_windows, num_local, num_clusters = scores.shape
    if num_clusters < LOCAL_SPEAKERS:
        # A constant column adds the same to every assignment: whoever gets it is left over.
        spare = np.zeros((num_windows, num_local, LOCAL_SPEAKERS - num_clusters))
        scores = np.concatenate([scores, spare], axis=2)
    from .compiled import best_permutations

    labels = np.empty((num_windows, num_local), dtype=np.int32)
    best_permutations(np.ascontiguousarray(scores), labels)
    labels[labels >= num_clusters] = UNASSIGNED
    return labels
