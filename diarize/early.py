"""Work of the clustering that need not wait for the last stretch, done in a thread while the others are analysed.

Embeddings become rows of unit length, and what a model's clustering can prepare is prepared as they arrive. What is
found is the same as if it were done at the end.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from .analysis import StretchResult
from .backend.blas import one_blas_thread
from .rows import Rows

if TYPE_CHECKING:
    from .cluster.preparation import Preparation, Prepared


@dataclass(frozen=True)
class Early:
    """`rows` of all stretches; `prepared` by the clustering, None where it prepares nothing or there was nothing."""

    rows: Rows
    prepared: Prepared | None = None


class EarlyWork:
    """Takes the results of stretches in their order, also for `preparation`; a context in which its thread lives."""

    def __init__(self, preparation: Preparation | None = None) -> None:
        self._preparation = preparation
        self._parts: list[Rows] = []
        self._units: np.ndarray | None = None
        self._used = 0
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
        prepared = None
        if self._preparation is not None:
            with one_blas_thread():
                prepared = self._preparation.finish()
        parts = self._parts
        speaks, alone, usable = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("speaks", "alone", "usable")
        )
        return Early(Rows(speaks, alone, usable, self._units[: self._used]), prepared)

    def _one(self, result: StretchResult) -> None:
        rows = Rows.of(result.classes, result.embeddings)
        self._parts.append(Rows(rows.speaks, rows.alone, rows.usable, rows.units[:0]))
        self._keep(rows.units)
        if self._preparation is not None:
            # What is summed in which order must not depend on the machine's load.
            with one_blas_thread():
                self._preparation.add(rows, result.embeddings)

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
