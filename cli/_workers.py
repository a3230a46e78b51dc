"""Who does the work of one call: this process, worker processes, or a cluster; with progress to match."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from ._batch import BatchProgress
from ._progress import progress

if TYPE_CHECKING:
    from ..batch import Outcome
    from ..pipeline import Pipeline


@dataclass(frozen=True)
class Request:
    """The model, mode, number of threads and tune file that the user asked for."""

    model: str
    mode: str
    threads: int | None
    tune_file: str | None = None


@dataclass(frozen=True)
class Workers:
    """Who does the work: `jobs` processes, or one for each of `devices`, or the cluster at `scheduler`."""

    device: str
    jobs: int = 1
    devices: tuple[str, ...] = ()
    scheduler: str | None = None

    @classmethod
    def of(cls, device: str, jobs: int, devices: str | None, scheduler: str | None) -> Workers:
        """From the options.

        Raises
        ------
        OptionError
            A device has an unknown name, or options contradict each other.
        """
        from ..backend.select import check_device_name

        names = () if devices is None else tuple(name.strip() for name in devices.split(","))
        for name in (device, *names):
            check_device_name(name)
        if names and jobs > 1:
            raise OptionError(f"--jobs {jobs} and --devices {devices} both set the number of workers; give one")
        if scheduler is not None and (names or jobs > 1):
            raise OptionError("--scheduler brings its own workers; leave out --jobs and --devices")
        return cls(device, jobs, names, scheduler)

    @property
    def elsewhere(self) -> bool:
        """Whether other processes do the work."""
        return self.jobs > 1 or bool(self.devices) or self.scheduler is not None

    @property
    def first_device(self) -> str:
        """The device for what is done in this process."""
        return self.devices[0] if self.devices else self.device

    def described(self) -> str:
        """Who works, for people."""
        if self.scheduler is not None:
            return f"scheduler {self.scheduler}"
        if self.devices:
            return f"a worker each for {', '.join(self.devices)}"
        return f"{self.jobs} workers, device {self.device}"

    def run(
        self,
        pipeline: Pipeline | None,
        request: Request,
        recordings: Sequence[str],
        options: dict[str, Any],
        verbosity: int,
        any_order: bool,
    ) -> Generator[Outcome, None, None]:
        """Outcomes of `recordings`, in their order unless `any_order`; `pipeline` is None where others work.

        Raises
        ------
        OptionError, ModelError, BackendError
            What concerns every recording.
        """
        if not self.elsewhere and len(recordings) == 1:
            yield from self._one(pipeline, recordings[0], options, verbosity)
            return
        from ..batch import seconds_of

        lengths = [_part(seconds_of(path), options) for path in recordings]
        # Results that appear on the terminal would break a bar.
        bar = any_order or sys.stdout is None or not sys.stdout.isatty()
        with (
            BatchProgress(lengths, verbosity, bar) as shown,
            closing(self._outcomes(pipeline, request, recordings, options, any_order, shown)) as outcomes,
        ):
            for outcome in outcomes:
                shown.finish(outcome)
                yield outcome

    def _outcomes(
        self,
        pipeline: Pipeline | None,
        request: Request,
        recordings: Sequence[str],
        options: dict[str, Any],
        any_order: bool,
        shown: BatchProgress,
    ) -> Generator[Outcome, None, None]:
        from .. import batch
        from ..model.registry import resolve
        from ..pipeline import Setup

        if not self.elsewhere:
            assert pipeline is not None
            return batch.run_here(pipeline, recordings, options, shown)
        # Every worker shall take the model that this machine takes.
        model = str(resolve(request.model))
        setup = Setup(model, self.first_device, request.mode, request.threads, request.tune_file)
        if self.scheduler is None:
            return batch.run_in_processes(
                setup, recordings, options, self.jobs, self.devices, not any_order, report=shown
            )
        from .. import remote

        outcomes = remote.run(self.scheduler, setup, recordings, options, batch.longest_first(recordings))
        return outcomes if any_order else batch.ordered(outcomes)

    def _one(
        self, pipeline: Pipeline | None, recording: str, options: dict[str, Any], verbosity: int
    ) -> Generator[Outcome, None, None]:
        assert pipeline is not None
        with progress(Path(recording).name, verbosity) as show:
            outcomes = list(
                pipeline.diarize_many(
                    [recording], progress=lambda path, stage, done, total: show(stage, done, total), **options
                )
            )
        yield from outcomes


def _part(seconds: float, options: dict[str, Any]) -> float:
    """Seconds of a recording that will be decoded."""
    end = seconds if options["end"] is None else min(seconds, options["end"])
    return max(0.0, end - options["start"])
