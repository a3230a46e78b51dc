"""The nearest point above each point, found as points arrive or all at once by several threads.

*Above* is with a higher index; the lowest index of equals is taken. Every point's search is its own, so neither threads
nor the sizes in which points arrive change what is found.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..cache import njit
from .sketch import (
    ABSOLUTE,
    RELATIVE,
    Axes,
    coarse_bounds,
    draw,
    empty_sketch,
    fine_bound,
    principal_axes,
    squared_distance,
)

BLOCK = 512
"""Columns of a scan: their bounds stay in the first cache."""

# Pairs: fewer are searched sooner than a thread starts.
_PAIRS_PER_THREAD = 500_000


class Neighbours:
    """Points with their sketches and nearest neighbours above, growing at the end.

    `points` (n, D) float64; `neighbour` (n,) int64 and `squares` (n,) float64 squared distances, infinite for the
    last point; `sketch` has room for `capacity` points. `slack` is what float32 may be off by, absolute.
    """

    def __init__(self, points: np.ndarray, threads: int | None = None, axes: Axes | None = None) -> None:
        self.axes = axes or principal_axes(points)
        self._threads = threads or len(os.sched_getaffinity(0))
        self._num = 0
        self._points = np.empty((0, points.shape[1]))
        self._neighbour, self._squares = np.zeros(0, np.int64), np.zeros(0)
        self.sketch = empty_sketch(0)
        self.add(points)

    def __len__(self) -> int:
        return self._num

    @property
    def points(self) -> np.ndarray:
        """All points so far (n, D)."""
        return self._points[: self._num]

    @property
    def neighbour(self) -> np.ndarray:
        """Index (n,) int64 of the nearest point above each."""
        return self._neighbour[: self._num]

    @property
    def squares(self) -> np.ndarray:
        """Squared distance (n,) float64 to it."""
        return self._squares[: self._num]

    @property
    def slack(self) -> float:
        """Absolute rounding of bounds."""
        return float(self.sketch.square[: self._num].max(initial=0.0)) * ABSOLUTE

    def add(self, points: np.ndarray) -> None:
        """Search among `points` (n, D) float64, and among them for those before."""
        old, new = self._num, self._num + len(points)
        if new > len(self._points):
            self._grow(new)
        self._points[old:new] = points
        self._squares[old:new] = np.inf
        draw(self.sketch, points, self.axes, old)
        self._num = new
        slack = self.slack
        _, _, coarse, rest, fine = self.sketch
        # Every point looks at those above it: shares that are interleaved cost the same.
        threads = max(1, min(self._threads, len(points) * new // _PAIRS_PER_THREAD))

        def search(share: int) -> None:
            search_share(
                self._points, coarse, rest, fine, share, threads, old, new, self._neighbour, self._squares, slack
            )

        if threads == 1:
            search(0)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(search, range(threads)))

    def _grow(self, least: int) -> None:
        """Room for at least `least` points; twice as many as before, so that copying costs little in all."""
        room = max(least, 2 * len(self._points)) if self._num else least
        kept = self._num
        sketch = empty_sketch(room)
        for name, before in self.sketch._asdict().items():
            room_for = getattr(sketch, name)
            if name == "coarse":
                room_for[:, :kept] = before[:, :kept]
            else:
                room_for[:kept] = before[:kept]
        points, neighbour, squares = np.empty((room, self._points.shape[1])), np.zeros(room, np.int64), np.empty(room)
        points[:kept], neighbour[:kept], squares[:kept] = self.points, self.neighbour, self.squares
        self.sketch, self._points, self._neighbour, self._squares = sketch, points, neighbour, squares


@njit(cache=True, nogil=True)
def nearest_among(
    points: np.ndarray,
    coarse: np.ndarray,
    rest: np.ndarray,
    fine: np.ndarray,
    slots: np.ndarray,
    column: int,
    first: int,
    last: int,
    backwards: bool,
    guess: int,
    distance: float,
    bounds: np.ndarray,
    hits: np.ndarray,
    slack: float,
) -> tuple[int, int, float]:
    """The point nearest to `column` among the columns `first` to `last`, lowest of equals, and its squared distance.

    Between them the point that was nearest until that one was found, a guess for other searches, or -1. `slots` gives
    the point of each column. `guess` is a point that may be the nearest, at the squared distance `distance`.
    `backwards` looks at the last columns first. `bounds` (BLOCK,) float32 and `hits` (BLOCK,) int32 are overwritten.
    """
    own = slots[column]
    nearest, before, least = guess, -1, distance
    limit = least * (1.0 + RELATIVE) + slack
    mine = rest[column]
    for done in range(0, last - first, BLOCK):
        start = max(first, last - done - BLOCK) if backwards else first + done
        count = min(BLOCK, last - first - done)
        coarse_bounds(coarse, rest, column, start, start + count, bounds)
        # Rounded up, as all that passes is looked at again.
        ceiling = np.float32(limit * (1.0 + RELATIVE))
        # A list without branches, since which bounds pass cannot be foreseen by the processor.
        passed = 0
        for j in range(count):
            hits[passed] = j
            passed += bounds[j] <= ceiling
        for i in range(passed):
            j = hits[i]
            if bounds[j] > limit:
                continue
            left = rest[start + j] - mine
            other = slots[start + j]
            if bounds[j] - left * left + fine_bound(fine, own, other) > limit:
                continue
            apart = squared_distance(points[own], points[other])
            if apart < least or (apart == least and other < nearest):
                nearest, before, least = other, nearest, apart
                limit = least * (1.0 + RELATIVE) + slack
    return nearest, before, least


@njit(cache=True, nogil=True)
def search_share(
    points: np.ndarray,
    coarse: np.ndarray,
    rest: np.ndarray,
    fine: np.ndarray,
    share: int,
    shares: int,
    old: int,
    new: int,
    neighbour: np.ndarray,
    squares: np.ndarray,
    slack: float,
) -> None:
    """Nearest point above for every `shares`-th point from `share`, of `new` points; the first `old` have theirs."""
    slots = np.arange(new)
    bounds, hits = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)
    for x in range(share, new - 1, shares):
        guess, distance = neighbour[x], squares[x]
        if x + 1 >= old:
            # Neighbours in time are mostly the same speaker.
            guess, distance = x + 1, squared_distance(points[x], points[x + 1])
        neighbour[x], _, squares[x] = nearest_among(
            points, coarse, rest, fine, slots, x, max(x + 1, old), new, False, guess, distance, bounds, hits, slack
        )
