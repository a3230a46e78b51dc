"""Speakers for JSON transcripts of the Whisper family, as WhisperX writes them: a key `speaker`.

Understood are
- `segments`, each with `start` and `end` in seconds and maybe `words` with their own times (openai-whisper,
  faster-whisper, WhisperX, the OpenAI interface), and lists of words beside them: `words` and `word_segments`;
- `transcription` with `offsets` in milliseconds (whisper.cpp);
- `chunks` with a `timestamp` of two seconds (the pipelines of transformers);
- a list of such segments alone.

Segments and words get speakers on their own. A word without times gets that of the nearest word before it in its
segment, else after it, else that of the segment. Everything else in the document stays as it is.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import FormatError
from .finder import SpeakerFinder
from .positions import line_of

_Times = Callable[[Mapping[str, Any]], "tuple[float, float] | None"]


def assign_json(text: str, finder: SpeakerFinder, path: str | None = None) -> tuple[str, int, int, int]:
    """The document with speakers, indented by two spaces, the number of units, of those without speaker, of segments.

    Units are words with times where a segment has words, else segments; the last number says how many are segments.

    Raises
    ------
    FormatError
        Not JSON, none of the known forms, or a time that is not a number of seconds, 0 or more.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(f"is not JSON ({error.msg}); write the transcript again", path, error.lineno) from error
    except RecursionError as error:
        raise FormatError("is nested too deeply; give a transcript", path) from error
    assignment = _Assignment(finder, text, path)
    assignment.assign(document)
    # "?" for half characters, which JSON may name but UTF-8 cannot hold.
    shown = json.dumps(document, ensure_ascii=False, indent=2).encode("utf-8", "replace").decode("utf-8")
    return shown + "\n", assignment.units, assignment.missing, assignment.segments


class _Assignment:
    """One document on its way."""

    def __init__(self, finder: SpeakerFinder, text: str, path: str | None) -> None:
        self._finder = finder
        self._text = text
        self._path = path
        self.units = 0
        self.missing = 0
        self.segments = 0

    def assign(self, document: Any) -> None:
        """Put speakers into `document`."""
        if isinstance(document, list):
            self._segments(document, (), _seconds)
        elif not isinstance(document, dict):
            raise FormatError("is JSON, but no object or list; give a transcript of Whisper", self._path, 1)
        elif "transcription" in document:
            self._segments(document["transcription"], ("transcription",), _offsets)
        elif "chunks" in document:
            self._segments(document["chunks"], ("chunks",), _timestamp)
        elif "segments" in document:
            self._segments(document["segments"], ("segments",), _seconds)
            for key in ("words", "word_segments"):
                # They repeat the words of the segments, so they are not counted again.
                self._words(document.get(key) or [], (key,), None, counted=False)
        elif "words" in document:
            self._words(document["words"], ("words",), None, counted=True)
        else:
            shown = ", ".join(map(repr, list(document)[:5])) or "none"
            raise FormatError(
                f"its keys are {shown}; a transcript has segments, transcription, chunks or words", self._path, 1
            )

    def _segments(self, segments: Any, place: tuple[Any, ...], times: _Times) -> None:
        for own, segment in self._items(segments, place):
            span = self._span(segment, own, times)
            speaker = self._mark(segment, span)
            words = segment.get("words") if times is _seconds else None
            if words:
                self._words(words, (*own, "words"), speaker, counted=True)
            elif span is not None:
                self._count(speaker)
                self.segments += 1

    def _words(self, words: Any, place: tuple[Any, ...], fallback: str | None, counted: bool) -> None:
        items = list(self._items(words, place))
        spans = [self._span(word, own, _seconds) for own, word in items]
        timed = [index for index, span in enumerate(spans) if span is not None]
        for (_, word), span in zip(items, spans, strict=True):
            speaker = self._mark(word, span)
            if counted and span is not None:
                self._count(speaker)
        for index, (_, word) in enumerate(items):
            if spans[index] is not None:
                continue
            # The last timed word before, else the first one after.
            near = max(bisect_left(timed, index) - 1, 0)
            speaker = items[timed[near]][1].get("speaker") if timed else fallback
            if speaker is not None:
                word["speaker"] = speaker

    def _items(self, items: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The objects of a list with their places in the document."""
        if not isinstance(items, list):
            raise self._error(f"{_name(place)} is {_kind(items)}; it must be a list", place)
        for index, item in enumerate(items):
            own = (*place, index)
            if not isinstance(item, dict):
                raise self._error(f"{_name(own)} is {_kind(item)}; it must be an object", own)
            yield own, item

    def _span(self, item: Mapping[str, Any], place: tuple[Any, ...], times: _Times) -> tuple[float, float] | None:
        try:
            span = times(item)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise self._error(f"{_name(place)} has no valid times ({error}); they must be seconds", place) from error
        if span is None:
            return None
        start, end = span
        if not (0 <= start < math.inf and 0 <= end < math.inf):
            raise self._error(f"{_name(place)} goes from {start} to {end}; times must be 0 or more", place)
        if end < start:
            raise self._error(f"{_name(place)} ends at {end:g} s, before it starts at {start:g} s", place)
        return span

    def _mark(self, item: dict[str, Any], span: tuple[float, float] | None) -> str | None:
        """Give `item` its speaker; one from an earlier run goes where there is none now."""
        item.pop("speaker", None)
        speaker = None if span is None else self._finder.find(*span)
        if speaker is not None:
            item["speaker"] = speaker
        return speaker

    def _count(self, speaker: str | None) -> None:
        self.units += 1
        self.missing += speaker is None

    def _error(self, message: str, place: tuple[Any, ...]) -> FormatError:
        return FormatError(message, self._path, line_of(self._text, place))


def _seconds(item: Mapping[str, Any]) -> tuple[float, float] | None:
    """Times of a segment or word of Whisper; None where it has none, as WhisperX leaves words it could not align."""
    if item.get("start") is None or item.get("end") is None:
        return None
    return _number(item["start"]), _number(item["end"])


def _offsets(item: Mapping[str, Any]) -> tuple[float, float] | None:
    """Times of an entry of whisper.cpp, in milliseconds."""
    offsets = item["offsets"]
    return _number(offsets["from"]) / 1000, _number(offsets["to"]) / 1000


def _timestamp(item: Mapping[str, Any]) -> tuple[float, float] | None:
    """Times of a chunk; the last one of a recording may lack its end."""
    start, end = item["timestamp"]
    if start is None:
        return None
    return _number(start), _number(start if end is None else end)


def _number(value: Any) -> float:
    # True is a number for Python, but not a time; some writers put numbers into quotation marks.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{value!r:.40} is not a number")
    return float(value)


def _name(place: tuple[Any, ...]) -> str:
    """A place in the document as text, such as segments[3].words[0]."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".") or "the list"


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
