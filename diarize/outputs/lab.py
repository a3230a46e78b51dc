"""lab: one line per turn with start, end and speaker, separated by spaces; seconds with 3 decimals.

This is the form of `Annotation.write_lab` of pyannote.core: all speakers in one file, times in seconds. HTK's own label
files count in units of 100 ns; they are not read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ..errors import FormatError
from ..types import Turn
from .rttm import parse_seconds
from .text import clean_field, read_text, split_fields


def format_lab(turns: Iterable[Turn]) -> str:
    """One line for each of `turns`, in their order; white space within labels becomes "_".

    Raises
    ------
    FormatError
        A label is empty.

    >>> format_lab([Turn(0.5, 2.0, "Ann Lee")])
    '0.500 2.000 Ann_Lee\\n'
    """
    return "".join(f"{turn.start:.3f} {turn.end:.3f} {clean_field(turn.speaker, 'label')}\n" for turn in turns)


def read_lab(path: str | os.PathLike[str]) -> list[Turn]:
    """Turns of the file at `path`, in the order of its lines.

    Raises
    ------
    FormatError
        The file cannot be read, or a line is not valid.
    """
    return parse_lab(read_text(path), os.fspath(path))


def parse_lab(text: str, path: str | None = None) -> list[Turn]:
    """Turns in `text`, in the order of its lines; `path` serves for messages.

    Raises
    ------
    FormatError
        A line is not valid.
    """
    turns = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = split_fields(line)
        if not fields:
            continue
        if len(fields) != 3:
            raise FormatError(f"has {len(fields)} fields; a lab line has 3: start, end, speaker", path, number)
        start = parse_seconds(fields[0], "start", path, number)
        end = parse_seconds(fields[1], "end", path, number)
        if end < start:
            raise FormatError(f"end {end} is before start {start}; swap them", path, number)
        turns.append(Turn(float(start), float(end), fields[2]))
    return turns
