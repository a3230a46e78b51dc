"""How far many recordings have come, on stderr: a bar on a terminal, a line now and then elsewhere, nothing when quiet.

Shown are recordings, seconds of audio, how many seconds of audio are done in one (RTFx), and the time left.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from ._output import say
from ._progress import LINE_INTERVAL_S

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from ..batch import Outcome


@dataclass
class Tally:
    """What is done of `seconds` of audio in each recording, since `started` (time.monotonic)."""

    seconds: Sequence[float]
    started: float
    finished: int = 0
    _done: float = 0.0
    _under_way: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Seconds of audio in all."""
        return sum(self.seconds)

    @property
    def done(self) -> float:
        """Seconds of audio done, those of recordings under way included; at most all."""
        return min(self.total, self._done + sum(self._under_way.values()))

    def advance(self, path: str, seconds: float) -> None:
        """So many seconds of a recording under way are done."""
        self._under_way[path] = seconds

    def finish(self, path: str, position: int) -> None:
        """A recording is done, well or badly."""
        self._under_way.pop(path, None)
        self._done += self.seconds[position]
        self.finished += 1

    def speed(self, now: float) -> float:
        """RTFx so far: seconds of audio done in each second."""
        return self.done / (now - self.started) if now > self.started else 0.0

    def left(self, now: float) -> float | None:
        """Seconds until the end at this speed, None before anything is done."""
        speed = self.speed(now)
        return (self.total - self.done) / speed if speed > 0 else None

    def text(self, now: float) -> str:
        """One line for people.

        >>> tally = Tally([60.0, 60.0], started=0.0)
        >>> tally.finish("a.wav", 0)
        >>> tally.text(now=2.0)
        '1 of 2 recordings, 60 of 120 s, 30.0x real time, 0:02 left'
        """
        left = self.left(now)
        rest = "" if left is None else f", {_clock(left)} left"
        return (
            f"{self.finished} of {len(self.seconds)} recordings, {self.done:.0f} of {self.total:.0f} s, "
            f"{self.speed(now):.1f}x real time{rest}"
        )


class BatchProgress:
    """Shown while its context is open; quiet with a `verbosity` below 0. Without `bar`, lines on a terminal too."""

    def __init__(self, seconds: Sequence[float], verbosity: int, bar: bool = True) -> None:
        self._tally = Tally(seconds, time.monotonic())
        self._verbosity = verbosity
        self._last = time.monotonic()
        self._wants_bar = bar
        self._bar: RichProgress | None = None

    def __enter__(self) -> BatchProgress:
        if self._wants_bar and self._verbosity >= 0 and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            # Results on standard output are bytes, which rich must not touch.
            self._bar = Progress(
                BarColumn(bar_width=24),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,
            )
            self._bar.add_task("", total=self._tally.total or None)
            self._bar.start()
            self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, path: str | os.PathLike[str], stage: str, done: float, total: float | None) -> None:
        """Progress of one recording, as `Pipeline.diarize_many` reports it."""
        self._tally.advance(os.fspath(path), done)
        self._show()

    def finish(self, outcome: Outcome) -> None:
        """A recording is done."""
        self._tally.finish(os.fspath(outcome.path), outcome.position)
        self._show()
        if self._bar is not None:
            # The bar draws itself ten times a second, which may be never between two short recordings.
            self._bar.refresh()

    def _show(self) -> None:
        now = time.monotonic()
        if self._bar is not None:
            task = self._bar.tasks[0].id
            self._bar.update(task, completed=self._tally.done, description=self._tally.text(now))
        elif self._verbosity >= 0 and now - self._last >= LINE_INTERVAL_S:
            self._last = now
            say(self._tally.text(now))


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
