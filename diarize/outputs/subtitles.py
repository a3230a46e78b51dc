"""SRT and WebVTT: turns as cues that show the speaker's name, and cues of any file with the places of their text.

Reading keeps every line as it is: a cue says where its lines lie, so that a caller can change a text and nothing else.

References
----------
W3C, "WebVTT: The Web Video Text Tracks Format", sections 4 and 6. SRT has no standard; what SubRip writes is read.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import FormatError
from ..types import Turn
from .text import clean_text, split_lines

_TIME = r"(?:([0-9]{1,4}):)?([0-9]{1,2}):([0-9]{1,2})(?:[,.]([0-9]{1,3}))?"
_TIMING = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(\s.*)?")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?[ \t]+([^>]*)>")


@dataclass(frozen=True)
class Cue:
    """One subtitle: `start` and `end` in seconds, and its place in the file's lines.

    Its text is lines[first:last]; the line of the times is lines[first - 1]. `line` counts from 1.
    """

    start: float
    end: float
    first: int
    last: int

    @property
    def line(self) -> int:
        """1-based number of the line with the times."""
        return self.first


def format_srt(turns: Iterable[Turn]) -> str:
    """One numbered cue for each of `turns`, sorted by start; its text is the speaker's name.

    Raises
    ------
    FormatError
        A label is empty.

    >>> print(format_srt([Turn(0.5, 2.0, "Ann Lee")]), end="")
    1
    00:00:00,500 --> 00:00:02,000
    Ann Lee
    """
    cues = []
    for number, turn in enumerate(sorted(turns), 1):
        # Readers take any line with an arrow for the times of a cue.
        name = clean_text(turn.speaker, "label").replace("-->", "->")
        cues.append(f"{number}\n{_timing(turn, ',')}\n{name}\n")
    return "\n".join(cues)


def format_vtt(turns: Iterable[Turn]) -> str:
    """One cue for each of `turns`, sorted by start: the speaker's name, also as the voice of the cue.

    Raises
    ------
    FormatError
        A label is empty.

    >>> print(format_vtt([Turn(0.5, 2.0, "Ann Lee")]), end="")
    WEBVTT
    <BLANKLINE>
    00:00:00.500 --> 00:00:02.000
    <v Ann Lee>Ann Lee</v>
    """
    cues = ["WEBVTT\n"]
    for turn in sorted(turns):
        name = escape_vtt(clean_text(turn.speaker, "label"))
        cues.append(f"{_timing(turn, '.')}\n<v {name}>{name}</v>\n")
    return "\n".join(cues)


def parse_srt(text: str, path: str | None = None) -> list[Turn]:
    """Turns from cues whose text is a speaker's name, as `format_srt` writes them; `path` serves for messages.

    Raises
    ------
    FormatError
        The times of a cue are not valid, or it has no text.
    """
    lines = split_lines(text)
    return [Turn(cue.start, cue.end, _first_line(lines, cue, path)) for cue in srt_cues(lines, path)]


def parse_vtt(text: str, path: str | None = None) -> list[Turn]:
    """Turns from cues with a voice, as `format_vtt` writes them; `path` serves for messages.

    Raises
    ------
    FormatError
        No WEBVTT header, the times of a cue are not valid, or it has no voice.
    """
    lines = split_lines(text)
    turns = []
    for cue in vtt_cues(lines, path):
        voice = voice_of(_first_line(lines, cue, path))
        if voice is None:
            raise FormatError("the cue has no voice; <v NAME> says who speaks", path, cue.first + 1)
        turns.append(Turn(cue.start, cue.end, voice))
    return turns


def srt_cues(lines: Sequence[str], path: str | None = None) -> list[Cue]:
    """Cues of an SRT file; `lines` are without line ends, `path` serves for messages.

    Numbers of cues are not looked at. Decimals stand after a comma or a point; hours and decimals may be left out.

    Raises
    ------
    FormatError
        A line with an arrow does not hold two times in order.
    """
    return [
        _cue(lines, index, path, has_number=True) for index, line in enumerate(lines) if _is_timing(line, index, lines)
    ]


def vtt_cues(lines: Sequence[str], path: str | None = None) -> list[Cue]:
    """Cues of a WebVTT file; notes, styles and regions are passed over.

    Raises
    ------
    FormatError
        No WEBVTT header, or a line with an arrow does not hold two times in order.
    """
    first = lines[0].removeprefix("\ufeff") if lines else ""
    if re.fullmatch(r"WEBVTT(?:[ \t].*)?", first) is None:
        raise FormatError(f"starts with {first[:40]!r}; a WebVTT file starts with WEBVTT", path, 1)
    return [
        _cue(lines, index, path, has_number=False) for index, line in enumerate(lines) if _is_timing(line, index, lines)
    ]


def voice_of(line: str) -> str | None:
    """Name in the voice tag that a line of a WebVTT cue begins with, None where it begins otherwise.

    >>> voice_of("<v Ann &amp; Bo>Hello")
    'Ann & Bo'
    """
    match = _VOICE.match(line)
    return None if match is None else html.unescape(match[1]).strip()


def without_voice(line: str) -> str:
    """`line` without the voice tag that it begins with, and without the end tag that closes it."""
    match = _VOICE.match(line)
    return line if match is None else line[match.end() :].replace("</v>", "", 1)


def escape_vtt(text: str) -> str:
    """`text` as it may stand in a WebVTT cue or tag."""
    return html.escape(text, quote=False)


def _timing(turn: Turn, point: str) -> str:
    start = round(turn.start * 1000)
    # A cue that ends when it starts is not valid.
    end = max(round(turn.end * 1000), start + 1)
    return f"{_clock(start, point)} --> {_clock(end, point)}"


def _clock(milliseconds: int, point: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{rest:03}"


def _is_timing(line: str, index: int, lines: Sequence[str]) -> bool:
    """Whether a line holds the times of a cue: an arrow, and what stands before it is not the text of a cue."""
    if "-->" not in line:
        return False
    # An arrow within a text, as in "A --> B", follows a line of times or of text.
    return _TIMING.fullmatch(line) is not None or index == 0 or not _in_text(lines, index)


def _in_text(lines: Sequence[str], index: int) -> bool:
    """Whether the lines before `index`, up to an empty one, hold times."""
    while index > 0 and lines[index - 1].strip():
        index -= 1
        if _TIMING.fullmatch(lines[index]) is not None:
            return True
    return False


def _cue(lines: Sequence[str], index: int, path: str | None, has_number: bool) -> Cue:
    """The cue whose times are in lines[index]."""
    match = _TIMING.fullmatch(lines[index])
    if match is None:
        shown = lines[index].strip()[:60]
        raise FormatError(f"times are {shown!r}; they must look like 00:00:01,500 --> 00:00:02,000", path, index + 1)
    start, end = _seconds(match.groups()[:4]), _seconds(match.groups()[4:8])
    if end < start:
        raise FormatError(f"the cue ends at {end:g} s, before it starts at {start:g} s; swap them", path, index + 1)
    last = index + 1
    while last < len(lines) and lines[last].strip() and _TIMING.fullmatch(lines[last]) is None:
        last += 1
    # Without an empty line between two cues, the next one's number stands in front of its times.
    followed = last < len(lines) and lines[last].strip()
    if has_number and followed and last > index + 1 and lines[last - 1].strip().isdecimal():
        last -= 1
    return Cue(start, end, index + 1, last)


def _seconds(parts: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = parts
    whole = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    # One division, so that the number nearest to the text comes out.
    return (whole * 1000 + int((fraction or "0").ljust(3, "0"))) / 1000


def _first_line(lines: Sequence[str], cue: Cue, path: str | None) -> str:
    if cue.last == cue.first:
        raise FormatError("the cue has no text; it must name the speaker", path, cue.line)
    return lines[cue.first]
