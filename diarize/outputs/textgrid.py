"""Praat TextGrid: one interval tier per speaker, each covering the whole recording without gaps.

An interval in which the speaker talks is labelled with the speaker's name, the others are empty. The long text form is
written, the long and the short text form are read, in UTF-8 or UTF-16.

References
----------
Boersma and Weenink, Praat manual, "TextGrid file formats".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import FormatError
from ..types import Turn
from .text import clean_text, read_text

# Praat does not open a TextGrid without tiers.
_SILENT_TIER = "speech"
# A text in quotation marks, doubled within; a number or flag that stands alone; or a word that only explains.
_TOKEN = re.compile(r'"(?:[^"]|"")*"|<exists>|<absent>|[^\s"]+')
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True)
class TextGrid:
    """A file read back: `duration` in seconds, names of the interval `tiers`, `turns` sorted by start."""

    duration: float
    tiers: tuple[str, ...]
    turns: tuple[Turn, ...]


def format_textgrid(turns: Sequence[Turn], speakers: Sequence[str], duration: float) -> str:
    """Tiers of `speakers` in their order over `duration` seconds; turns of a speaker that touch or overlap are joined.

    Times have 3 decimals. Where the last turn ends later than `duration`, the tiers end with it. Without speakers
    there is one empty tier.

    Raises
    ------
    FormatError
        A label is empty.
    """
    end = max([round(duration * 1000), *(round(turn.end * 1000) for turn in turns)])
    names = [*speakers, *sorted({turn.speaker for turn in turns} - set(speakers))]
    tiers = [
        (clean_text(name, "label"), _tiling([turn for turn in turns if turn.speaker == name], end)) for name in names
    ] or [(_SILENT_TIER, [(0, end, False)])]
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        "xmin = 0",
        f"xmax = {_time(end)}",
        "tiers? <exists>",
        f"size = {len(tiers)}",
        "item []:",
    ]
    for number, (name, intervals) in enumerate(tiers, 1):
        lines += [
            f"    item [{number}]:",
            '        class = "IntervalTier"',
            f"        name = {_quoted(name)}",
            "        xmin = 0",
            f"        xmax = {_time(end)}",
            f"        intervals: size = {len(intervals)}",
        ]
        for index, (first, last, talks) in enumerate(intervals, 1):
            lines += [
                f"        intervals [{index}]:",
                f"            xmin = {_time(first)}",
                f"            xmax = {_time(last)}",
                f"            text = {_quoted(name if talks else '')}",
            ]
    return "\n".join(lines) + "\n"


def read_textgrid(path: str | os.PathLike[str]) -> TextGrid:
    """The intervals of the file at `path` that are not empty, as turns of the speaker whom their tier names.

    Raises
    ------
    FormatError
        The file cannot be read, or is not a TextGrid.
    """
    try:
        with open(path, "rb") as file:
            is_utf16 = file.read(2) in (b"\xfe\xff", b"\xff\xfe")
        text = open(path, encoding="utf-16").read() if is_utf16 else None  # noqa: SIM115
    except (OSError, ValueError):
        # The reader of UTF-8 text says what is wrong.
        text = None
    return parse_textgrid(read_text(path) if text is None else text, os.fspath(path))


def parse_textgrid(text: str, path: str | None = None) -> TextGrid:
    """The intervals in `text` that are not empty, as turns of the speaker whom their tier names.

    Point tiers are passed over; `path` serves for messages.

    Raises
    ------
    FormatError
        Not a TextGrid in text form.
    """
    values = _Values(text, path)
    kind, object_class = values.text("file type"), values.text("object class")
    if kind != "ooTextFile" or object_class != "TextGrid":
        raise FormatError(f"is {kind[:40]!r} {object_class[:40]!r}; give a TextGrid in text form", path, 1)
    values.number("xmin")
    duration = values.number("xmax")
    tiers: list[str] = []
    turns: list[Turn] = []
    count = values.count("number of tiers") if values.flag() else 0
    for _ in range(count):
        tier_class = values.text("class of a tier")
        if tier_class not in ("IntervalTier", "TextTier"):
            raise values.error(f"class of a tier is {tier_class[:40]!r}; it must be IntervalTier or TextTier")
        name = values.text("name of a tier")
        values.number("xmin")
        values.number("xmax")
        size = values.count("number of intervals")
        if tier_class == "TextTier":
            for _ in range(size):
                values.number("time of a point")
                values.text("text of a point")
            continue
        tiers.append(name)
        for _ in range(size):
            start, end = values.number("xmin of an interval"), values.number("xmax of an interval")
            if end < start:
                raise values.error(f"xmax {end:g} is before xmin {start:g}; swap them")
            if values.text("text of an interval").strip():
                turns.append(Turn(start, end, name))
    return TextGrid(duration, tuple(tiers), tuple(sorted(turns)))


def _tiling(turns: Sequence[Turn], end: int) -> list[tuple[int, int, bool]]:
    """Intervals in milliseconds that cover 0 to `end`, and whether the speaker talks in each."""
    intervals: list[tuple[int, int, bool]] = []
    done = 0
    for first, last in sorted((round(turn.start * 1000), round(turn.end * 1000)) for turn in turns):
        first = max(first, done)
        if last <= first:
            continue
        if first > done:
            intervals.append((done, first, False))
        if intervals and intervals[-1][2]:
            first = intervals.pop()[0]
        intervals.append((first, last, True))
        done = last
    if done < end or not intervals:
        intervals.append((done, end, False))
    return intervals


def _time(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}"


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


class _Values:
    """The texts, numbers and flags of a TextGrid in their order; both text forms differ only in the words between."""

    def __init__(self, text: str, path: str | None) -> None:
        self._text = text
        self._path = path
        self._position = 0
        self._tokens = self._values()

    def _values(self) -> Iterator[str]:
        for match in _TOKEN.finditer(self._text):
            self._position = match.start()
            token = match[0]
            if token[0] in '"<' or _NUMBER.fullmatch(token):
                yield token

    def error(self, message: str) -> FormatError:
        """The message with the line of the value that was read last."""
        return FormatError(message, self._path, self._text.count("\n", 0, self._position) + 1)

    def _next(self, what: str) -> str:
        token = next(self._tokens, None)
        if token is None:
            self._position = len(self._text)
            raise self.error(f"ends before the {what}; give a whole TextGrid")
        return token

    def text(self, what: str) -> str:
        """The next value, a text in quotation marks."""
        token = self._next(what)
        if not token.startswith('"'):
            raise self.error(f"{what} is {token[:40]!r}; it must be a text in quotation marks")
        return token[1:-1].replace('""', '"')

    def number(self, what: str) -> float:
        """The next value, a number from 0 on."""
        token = self._next(what)
        if _NUMBER.fullmatch(token) is None or token.startswith("-"):
            raise self.error(f"{what} is {token[:40]!r}; it must be a number of seconds, 0 or more")
        return float(token)

    def count(self, what: str) -> int:
        """The next value, a whole number."""
        token = self._next(what)
        if not token.isdecimal():
            raise self.error(f"{what} is {token[:40]!r}; it must be a whole number")
        return int(token)

    def flag(self) -> bool:
        """The next value, whether something exists."""
        return self._next("flag for tiers") == "<exists>"
