"""Which cluster each local speaker of each window belongs to, given its score with every cluster.

Within a window two local speakers are two people, so the constrained form gives them different clusters.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from ..framing import LOCAL_SPEAKERS

UNASSIGNED = -2
"""Label of a silent or dropped local speaker."""

_BLOCK_WINDOWS = 4096


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
    labels = np.empty((num_windows, num_local), dtype=np.int32)
    for start in range(0, num_windows, _BLOCK_WINDOWS):
        labels[start : start + _BLOCK_WINDOWS] = _best_permutation(scores[start : start + _BLOCK_WINDOWS])
    labels[labels >= num_clusters] = UNASSIGNED
    return labels


def _best_permutation(scores: np.ndarray) -> np.ndarray:
    """Columns (C, 3) of the best assignment; `scores` (C, 3, K) with K at least 3."""
    # Two others can take at most two of a local speaker's three best clusters, so a fourth never helps.
    choices = np.sort(np.argsort(-scores, axis=2, kind="stable")[:, :, :LOCAL_SPEAKERS], axis=2)
    values = np.take_along_axis(scores, choices, axis=2)
    # Lexicographic order of candidates, so that the first maximum is the lowest assignment.
    picks = np.array(list(product(range(LOCAL_SPEAKERS), repeat=LOCAL_SPEAKERS)))
    a, b, c = (choices[:, local, picks[:, local]] for local in range(LOCAL_SPEAKERS))
    total = values[:, 0, picks[:, 0]] + values[:, 1, picks[:, 1]] + values[:, 2, picks[:, 2]]
    total[(a == b) | (a == c) | (b == c)] = -np.inf
    best = total.argmax(axis=1)
    rows = np.arange(len(scores))
    return np.stack([a[rows, best], b[rows, best], c[rows, best]], axis=1)
