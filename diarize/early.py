"""Work of the clustering that need not wait for the last stretch, done in a thread while the others are analysed.

Embeddings become rows of unit length, and once there are so many to learn from that neighbours are searched instead of
all distances stored, each new one is searched as it arrives. What is found is the same as if it were done at the end.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from .analysis import StretchResult
from .backend.blas import one_blas_thread
from .cluster.ahc import MATRIX_LIMIT
from .cluster.community1 import initial_training_set
from .rows import Rows

if TYPE_CHECKING:
    from .cluster.neighbours import Neighbours

# Points searched at once: a search among all that are there costs little more for a few new ones than for one.
_AT_ONCE = 256


@dataclass(frozen=True)
class Early:
    """`rows` of all stretches; `neighbours` among the embeddings to learn from, None where there are few."""

    rows: Rows
    neighbours: Neighbours | None


class EarlyWork:
    """Takes the results of stretches in their order; a context in which its thread lives.

    `search` says whether neighbours are wanted; `threads` may look for them at once.
    """

    def __init__(self, search: bool, threads: int = 1) -> None:
        self._search = search
        self._threads = threads
        self._parts: list[Rows] = []
        self._units: np.ndarray | None = None
        self._used = 0
        self._waiting: list[np.ndarray] = []
        self._neighbours: Neighbours | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="early")
        self._done: list[Future[None]] = []

    def __enter__(self) -> EarlyWork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def add(self, result: StretchResult) -> None:
        """Begin with one more stretch."""
        self._done.append(self._pool.submit(self._one, result))

    def wait(self) -> None:
        """Until the stretches so far are done; raises what went wrong with them."""
        for future in self._done:
            future.result()
        self._done.clear()

    def finish(self) -> Early | None:
        """What was found, once all stretches are done; None without any."""
        self.wait()
        if self._units is None:
            return None
        self._learn(0)
        parts = self._parts
        speaks, alone, usable = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("speaks", "alone", "usable")
        )
        return Early(Rows(speaks, alone, usable, self._units[: self._used]), self._neighbours)

    def _one(self, result: StretchResult) -> None:
        rows = Rows.of(result.classes, result.embeddings)
        self._parts.append(Rows(rows.speaks, rows.alone, rows.usable, rows.units[:0]))
        self._keep(rows.units)
        if self._search:
            chosen = np.zeros(rows.usable.shape, dtype=bool)
            train = initial_training_set(rows)
            chosen[train.windows, train.locals_] = True
            self._waiting.append(rows.units[chosen[rows.usable]])
            self._learn(_AT_ONCE)

    def _keep(self, units: np.ndarray) -> None:
        """Append to all units, in room that doubles: copying must not wait for the end."""
        if self._units is None:
            self._units = np.empty((0, units.shape[1]))
        last = self._used + len(units)
        if last > len(self._units):
            room = np.empty((max(last, 2 * len(self._units)), units.shape[1]))
            room[: self._used] = self._units[: self._used]
            self._units = room
        self._units[self._used : last] = units
        self._used = last

    def _learn(self, least: int) -> None:
        """Search among what is waiting, unless it is too little."""
        number = sum(len(points) for points in self._waiting)
        if number == 0 or number < least or (self._neighbours is None and number <= MATRIX_LIMIT):
            return
        points, self._waiting = np.concatenate(self._waiting), []
        with one_blas_thread():
            if self._neighbours is None:
                from .cluster.neighbours import Neighbours
                from .cluster.search import centroid_by_search

                self._neighbours = Neighbours(points, self._threads)
                # Loads the compiled code of what follows.
                centroid_by_search(Neighbours(points[:3], threads=1))
            else:
                self._neighbours.add(points)
