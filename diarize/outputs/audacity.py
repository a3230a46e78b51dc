"""Audacity labels: one line per turn with start, end and speaker, separated by tabs; seconds with 6 decimals.

Audacity reads the file with File > Import > Labels, and shows overlapping labels one above the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ..errors import FormatError
from ..types import Turn
from .rttm import parse_seconds
from .text import clean_text, read_text, split_lines


def format_audacity(turns: Iterable[Turn]) -> str:
    """One line for each of `turns`, in their order; names keep their spaces.

    Raises
    ------
    FormatError
        A label is empty.

    >>> format_audacity([Turn(0.5, 2.0, "Ann Lee")])
    '0.500000\\t2.000000\\tAnn Lee\\n'
    """
    return "".join(f"{turn.start:.6f}\t{turn.end:.6f}\t{clean_text(turn.speaker, 'label')}\n" for turn in turns)


def read_audacity(path: str | os.PathLike[str]) -> list[Turn]:
    """Labels of the file at `path` as turns, in the order of its lines.

    Raises
    ------
    FormatError
        The file cannot be read, or a line is not valid.
    """
    return parse_audacity(read_text(path), os.fspath(path))


def parse_audacity(text: str, path: str | None = None) -> list[Turn]:
    """Labels in `text` as turns, in the order of its lines; `path` serves for messages.

    Lines that begin with a backslash hold the frequencies of a label and are passed over.

    Raises
    ------
    FormatError
        A line is not valid.
    """
    turns = []
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip() or line.startswith("\\"):
            continue
        fields = line.split("\t")
        if len(fields) != 3:
            raise FormatError(f"has {len(fields)} fields; a label has 3, separated by tabs", path, number)
        start = parse_seconds(fields[0], "start", path, number)
        end = parse_seconds(fields[1], "end", path, number)
        if end < start:
            raise FormatError(f"end {end} is before start {start}; swap them", path, number)
        turns.append(Turn(float(start), float(end), fields[2]))
    return turns
