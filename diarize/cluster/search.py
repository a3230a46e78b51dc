"""Compiled centroid linkage in N x D memory: nearest clusters by search instead of a matrix.

`merge` makes the decisions of `linkage.centroid_by_matrix` in the same order. Scans of all clusters look at bounds in
float32 (see `sketch`), and only what these cannot rule out is measured.

References
----------
Muellner (2011), "Modern hierarchical, agglomerative clustering algorithms", arXiv:1109.2378: the generic algorithm
(figure 3).
"""

from __future__ import annotations

import numpy as np

from ..cache import njit
from .heap import sift_down, sift_up
from .neighbours import BLOCK, Neighbours, nearest_above
from .sketch import COARSE, RELATIVE, Sketch, coarse_bounds, fine_bound, squared_distance, write


def centroid_by_search(neighbours: Neighbours) -> tuple[np.ndarray, np.ndarray]:
    """Merges (N - 1, 2) int64 and heights (N - 1,) of centroid linkage; `neighbours` is used up."""
    found = neighbours
    return _merge(found.points, found.sketch, found.neighbour, found.squares, found.slack)


@njit(cache=True, nogil=True)
def _move(points: np.ndarray, x: int, y: int, share: float) -> None:
    """Move the row `y` of `points` towards the row `x`; in this form equal points keep their exact value."""
    for k in range(points.shape[1]):
        points[y, k] += (points[x, k] - points[y, k]) * share


@njit(cache=True, nogil=True)
def _compact(
    coarse: np.ndarray,
    rest: np.ndarray,
    slots: np.ndarray,
    columns: np.ndarray,
    near: np.ndarray,
    ceilings: np.ndarray,
    width: int,
) -> int:
    """Drop dead columns (infinite rest) and keep the order of the others; their new number."""
    kept = 0
    for column in range(width):
        if np.isfinite(rest[column]):
            slots[kept] = slots[column]
            columns[slots[kept]] = kept
            near[kept], ceilings[kept] = near[column], ceilings[column]
            rest[kept] = rest[column]
            for k in range(COARSE):
                coarse[k, kept] = coarse[k, column]
            kept += 1
    return kept


@njit(cache=True, nogil=True)
def _take_over(
    points: np.ndarray,
    slots: np.ndarray,
    own: int,
    x: int,
    y: int,
    near: np.ndarray,
    neighbour: np.ndarray,
    bound: np.ndarray,
    stale: np.ndarray,
    settled: np.ndarray,
) -> None:
    """What `_merge` does to the clusters below `y` when `x` was its exact copy: nothing has moved."""
    gone, joint = np.int32(x), np.int32(y)
    for start in range(0, own, BLOCK):
        nears = near[start : min(start + BLOCK, own)]
        found = 0
        for j in range(len(nears)):
            found += (nears[j] == gone) | (nears[j] == joint)
        if found == 0:
            continue
        for j in range(len(nears)):
            if nears[j] == gone or nears[j] == joint:
                z = slots[start + j]
                settled[z] &= nears[j] == joint
                neighbour[z], nears[j] = y, joint
                stale[z] = squared_distance(points[z], points[y]) != bound[z]


