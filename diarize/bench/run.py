"""Run the systems over the files, in rounds, and keep every measurement.

A round is a fresh process of each system, in rotating order. It does every file once: start-up plus these times are the
whole process. Its first `warmup` files are not counted as warm, since they pay for compiling and allocating; they are
done again at the end. Scoring and writing of results happen here, outside of what the workers time.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..dataset.load import Recording
from ..errors import OptionError
from ..outputs.files import write_text
from ..outputs.rttm import format_rttm
from .environment import clock_sample
from .process import Answer, Worker, WorkerDied
from .samples import Process, Sample, Samples
from .systems import System

_log = logging.getLogger(__name__)

Progress = Callable[[str, float, float | None], None]
"""Called with what is being done, the seconds of audio done in all rounds, and those to do."""


@dataclass(frozen=True)
class Plan:
    """What to do. `audio`: the file that each recording's id stands for. `gpu`: whose memory to watch, or None."""

    systems: Sequence[System]
    recordings: Sequence[Recording]
    audio: dict[str, Path]
    seconds: dict[str, float]
    rounds: int
    warmup: int
    gpu: int | None

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise OptionError(f"rounds is {self.rounds}; it must be at least 1")
        if self.warmup < 0:
            raise OptionError(f"warmup is {self.warmup}; it must be 0 or more")


def run(plan: Plan, samples: Samples, results: Path, progress: Progress | None = None) -> None:
    """Do what is missing in `samples`; RTTM files go to `results`/SYSTEM/ID.rttm, from the first round that has one.

    Raises
    ------
    BackendError
        A system cannot be started at all.
    """
    total = sum(plan.seconds.values()) * plan.rounds * len(plan.systems)
    done = sum(plan.seconds.get(item.file_id, 0.0) for item in samples.samples if item.first)
    for number in range(plan.rounds):
        turn = number % len(plan.systems)
        for system in [*plan.systems[turn:], *plan.systems[:turn]]:
            job = _Round(plan, samples, results, system, number)
            while job.missing():
                for sample in job.one_process():
                    if sample.first:
                        done += plan.seconds.get(sample.file_id, 0.0)
                    if progress is not None:
                        progress(f"{system.name}, round {number + 1} of {plan.rounds}", done, total)


class _Round:
    """One system in one round."""

    def __init__(self, plan: Plan, samples: Samples, results: Path, system: System, number: int) -> None:
        self._plan = plan
        self._samples = samples
        self._results = results / system.name
        self._system = system
        self._number = number

    def missing(self) -> list[tuple[str, bool]]:
        """(file id, whether it is its first time) of what is still to do, first times first."""
        mine = self._samples.of(self._system.name, self._number)
        seen = {item.file_id for item in mine}
        first = [item.file_id for item in self._plan.recordings if item.file_id not in seen]
        fine = {item.file_id for item in mine if item.error or item.position >= self._plan.warmup}
        again = [item.file_id for item in self._plan.recordings if item.file_id in seen - fine]
        return [(name, True) for name in first] + [(name, False) for name in again]

    def one_process(self) -> Iterator[Sample]:
        """Start a process and yield a sample for each file, until nothing is missing or the process has died."""
        number = 1 + max(self._samples.processes, default=-1)
        clock = clock_sample()
        with Worker(self._system, self._plan.gpu) as worker:
            process = Process(self._system.name, self._number, number, worker.startup_seconds, clock, worker.about)
            self._samples.put(process)
            position = 0
            try:
                while todo := self.missing():
                    name, first = todo[0]
                    try:
                        answer = worker.diarize(self._plan.audio[name])
                        died = False
                    except WorkerDied as error:
                        # The file is to blame, as far as one can tell; the others get a new process.
                        answer, died = Answer(error=str(error)), True
                    yield self._keep(answer, name, first, number, position)
                    position += 1
                    if died:
                        return
            finally:
                host, gpu = worker.peak_host_bytes(), worker.peak_gpu_bytes()
                self._samples.put(replace(process, peak_host_bytes=host, peak_gpu_bytes=gpu))

    def _keep(self, answer: Answer, name: str, first: bool, process: int, position: int) -> Sample:
        digest = ""
        if not answer.error:
            text = format_rttm(answer.turns, name)
            digest = hashlib.sha256(text.encode()).hexdigest()
            path = self._results / f"{name}.rttm"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, text)
        sample = Sample(
            self._system.name,
            self._number,
            process,
            position,
            name,
            first,
            answer.seconds,
            answer.duration,
            dict(answer.stages),
            digest,
            answer.error,
        )
        if sample.error and self._number == 0:
            _log.warning("%s: %s: %s", self._system.name, name, sample.error)
        self._samples.add(sample)
        return sample
