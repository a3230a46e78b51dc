"""Speakers for CTM: an eighth column, as the extended CTM of NIST's meeting evaluations has it.

A line is `file channel start duration word [confidence [type [speaker]]]`. Columns that are missing become `NA` and
`lex`; a word without speaker gets `unknown`. Comments (`;;`), empty lines and the marks of alternatives stay as they
are.

References
----------
NIST, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan", appendix on the CTM format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import FormatError
from ..outputs.rttm import parse_seconds
from ..outputs.text import clean_field, split_fields, split_lines
from .finder import SpeakerFinder

UNKNOWN = "unknown"


def assign_ctm(text: str, finders: Mapping[str, SpeakerFinder], path: str | None = None) -> tuple[str, int, int]:
    """The transcript with speakers, the number of words, and how many have no speaker.

    `finders` by file id; the one of id "" serves for every file. A single one serves for a single file whatever their
    names.

    Raises
    ------
    FormatError
        A line is not valid, or its file has no turns.
    """
    lines = re.split("(\r\n|\n|\r)", text)
    rows = [fields for fields in map(split_fields, lines[::2]) if fields and not is_comment(fields)]
    if len(finders) == 1 and len({fields[0] for fields in rows}) == 1:
        finders = {"": next(iter(finders.values()))}
    words = missing = 0
    for index in range(0, len(lines), 2):
        fields = split_fields(lines[index])
        if not fields or is_comment(fields):
            continue
        number = index // 2 + 1
        if not 5 <= len(fields) <= 8:
            raise FormatError(f"has {len(fields)} fields; a CTM line has 5 to 8, separated by spaces", path, number)
        if fields[2] == "*":
            continue
        start = float(parse_seconds(fields[2], "start", path, number))
        end = start + float(parse_seconds(fields[3], "duration", path, number))
        finder = finders.get(fields[0]) or finders.get("")
        if finder is None:
            known = ", ".join(sorted(finders)[:5])
            raise FormatError(f"file id is {fields[0][:40]!r}; there are turns of {known}; rename one", path, number)
        speaker = finder.find(start, end)
        words += 1
        missing += speaker is None
        named = UNKNOWN if speaker is None else clean_field(speaker, "label")
        lines[index] = " ".join([*fields[:7], *("NA", "lex")[len(fields) - 5 :], named])
    return "".join(lines), words, missing


def looks_like_ctm(text: str) -> bool:
    """Whether the first line that says something has five columns or more, with numbers in the third and fourth."""
    for line in split_lines(text):
        fields = split_fields(line)
        if fields and not is_comment(fields):
            numbers = [re.fullmatch(r"\*|[0-9]*\.?[0-9]+", field) for field in fields[2:4]]
            return len(fields) >= 5 and all(numbers)
    return False


def is_comment(fields: list[str]) -> bool:
    """Whether a line that is not empty is a comment."""
    return fields[0].startswith(";;")
