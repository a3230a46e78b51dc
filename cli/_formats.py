"""The forms of a result that `diarize run` can write: one table of names, suffixes and writers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import OptionError

if TYPE_CHECKING:
    from ..types import Diarization, Turn


@dataclass(frozen=True)
class Recording:
    """What a writer may need besides the result: the recording's `path`, its name in the result, and the options.

    `folder` is where the text will lie, "" for the current one. `embed_audio`: whether a page holds the recording, None
    where its size decides.
    """

    path: str
    file_id: str
    exclusive: bool = False
    channel: int | None = None
    folder: str = ""
    embed_audio: bool | None = None

    def turns(self, result: Diarization) -> Sequence[Turn]:
        """The turns that were asked for."""
        return result.exclusive if self.exclusive else result.turns


@dataclass(frozen=True)
class Format:
    """One form of a result: its `name` on the command line, its file `suffix`, and the function that makes its text.

    `render` gives the whole text for one recording, with a line feed at its end. `joins`: texts of several recordings
    make one file when they follow each other, with the line `header` only in front of the first.
    """

    name: str
    suffix: str
    render: Callable[[Diarization, Recording], str]
    joins: bool = False
    header: str = ""


def _rttm(result: Diarization, recording: Recording) -> str:
    from ..outputs.rttm import format_rttm

    return format_rttm(recording.turns(result), recording.file_id)


def _json(result: Diarization, recording: Recording) -> str:
    from ..outputs.json import format_json

    return format_json(result, recording.file_id)


def _csv(result: Diarization, recording: Recording) -> str:
    from ..outputs.csv import format_csv

    return format_csv(recording.turns(result), recording.file_id)


def _srt(result: Diarization, recording: Recording) -> str:
    from ..outputs.subtitles import format_srt

    return format_srt(recording.turns(result))


def _vtt(result: Diarization, recording: Recording) -> str:
    from ..outputs.subtitles import format_vtt

    return format_vtt(recording.turns(result))


def _textgrid(result: Diarization, recording: Recording) -> str:
    from ..outputs.textgrid import format_textgrid

    return format_textgrid(recording.turns(result), result.speakers, result.offset + result.duration)


def _audacity(result: Diarization, recording: Recording) -> str:
    from ..outputs.audacity import format_audacity

    return format_audacity(recording.turns(result))


def _lab(result: Diarization, recording: Recording) -> str:
    from ..outputs.lab import format_lab

    return format_lab(recording.turns(result))


def _html(result: Diarization, recording: Recording) -> str:
    from ..outputs.html import NO_AUDIO, format_html, page_audio
    from ..outputs.peaks import read_peaks

    if recording.path == "-":
        # Standard input cannot be read a second time.
        return format_html(result, recording.file_id, NO_AUDIO, None, recording.exclusive)
    audio = page_audio(recording.path, recording.folder, recording.embed_audio)
    peaks = read_peaks(recording.path, recording.channel)
    return format_html(result, recording.file_id, audio, peaks, recording.exclusive)


def _text(result: Diarization, recording: Recording) -> str:
    turns = recording.turns(result)
    totals = f"{counted(len(result.speakers), 'speaker')}, {counted(len(turns), 'turn')}"
    lines = [f"{recording.file_id}: {totals}, {_clock(result.duration)}"]
    lines += [f"  {_clock(turn.start)} - {_clock(turn.end)}  {turn.speaker}" for turn in turns]
    return "\n".join(lines) + "\n"


def counted(number: int, noun: str) -> str:
    """`number` and `noun`, with an s unless it is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _clock(seconds: float) -> str:
    tenths = round(seconds * 10)
    return f"{tenths // 36000}:{tenths // 600 % 60:02}:{tenths // 10 % 60:02}.{tenths % 10}"


FORMATS = {
    form.name: form
    for form in (
        Format("rttm", ".rttm", _rttm, joins=True),
        Format("json", ".json", _json),
        Format("csv", ".csv", _csv, joins=True, header="file,start,end,duration,speaker,confidence\n"),
        Format("srt", ".srt", _srt),
        Format("vtt", ".vtt", _vtt),
        Format("textgrid", ".TextGrid", _textgrid),
        # Audacity offers *.txt only, and .txt alone is the form for people.
        Format("audacity", ".audacity.txt", _audacity),
        Format("lab", ".lab", _lab),
        Format("html", ".html", _html),
        Format("text", ".txt", _text, joins=True),
    )
}


def parse_formats(value: str) -> tuple[Format, ...]:
    """The formats named in a comma-separated list.

    Raises
    ------
    OptionError
        A name is unknown or given twice.
    """
    names = [name.strip().lower() for name in value.split(",")]
    for name in names:
        if name not in FORMATS:
            raise OptionError(f"unknown format {name!r}; allowed are {', '.join(FORMATS)}, separated by commas")
    if len(set(names)) < len(names):
        raise OptionError(f"--format {value} names a format twice; give each once")
    return tuple(FORMATS[name] for name in names)
