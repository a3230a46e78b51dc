"""A whole benchmark: data set, systems and rounds in, a record and its files out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile

from ..dataset.load import Dataset, Recording
from ..errors import DatasetError, OutputError
from ..outputs.files import write_text
from ..score.report import protocol_json
from . import advice
from .compare import refuse_others
from .environment import Load, environment
from .process import Worker
from .record import FILE, dataset_json, durations, record_json, score_system, system_json
from .record_text import record_text
from .run import Plan, Progress, run
from .samples import FILE as JOURNAL
from .samples import Samples
from .systems import System

RESULTS = "rttm"


@dataclass(frozen=True)
class Options:
    """How a benchmark is run. `output`: folder for record, journal and RTTM files, None to keep nothing."""

    rounds: int = 3
    warmup: int = 1
    gpu: int | None = None
    output: Path | None = None
    force: bool = False


def benchmark(
    dataset: Dataset,
    systems: Sequence[System],
    options: Options,
    progress: Progress | None = None,
    against: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> tuple[dict[str, Any], Path | None]:
    """The record of a run, and the folder that holds it.

    With an `output` that holds an interrupted run of the same plan, that run goes on. `against`: records, with their
    names, that the run is to be compared with.

    Raises
    ------
    OutputError
        `output` holds a finished run or another one, and `force` is False.
    BackendError
        A system cannot be started.
    DatasetError
        The data set has no recordings, or no turn in any reference.
    OptionError
        A record of `against` is of other data or another protocol.
    """
    if not dataset.recordings:
        raise DatasetError(f"{dataset.name} has no recordings")
    if not any(recording.reference for recording in dataset.recordings):
        raise DatasetError(
            f"{dataset.name}: no reference holds a turn, so there is nothing to score; check the references"
        )
    about = dataset_json(dataset)
    regions = all(recording.regions is not None for recording in dataset.recordings)
    protocol = protocol_json(dataset.protocol, regions)
    for name, other in against:
        refuse_others(other, {"dataset": about, "protocol": protocol}, (name, "this run"))
    with _folder(options) as folder, prepared(dataset) as audio:
        plan = Plan(
            systems,
            dataset.recordings,
            audio,
            {recording.file_id: _header_seconds(recording) for recording in dataset.recordings},
            options.rounds,
            options.warmup,
            options.gpu,
        )
        samples = Samples.opened(folder, _plan_json(plan, about))
        _try_peers(systems, samples)
        before = Load.now()
        run(plan, samples, folder / RESULTS, progress)
        others = Load.now().others_since(before)
        scores = {system.name: score_system(dataset, folder / RESULTS / system.name) for system in systems}
        lengths = durations(samples)
        speeds = {
            name: system_json(name, samples, scores[name], lengths, options.warmup)["rtfx"]["warm_rounds"]
            for name in scores
        }
        record = record_json(
            about,
            protocol,
            samples,
            scores,
            options.rounds,
            options.warmup,
            {system.name: system.command for system in systems},
            environment(options.gpu),
            [
                *dataset.left_out,
                *advice.warnings(samples, options.rounds, None if samples.interrupted else others, speeds),
            ],
        )
        if options.output is not None:
            write_text(folder / FILE, record_text(record))
    return record, options.output


def _try_peers(systems: Sequence[System], samples: Samples) -> None:
    """Start each peer once, so that one that cannot start says so now and not after an hour of the others."""
    known = {item.system for item in samples.processes.values()}
    for system in systems[1:]:
        if system.name not in known:
            Worker(system).close()


@contextmanager
def _folder(options: Options) -> Iterator[Path]:
    """Where the run keeps its files: the output, or a temporary folder."""
    if options.output is None:
        with tempfile.TemporaryDirectory(prefix="diarize-bench-") as name:
            yield Path(name)
        return
    output = options.output
    if (output / FILE).exists() and not options.force:
        raise OutputError(f"{output} holds a finished run; choose another --output, or --force replaces it")
    if options.force and (output / JOURNAL).exists():
        # Only what a run has written: the folder may hold more.
        (output / JOURNAL).unlink()
        (output / FILE).unlink(missing_ok=True)
        shutil.rmtree(output / RESULTS, ignore_errors=True)
    yield output


@contextmanager
def prepared(dataset: Dataset) -> Iterator[dict[str, Path]]:
    """The file that every system gets for each recording: the recording, or a mono copy of the set's channel.

    The copy is made before anything is timed, so that systems that cannot choose a channel get the same samples.
    """
    if dataset.channel is None:
        yield {recording.file_id: recording.audio.resolve() for recording in dataset.recordings}
        return
    with tempfile.TemporaryDirectory(prefix="diarize-channel-") as name:
        copies = {}
        for recording in dataset.recordings:
            copies[recording.file_id] = Path(name) / f"{recording.file_id}.wav"
            _copy_channel(recording.audio, copies[recording.file_id], dataset.channel)
        yield copies


def _copy_channel(source: Path, target: Path, channel: int) -> None:
    try:
        with soundfile.SoundFile(source) as reader:
            if reader.channels < channel:
                raise DatasetError(f"{source} has {reader.channels} channels; the data set's is number {channel}")
            # 16 bits, as all sets with a channel rule have them.
            with soundfile.SoundFile(target, "w", reader.samplerate, 1, "PCM_16") as writer:
                for block in reader.blocks(1 << 20, dtype="int16", always_2d=True):
                    writer.write(block[:, channel - 1])
    except soundfile.LibsndfileError as error:
        raise DatasetError(f"{source} cannot be read ({error}); pull the data set again") from error


def _header_seconds(recording: Recording) -> float:
    """Length by the header, for the progress bar only; 0 where it cannot be told."""
    try:
        return float(soundfile.info(recording.audio).duration)
    except (RuntimeError, OSError):
        return 0.0


def _plan_json(plan: Plan, about: dict[str, Any]) -> dict[str, Any]:
    from .. import __version__

    return {
        "version": __version__,
        "data": about["fingerprint"],
        "systems": {system.name: list(system.command) for system in plan.systems},
        "rounds": plan.rounds,
        "warmup": plan.warmup,
    }
