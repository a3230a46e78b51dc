"""Small compiled loops of the clustering; all release the interpreter lock. Importing this module imports numba."""

from __future__ import annotations

import numpy as np

from ..cache import njit


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


@njit(cache=True, nogil=True)
def number_subtrees(merges: np.ndarray, heights: np.ndarray, cut: float) -> np.ndarray:
    """Flat clusters (N,) int64 of a dendrogram; see `ahc.flat_clusters`."""
    num_points = len(heights) + 1
    tallest = heights.copy()
    # Nodes are numbered in merge order, so children come before parents.
    for node in range(num_points - 1):
        for child in merges[node]:
            if child >= num_points:
                tallest[node] = max(tallest[node], tallest[child - num_points])
    number = np.full(2 * num_points - 1, -1, np.int64)
    used = 0
    stack, expanded = np.empty(2 * num_points, np.int64), np.zeros(2 * num_points, np.bool_)
    stack[0], depth = 2 * num_points - 2, 1
    while depth:
        depth -= 1
        node = stack[depth]
        at = node - num_points
        if expanded[depth]:
            for child in merges[at]:
                if child < num_points:
                    number[child] = used
                    used += 1
        elif at >= 0 and tallest[at] > cut:
            # Both subtrees first, left before right, then those of its children that are single points.
            expanded[depth] = True
            depth += 1
            for child in merges[at, ::-1]:
                if child >= num_points:
                    stack[depth], expanded[depth] = child, False
                    depth += 1
        else:
            number[node] = used
            used += 1
    for node in range(2 * num_points - 2, num_points - 1, -1):
        if number[node] >= 0:
            for child in merges[node - num_points]:
                number[child] = number[node]
    return number[:num_points]
