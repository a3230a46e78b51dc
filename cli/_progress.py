"""How far a recording has come, on stderr: a bar on a terminal, a line now and then elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ._output import say

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LINE_INTERVAL_S = 15.0


class Progress(Protocol):
    """Shown while its context is open; call it with the stage, the seconds of audio done and those in all."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __call__(self, stage: str, done_seconds: float, total_seconds: float | None) -> None: ...


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __call__(self, stage: str, done_seconds: float, total_seconds: float | None) -> None:
        pass


class Lines(Silent):
    """Prints a line every 15 s, for logs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = time.monotonic()

    def __call__(self, stage: str, done_seconds: float, total_seconds: float | None) -> None:
        now = time.monotonic()
        if now - self._last < LINE_INTERVAL_S:
            return
        self._last = now
        total = f" of {total_seconds:.0f}" if total_seconds else ""
        say(f"{self._name}: {stage}, {done_seconds:.0f}{total} s")


class Bar(Silent):
    """Draws a bar with rich, and wipes it when the recording is done."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._bar: RichProgress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._name = name
        self._task = self._bar.add_task(name, total=None)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, stage: str, done_seconds: float, total_seconds: float | None) -> None:
        self._bar.update(
            self._task, description=f"{self._name}: {stage}", completed=done_seconds, total=total_seconds or None
        )


def progress(name: str, verbosity: int) -> Progress:
    """The way to show progress that fits: none when quiet, a bar on a terminal, else lines."""
    if verbosity < 0:
        return Silent()
    return Bar(name) if sys.stderr.isatty() else Lines(name)
