"""`diarize run`: recordings in, turns out."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ..errors import DiarizeError, OptionError
from ..user_folders import expanded
from . import _options, _run_options
from ._compiling import Compiling
from ._destination import Destination, destination, has_fields, stem_of, told_apart
from ._formats import FORMATS, Format, Recording, counted, parse_formats
from ._inputs import STDIN, STDIN_NAME, expand
from ._lanes import show_lanes
from ._output import FAILED, exit_codes, report, say, start_logging
from ._voices import ARCHIVE, archive_destination, read_voices, write_archive
from ._workers import Request, Workers

if TYPE_CHECKING:
    from ..batch import Outcome
    from ..engine import Engine
    from ..pipeline import Pipeline
    from ..types import Diarization


def run(
    audio: _run_options.Audio,
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE|DIR|TEMPLATE|-",
            help="Where the result goes; - is standard output. A folder (one that exists, or a name ending in /) "
            "gets one file per recording and format; with several recordings a single file gets all of them. In a "
            "template, as '{parent}/{stem}.rttm', {parent} is the recording's folder, {stem} its name without "
            "suffix, {suffix} that of the format.",
        ),
    ] = "-",
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="Form of the result; several separated by commas. Times are in seconds, in srt and vtt as "
            "hours:minutes:seconds. text is for people.",
        ),
    ] = "rttm",
    model: _options.Model = "auto",
    device: _options.Device = "auto",
    mode: _options.StepMode = _options.Mode.exact,
    num_speakers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of speakers, where it is known.")
    ] = None,
    min_speakers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Fewest speakers.")] = None,
    max_speakers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Most speakers.")] = None,
    exclusive: Annotated[
        bool,
        typer.Option(
            "--exclusive",
            help="One speaker at a time: overlapped speech goes to the likelier one. json always holds both forms.",
        ),
    ] = False,
    min_speaker_time: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Remove speakers who talk less than this in all, with a warning that names them. The others keep "
            "their labels.",
        ),
    ] = 0.0,
    merge_gap: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Join turns of the same speaker that are less than this apart, after --min-speaker-time.",
        ),
    ] = 0.0,
    embed_audio: Annotated[
        bool | None,
        typer.Option(
            "--embed-audio/--no-embed-audio",
            help="html: put the recording into the page, or let the page play it from where it lies. [default: into "
            "the page up to 8 MiB]",
            show_default=False,
        ),
    ] = None,
    show: Annotated[
        bool,
        typer.Option(
            "--show",
            help="Draw the turns as coloured lanes on standard error, as wide as the terminal, with the speakers' "
            "totals in minutes and seconds. NO_COLOR turns the colours off.",
        ),
    ] = False,
    file_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Name of the recording in the result. [default: its file name without suffix]"),
    ] = None,
    channel: _run_options.Channel = "mix",
    start: _run_options.Start = 0.0,
    end: _run_options.End = None,
    label_order: _run_options.Order = _run_options.LabelOrder.first_appearance,
    enroll: _run_options.Enroll = None,
    speakers_file: _run_options.SpeakersFile = None,
    voice_threshold: _run_options.VoiceThreshold = None,
    embeddings: _run_options.Embeddings = None,
    recursive: _run_options.Recursive = False,
    skip_existing: _run_options.SkipExisting = False,
    jobs: _run_options.Jobs = 1,
    devices: _run_options.Devices = None,
    scheduler: _run_options.Scheduler = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace result files that exist.")] = False,
    threads: _options.Threads = None,
    tune_file: _options.TuneFile = None,
    verbose: _options.Verbose = 0,
    quiet: _options.Quiet = 0,
) -> None:
    """Find out who spoke when in recordings.

    A recording that cannot be read, or an argument without any, is reported in one line and the others go on; the exit
    code is then 1.
    """
    verbosity = _options.verbosity_of(verbose, quiet)
    with exit_codes(verbosity):
        start_logging(verbosity)
        from ..backend.cuda_wake import wake

        if jobs == 1 and not (devices or scheduler):
            # First of all: it goes on beside everything that follows.
            wake(device)
        from ..audio import check_part
        from ..channels import parse_channel
        from ..model.registry import resolve
        from ..postprocess import postprocess
        from ..types import SpeakerBounds
        from ..values import check_seconds

        bounds = SpeakerBounds.of(num_speakers, min_speakers, max_speakers)
        one_channel = parse_channel(channel)
        check_part(start, end)
        _options.check_model(model)
        if skip_existing and force:
            raise OptionError("--skip-existing keeps results that exist and --force replaces them; give one")
        workers = Workers.of(device, jobs, devices, scheduler)
        formats = parse_formats(format_)
        if embed_audio is not None and all(form.name != "html" for form in formats):
            raise OptionError(f"--{'' if embed_audio else 'no-'}embed-audio is for --format html; leave it out")
        check_seconds("min-speaker-time", min_speaker_time)
        check_seconds("merge-gap", merge_gap)
        known = read_voices(enroll or [], speakers_file, voice_threshold)
        inputs = expand(audio, recursive)
        recordings = inputs.recordings
        _check_file_id(file_id, len(recordings))
        if not recordings:
            _give_up(inputs.problems)
        if not has_fields(output):
            _check_names(recordings)
        target = destination(output, recordings, formats, force or skip_existing)
        archive = None
        if embeddings is not None:
            archive = archive_destination(embeddings, recordings, force or skip_existing)
        if skip_existing:
            recordings = _without_finished(recordings, formats, target, archive)
        if not recordings:
            if inputs.problems:
                _give_up(inputs.problems)
            return
        for problem in inputs.problems:
            say(f"error: {problem}")
        if known.warning and verbosity >= 0:
            say(f"warning: {known.warning}")
        request = Request(
            model, mode.value, threads, None if tune_file is None else str(expanded(tune_file).absolute())
        )
        pipeline = None
        if known.clips or not workers.elsewhere:
            pipeline = _load(request, workers.first_device, verbosity)
        options = {
            "bounds": bounds,
            "channel": one_channel,
            "start": start,
            "end": end,
            "label_order": label_order.value,
            "voices": known.learn(pipeline),
            "voice_threshold": voice_threshold,
            "keep_windows": archive is not None,
        }
        simplify = partial(postprocess, min_speaker_time=min_speaker_time, merge_gap=merge_gap)
        seen = one_channel if isinstance(one_channel, int) else None
        job = _Job(simplify, seen, exclusive, embed_audio, formats, target, archive, file_id, show, verbosity)
        if workers.elsewhere:
            # A GPU's memory is for its worker.
            pipeline = None
            if verbosity >= 0:
                say(f"model {resolve(model)}, {workers.described()}, mode {mode.value}")
        failures = list(inputs.problems)
        # Closing ends worker processes at once, also when the user interrupts.
        with closing(workers.run(pipeline, request, recordings, options, verbosity, bool(target.files))) as outcomes:
            for outcome in outcomes:
                failures += job.finish(outcome)
        target.close()
        if verbosity >= 1:
            held = pipeline.engine.peak_device_bytes() if pipeline is not None else 0
            on_gpu = f", of the GPU {held / 1e6:.0f} MB" if held else ""
            say(f"peak memory {_peak_memory_mb():.0f} MB{on_gpu}")
        if failures:
            number = len(recordings) + len(inputs.problems)
            if number > 1:
                for failure in failures:
                    say(f"failed: {failure}")
                say(f"error: {len(failures)} of {number} recordings failed")
            raise typer.Exit(FAILED)


def _give_up(problems: list[str]) -> NoReturn:
    """Say why no argument yields a recording that is still to be done, and exit."""
    for problem in problems:
        say(f"error: {problem}")
    raise typer.Exit(FAILED)


class _Job:
    """What is the same for every recording of one call."""

    def __init__(
        self,
        simplify: Callable[[Diarization], Diarization],
        channel: int | None,
        exclusive: bool,
        embed_audio: bool | None,
        formats: tuple[Format, ...],
        target: Destination,
        archive: Destination | None,
        file_id: str | None,
        show: bool,
        verbosity: int,
    ) -> None:
        self._simplify = simplify
        self._channel = channel
        self._exclusive = exclusive
        self._embed_audio = embed_audio
        self._formats = formats
        self._target = target
        self._archive = archive
        self._file_id = file_id
        self._show = show
        self._verbosity = verbosity

    def finish(self, outcome: Outcome) -> list[str]:
        """Hand over the result of one recording; a line for the list of failures where that failed and was reported."""
        path = os.fspath(outcome.path)
        try:
            result = self._simplify(outcome.get())
            self._write(path, result)
        except (OptionError, BrokenPipeError):
            raise
        except Exception as error:
            # Also a fault of our own: the other recordings may still work.
            return [report(error, self._verbosity, "" if isinstance(error, DiarizeError) else f"{path}: ")]
        turns = result.exclusive if self._exclusive else result.turns
        if self._verbosity >= 0:
            _summarise(_shown(path), result, len(turns), outcome.seconds, self._verbosity)
        if self._show:
            show_lanes(result, turns, _shown(path))
        return []

    def _write(self, path: str, result: Diarization) -> None:
        file_id = self._file_id or stem_of(path)
        if self._archive is not None:
            write_archive(self._archive, path, result)
        for form in self._formats:
            file = self._target.file_of(path, form)
            folder = "" if file is None else str(file.parent)
            recording = Recording(path, file_id, self._exclusive, self._channel, folder, self._embed_audio)
            self._target.put(path, form, form.render(result, recording))


def _without_finished(
    recordings: list[str], formats: tuple[Format, ...], target: Destination, archive: Destination | None
) -> list[str]:
    """`recordings` without those whose results are all there; says how many were left out."""
    if target.path is None and not target.files:
        raise OptionError("--skip-existing needs results in files; name a file, folder or template with --output")
    left = [path for path in recordings if not _finished(path, formats, target, archive)]
    if len(left) < len(recordings):
        say(f"{counted(len(recordings) - len(left), 'recording')} skipped: results exist; {len(left)} to do")
    return left


def _finished(path: str, formats: tuple[Format, ...], target: Destination, archive: Destination | None) -> bool:
    files = [target.file_of(path, form) for form in formats]
    if archive is not None:
        files.append(archive.file_of(path, ARCHIVE))
    return all(file is not None and file.is_file() for file in files)


def _shown(path: str) -> str:
    return STDIN_NAME if path == STDIN else Path(path).name


def _summarise(name: str, result: Diarization, num_turns: int, seconds: float, verbosity: int) -> None:
    for warning in result.warnings:
        say(f"warning: {name}: {warning}")
    speed = f", {result.duration / seconds:.1f}x real time" if result.duration else ""
    say(
        f"{name}: {counted(len(result.speakers), 'speaker')}, {counted(num_turns, 'turn')}; "
        f"{result.duration:.1f} s of audio in {seconds:.2f} s{speed}"
    )
    if verbosity >= 1 and result.timings:
        say(f"{name}: " + ", ".join(f"{stage} {value:.2f} s" for stage, value in result.timings.items()))


def _check_names(audio: list[str]) -> None:
    """Nothing where the recordings' names without folder and suffix differ, since each names one result."""
    seen: dict[str, str] = {}
    for path in audio:
        # RTTM has no white space within a name, so names that differ in nothing else become one.
        key = "_".join(stem_of(path).split())
        if key in seen:
            raise OptionError(f"{seen[key]} and {path} have the same name in the result; {told_apart(seen[key], path)}")
        seen[key] = path


