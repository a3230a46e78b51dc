"""Many recordings: each one's result or error as a value, done here or by worker processes.

Worker processes take the longest recordings first, so that the shares come out even by duration however many there are.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from . import audio
from .backend.blas import one_blas_thread
from .backend.select import check_device_name
from .errors import DiarizeError, OptionError
from .spool import STDIN, STDIN_NAME, is_pipe
from .switching import quick_switching
from .types import Diarization
from .values import whole_number

if TYPE_CHECKING:
    from .pipeline import Pipeline, Setup

Recording = str | os.PathLike[str]
"""A recording by its path; "-" is standard input."""

Report = Callable[[Recording, str, float, float | None], None]
"""Progress of one recording: its path, the stage, the seconds of audio done and those in all (None if unknown)."""


class _CallerError(BaseException):
    """What a callback of the caller raised: no recording's fault."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


# A thread that feeds a GPU must not wait for one that counts.
_SWITCH_SECONDS = 5e-4
Given = TypeVar("Given")

# Bytes a second of audio where only the size of a file is known: speech in a lossy format.
_TYPICAL_BYTES = 16_000


@dataclass(frozen=True)
class Outcome:
    """What became of one recording: exactly one of `result` and `error` is there.

    `position` counts from 0 in the order in which recordings were given; `seconds` is what the work took.
    """

    path: Recording
    position: int
    result: Diarization | None
    error: Exception | None
    seconds: float = 0.0

    def get(self) -> Diarization:
        """The result; raises the error where there is one."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


def run_here(
    pipeline: Pipeline,
    paths: Sequence[Recording],
    options: dict[str, Any],
    report: Report | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Generator[Outcome, None, None]:
    """Outcomes of `paths` in their order, from `pipeline` itself; `options` are those of `Pipeline.diarize`.

    They are done one after another, or a few at once where the pipeline's engine can.

    Raises
    ------
    Cancelled
        `cancelled` returned true.
    OptionError
        An option is wrong, which every recording would say.
    Exception
        What `report` or `cancelled` raised.
    """

    def asked() -> bool:
        return cancelled is not None and _of_caller(cancelled)

    try:
        if pipeline.engine.recordings > 1 and len(paths) > 1:
            yield from _side_by_side(pipeline, paths, options, report, asked)
            return
        for position, path in enumerate(paths):

            def show(stage: str, done: float, total: float | None, path: Recording = path) -> None:
                if report is not None:
                    _of_caller(lambda: report(path, stage, done, total))

            yield attempt(pipeline, path, position, {**options, "progress": show, "cancelled": asked})
    except _CallerError as fault:
        raise fault.error from None


def _of_caller(callback: Callable[[], Given]) -> Given:
    """What the caller's `callback` gives; what it raises ends the whole iteration."""
    try:
        return callback()
    except Exception as error:
        raise _CallerError(error) from error


def _side_by_side(
    pipeline: Pipeline,
    paths: Sequence[Recording],
    options: dict[str, Any],
    report: Report | None,
    cancelled: Callable[[], bool],
) -> Generator[Outcome, None, None]:
    """As `run_here`, with as many recordings at once as the engine serves, so that it need not wait for any of them."""
    count = pipeline.engine.recordings
    # Reports reach the caller from its own thread; None says that a recording has ended.
    heard: SimpleQueue[tuple[Recording, str, float, float | None] | None] = SimpleQueue()
    left = threading.Event()

    def stop() -> bool:
        return left.is_set() or cancelled()

    def one(position: int, path: Recording) -> Outcome:
        def show(stage: str, done: float, total: float | None) -> None:
            heard.put((path, stage, done, total))

        return attempt(pipeline, path, position, {**options, "progress": show, "cancelled": stop})

    running: deque[Future[Outcome]] = deque()
    following = iter(enumerate(paths))
    with (
        one_blas_thread(),
        quick_switching(_SWITCH_SECONDS),
        ThreadPoolExecutor(count, thread_name_prefix="recording") as pool,
    ):
        try:
            while True:
                # Results that wait for an earlier one are bounded too.
                for position, path in islice(following, 3 * count - len(running)):
                    running.append(pool.submit(one, position, path))
                    running[-1].add_done_callback(lambda _: heard.put(None))
                if not running:
                    return
                while not running[0].done():
                    said = heard.get()
                    if said is not None and report is not None:
                        report(*said)
                yield running.popleft().result()
        finally:
            left.set()
            for future in running:
                future.cancel()


