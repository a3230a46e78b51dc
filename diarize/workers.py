"""Worker processes that diarize recordings: started, fed, watched, replaced when they die, ended with their owner.

Each is a plain interpreter at the other end of a pair of sockets, not a copy of this process: it does not run the
caller's main module again, so scripts need no guard and notebooks work. A worker ends by itself when its socket closes,
however the owner ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from socket import socketpair
from typing import Any

from .batch import Outcome, Recording, Report, attempt
from .errors import BackendError, DiarizeError, OptionError
from .pipeline import Cancelled, Setup

# Deaths of workers on one recording until it counts as failed.
_TRIES = 2
# Seconds between looks at `cancelled`.
_PATIENCE = 0.1
# Seconds that an idle worker has to end by itself.
_GRACE_S = 5.0

_MAIN = (
    "import sys, pickle; from multiprocessing.connection import Connection; link = Connection(int(sys.argv[1])); "
    "sys.path[:] = link.recv(); from diarize.workers import serve; serve(link)"
)


@dataclass
class _Worker:
    """One process, the socket to it, and the position it works on (None while idle)."""

    setup: Setup
    process: subprocess.Popen[bytes]
    link: Connection
    position: int | None = None


@dataclass
class _Queue:
    """Positions still to do and how often each was begun."""

    left: deque[int]
    begun: dict[int, int] = field(default_factory=dict)


def run(
    setups: Sequence[Setup],
    paths: Sequence[Recording],
    options: dict[str, Any],
    order: Sequence[int],
    report: Report | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Generator[Outcome, None, None]:
    """Outcomes of `paths` as they finish, begun in `order`, from one worker for each of `setups`.

    Raises
    ------
    OptionError, ModelError, BackendError
        What a worker's pipeline says when it is made, or of an option: it concerns every recording.
    Cancelled
        `cancelled` returned true.
    """
    if not paths:
        return
    queue = _Queue(deque(order))
    workers: list[_Worker] = []
    # The others wait for the first one's pipeline, so that what it compiles is there for them.
    unstarted = list(setups)
    try:
        workers.append(_start(unstarted.pop(0), options))
        _feed(workers[0], queue, paths)
        pending = len(paths)
        while pending:
            if cancelled is not None and cancelled():
                raise Cancelled
            ready = wait([worker.link for worker in workers if worker.position is not None], _PATIENCE)
            for index, worker in enumerate(tuple(workers)):
                if worker.link not in ready:
                    continue
                outcome, alive = _hear(worker, paths, report)
                if alive:
                    while unstarted:
                        workers.append(_start(unstarted.pop(0), options))
                        _feed(workers[-1], queue, paths)
                else:
                    outcome = _mourn(worker, queue, paths)
                    workers[index] = worker = _start(worker.setup, options)
                if outcome is not None:
                    pending -= 1
                    yield outcome
                if worker.position is None:
                    _feed(worker, queue, paths)
                    # Someone may have put its recording back after others ran out of work.
                    for idle in workers:
                        if idle.position is None:
                            _feed(idle, queue, paths)
    finally:
        for worker in workers:
            worker.link.close()
        for worker in workers:
            _end(worker)


def _start(setup: Setup, options: dict[str, Any]) -> _Worker:
    """A worker that loads its pipeline while it waits for work."""
    ours, theirs = socketpair()
    # The caller's choices stand; without any, BLAS would take every core in every worker.
    threads = str(setup.threads)
    environment = {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**environment, **os.environ},
            # An interrupt from the keyboard is for the owner, who then ends its workers.
            start_new_session=True,
        )
    finally:
        theirs.close()
    link = Connection(ours.detach())
    worker = _Worker(setup, process, link)
    with suppress(OSError):
        link.send(sys.path)
        link.send((setup, options))
    return worker


def _feed(worker: _Worker, queue: _Queue, paths: Sequence[Recording]) -> None:
    """Hand the next recording to an idle worker, if there is one."""
    if not queue.left:
        return
    worker.position = queue.left.popleft()
    queue.begun[worker.position] = queue.begun.get(worker.position, 0) + 1
    # A worker that has died is noticed when it is heard.
    with suppress(OSError):
        worker.link.send((worker.position, paths[worker.position]))


def _hear(worker: _Worker, paths: Sequence[Recording], report: Report | None) -> tuple[Outcome | None, bool]:
    """One message of a worker: an outcome or None, and whether it lives."""
    try:
        kind, content = worker.link.recv()
    except (EOFError, OSError):
        return None, False
    if kind == "fatal":
        raise content
    if kind == "outcome":
        worker.position = None
        return content, True
    if kind == "progress" and report is not None and worker.position is not None:
        report(paths[worker.position], *content)
    return None, True


def _mourn(worker: _Worker, queue: _Queue, paths: Sequence[Recording]) -> Outcome | None:
    """Put a dead worker's recording back in front, or give it up: then its outcome."""
    _end(worker)
    position = worker.position
    assert position is not None
    if queue.begun[position] < _TRIES:
        queue.left.appendleft(position)
        return None
    code = worker.process.returncode
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    error = BackendError(
        f"{os.fspath(paths[position])}: the worker process died on it {_TRIES} times ({how}); "
        "use fewer jobs where memory is short, or run it alone"
    )
    return Outcome(paths[position], position, None, error)


def _end(worker: _Worker) -> None:
    """End a worker: one at work at once, an idle one by itself, which lets it give a GPU back in order."""
    worker.link.close()
    if worker.position is None:
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(_GRACE_S)
    worker.process.kill()
    worker.process.wait()


def serve(link: Connection) -> None:
    """What a worker process does: make a pipeline, then diarize what comes through `link` until it closes."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        setup, options = link.recv()
        try:
            pipeline = setup.open()
        except DiarizeError as error:
            link.send(("fatal", error))
            return
        link.send(("ready", None))
        while True:
            position, path = link.recv()

            def show(stage: str, done: float, total: float | None) -> None:
                link.send(("progress", (stage, done, total)))

            try:
                outcome = attempt(pipeline, path, position, {**options, "progress": show})
            except OptionError as error:
                link.send(("fatal", error))
                return
            link.send(("outcome", _portable(outcome)))


def _portable(outcome: Outcome) -> Outcome:
    """`outcome` with an error that survives the way to another process."""
    error = outcome.error
    if error is None or type(error).__module__ == DiarizeError.__module__:
        return outcome
    if isinstance(error, MemoryError):
        return replace(outcome, error=MemoryError())
    return replace(outcome, error=RuntimeError(f"{type(error).__name__}: {error}"))
