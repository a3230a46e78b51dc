"""Compiled average linkage in N x D memory: the nearest-neighbour chain, with nearest clusters found by search.

Most pairs are ruled out by a lower bound on their squared distance: points are projected on their first principal
axes (the head, float32), and what is left of each (the tail) is known by its length alone. With q = (head, tail),
|a - b|^2 >= |head_a - head_b|^2 + (tail_a - tail_b)^2. Pairs that remain are measured in full, in float64, so bounds
change how much is computed and never the result.

References
----------
Muellner (2011), "Modern hierarchical, agglomerative clustering algorithms", arXiv:1109.2378: the nearest-neighbour
chain (figure 2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..cache import njit

HEAD = 32
"""Principal axes in the head; on captured recordings they hold 91 to 100 % of the variance."""

_SAMPLE = 2048
# Float32 rounding of a bound: relative, of its sum of 33 squares, and absolute, of coordinates of length one.
_RELATIVE = 1e-5
_ABSOLUTE = 2e-6
_BLOCK = 512
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