def attempt(pipeline: Pipeline, source: Any, position: int, options: dict[str, Any]) -> Outcome:
    """The outcome of one recording, a path or stream; raises only what concerns all of them, see `run_here`."""
    from .pipeline import Cancelled

    started = time.perf_counter()
    result: Diarization | None = None
    failure: Exception | None = None
    try:
        result = pipeline.diarize(source, **options)
    except (OptionError, Cancelled):
        raise
    except Exception as error:
        # Also a fault of our own: the other recordings may still work.
        failure = error
    return Outcome(source, position, result, failure, time.perf_counter() - started)


def run_in_processes(
    setup: Setup,
    paths: Sequence[Recording],
    options: dict[str, Any],
    jobs: int = 1,
    devices: Sequence[str] = (),
    in_order: bool = True,
    report: Report | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Generator[Outcome, None, None]:
    """Outcomes of `paths` from worker processes, `jobs` of them or one for each of `devices`.

    Raises
    ------
    OptionError
        `jobs` and `devices` contradict each other, or an option is wrong.
    Cancelled
        `cancelled` returned true.
    """
    from .workers import run

    refuse_pipes(paths)
    setups = share_out(setup, jobs, devices)
    # No more workers than there is work.
    outcomes = run(setups[: max(1, len(paths))], paths, options, longest_first(paths), report, cancelled)
    return ordered(outcomes) if in_order else outcomes


def share_out(setup: Setup, jobs: int, devices: Sequence[str]) -> list[Setup]:
    """The setup of each worker: the device and its part of the threads, none less than one.

    >>> from diarize.pipeline import Setup                                         # doctest: +SKIP
    >>> [s.threads for s in share_out(Setup("auto", "cpu", "exact", 8), 3, ())]    # doctest: +SKIP
    [3, 3, 2]

    Raises
    ------
    OptionError
        `jobs` is below one, both say how many workers there are, or a device's name is none.
    """
    if whole_number("jobs", jobs) < 1:
        raise OptionError(f"jobs is {jobs}; it must be at least 1")
    if devices and jobs > 1:
        raise OptionError(f"jobs {jobs} and devices {','.join(devices)} both set the number of workers; give one")
    for name in devices:
        check_device_name(name)
    names = list(devices) or [setup.device] * jobs
    whole, rest = divmod(setup.threads or len(os.sched_getaffinity(0)), len(names))
    return [replace(setup, device=name, threads=max(1, whole + (index < rest))) for index, name in enumerate(names)]


def refuse_pipes(paths: Sequence[Recording]) -> None:
    """Nothing where every recording can be read by another process.

    Raises
    ------
    OptionError
        One comes through standard input or a pipe.
    """
    for recording in paths:
        path = os.fspath(recording)
        if path == STDIN or is_pipe(path):
            name = STDIN_NAME if path == STDIN else path
            raise OptionError(f"{name} can only be read by one process; leave out jobs, devices and scheduler for it")


def longest_first(paths: Sequence[Recording]) -> list[int]:
    """Positions of `paths`, the longest recording first; equal ones in their order."""
    lengths = [seconds_of(path) for path in paths]
    return sorted(range(len(paths)), key=lambda position: -lengths[position])


def seconds_of(path: Recording) -> float:
    """Length that a recording's header states, a guess from its size where it states none, 0 where it has none."""
    try:
        with audio.open_audio(path) as reader:
            known = reader.total_seconds
        return os.stat(path).st_size / _TYPICAL_BYTES if known is None else known
    except (DiarizeError, OSError):
        # Whoever diarizes it reports what is wrong.
        return 0.0


def ordered(outcomes: Generator[Outcome, None, None]) -> Generator[Outcome, None, None]:
    """`outcomes` by position, each as soon as those before it have come."""
    waiting: dict[int, Outcome] = {}
    following = 0
    with closing(outcomes):
        for outcome in outcomes:
            waiting[outcome.position] = outcome
            while following in waiting:
                yield waiting.pop(following)
                following += 1
