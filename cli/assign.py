"""`diarize assign`: speakers for the words of a transcript."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import FormatError, OptionError, OutputError
from . import _options
from ._formats import counted
from ._output import exit_codes, say, start_logging, write_stdout
from ._progress import progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..transcript import Assigned
    from ..types import SpeakerBounds, Turn


class Form(StrEnum):
    """How the transcript is written."""

    auto = "auto"
    json = "json"
    srt = "srt"
    vtt = "vtt"
    ctm = "ctm"


def assign(
    context: typer.Context,
    transcript: Annotated[
        str,
        typer.Argument(
            metavar="TRANSCRIPT",
            help="JSON of Whisper, WhisperX, faster-whisper or whisper.cpp; SRT, VTT or CTM. - is standard input.",
        ),
    ],
    rttm: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Turns of the same recording, as diarize run writes them.")
    ] = None,
    audio: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The recording itself, which is then diarized first.")
    ] = None,
    format_: Annotated[
        Form,
        typer.Option("--format", help="Form of the transcript; the result has the same. auto: by its first lines."),
    ] = Form.auto,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE|-", help="Where the result goes; - is standard output.")
    ] = "-",
    max_gap: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Where no turn overlaps a word or segment, take the nearest turn that is no further away than this.",
        ),
    ] = 1.0,
    file_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Recording in the RTTM file, where it holds several and is not for CTM."),
    ] = None,
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="With --audio: use turns of one speaker at a time.")
    ] = False,
    model: _options.Model = "auto",
    device: _options.Device = "auto",
    mode: _options.StepMode = _options.Mode.exact,
    num_speakers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of speakers, where it is known.")
    ] = None,
    min_speakers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Fewest speakers.")] = None,
    max_speakers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Most speakers.")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a result file that exists.")] = False,
    threads: _options.Threads = None,
    verbose: _options.Verbose = 0,
    quiet: _options.Quiet = 0,
) -> None:
    """Give the words of a transcript speakers, from an RTTM file or from the recording.

    A word or segment gets the speaker who talks longest while it lasts. Of several who talk equally long it is the one
    whose turn starts earliest, then the first by name. JSON gets a key "speaker" for each segment and word, SRT
    "[NAME]: " in front of the text, VTT "<v NAME>", CTM an eighth column, with "unknown" where there is no speaker.
    """
    verbosity = _options.verbosity_of(verbose, quiet)
    with exit_codes(verbosity):
        start_logging(verbosity)
        from ..outputs.files import check_writable, write_text
        from ..transcript import TranscriptFormat, assign_speakers
        from ..types import SpeakerBounds

        if (rttm is None) == (audio is None):
            raise OptionError("give either --rttm FILE or --audio FILE, for the turns")
        if rttm is not None:
            _refuse_options_of_audio(context)
        elif file_id is not None:
            raise OptionError("--file-id chooses a recording of an RTTM file; leave it out with --audio")
        bounds = SpeakerBounds.of(num_speakers, min_speakers, max_speakers)
        if output != "-":
            if Path(output).is_file() and not force:
                raise OutputError(f"{output} exists already; --force replaces it")
            check_writable(output)
        text = _read(transcript)
        name = "standard input" if transcript == "-" else transcript
        turns: Mapping[str, Sequence[Turn]]
        if rttm is not None:
            turns = _turns_of_file(rttm, file_id)
        else:
            assert audio is not None
            turns = {"": _turns_of_audio(audio, bounds, exclusive, model, device, mode.value, threads, verbosity)}
        form = None if format_ is Form.auto else TranscriptFormat(format_.value)
        result = assign_speakers(text, turns, form, max_gap, name)
        if output == "-":
            write_stdout(result.text)
        else:
            write_text(output, result.text)
        if verbosity >= 0:
            say(f"{name}: {_units(result)}, {result.missing} without speaker")


def _units(result: Assigned) -> str:
    """How many words, segments or cues there are."""
    if result.form.value in ("srt", "vtt"):
        return counted(result.units, "cue")
    words = result.units - result.segments
    parts = [counted(words, "word")] if words or not result.segments else []
    parts += [counted(result.segments, "segment")] if result.segments else []
    return " and ".join(parts)


def _refuse_options_of_audio(context: typer.Context) -> None:
    """Nothing where no option is given that only matters when the recording is diarized."""
    for name in ("exclusive", "model", "device", "mode", "num_speakers", "min_speakers", "max_speakers", "threads"):
        if _options.is_given(context, name):
            option = f"--{name.replace('_', '-')}"
            raise OptionError(f"{option} is for --audio; with --rttm the turns are those of the file, leave it out")


def _read(path: str) -> str:
    """The transcript as it is, with its byte order mark."""
    from ..outputs.text import decode, read_text

    if path == "-":
        return decode(sys.stdin.buffer.read(), "standard input")
    return read_text(path, keep_mark=True)


def _turns_of_file(path: Path, file_id: str | None) -> dict[str, list[Turn]]:
    from ..outputs.rttm import read_rttm
    from ..types import Turn

    files = {
        name: [Turn(float(turn.start), float(turn.end), turn.speaker) for turn in turns]
        for name, turns in read_rttm(path).items()
    }
    if file_id is None:
        # No turns at all: nobody spoke, and no word gets a speaker.
        return files or {"": []}
    # As names are written in RTTM.
    key = "_".join(file_id.split())
    if key not in files:
        raise FormatError(f"holds no turns of {file_id!r}, but of {', '.join(sorted(files)[:5]) or 'none'}", str(path))
    return {"": files[key]}


def _turns_of_audio(
    path: Path,
    bounds: SpeakerBounds,
    exclusive: bool,
    model: str,
    device: str,
    mode: str,
    threads: int | None,
    verbosity: int,
) -> Sequence[Turn]:
    from ..pipeline import Pipeline

    _options.check_model(model)
    pipeline = Pipeline.from_pretrained(model, device, mode, threads)
    with progress(path.name, verbosity) as show:
        result = pipeline.diarize(path, bounds=bounds, progress=show)
    if verbosity >= 0:
        for warning in result.warnings:
            say(f"warning: {path.name}: {warning}")
    return result.exclusive if exclusive else result.turns
