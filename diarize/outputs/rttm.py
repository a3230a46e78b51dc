"""RTTM: one line per turn, read with exact times and written in the text form of pyannote.

Only `SPEAKER` lines are turns; comments (`;;`), empty lines and other line types are passed over when reading.

References
----------
NIST, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan", appendix A.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from ..errors import FormatError
from ..types import Turn
from .text import clean_field, read_lines, split_fields

_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True)
class RttmTurn:
    """One `SPEAKER` line: `start` and `duration` in seconds, exactly as written.

    >>> RttmTurn("meeting", "1", Decimal("0.824"), Decimal("3.409"), "SPEAKER_00").line
    'SPEAKER meeting 1 0.824 3.409 <NA> <NA> SPEAKER_00 <NA> <NA>'
    """

    file_id: str
    channel: str
    start: Decimal
    duration: Decimal
    speaker: str

    @property
    def end(self) -> Decimal:
        """End in seconds, exact."""
        return self.start + self.duration

    @property
    def line(self) -> str:
        """The line as text, without a line feed; times keep their digits."""
        return (
            f"SPEAKER {self.file_id} {self.channel} {self.start:f} {self.duration:f} <NA> <NA> {self.speaker} <NA> <NA>"
        )


def read_rttm(path: str | os.PathLike[str]) -> dict[str, list[RttmTurn]]:
    """Turns of each file id in the file at `path`, in the order of its lines.

    Raises
    ------
    FormatError
        The file cannot be read, or a line is not valid.
    """
    return _parse(read_lines(path), os.fspath(path))


def parse_rttm(text: str, path: str | None = None) -> dict[str, list[RttmTurn]]:
    """Turns of each file id in `text`, in the order of its lines; `path` serves for messages.

    Raises
    ------
    FormatError
        A line is not valid.
    """
    return _parse(text.split("\n"), path)


def format_rttm(turns: Iterable[Turn], file_id: str) -> str:
    """RTTM lines of `turns` in their order, times rounded to 3 decimals, each line ending with a line feed.

    White space within `file_id` and labels becomes "_", since RTTM separates its fields by it.

    Raises
    ------
    FormatError
        `file_id` or a label is empty.

    >>> format_rttm([Turn(0.5, 2.0, "SPEAKER_00")], "my talk")
    'SPEAKER my_talk 1 0.500 1.500 <NA> <NA> SPEAKER_00 <NA> <NA>\\n'
    """
    name = clean_field(file_id, "file id")
    return "".join(
        f"SPEAKER {name} 1 {turn.start:.3f} {turn.duration:.3f} <NA> <NA> {clean_field(turn.speaker, 'label')} "
        "<NA> <NA>\n"
        for turn in turns
    )


def _parse(lines: Iterable[str], path: str | None) -> dict[str, list[RttmTurn]]:
    """Turns of each file id; raises `FormatError` with the line's number."""
    files: dict[str, list[RttmTurn]] = {}
    for number, line in enumerate(lines, 1):
        fields = split_fields(line)
        if not fields or fields[0].startswith(";") or _is_other_type(fields[0]):
            continue
        turn = _parse_turn(fields, path, number)
        files.setdefault(turn.file_id, []).append(turn)
    return files


def _is_other_type(word: str) -> bool:
    """Whether `word` is one of RTTM's line types that say nothing about who spoke when."""
    return word in {
        "SEGMENT", "NOSCORE", "NO_RT_METADATA", "LEXEME", "NON-LEX", "NON-SPEECH", "FILLER", "EDIT", "IP", "SU", "CB",
        "A/P", "SPKR-INFO",
    }  # fmt: skip


def _parse_turn(fields: list[str], path: str | None, number: int) -> RttmTurn:
    """The turn of one split line."""
    if fields[0] != "SPEAKER":
        raise FormatError(f"line type is {fields[0][:40]!r}; an RTTM line starts with SPEAKER", path, number)
    if not 8 <= len(fields) <= 10:
        raise FormatError(f"has {len(fields)} fields; a SPEAKER line has 8 to 10, separated by spaces", path, number)
    start = parse_seconds(fields[3], "start", path, number)
    duration = parse_seconds(fields[4], "duration", path, number)
    return RttmTurn(fields[1], fields[2], start, duration, fields[7])


def parse_seconds(text: str, what: str, path: str | None, number: int) -> Decimal:
    """Seconds of a time field, exact; raises `FormatError` for anything but a number from 0 on."""
    if _NUMBER.fullmatch(text) is None:
        raise FormatError(f"{what} is {text[:40]!r}; it must be a number of seconds, 0 or more", path, number)
    return Decimal(text)