def _check_file_id(file_id: str | None, num_recordings: int) -> None:
    if file_id is None:
        return
    if num_recordings > 1:
        raise OptionError(f"--file-id {file_id} names one recording, but {num_recordings} are given; leave it out")
    if not file_id.strip():
        raise OptionError(f"--file-id is {file_id!r}; it must hold at least one visible character")


def _load(request: Request, device: str, verbosity: int) -> Pipeline:
    from ..pipeline import Pipeline

    with Compiling(verbosity) as compiling:
        pipeline = Pipeline.from_pretrained(
            request.model, device, request.mode, request.threads, compiling, request.tune_file
        )
    if verbosity >= 0:
        say(_setup(pipeline))
        if verbosity >= 1:
            _show_choices(pipeline.engine, verbosity)
        if pipeline.device.kind == "cpu" and _must_compile():
            say("first run: compiling for this processor takes some 20 s, once")
    return pipeline


def _show_choices(engine: Engine, verbosity: int) -> None:
    """What chose the kernels of a GPU, with `verbosity` 2 or more layer by layer."""
    if engine.choices is not None:
        say(f"choices: {engine.choices.summary()}")
        for line in engine.choices.lines() if verbosity >= 2 else ():
            say(f"choice: {line}")


def _setup(pipeline: Pipeline) -> str:
    """Model, device and mode in one line, with the reasons for what was chosen automatically."""
    parts = [f"model {pipeline.model_name}", f"device {pipeline.device}", f"mode {pipeline.mode.value}"]
    others = []
    for note in pipeline.notes:
        # A note that begins as a part does says more of it.
        told = [index for index, part in enumerate(parts) if note.startswith(f"{part} ")]
        for index in told:
            parts[index] = note
        if not told:
            others.append(note)
    return "; ".join([", ".join(parts), *others])


def _must_compile() -> bool:
    """Whether no code of the CPU engine, as it now is, has been compiled and kept; False where that cannot be told."""
    from .. import cpu
    from ..cache import compiled_folder

    try:
        return not any(compiled_folder(Path(cpu.__file__)).glob("*.nbi"))
    except OSError:
        return False


def _peak_memory_mb() -> float:
    """Largest resident memory of this process in MB."""
    # Not getrusage, whose figure includes that of the process which started this one.
    status = Path("/proc/self/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kilobytes) * 1024 / 1e6
