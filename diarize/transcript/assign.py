"""A transcript's text and turns in, the same transcript with speakers out, in whichever format it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ..errors import FormatError, OptionError
from ..types import Turn
from ..values import check_seconds
from .ctm import assign_ctm, looks_like_ctm
from .finder import SpeakerFinder
from .subtitles import assign_srt, assign_vtt
from .whisper import assign_json

DEFAULT_MAX_GAP = 1.0
"""Seconds: times of words are seldom further off than this."""


class TranscriptFormat(Enum):
    """How a transcript is written."""

    JSON = "json"
    SRT = "srt"
    VTT = "vtt"
    CTM = "ctm"


@dataclass(frozen=True)
class Assigned:
    """A transcript with speakers: its `text` and `form`, how many words, segments or cues it has, how many lack one.

    `segments`: how many of the units of a JSON transcript are segments; the others are words.
    """

    text: str
    form: TranscriptFormat
    units: int
    missing: int
    segments: int = 0


def assign_speakers(
    text: str,
    turns: Sequence[Turn] | Mapping[str, Sequence[Turn]],
    form: TranscriptFormat | None = None,
    max_gap: float = DEFAULT_MAX_GAP,
    path: str | None = None,
) -> Assigned:
    """The transcript `text` with a speaker for each word, segment or cue; see `SpeakerFinder` for the rule.

    `turns` of one recording, or of several by file id, which only CTM can tell apart. `form` None finds out how the
    transcript is written. Where no turn overlaps, the nearest counts up to `max_gap` seconds away. A byte order mark
    and the line ends of SRT, VTT and CTM are kept. `path` serves for messages.

    Raises
    ------
    FormatError
        The transcript is damaged or in no known format, or turns of its recording are missing.
    OptionError
        `max_gap` is negative or not finite.

    >>> print(assign_speakers("talk 1 0.5 0.2 hello", [Turn(0, 2, "Ann")]).text)
    talk 1 0.5 0.2 hello NA lex Ann
    """
    check_seconds("max-gap", max_gap)
    by_file = dict(turns) if isinstance(turns, Mapping) else {"": turns}
    body = text.removeprefix("\ufeff")
    form = form or detect(body, path)
    finders = {name: SpeakerFinder(own, max_gap) for name, own in by_file.items()}
    segments = 0
    if form is TranscriptFormat.CTM:
        new, units, missing = assign_ctm(body, finders, path)
    else:
        if len(finders) != 1:
            names = ", ".join(sorted(finders)[:5]) or "none"
            raise OptionError(f"there are turns of {len(finders)} recordings ({names}); choose one with --file-id")
        (finder,) = finders.values()
        if form is TranscriptFormat.JSON:
            new, units, missing, segments = assign_json(body, finder, path)
        else:
            writer = assign_srt if form is TranscriptFormat.SRT else assign_vtt
            new, units, missing = writer(body, finder, path)
    return Assigned(text[: len(text) - len(body)] + new, form, units, missing, segments)


def detect(text: str, path: str | None = None) -> TranscriptFormat:
    """How a transcript is written, by its first lines and never by its name.

    Raises
    ------
    FormatError
        It is in none of the known formats.
    """
    start = text.removeprefix("\ufeff").lstrip()
    if re.match(r"WEBVTT(?:\s|$)", start):
        return TranscriptFormat.VTT
    if start[:1] in ("{", "["):
        return TranscriptFormat.JSON
    if "-->" in start:
        return TranscriptFormat.SRT
    if looks_like_ctm(start):
        return TranscriptFormat.CTM
    raise FormatError(
        "is no transcript in a known format; give Whisper's JSON, SRT, VTT or CTM, or name its --format", path, 1
    )
