"""Compiled centroid linkage in N x D memory: nearest clusters by search instead of a matrix.

Equal points are joined first, with the decisions of `linkage.centroid_by_matrix` in the same order: there every choice
is one between equals. After that each pair of clusters is looked after by one of the two, its *owner*, who knows the
nearest of those that it owns. Between points the owner is the lower one, else the cluster that was made later: a new
cluster searches once among all others, and none of them needs to hear of it. Searches look at bounds in float32 (see
`sketch`), and only what these cannot rule out is measured.

References
----------
Muellner (2011), "Modern hierarchical, agglomerative clustering algorithms", arXiv:1109.2378: the generic algorithm
(figure 3), which has lower bounds in a heap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..cache import njit
from .heap import sift_down, sift_up
from .neighbours import BLOCK, Neighbours, nearest_among
from .sketch import COARSE, Sketch, squared_distance, write


class Progress(NamedTuple):
    """What is known of N points and the clusters of them; a cluster has the number of its highest point.

    `merges` (N - 1, 2) and `heights` (N - 1,) so far. By cluster: `size`, 0 when it is gone, its `node` in the tree,
    `neighbour`, the nearest that it owns, `bound`, the squared distance to it at least, `stale`, whether that must be
    searched again, and its column. `heap` of clusters and the `place` of each, `slots`, the cluster of each column.
    """

    merges: np.ndarray
    heights: np.ndarray
    size: np.ndarray
    node: np.ndarray
    neighbour: np.ndarray
    bound: np.ndarray
    stale: np.ndarray
    columns: np.ndarray
    slots: np.ndarray
    heap: np.ndarray
    place: np.ndarray


def centroid_by_search(neighbours: Neighbours) -> tuple[np.ndarray, np.ndarray]:
    """Merges (N - 1, 2) int64 and heights (N - 1,) of centroid linkage; `neighbours` is used up."""
    points, sketch, slack = neighbours.points, neighbours.sketch, neighbours.slack
    num_points = len(points)
    # New clusters get new columns, until there are too many without a cluster.
    room = num_points + num_points // 2 + 2
    coarse, rest = np.empty((COARSE, room), np.float32), np.full(room, np.inf, np.float32)
    coarse[:, :num_points], rest[:num_points] = sketch.coarse[:, :num_points], sketch.rest[:num_points]
    sketch = sketch._replace(coarse=coarse, rest=rest)
    slots = np.zeros(room, np.int64)
    slots[:num_points] = np.arange(num_points)
    progress = Progress(
        np.empty((num_points - 1, 2), np.int64),
        np.empty(num_points - 1),
        np.ones(num_points, np.int64),
        np.arange(num_points),
        neighbours.neighbour,
        neighbours.squares,
        np.zeros(num_points, np.bool_),
        np.arange(num_points),
        slots,
        np.arange(num_points),
        np.arange(num_points),
    )
    joined, width = _join_copies(points, sketch, progress, slack)
    _merge(points, sketch, progress, slack, joined, width)
    return progress.merges, progress.heights


@njit(cache=True, nogil=True)
def _search(
    points: np.ndarray,
    sketch: Sketch,
    progress: Progress,
    slack: float,
    own: int,
    first: int,
    last: int,
    backwards: bool,
    guess: int,
    bounds: np.ndarray,
    hits: np.ndarray,
) -> int:
    """Find the cluster nearest to `own` among the columns `first` to `last`; gives another that is near, or -1."""
    progress.neighbour[own], other, progress.bound[own] = nearest_among(
        points, sketch.coarse, sketch.rest, sketch.fine, progress.slots, progress.columns[own], first, last,
        backwards, guess, squared_distance(points[own], points[guess]), bounds, hits, slack,
    )  # fmt: skip
    progress.stale[own] = False
    return other


@njit(cache=True, nogil=True)
def _compact(
    coarse: np.ndarray, rest: np.ndarray, slots: np.ndarray, columns: np.ndarray, width: int, mark: int
) -> tuple[int, int]:
    """Drop columns without a cluster (infinite rest), keep the order of the others; the new `width` and `mark`."""
    kept, marked = 0, 0
    for column in range(width):
        if np.isfinite(rest[column]):
            slots[kept] = slots[column]
            columns[slots[kept]] = kept
            rest[kept] = rest[column]
            for k in range(COARSE):
                coarse[k, kept] = coarse[k, column]
            kept += 1
            marked += column < mark
    return kept, marked


@njit(cache=True, nogil=True)
def _take_over(
    points: np.ndarray, progress: Progress, own: int, x: int, y: int, near: np.ndarray, settled: np.ndarray
) -> None:
    """Those below the column `own` whose neighbour was `x`, an exact copy of `y`, have `y` instead."""
    gone, joint = np.int32(x), np.int32(y)
    for start in range(0, own, BLOCK):
        nears = near[start : min(start + BLOCK, own)]
        found = 0
        for j in range(len(nears)):
            found += nears[j] == gone
        if found == 0:
            continue
        for j in range(len(nears)):
            if nears[j] == gone:
                z = progress.slots[start + j]
                settled[z] = False
                progress.neighbour[z], nears[j] = y, joint
                progress.stale[z] = squared_distance(points[z], points[y]) != progress.bound[z]


@njit(cache=True, nogil=True)
def _join_copies(points: np.ndarray, sketch: Sketch, progress: Progress, slack: float) -> tuple[int, int]:
    """Join equal points; how many merges that took, and the number of columns in use.

    At first every point's neighbour is the nearest point above it, which is what it owns. The heap is all but the last.
    """
    coarse, rest = sketch.coarse, sketch.rest
    merges, heights, size, node, neighbour, bound, stale, columns, slots, heap, place = progress
    n = len(points)
    # Whether a search would find the same neighbour again, also among equals.
    settled = np.ones(n, np.bool_)
    near = neighbour.astype(np.int32)
    bounds, hits = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)
    width, length = n, n - 1
    for at in range(length // 2 - 1, -1, -1):
        sift_down(heap, place, bound, at, length)
    for k in range(n - 1):
        x = heap[0]
        while bound[x] == 0.0 and stale[x]:
            _search(points, sketch, progress, slack, x, columns[x] + 1, width, False, neighbour[x], bounds, hits)
            near[columns[x]], settled[x] = neighbour[x], True
            sift_down(heap, place, bound, 0, length)
            x = heap[0]
        if bound[x] != 0.0:
            return k, width
        y = neighbour[x]
        length -= 1
        heap[0] = heap[length]
        place[heap[0]] = 0
        sift_down(heap, place, bound, 0, length)
        merges[k, 0], merges[k, 1], heights[k] = min(node[x], node[y]), max(node[x], node[y]), 0.0
        size[y] += size[x]
        node[y] = n + k
        size[x] = 0
        rest[columns[x]], near[columns[x]] = np.inf, -1
        if n - 1 - k < 0.75 * width:
            width, _ = _compact(coarse, rest, slots, columns, width, width)
            for column in range(width):
                near[column] = neighbour[slots[column]]
        _take_over(points, progress, columns[y], x, y, near, settled)
        if y < n - 1 and (stale[y] or not settled[y]):
            _search(points, sketch, progress, slack, y, columns[y] + 1, width, False, neighbour[y], bounds, hits)
            near[columns[y]], settled[y] = neighbour[y], True
            sift_down(heap, place, bound, place[y], length)
    return n - 1, width


@njit(cache=True, nogil=True)
def _move(points: np.ndarray, x: int, y: int, share: float) -> None:
    """Move the row `y` of `points` towards the row `x`; in this form equal points keep their exact value."""
    for k in range(points.shape[1]):
        points[y, k] += (points[x, k] - points[y, k]) * share


@njit(cache=True, nogil=True)
def _occupied(rest: np.ndarray, first: int, last: int, backwards: bool) -> int:
    """The first column with a cluster among `first` to `last`, or the last such, or -1."""
    for at in range(last - first):
        column = last - 1 - at if backwards else first + at
        if np.isfinite(rest[column]):
            return column
    return -1


@njit(cache=True, nogil=True)
def _nearest_of(points: np.ndarray, size: np.ndarray, x: int, y: int, guesses: tuple[int, int, int]) -> int:
    """The nearest to `y` of the guesses that are still clusters and not `x` or `y`, or -1."""
    chosen, least = -1, np.inf
    for guess in guesses:
        if guess >= 0 and guess != x and guess != y and size[guess] > 0:
            apart = squared_distance(points[y], points[guess])
            if apart < least:
                chosen, least = guess, apart
    return chosen


@njit(cache=True, nogil=True)
def _merge(points: np.ndarray, sketch: Sketch, progress: Progress, slack: float, joined: int, width: int) -> None:
    """All merges after the first `joined`, of clusters in the first `width` columns, no two of them equal."""
    head, square, coarse, rest, fine = sketch
    merges, heights, size, node, neighbour, bound, stale, columns, slots, heap, place = progress
    n = len(points)
    bounds, hits = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)
    # Counts how often a cluster changed; what its owner has seen of that says whether the owner must search again.
    changes, seen = np.zeros(n, np.int64), np.where(stale, -1, 0)
    # A cluster that was nearly the nearest.
    second = np.full(n, -1)
    # Columns before this one own those above them, the others those below them.
    first_new = width
    length = n - 1 - joined
    heap[length], place[n - 1], bound[n - 1] = n - 1, length, np.inf
    length += 1
    for k in range(joined, n - 1):
        i = heap[0]
        while seen[i] != changes[neighbour[i]]:
            own = columns[i]
            new = own >= first_new
            first, last = (0, own) if new else (own + 1, first_new)
            guess = second[i]
            if guess < 0 or size[guess] == 0 or not first <= columns[guess] < last:
                column = _occupied(rest, first, last, new)
                guess = slots[column] if column >= 0 else -1
            if guess >= 0:
                second[i] = _search(points, sketch, progress, slack, i, first, last, new, guess, bounds, hits)
            else:
                bound[i] = np.inf
            seen[i] = changes[neighbour[i]]
            sift_down(heap, place, bound, 0, length)
            i = heap[0]
        j = neighbour[i]
        x, y, least = min(i, j), max(i, j), bound[i]
        length -= 1
        moved, at = heap[length], place[x]
        if moved != x:
            heap[at], place[moved] = moved, at
            sift_down(heap, place, bound, at, length)
            sift_up(heap, place, bound, place[moved])
        merges[k, 0], merges[k, 1], heights[k] = min(node[x], node[y]), max(node[x], node[y]), np.sqrt(least)
        size[y] += size[x]
        node[y] = n + k
        share = size[x] / size[y]
        size[x] = 0
        changes[x] += 1
        changes[y] += 1
        if k == n - 2:
            break
        rest[columns[x]], rest[columns[y]] = np.inf, np.inf
        if n - 2 - k < 0.8 * width:
            width, first_new = _compact(coarse, rest, slots, columns, width, first_new)
        _move(points, x, y, share)
        _move(head, x, y, share)
        # The squared length of a weighted mean of two, from theirs and their distance.
        square[y] += (square[x] - square[y]) * share - share * (1.0 - share) * least
        slots[width], columns[y] = y, width
        write(head, square, coarse, rest, fine, y, width)
        guess = _nearest_of(points, size, x, y, (second[i], second[j], neighbour[j]))
        if guess < 0:
            guess = slots[_occupied(rest, 0, width, True)]
        second[y] = _search(points, sketch, progress, slack, y, 0, width, True, guess, bounds, hits)
        seen[y] = changes[neighbour[y]]
        sift_up(heap, place, bound, place[y])
        sift_down(heap, place, bound, place[y], length)
        width += 1
