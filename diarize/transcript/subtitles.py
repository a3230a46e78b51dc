"""Speakers for SRT and WebVTT: in front of the text in brackets, and as the voice of the cue.

Every line but the first of a cue's text stays as it is, and that keeps its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..errors import FormatError
from ..outputs.subtitles import Cue, escape_vtt, srt_cues, vtt_cues, without_voice
from ..outputs.text import clean_text, split_lines
from .finder import SpeakerFinder

_PREFIX = re.compile(r"\[[^\[\]\n]+\]: ")


def assign_srt(text: str, finder: SpeakerFinder, path: str | None = None) -> tuple[str, int, int]:
    """The transcript with `[NAME]: ` in front of each cue's text, the number of cues, and how many have no speaker.

    A name that stands there already is replaced.

    Raises
    ------
    FormatError
        The times of a cue are not valid, or there is text but no cue.
    """
    cues = srt_cues(split_lines(text), path)
    if not cues and text.strip("\ufeff \t\r\n"):
        raise FormatError("holds no cue of SRT; name its true format", path)
    return _assign(text, cues, finder, _with_prefix)


def assign_vtt(text: str, finder: SpeakerFinder, path: str | None = None) -> tuple[str, int, int]:
    """The transcript with `<v NAME>` in front of each cue's text, the number of cues, and how many have no speaker.

    A voice that stands there already is replaced.

    Raises
    ------
    FormatError
        No WEBVTT header, or the times of a cue are not valid.
    """
    return _assign(text, vtt_cues(split_lines(text), path), finder, _with_voice)


def _with_prefix(line: str, speaker: str | None) -> str:
    bare = _PREFIX.sub("", line, count=1) if _PREFIX.match(line) else line
    if speaker is None:
        return bare
    # Brackets would end the name early for whoever reads it back.
    name = clean_text(speaker, "label").translate({ord("["): "(", ord("]"): ")"})
    return f"[{name}]: {bare}"


def _with_voice(line: str, speaker: str | None) -> str:
    bare = without_voice(line)
    return bare if speaker is None else f"<v {escape_vtt(clean_text(speaker, 'label'))}>{bare}"


def _assign(
    text: str, cues: Sequence[Cue], finder: SpeakerFinder, mark: Callable[[str, str | None], str]
) -> tuple[str, int, int]:
    # Line ends are kept with their lines, whichever they are.
    lines = re.split("(\r\n|\n|\r)", text)
    spoken = [cue for cue in cues if cue.last > cue.first]
    missing = 0
    for cue in spoken:
        speaker = finder.find(cue.start, cue.end)
        missing += speaker is None
        lines[2 * cue.first] = mark(lines[2 * cue.first], speaker)
    return "".join(lines), len(spoken), missing
