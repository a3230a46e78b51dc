"""Every measurement of a run, kept one by one, and the journal that lets an interrupted run go on.

The journal is one JSON object a line: first the plan, then processes and samples as they happen. A last line that was
cut short is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OutputError

FILE = "journal.jsonl"


@dataclass(frozen=True)
class Sample:
    """One file through one system once.

    `round` counts from 0. `process`: number of the process within the run, `position`: how many files it had done
    before. `first`: the pass whose times make up the whole process; repetitions for a warm time are not. `seconds`:
    from path to turns. `duration`: decoded audio seconds, 0 where unknown. `rttm_sha256`: of the result. `error`: ""
    where it worked.
    """

    system: str
    round: int
    process: int
    position: int
    file_id: str
    first: bool
    seconds: float
    duration: float
    stages: Mapping[str, float] = field(default_factory=dict)
    rttm_sha256: str = ""
    error: str = ""


@dataclass(frozen=True)
class Process:
    """One worker: `startup_seconds` until it was ready, memory peaks in bytes (0 or None where unknown)."""

    system: str
    round: int
    process: int
    startup_seconds: float
    clock_seconds: float
    about: Mapping[str, Any]
    peak_host_bytes: int = 0
    peak_gpu_bytes: int | None = None


@dataclass
class Samples:
    """All measurements so far, also written to the journal in `folder` where there is one."""

    folder: Path | None = None
    samples: list[Sample] = field(default_factory=list)
    processes: dict[int, Process] = field(default_factory=dict)
    interrupted: bool = False

    @classmethod
    def opened(cls, folder: Path, plan: Mapping[str, Any]) -> Samples:
        """The measurements in a folder, to go on with; a new journal where there is none.

        Raises
        ------
        OutputError
            The folder holds another run, or cannot be written.
        """
        found = cls(folder)
        path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            whole = [line for line in lines if line.endswith("\n")]
            if not whole:
                path.write_text(json.dumps({"plan": plan}) + "\n", encoding="utf-8")
                return found
            if len(whole) < len(lines):
                path.write_text("".join(whole), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{folder} cannot be used ({error.strerror}); choose another --output") from error
        try:
            found._read([json.loads(line) for line in whole], plan)
        except (ValueError, KeyError, TypeError) as error:
            raise OutputError(f"{path} is damaged ({error}); choose another --output, or --force") from error
        return found

    def add(self, sample: Sample) -> None:
        """Keep a sample."""
        self.samples.append(sample)
        self._append({"sample": asdict(sample)})

    def put(self, process: Process) -> None:
        """Keep what is known of a process; a later call replaces it."""
        self.processes[process.process] = process
        self._append({"process": asdict(process)})

    def of(self, system: str, round_number: int) -> list[Sample]:
        """Samples of one system in one round, in order."""
        return [item for item in self.samples if item.system == system and item.round == round_number]

    def _read(self, entries: list[dict[str, Any]], plan: Mapping[str, Any]) -> None:
        old = entries[0]["plan"]
        different = sorted(key for key in {*old, *plan} if old.get(key) != json.loads(json.dumps(plan.get(key))))
        if different:
            raise OutputError(
                f"{self.folder} holds a run with another {', '.join(different)}; choose another --output, or --force"
            )
        for entry in entries[1:]:
            if "sample" in entry:
                self.samples.append(Sample(**entry["sample"]))
            elif "process" in entry:
                process = Process(**entry["process"])
                self.processes[process.process] = process
        self.interrupted = bool(self.samples)

    def _append(self, entry: Mapping[str, Any]) -> None:
        if self.folder is None:
            return
        try:
            with (self.folder / FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise OutputError(f"{self.folder / FILE} cannot be written ({error.strerror}); free some space") from error
