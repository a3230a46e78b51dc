"""CSV: one row per turn under a header, for spreadsheets and data frames; seconds and confidence with 3 decimals.

Fields are quoted as RFC 4180 says, where they hold a comma, a quotation mark or a line break; a line feed ends a row.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable

from ..errors import FormatError
from ..types import Turn
from .rttm import parse_seconds
from .text import clean_text, read_text

COLUMNS = ("file", "start", "end", "duration", "speaker", "confidence")
_NEEDED = ("file", "start", "end", "speaker")
HEADER = ",".join(COLUMNS) + "\n"


def format_csv(turns: Iterable[Turn], file_id: str) -> str:
    """The header and one row for each of `turns`, in their order; names keep their spaces.

    Raises
    ------
    FormatError
        `file_id` or a label is empty.

    >>> print(format_csv([Turn(0.5, 2.0, "Ann, chair")], "my talk"), end="")
    file,start,end,duration,speaker,confidence
    my talk,0.500,2.000,1.500,"Ann, chair",
    """
    name = clean_text(file_id, "file id")
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for turn in turns:
        label = clean_text(turn.speaker, "label")
        times = (f"{seconds:.3f}" for seconds in (turn.start, turn.end, turn.duration))
        rows.writerow((name, *times, label, "" if turn.confidence is None else f"{turn.confidence:.3f}"))
    return text.getvalue()


def read_csv(path: str | os.PathLike[str]) -> dict[str, list[Turn]]:
    """Turns of each recording in the file at `path`, in the order of its rows.

    Raises
    ------
    FormatError
        The file cannot be read, or a row is not valid.
    """
    return parse_csv(read_text(path), os.fspath(path))


def parse_csv(text: str, path: str | None = None) -> dict[str, list[Turn]]:
    """Turns of each recording in `text`, in the order of its rows; `path` serves for messages.

    Columns may stand in any order and others may be among them; `duration` and `confidence` are not needed.

    Raises
    ------
    FormatError
        A column is missing, or a row is not valid.
    """
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    files: dict[str, list[Turn]] = {}
    try:
        header = next(rows, [])
        missing = [name for name in _NEEDED if name not in header]
        if missing:
            raise FormatError(f"the header lacks {', '.join(missing)}; it must name {', '.join(COLUMNS)}", path, 1)
        file, start, end, speaker = (header.index(name) for name in _NEEDED)
        sure = header.index("confidence") if "confidence" in header else None
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise FormatError(f"has {len(row)} fields; the header has {len(header)}", path, rows.line_num)
            first = parse_seconds(row[start], "start", path, rows.line_num)
            last = parse_seconds(row[end], "end", path, rows.line_num)
            if last < first:
                raise FormatError(f"end {last} is before start {first}; swap them", path, rows.line_num)
            confidence = None
            if sure is not None and row[sure].strip():
                confidence = float(parse_seconds(row[sure], "confidence", path, rows.line_num))
            files.setdefault(row[file], []).append(Turn(float(first), float(last), row[speaker], confidence))
    except csv.Error as error:
        raise FormatError(f"is not CSV ({error}); write it again", path, rows.line_num) from error
    return files
