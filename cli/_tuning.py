"""How far a tuning has come, on stderr: a bar on a terminal, a line now and then elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from ._output import say
from ._progress import LINE_INTERVAL_S, Bar

_TITLE = "tune"


class Tuning:
    """Shown while its context is open; call it with the steps done, those in all, and the one that comes next."""

    def __init__(self, verbosity: int) -> None:
        self._quiet = verbosity < 0
        self._bar: Bar | None = None
        self._last = time.monotonic()

    def __enter__(self) -> Tuning:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)

    def __call__(self, done: int, total: int, what: str) -> None:
        if self._quiet:
            return
        if sys.stderr.isatty():
            if self._bar is None:
                self._bar = Bar(_TITLE)
                self._bar.__enter__()
            self._bar(what, done, total)
        elif time.monotonic() - self._last >= LINE_INTERVAL_S:
            self._last = time.monotonic()
            say(f"{_TITLE}: {what}, {done} of {total}")
