"""The forms of a result that `diarize run` can write: one table of names, suffixes and writers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import OptionError

if TYPE_CHECKING:
    from ..types import Diarization


@dataclass(frozen=True)
class Format:
    """One form of a result: its `name` on the command line, its file `suffix`, and the function that makes its text.

    `render(result, file_id, exclusive)` gives the whole text for one recording, with a line feed at its end.
    """

    name: str
    suffix: str
    render: Callable[[Diarization, str, bool], str]


def _rttm(result: Diarization, file_id: str, exclusive: bool) -> str:
    from ..outputs.rttm import format_rttm

    return format_rttm(result.exclusive if exclusive else result.turns, file_id)


def _json(result: Diarization, file_id: str, exclusive: bool) -> str:
    from ..outputs.json import format_json

    return format_json(result, file_id)


def _text(result: Diarization, file_id: str, exclusive: bool) -> str:
    turns = result.exclusive if exclusive else result.turns
    totals = f"{counted(len(result.speakers), 'speaker')}, {counted(len(turns), 'turn')}"
    lines = [f"{file_id}: {totals}, {_clock(result.duration)}"]
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
    for form in (Format("rttm", ".rttm", _rttm), Format("json", ".json", _json), Format("text", ".txt", _text))
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
