"""Compiles the kernels that the cache lacks, several at once, in interpreters of their own.

Plain interpreters, not copies of this process: they do not run the caller's main module again, so a script needs no
guard.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from ..candidates import Request
from ..errors import BackendError
from .cuda_compile import KernelCache, read_image

Compiling = Callable[[int, int], None]
"""Called with the number of kernels that are ready and of those wanted in all, from the calling thread."""

_MAIN = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from diarize.backend.cuda_build import serve; serve(sys.stdin, sys.stdout)"
)
_FAILED = "failed: "


def missing(requests: Sequence[Request], capability: tuple[int, int], folder: Path | None = None) -> list[Request]:
    """The requests whose kernels are not in the cache."""
    cache = KernelCache(folder)
    wanted = []
    for request in requests:
        made = request.make()
        if read_image(cache.path(getattr(made, "kernel", made), capability)) is None:
            wanted.append(request)
    return wanted


def build(
    requests: Sequence[Request],
    capability: tuple[int, int],
    folder: Path | None = None,
    jobs: int | None = None,
    compiling: Compiling | None = None,
    failed: dict[str, str] | None = None,
) -> int:
    """Compile what the cache lacks; gives how many kernels that were.

    With `failed`, kernels that do not compile are told there, by the key of the request, and the others go on.

    Raises
    ------
    BackendError
        A kernel does not compile, or a compiler process dies.
    """
    wanted = missing(requests, capability, folder)
    if not wanted:
        return 0
    count = min(len(wanted), jobs or len(os.sched_getaffinity(0)))
    where = KernelCache(folder).folder
    heard: queue.Queue[tuple[str, str]] = queue.Queue()
    workers = [_Compiler(capability, where, heard) for _ in range(count)]
    try:
        if compiling is not None:
            compiling(0, len(wanted))
        for number, request in enumerate(wanted):
            workers[number % count].give(request)
        for worker in workers:
            worker.finish()
        for done in range(1, len(wanted) + 1):
            key, line = heard.get()
            if line.startswith(_FAILED):
                reason = line.removeprefix(_FAILED)
                if failed is None or not key:
                    raise BackendError(reason)
                failed[key] = reason
            if compiling is not None:
                compiling(done, len(wanted))
    finally:
        for worker in workers:
            worker.end()
    return len(wanted)


class _Compiler:
    """One interpreter that compiles what it is given and says so, line by line."""

    def __init__(self, capability: tuple[int, int], folder: Path, heard: queue.Queue[tuple[str, str]]) -> None:
        self._given: list[str] = []
        # A file, not a pipe that might fill up while nobody reads it.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        self._write({"capability": capability, "folder": str(folder)})
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._listen, args=(self._process.stdout, heard), daemon=True)

    def _write(self, content: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(content) + "\n")

    def give(self, request: Request) -> None:
        """One more kernel to compile."""
        # A process that has died already is heard of by its reader.
        with suppress(BrokenPipeError):
            self._write({"factory": request.factory, "parameters": dict(request.parameters)})
        self._given.append(request.key)

    def finish(self) -> None:
        """There will be no more; begin to listen."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._reader.start()

    def _listen(self, output: IO[str], heard: queue.Queue[tuple[str, str]]) -> None:
        """Hand on each answer with the key of its request; without one that the process has died."""
        left = list(self._given)
        for line in output:
            heard.put((left.pop(0), line.strip()))
        if left:
            self._process.wait()
            self._errors.seek(0)
            lines = [line for line in self._errors.read().splitlines() if line.strip()]
            last = (lines or ["it said nothing"])[-1]
            heard.put(("", f"{_FAILED}a compiler process ended early: {last}; report this"))

    def end(self) -> None:
        """End the process if it still runs."""
        self._process.kill()
        self._process.wait()
        # The reader still asks the file what the process said last.
        if self._reader.is_alive():
            self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._errors.close()


def serve(source: IO[str], target: IO[str]) -> None:
    """What a compiler process does: read its capability and folder, then compile each request it is given."""
    head = json.loads(source.readline())
    cache = KernelCache(Path(head["folder"]))
    for line in source:
        wanted = json.loads(line)
        try:
            made = Request(wanted["factory"], wanted["parameters"]).make()
            name = cache.get(getattr(made, "kernel", made), tuple(head["capability"])).name
        except BackendError as error:
            name = f"{_FAILED}{error}"
        target.write(name + "\n")
        target.flush()
