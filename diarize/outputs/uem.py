"""UEM: the stretches of each recording that are scored, read and written with exact times.

A line is `file_id channel start end`; comments (`;;`) and empty lines are passed over when reading.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from ..errors import FormatError
from .rttm import parse_seconds
from .text import clean_field, read_lines, split_fields


@dataclass(frozen=True)
class UemRegion:
    """One scored stretch: `start` and `end` in seconds, exactly as written.

    >>> UemRegion("meeting", "1", Decimal("0.000"), Decimal("30.000")).line
    'meeting 1 0.000 30.000'
    """

    file_id: str
    channel: str
    start: Decimal
    end: Decimal

    @property
    def line(self) -> str:
        """The line as text, without a line feed; times keep their digits."""
        return f"{self.file_id} {self.channel} {self.start:f} {self.end:f}"


def read_uem(path: str | os.PathLike[str]) -> dict[str, list[UemRegion]]:
    """Scored stretches of each file id in the file at `path`, in the order of its lines.

    Raises
    ------
    FormatError
        The file cannot be read, or a line is not valid.
    """
    return _parse(read_lines(path), os.fspath(path))


def parse_uem(text: str, path: str | None = None) -> dict[str, list[UemRegion]]:
    """Scored stretches of each file id in `text`, in the order of its lines; `path` serves for messages.

    Raises
    ------
    FormatError
        A line is not valid.
    """
    return _parse(text.split("\n"), path)


def format_uem(regions: Iterable[tuple[float | Decimal, float | Decimal]], file_id: str) -> str:
    """UEM lines of (start, end) pairs in seconds, rounded to 3 decimals, each line ending with a line feed.

    Raises
    ------
    FormatError
        `file_id` is empty.

    >>> format_uem([(0, 30)], "meeting")
    'meeting 1 0.000 30.000\\n'
    """
    name = clean_field(file_id, "file id")
    return "".join(f"{name} 1 {start:.3f} {end:.3f}\n" for start, end in regions)


def _parse(lines: Iterable[str], path: str | None) -> dict[str, list[UemRegion]]:
    """Scored stretches of each file id; raises `FormatError` with the line's number."""
    files: dict[str, list[UemRegion]] = {}
    for number, line in enumerate(lines, 1):
        fields = split_fields(line)
        if not fields or fields[0].startswith(";"):
            continue
        if len(fields) != 4:
            raise FormatError(f"has {len(fields)} fields; a UEM line has 4: file id, channel, start, end", path, number)
        start = parse_seconds(fields[2], "start", path, number)
        end = parse_seconds(fields[3], "end", path, number)
        if end < start:
            raise FormatError(f"end {end} is before start {start}; swap them", path, number)
        files.setdefault(fields[0], []).append(UemRegion(fields[0], fields[1], start, end))
    return files
