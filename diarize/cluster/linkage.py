"""Compiled inner loops of agglomerative clustering, float64.

Merges are returned as nodes: points are 0 to N - 1 and merge k is node N + k; the smaller number comes first.
Nothing here uses threads, and every function releases the interpreter lock.

References
----------
Muellner (2011), "Modern hierarchical, agglomerative clustering algorithms", arXiv:1109.2378: the generic algorithm
(figure 3) and the nearest-neighbour chain (figure 2).
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Below this squared distance the identity |a|^2 + |b|^2 - 2ab loses too many digits on unit vectors; the difference is
# summed instead, which makes equal points exactly 0 apart.
_CLOSE = 1e-3


def distances(points: np.ndarray) -> np.ndarray:
    """Euclidean distances (N, N) float64 of `points` (N, D), exactly symmetric, 0 for equal points."""
    matrix = points @ points.T
    _gram_to_distances(matrix, points)
    return matrix


@njit(cache=True, nogil=True)
def _gram_to_distances(gram, points):
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
def _sift_up(heap, place, bound, at):
    """Move the key at position `at` towards the top of the heap of lower bounds."""
    key = heap[at]
    while at > 0:
        parent = (at - 1) >> 1
        if not bound[heap[parent]] > bound[key]:
            break
        heap[at] = heap[parent]
        place[heap[at]] = at
        at = parent
    heap[at] = key
    place[key] = at


@njit(cache=True, nogil=True)
def _sift_down(heap, place, bound, at, length):
    """Move the key at position `at` away from the top of the heap of lower bounds."""
    key = heap[at]
    while 2 * at + 1 < length:
        child = 2 * at + 1
        if child + 1 < length and bound[heap[child + 1]] < bound[heap[child]]:
            child += 1
        if not bound[key] > bound[heap[child]]:
            break
        heap[at] = heap[child]
        place[heap[at]] = at
        at = child
    heap[at] = key
    place[key] = at


@njit(cache=True, nogil=True)
def _nearest_above(row, size, first):
    """Index and distance of the nearest live cluster numbered `first` or more; the lowest of equals."""
    nearest, least = -1, np.inf
    for j in range(first, len(size)):
        if size[j] > 0 and row[j] < least:
            nearest, least = j, row[j]
    return nearest, least


@njit(cache=True, nogil=True)
def centroid_by_matrix(d):
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
        _sift_down(heap, place, bound, at, length)
    for k in range(n - 1):
        # The top's bound may be out of date: then its neighbour was merged away or moved off.
        x = heap[0]
        while bound[x] != d[x, neighbour[x]]:
            neighbour[x], bound[x] = _nearest_above(d[x], size, x + 1)
            _sift_down(heap, place, bound, 0, length)
            x = heap[0]
        y = neighbour[x]
        dist = bound[x]
        length -= 1
        heap[0] = heap[length]
        place[heap[0]] = 0
        _sift_down(heap, place, bound, 0, length)

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
                _sift_up(heap, place, bound, place[z])
        if y < n - 1:
            neighbour[y], new = _nearest_above(row_y, size, y + 1)
            old = bound[y]
            bound[y] = new
            if new < old:
                _sift_up(heap, place, bound, place[y])
            else:
                _sift_down(heap, place, bound, place[y], length)
    return merges, heights


@njit(cache=True, nogil=True)
def average_by_chain(means, cut):
    """Lowest member (N,) int64 of each point's cluster under average linkage of cosine distance.

    `means` (N, D) unit vectors, overwritten. Average linkage is reducible: a cluster farther than `cut` from every
    other one can never come closer, so it is finished.
    """
    n = len(means)
    size = np.ones(n)
    live = np.arange(n)
    position = np.arange(n)
    num_live = n
    parent = np.arange(n)
    chain = np.empty(n + 1, np.int64)
    length = 0
    while num_live:
        if length == 0:
            chain[0] = live[0]
            length = 1
        i = chain[length - 1]
        # The previous link wins ties, or the chain could circle.
        nearest, least = -1, np.inf
        if length > 1:
            nearest = chain[length - 2]
            least = 1.0 - np.dot(means[i], means[nearest])
        for at in range(num_live):
            j = live[at]
            if j != i:
                distance = 1.0 - np.dot(means[i], means[j])
                if distance < least or (distance == least and length == 1 and j < nearest):
                    nearest, least = j, distance
        if not least <= cut:
            num_live -= 1
            live[position[i]] = live[num_live]
            position[live[num_live]] = position[i]
            length -= 1
        elif length > 1 and nearest == chain[length - 2]:
            length -= 2
            a, b = min(i, nearest), max(i, nearest)
            total = size[a] + size[b]
            means[a] = (size[a] * means[a] + size[b] * means[b]) / total
            size[a] = total
            parent[b] = a
            num_live -= 1
            live[position[b]] = live[num_live]
            position[live[num_live]] = position[b]
        else:
            chain[length] = nearest
            length += 1
    for i in range(n):
        root = i
        while parent[root] != root:
            root = parent[root]
        parent[i] = root
    return parent
