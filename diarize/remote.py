"""Recordings diarized by the workers of a dask.distributed cluster (the extra `cluster`).

A worker reads a recording where it lies at the same path, with the same size and time of change, as on a shared disk;
else its bytes are sent. Only a few recordings are on their way at a time. What was lost with a worker that died is
given to another, by the scheduler or from here.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from .batch import Outcome, Recording, attempt, refuse_pipes
from .errors import BackendError, OptionError
from .pipeline import Cancelled, Pipeline, Setup

# Recordings at each thread of a worker: one in work, one waiting.
_DEPTH = 2
# Deaths of workers on one recording until it counts as failed.
_TRIES = 5
# Seconds between looks at `cancelled`, and until a cluster without workers or an address without answer is given up.
_PATIENCE = 0.2
_WORKERS_S = 60
_CONNECT_S = 10


@dataclass(frozen=True)
class _Mark:
    """How a file is known again on another machine."""

    size: int
    changed_ns: int


class _NotHereError(Exception):
    """The file does not lie at its path on this worker."""


def run(
    address: str,
    setup: Setup,
    paths: Sequence[Recording],
    options: dict[str, Any],
    order: Sequence[int],
    cancelled: Callable[[], bool] | None = None,
) -> Generator[Outcome, None, None]:
    """Outcomes of `paths` as they finish, begun in `order`, from the cluster whose scheduler is at `address`.

    Raises
    ------
    OptionError
        dask.distributed is not installed, or an option is wrong.
    BackendError
        The scheduler cannot be reached, or has no workers.
    Cancelled
        `cancelled` returned true.
    """
    refuse_pipes(paths)
    try:
        from distributed import Client
    except ImportError as error:
        raise OptionError(
            "--scheduler needs dask.distributed, which is not installed: pip install 'diarize-cuda[cluster]'"
        ) from error
    try:
        client = Client(address, set_as_default=False, timeout=_CONNECT_S)
    except (OSError, ValueError, TimeoutError) as error:
        raise BackendError(f"scheduler {address} cannot be reached ({error}); check the address") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_WORKERS_S)
        except TimeoutError as error:
            raise BackendError(f"scheduler {address} has no workers; start some: dask worker {address}") from error
        yield from _Run(client, setup, paths, options).outcomes(order, cancelled)


class _Run:
    """One batch on a cluster."""

    def __init__(self, client: Any, setup: Setup, paths: Sequence[Recording], options: dict[str, Any]) -> None:
        self._client = client
        self._setup = setup
        self._paths = paths
        self._options = options
        self._tries: dict[int, int] = {}
        self._sent: set[int] = set()

    def outcomes(self, order: Sequence[int], cancelled: Callable[[], bool] | None) -> Generator[Outcome, None, None]:
        """Outcomes as they finish."""
        from distributed import TimeoutError as WaitTimeoutError
        from distributed import wait

        left = deque(order)
        under_way: dict[Any, int] = {}
        while left or under_way:
            if cancelled is not None and cancelled():
                raise Cancelled
            room = _DEPTH * max(1, sum(self._client.nthreads().values()))
            while left and len(under_way) < room:
                position = left.popleft()
                started = self._submit(position)
                if isinstance(started, Outcome):
                    yield started
                else:
                    under_way[started] = position
            if not under_way:
                continue
            try:
                # The waiting goes through the current client, which users may have one of their own for.
                with self._client.as_current():
                    finished = wait(list(under_way), timeout=_PATIENCE, return_when="FIRST_COMPLETED").done
            except WaitTimeoutError:
                continue
            for future in finished:
                position = under_way.pop(future)
                outcome = self._outcome(future, position)
                if outcome is None:
                    left.appendleft(position)
                else:
                    yield outcome

    def _submit(self, position: int) -> Any:
        """A future for one recording, or its outcome where it cannot even be read here."""
        path = os.fspath(self._paths[position])
        try:
            facts = os.stat(path)
            content = None
            if position in self._sent:
                with open(path, "rb") as file:
                    content = file.read()
        except OSError as error:
            # As a local run would say it.
            reason = f"{path}: {'no such file; check the path' if isinstance(error, FileNotFoundError) else error}"
            from .errors import AudioError

            return Outcome(self._paths[position], position, None, AudioError(reason))
        mark = _Mark(facts.st_size, facts.st_mtime_ns)
        return self._client.submit(
            diarize_there,
            self._setup,
            os.path.abspath(path),
            path,
            mark,
            content,
            position,
            self._options,
            pure=False,
            retries=0,
        )

    def _outcome(self, future: Any, position: int) -> Outcome | None:
        """The outcome of a finished future, None where the recording must be given out again."""
        if future.status == "finished":
            try:
                outcome: Outcome = future.result()
            # The worker that held the result has died since.
            except Exception:
                return self._again(position)
            return replace(outcome, path=self._paths[position])
        error = None if future.status in ("cancelled", "lost") else future.exception()
        if isinstance(error, _NotHereError):
            self._sent.add(position)
            return None
        if isinstance(error, OptionError):
            raise error
        if error is not None and type(error).__name__ != "KilledWorker":
            return Outcome(self._paths[position], position, None, error)
        return self._again(position)

    def _again(self, position: int) -> Outcome | None:
        """None to try once more, else the outcome of a recording that took too many workers with it."""
        self._tries[position] = self._tries.get(position, 0) + 1
        if self._tries[position] < _TRIES:
            return None
        path = self._paths[position]
        error = BackendError(f"{os.fspath(path)}: {_TRIES} times a worker of the cluster died on it; run it alone")
        return Outcome(path, position, None, error)


def diarize_there(
    setup: Setup, place: str, name: str, mark: _Mark, content: bytes | None, position: int, options: dict[str, Any]
) -> Outcome:
    """What a worker of the cluster does for one recording: `place` its absolute path, `name` as the user gave it."""
    pipeline = _pipeline(setup)
    if content is not None:
        stream = io.BytesIO(content)
        stream.name = name  # type: ignore[attr-defined]
        return attempt(pipeline, stream, position, options)
    try:
        facts = os.stat(place)
    except OSError as error:
        raise _NotHereError(place) from error
    if _Mark(facts.st_size, facts.st_mtime_ns) != mark:
        raise _NotHereError(place)
    return attempt(pipeline, place, position, options)


@lru_cache(maxsize=1)
def _pipeline(setup: Setup) -> Pipeline:
    """The pipeline of this process, made once."""
    return setup.open()
