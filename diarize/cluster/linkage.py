"""Compiled agglomerative clustering on a matrix of distances, float64.

Merges are returned as nodes: points are 0 to N - 1 and merge k is node N + k; the smaller number comes first.
Nothing here uses threads, and every function releases the interpreter lock.

References
----------
Muellner (2011), "Modern hierarchical, agglomerative clustering algorithms", arXiv:1109.2378: the generic algorithm
(figure 3).
"""

from __future__ import annotations

import numpy as np

from ..cache import njit
from .heap import sift_down, sift_up

# Below this squared distance the identity |a|^2 + |b|^2 - 2ab loses too many digits on unit vectors; the difference is
# summed instead, which makes equal points exactly 0 apart.
_CLOSE = 1e-3


def distances(points: np.ndarray) -> np.ndarray:
    """Euclidean distances (N, N) float64 of `points` (N, D), exactly symmetric, 0 for equal points."""
    matrix = points @ points.T
    _gram_to_distances(matrix, points)
    return matrix


@njit(cache=True, nogil=True)
def _gram_to_distances(gram: np.ndarray, points: np.ndarray) -> None:
    num_points = len(gram)
    squares = np.empty(num_points)
    for i in range(num_points):
        squares[i] = gram[i, i]
    for i in range(num_points):
        row = gram[i]
        close = 0
        for j in range(num_points):
            row[j] = squares[i] + squares[j] - 2.0 * row[j]
            close += row[j] < _CLOSE
        if close > 1:
            for j in range(num_points):
                if row[j] < _CLOSE:
                    row[j] = 0.0
                    for k in range(points.shape[1]):
                        row[j] += (points[i, k] - points[j, k]) ** 2
        for j in range(num_points):
            row[j] = np.sqrt(row[j])


@njit(cache=True, nogil=True)
def _nearest_above(row: np.ndarray, size: np.ndarray, first: int) -> tuple[int, float]:
    """Index and distance of the nearest live cluster numbered `first` or more; the lowest of equals."""
    nearest, least = -1, np.inf
    for j in range(first, len(size)):
        if size[j] > 0 and row[j] < least:
            nearest, least = j, row[j]
    return nearest, least


@njit(cache=True, nogil=True)
def centroid_by_matrix(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merges (N - 1, 2) int64 and heights (N - 1,) of centroid linkage; `d` (N, N) distances, overwritten.

    The order of comparisons decides between equal distances; it is that of scipy's `linkage`.
    """
    n = len(d)
    merges = np.empty((n - 1, 2), np.int64)
    heights = np.empty(n - 1)
    size = np.ones(n, np.int64)
    node = np.arange(n)
    neighbour = np.zeros(n, np.int64)
    bound = np.full(n, np.inf)
    for x in range(n - 1):
        neighbour[x], bound[x] = _nearest_above(d[x], size, x + 1)
    length = n - 1
    heap = np.arange(length)
    place = np.arange(n)
    for at in range(length // 2 - 1, -1, -1):
        sift_down(heap, place, bound, at, length)
    for k in range(n - 1):
        # The top's bound may be out of date: then its neighbour was merged away or moved off.
        x = heap[0]
        while bound[x] != d[x, neighbour[x]]:
            neighbour[x], bound[x] = _nearest_above(d[x], size, x + 1)
            sift_down(heap, place, bound, 0, length)
            x = heap[0]
        y = neighbour[x]
        dist = bound[x]
        length -= 1
        heap[0] = heap[length]
        place[heap[0]] = 0
        sift_down(heap, place, bound, 0, length)

        merges[k, 0] = min(node[x], node[y])
        merges[k, 1] = max(node[x], node[y])
        heights[k] = dist
        a, b = float(size[x]), float(size[y])
        size[y] += size[x]
        size[x] = 0
        node[y] = n + k
        # Lance-Williams update of the distance to the joint centroid; x is gone, y stands for both.
        row_x, row_y = d[x], d[y]
        shrink = (a * b * dist * dist) / (a + b)
        for z in range(n):
            row_y[z] = np.sqrt(max(((a * row_x[z] * row_x[z]) + (b * row_y[z] * row_y[z]) - shrink) / (a + b), 0.0))
        row_y[y] = 0.0
        for z in range(n):
            if size[z] > 0:
                d[z, y] = row_y[z]
        for z in range(x):
            if size[z] > 0 and neighbour[z] == x:
                neighbour[z] = y
        for z in range(y):
            if size[z] > 0 and row_y[z] < bound[z]:
                neighbour[z] = y
                bound[z] = row_y[z]
                sift_up(heap, place, bound, place[z])
        if y < n - 1:
            neighbour[y], new = _nearest_above(row_y, size, y + 1)
            old = bound[y]
            bound[y] = new
            if new < old:
                sift_up(heap, place, bound, place[y])
            else:
                sift_down(heap, place, bound, place[y], length)
    return merges, heights
