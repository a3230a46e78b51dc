"""Small compiled loops of the clustering; all release the interpreter lock. Importing this module imports numba."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def add_rows(rows: np.ndarray, labels: np.ndarray, sums: np.ndarray) -> None:
    """Add every row of `rows` (N, R) to the row of `sums` (S, R) that `labels` (N,) names, in order."""
    for i in range(len(rows)):
        row, total = rows[i], sums[labels[i]]
        for k in range(len(row)):
            total[k] += row[k]


@njit(cache=True, nogil=True)
def best_permutations(scores: np.ndarray, labels: np.ndarray) -> None:
    """Different columns for the three rows of every `scores[c]` (3, K), K at least 3, of the largest sum.

    Written to `labels` (C, 3). Among equal sums the lowest columns, first row first.
    """
    choices = np.empty((3, 3), np.int64)
    for window in range(len(scores)):
        # Two others can take at most two of a row's three best columns, so a fourth never helps.
        for local in range(3):
            _three_best(scores[window, local], choices[local])
        # In this order the first largest sum is the lowest assignment.
        best = -np.inf
        for a in choices[0]:
            for b in choices[1]:
                if b == a:
                    continue
                first_two = scores[window, 0, a] + scores[window, 1, b]
                for c in choices[2]:
                    if c != a and c != b and first_two + scores[window, 2, c] > best:
                        best = first_two + scores[window, 2, c]
                        labels[window, 0], labels[window, 1], labels[window, 2] = a, b, c


@njit(cache=True, nogil=True)
def _three_best(scores: np.ndarray, choices: np.ndarray) -> None:
    """The columns of the three largest of `scores` (K,), the lowest of equals, in ascending order."""
    first, second, third = -1, -1, -1
    for k in range(len(scores)):
        if first < 0 or scores[k] > scores[first]:
            first, second, third = k, first, second
        elif second < 0 or scores[k] > scores[second]:
            second, third = k, second
        elif third < 0 or scores[k] > scores[third]:
            third = k
    low, high = min(first, second, third), max(first, second, third)
    choices[0], choices[1], choices[2] = low, first + second + third - low - high, high
