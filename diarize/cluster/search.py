"""Compiled agglomerative clustering in N x D memory: nearest clusters by search instead of a matrix.

Most pairs are ruled out by a lower bound on their squared distance: points are projected on their first principal
axes (the head, float32), and what is left of each (the tail) is known by its length alone. With q = (head, tail),
|a - b|^2 >= |head_a - head_b|^2 + (tail_a - tail_b)^2. Pairs that remain are measured in full, in float64, so bounds
change how much is computed and never the result.

References
----------
Muellner (2011), "Modern hierarchical, agglomerative clustering algorithms", arXiv:1109.2378: the generic algorithm
(figure 3) and the nearest-neighbour chain (figure 2).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numba import njit

from .heap import sift_down, sift_up

HEAD = 32
"""Principal axes in the head; on captured recordings they hold 91 to 100 % of the variance."""

_SAMPLE = 2048
# Float32 rounding of a bound: relative, of its sum of 33 squares, and absolute, of coordinates of length one.
_RELATIVE = 1e-5
_ABSOLUTE = 2e-6
_BLOCK = 512
# Fewer are searched sooner than a thread starts.
_POINTS_PER_THREAD = 500
_FAR = 1e30
_SUM = {"reassoc", "contract", "nsz"}


class Projection(NamedTuple):
    """How to bound distances: `mean` (D,), `basis` (HEAD, D), and per point `head` (HEAD, N) and `tail` (N,)."""

    mean: np.ndarray
    basis: np.ndarray
    head: np.ndarray
    tail: np.ndarray


def project(points: np.ndarray) -> Projection:
    """The projection of `points` (N, D) on the principal axes of an even sample of them."""
    num_points, width = points.shape
    mean = points.mean(axis=0)
    sample = points[:: -(-num_points // _SAMPLE)] - mean
    axes = np.linalg.eigh(sample.T @ sample)[1][:, ::-1][:, :HEAD]
    # Rows of zeros stand in for axes that a small width does not have.
    basis = np.zeros((HEAD, width))
    basis[: axes.shape[1]] = axes.T
    head = basis @ (points - mean).T
    squares = np.einsum("nd,nd->n", points - mean, points - mean) - np.einsum("kn,kn->n", head, head)
    tail = np.sqrt(np.maximum(squares, 0.0))
    return Projection(mean, basis, head.astype(np.float32), tail.astype(np.float32))


@njit(cache=True, nogil=True, fastmath=_SUM)
def _squared_distance(a: np.ndarray, b: np.ndarray) -> float:
    total = 0.0
    for k in range(len(a)):
        total += (a[k] - b[k]) * (a[k] - b[k])
    return total


@njit(cache=True, nogil=True, fastmath=_SUM)
def _product(a: np.ndarray, b: np.ndarray) -> float:
    total = 0.0
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@njit(cache=True, nogil=True)
def _place(
    point: np.ndarray, mean: np.ndarray, basis: np.ndarray, head: np.ndarray, tail: np.ndarray, column: int
) -> None:
    """Write the head and tail of `point` to `column`."""
    centred = point - mean
    left = _product(centred, centred)
    for k in range(HEAD):
        along = _product(basis[k], centred)
        head[k, column] = along
        left -= along * along
    tail[column] = np.sqrt(max(left, 0.0))


@njit(cache=True, nogil=True, fastmath={"contract"})
def _lower_bounds(head: np.ndarray, tail: np.ndarray, column: int, first: int, last: int, bounds: np.ndarray) -> None:
    """Lower bounds, float32, of the squared distances between `column` and the columns from `first` before `last`."""
    own = tail[column]
    for start in range(first, last, _BLOCK):
        stop = min(start + _BLOCK, last)
        # Slices, not offsets: only then does the compiler use vector instructions (six times faster).
        out, rest = bounds[start:stop], tail[start:stop]
        for j in range(stop - start):
            out[j] = (rest[j] - own) * (rest[j] - own)
        for k in range(0, HEAD, 4):
            a, b, c, d = head[k, column], head[k + 1, column], head[k + 2, column], head[k + 3, column]
            rows_a, rows_b = head[k, start:stop], head[k + 1, start:stop]
            rows_c, rows_d = head[k + 2, start:stop], head[k + 3, start:stop]
            for j in range(stop - start):
                p, q = rows_a[j] - a, rows_b[j] - b
                r, s = rows_c[j] - c, rows_d[j] - d
                out[j] += (p * p + q * q) + (r * r + s * s)


@njit(cache=True, nogil=True)
def _compact(head: np.ndarray, tail: np.ndarray, slots: np.ndarray, columns: np.ndarray, width: int) -> int:
    """Drop dead columns (infinite tail) and keep the order of the others; their new number."""
    kept = 0
    for column in range(width):
        if np.isfinite(tail[column]):
            slots[kept] = slots[column]
            columns[slots[kept]] = kept
            tail[kept] = tail[column]
            for k in range(HEAD):
                head[k, kept] = head[k, column]
            kept += 1
    return kept


@njit(cache=True, nogil=True)
def _nearest_above(
    points: np.ndarray,
    head: np.ndarray,
    tail: np.ndarray,
    slots: np.ndarray,
    columns: np.ndarray,
    width: int,
    x: int,
    guess: int,
    bounds: np.ndarray,
    slack: float,
) -> tuple[int, float]:
    """Slot and squared distance of the cluster nearest to `x` among those with higher slots; the lowest of equals."""
    nearest, least = guess, _squared_distance(points[x], points[guess])
    _lower_bounds(head, tail, columns[x], columns[x] + 1, width, bounds)
    limit = least * (1.0 + _RELATIVE) + slack
    for column in range(columns[x] + 1, width):
        if bounds[column] <= limit:
            j = slots[column]
            distance = _squared_distance(points[x], points[j])
            if distance < least or (distance == least and j < nearest):
                nearest, least = j, distance
                limit = least * (1.0 + _RELATIVE) + slack
    return nearest, least


def centroid_by_search(
    points: np.ndarray, mean: np.ndarray, basis: np.ndarray, head: np.ndarray, tail: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Merges (N - 1, 2) int64 and heights (N - 1,) of centroid linkage; all arguments but the basis are overwritten.

    `points` (N, D) float64 and their projection. The order of decisions is that of `linkage.centroid_by_matrix`. The
    neighbours to begin with are searched by several threads, which do not change them.
    """
    n = len(points)
    slack = float(np.square(points - mean).sum(axis=1).max()) * _ABSOLUTE
    neighbour, bound = np.zeros(n, np.int64), np.full(n, np.inf)
    # Every point looks at those above it: shares that are interleaved cost the same.
    threads = max(1, min(len(os.sched_getaffinity(0)), n // _POINTS_PER_THREAD))
    with ThreadPoolExecutor(threads) as pool:
        shares = [
            pool.submit(_first_neighbours, points, head, tail, first, threads, neighbour, bound, slack)
            for first in range(threads)
        ]
        for share in shares:
            share.result()
    return _merge(points, mean, basis, head, tail, neighbour, bound, slack)


@njit(cache=True, nogil=True)
def _first_neighbours(
    points: np.ndarray,
    head: np.ndarray,
    tail: np.ndarray,
    first: int,
    step: int,
    neighbour: np.ndarray,
    bound: np.ndarray,
    slack: float,
) -> None:
    """Nearest point above each of the points `first`, `first + step` and so on."""
    n = len(points)
    places = np.arange(n)
    bounds = np.empty(n, np.float32)
    for x in range(first, n - 1, step):
        # Neighbours in time are mostly the same speaker: a good first guess.
        neighbour[x], bound[x] = _nearest_above(points, head, tail, places, places, n, x, x + 1, bounds, slack)


@njit(cache=True, nogil=True)
def _merge(
    points: np.ndarray,
    mean: np.ndarray,
    basis: np.ndarray,
    head: np.ndarray,
    tail: np.ndarray,
    neighbour: np.ndarray,
    bound: np.ndarray,
    slack: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Merges and heights, from every point's nearest point above it and their squared distance."""
    n = len(points)
    merges = np.empty((n - 1, 2), np.int64)
    heights = np.empty(n - 1)
    size = np.ones(n, np.int64)
    node = np.arange(n)
    stale = np.zeros(n, np.bool_)
    slots, columns = np.arange(n), np.arange(n)
    width, live = n, n
    bounds = np.empty(n, np.float32)
    length = n - 1
    heap, place = np.arange(length), np.arange(n)
    for at in range(length // 2 - 1, -1, -1):
        sift_down(heap, place, bound, at, length)
    for k in range(n - 1):
        x = heap[0]
        while stale[x]:
            neighbour[x], bound[x] = _nearest_above(
                points, head, tail, slots, columns, width, x, neighbour[x], bounds, slack
            )
            stale[x] = False
            sift_down(heap, place, bound, 0, length)
            x = heap[0]
        y = neighbour[x]
        length -= 1
        heap[0] = heap[length]
        place[heap[0]] = 0
        sift_down(heap, place, bound, 0, length)

        merges[k, 0], merges[k, 1] = min(node[x], node[y]), max(node[x], node[y])
        heights[k] = np.sqrt(bound[x])
        size[y] += size[x]
        node[y] = n + k
        # In this form equal points keep their exact value.
        points[y] += (points[x] - points[y]) * (size[x] / size[y])
        size[x] = 0
        tail[columns[x]] = np.inf
        _place(points[y], mean, basis, head, tail, columns[y])
        live -= 1
        if live < 0.75 * width:
            width = _compact(head, tail, slots, columns, width)

        own = columns[y]
        _lower_bounds(head, tail, own, 0, width, bounds)
        for column in range(own):
            z = slots[column]
            if not size[z] > 0:
                continue
            moved = neighbour[z] == x or neighbour[z] == y
            distance = np.inf
            if bounds[column] <= bound[z] * (1.0 + _RELATIVE) + slack:
                distance = _squared_distance(points[z], points[y])
            if distance < bound[z]:
                neighbour[z], bound[z], stale[z] = y, distance, False
                sift_up(heap, place, bound, place[z])
            elif moved:
                # A guess; the bound stays a lower bound, and is exact only if nothing changed.
                neighbour[z], stale[z] = y, distance != bound[z]
        nearest, least = -1, np.inf
        limit = _FAR
        for column in range(own + 1, width):
            if bounds[column] <= limit:
                distance = _squared_distance(points[slots[column]], points[y])
                if distance < least:
                    nearest, least = slots[column], distance
                    limit = least * (1.0 + _RELATIVE) + slack
        if y < n - 1:
            closer = least < bound[y]
            neighbour[y], bound[y], stale[y] = nearest, least, False
            if closer:
                sift_up(heap, place, bound, place[y])
            else:
                sift_down(heap, place, bound, place[y], length)
    return merges, heights


@njit(cache=True, nogil=True)
def average_by_chain(
    points: np.ndarray, cut: float, mean: np.ndarray, basis: np.ndarray, head: np.ndarray, tail: np.ndarray
) -> np.ndarray:
    """Lowest member (N,) int64 of each point's cluster under average linkage of cosine distance.

    `points` (N, D) float64 unit vectors and their projection, overwritten: a cluster is the mean of its members, and
    the mean cosine of two clusters the product of their means. Average linkage is reducible: a cluster farther than
    `cut` from every other one can never come closer, so it is finished.
    """
    n = len(points)
    size = np.ones(n)
    square = np.ones(n)
    parent = np.arange(n)
    slots, columns = np.arange(n), np.arange(n)
    width, live = n, n
    bounds = np.empty(n, np.float32)
    chain = np.empty(n + 1, np.int64)
    length, first = 0, 0
    while live:
        if length == 0:
            if live < 0.75 * width:
                width, first = _compact(head, tail, slots, columns, width), 0
            while not np.isfinite(tail[first]):
                first += 1
            chain[0], length = slots[first], 1
        i = chain[length - 1]
        # Finite, so that the infinite bounds of dead columns stay above it.
        nearest, least = -1, _FAR
        # The previous link wins ties, or the chain could circle.
        if length > 1:
            nearest = chain[length - 2]
            least = 1.0 - _product(points[i], points[nearest])
        _lower_bounds(head, tail, columns[i], 0, width, bounds)
        for column in range(width):
            j = slots[column]
            # 1 - ab = 1 - (|a|^2 + |b|^2 - |a - b|^2) / 2, no less than with the bound.
            margin = 2.0 * (least - 1.0) + square[i] + square[j]
            if bounds[column] <= margin + _RELATIVE * abs(margin) + 4.0 * _ABSOLUTE and j != i:
                distance = 1.0 - _product(points[i], points[j])
                if distance < least:
                    nearest, least = j, distance
        if not least <= cut:
            tail[columns[i]] = np.inf
            live -= 1
            length -= 1
        elif length > 1 and nearest == chain[length - 2]:
            length -= 2
            a, b = min(i, nearest), max(i, nearest)
            points[a] = (size[a] * points[a] + size[b] * points[b]) / (size[a] + size[b])
            size[a] += size[b]
            square[a] = _product(points[a], points[a])
            parent[b] = a
            tail[columns[b]] = np.inf
            _place(points[a], mean, basis, head, tail, columns[a])
            live -= 1
        else:
            chain[length] = nearest
            length += 1
    for i in range(n):
        root = i
        while parent[root] != root:
            root = parent[root]
        parent[i] = root
    return parent