@njit(cache=True, nogil=True)
def _merge(
    points: np.ndarray, sketch: Sketch, neighbour: np.ndarray, bound: np.ndarray, slack: float
) -> tuple[np.ndarray, np.ndarray]:
    """Merges and heights, from every point's nearest point above it and their squared distance; all overwritten."""
    head, square, coarse, rest, fine = sketch
    n = len(points)
    merges = np.empty((n - 1, 2), np.int64)
    heights = np.empty(n - 1)
    size = np.ones(n, np.int64)
    node = np.arange(n)
    stale = np.zeros(n, np.bool_)
    # Whether a search would find the same neighbour again, also among equals.
    settled = np.ones(n, np.bool_)
    slots, columns = np.arange(n), np.arange(n)
    width, live = n, n
    bounds, hits = np.empty(BLOCK, np.float32), np.zeros(BLOCK, np.bool_)
    words = hits.view(np.uint64)
    # By column, for scans: each cluster's neighbour, and its bound rounded up.
    near = neighbour.astype(np.int32)
    rounding = 1.0 + 2.0 * RELATIVE
    ceilings = (bound * rounding + slack).astype(np.float32)
    length = n - 1
    heap, place = np.arange(length), np.arange(n)
    for at in range(length // 2 - 1, -1, -1):
        sift_down(heap, place, bound, at, length)
    for k in range(n - 1):
        x = heap[0]
        while stale[x]:
            guess, own = neighbour[x], columns[x]
            neighbour[x], bound[x] = nearest_above(
                points, coarse, rest, fine, slots, own, own + 1, width,
                guess, squared_distance(points[x], points[guess]), bounds, hits, slack,
            )  # fmt: skip
            near[own], ceilings[own], stale[x] = neighbour[x], bound[x] * rounding + slack, False
            settled[x] = True
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
        share = size[x] / size[y]
        size[x] = 0
        rest[columns[x]], near[columns[x]] = np.inf, -1
        live -= 1
        if live < 0.75 * width:
            width = _compact(coarse, rest, slots, columns, near, ceilings, width)
        own = columns[y]
        if bound[x] == 0.0 and ((settled[y] and not stale[y]) or y == n - 1):
            _take_over(points, slots, own, x, y, near, neighbour, bound, stale, settled)
            continue
        _move(points, x, y, share)
        _move(head, x, y, share)
        # The squared length of a weighted mean of two, from theirs and their distance.
        square[y] += (square[x] - square[y]) * share - share * (1.0 - share) * bound[x]
        write(head, square, coarse, rest, fine, y, own)

        mine = rest[own]
        gone, joint = np.int32(x), np.int32(y)
        for start in range(0, own, BLOCK):
            count = min(BLOCK, own - start)
            coarse_bounds(coarse, rest, own, start, start + count, bounds)
            tops, nears = ceilings[start : start + count], near[start : start + count]
            for j in range(count):
                hits[j] = (bounds[j] <= tops[j]) | (nears[j] == gone) | (nears[j] == joint)
            hits[count:] = False
            for word in range((count + 7) // 8):
                if words[word] == 0:
                    continue
                for j in range(8 * word, 8 * word + 8):
                    if not hits[j]:
                        continue
                    column = start + j
                    z = slots[column]
                    moved = neighbour[z] == x or neighbour[z] == y
                    distance = np.inf
                    limit = bound[z] * (1.0 + RELATIVE) + slack
                    left = rest[column] - mine
                    if bounds[j] <= limit and bounds[j] - left * left + fine_bound(fine, z, y) <= limit:
                        distance = squared_distance(points[z], points[y])
                    if distance < bound[z]:
                        neighbour[z], bound[z], stale[z], settled[z] = y, distance, False, True
                        near[column], ceilings[column] = joint, distance * rounding + slack
                        sift_up(heap, place, bound, place[z])
                    elif moved:
                        # A guess; the bound stays a lower bound, and is exact only if nothing changed.
                        neighbour[z], near[column], stale[z] = y, joint, distance != bound[z]
                        settled[z] = False
                    elif distance == bound[z]:
                        settled[z] = False
        if y < n - 1:
            guess = neighbour[y]
            nearest, least = nearest_above(
                points, coarse, rest, fine, slots, own, own + 1, width,
                guess, squared_distance(points[y], points[guess]), bounds, hits, slack,
            )  # fmt: skip
            closer = least < bound[y]
            neighbour[y], bound[y], stale[y], settled[y] = nearest, least, False, True
            near[own], ceilings[own] = nearest, least * rounding + slack
            if closer:
                sift_up(heap, place, bound, place[y])
            else:
                sift_down(heap, place, bound, place[y], length)
    return merges, heights
