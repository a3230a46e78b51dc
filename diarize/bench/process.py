"""One system running as a process: started, asked file by file, watched for its memory, ended."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import BackendError
from ..types import Turn
from .nvml import MemoryWatch
from .systems import OURS, System, worker_environment


@dataclass(frozen=True)
class Answer:
    """What a worker said about one file: `error` is "" where it worked.

    `seconds` from the path to the turns, measured by the worker itself. `duration`: decoded seconds of audio, 0 where
    the worker does not know. `stages`: seconds of its parts.
    """

    seconds: float = 0.0
    duration: float = 0.0
    turns: tuple[Turn, ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


class WorkerDied(BackendError):
    """The process ended without an answer."""


class Worker:
    """A running worker. `startup_seconds`: from before the process is made until its model is loaded and it is ready.

    Use it as a context; leaving it ends the process.
    """

    def __init__(self, system: System, gpu: int | None = None) -> None:
        self.system = system
        # Closed by `close`, as everything that a worker holds.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._watch = MemoryWatch(gpu)
        environment = worker_environment() if system.name == OURS else None
        started = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                system.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            raise BackendError(f"{system.name} cannot be started ({error.strerror}): {system.command[0]}") from error
        self._watch.start()
        try:
            first = self._read()
        except BaseException:
            self.close(at_once=True)
            raise
        self.startup_seconds = time.perf_counter() - started
        if first.get("event") != "ready":
            self.close()
            raise BackendError(f"{system.name} cannot be started: {first.get('message', first)}")
        self.about: dict[str, Any] = dict(first["about"])

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(at_once=kind is not None)

    def diarize(self, path: Path) -> Answer:
        """The answer for one file.

        Raises
        ------
        WorkerDied
            The process ended instead.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"path": str(path)}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerDied(self._last_words()) from None
        content = self._read()
        if content.get("event") != "result":
            return Answer(error=str(content.get("message", content)))
        turns = tuple(sorted(Turn(float(start), float(end), str(name)) for start, end, name in content["turns"]))
        stages = {name: float(value) for name, value in content.get("stages", {}).items()}
        return Answer(float(content["seconds"]), float(content.get("duration", 0.0)), turns, stages)

    def peak_host_bytes(self) -> int:
        """Largest resident memory of the process so far."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return 0
        # Not ru_maxrss, which a child inherits from its parent.
        line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
        return int(line.split()[1]) * 1024

    def peak_gpu_bytes(self) -> int | None:
        """Largest growth of the GPU's used memory since the process started, None without a GPU."""
        return None if self.about.get("device") == "cpu" else self._watch.peak_bytes()

    def close(self, at_once: bool = False) -> None:
        """End the process: by itself, which lets it give a GPU back in order, or at once, whatever it does."""
        self._watch.stop()
        process = self._process
        if at_once:
            process.kill()
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                content = json.loads(line)
            except ValueError:
                continue
            if isinstance(content, dict) and "event" in content:
                return content
        raise WorkerDied(self._last_words())

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{self.system.name} {how}" + (f": {lines[-1][:300]}" if lines else "")
