"""The result of one recording as a versioned JSON document, written and read back.

Two runs on the same recording give the same bytes but for the values under "timings".

Schema history
--------------
diarize/1: file, duration, offset, model, model_checksum, device, mode, recipe, speakers, overlap, turns, exclusive,
warnings, timings, versions. Times are in seconds from the recording's start; what was diarized begins at `offset` and
lasts `duration`. `confidence` of a turn is from 0 to 1, null where there is none. `recipe` is null on the CPU; on a GPU
it has `source`, what decided first which kernels ran, and `layers`, the kernel candidate of each layer.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import FormatError
from ..types import Diarization, KernelChoices, Turn
from .text import legible

SCHEMA = "diarize/1"
_TURN_LISTS = ("speakers", "turns", "exclusive")


@dataclass(frozen=True)
class SpeakerTotal:
    """What one speaker said in all: `seconds`, in `turns` turns."""

    speaker: str
    seconds: float
    turns: int


@dataclass(frozen=True)
class JsonResult:
    """A document read back: the file id, the result (without embeddings), and the versions that made it."""

    file_id: str
    diarization: Diarization
    versions: dict[str, str]


def speaker_totals(turns: Sequence[Turn], speakers: Sequence[str]) -> tuple[SpeakerTotal, ...]:
    """Speaking time and number of turns of each of `speakers`, in their order.

    >>> speaker_totals([Turn(0, 2, "A"), Turn(3, 4, "A")], ["A", "B"])[0]
    SpeakerTotal(speaker='A', seconds=3.0, turns=2)
    """
    lengths: dict[str, list[float]] = {speaker: [] for speaker in speakers}
    for turn in turns:
        lengths.setdefault(turn.speaker, []).append(turn.duration)
    return tuple(SpeakerTotal(speaker, math.fsum(parts), len(parts)) for speaker, parts in lengths.items())


def overlap_seconds(turns: Sequence[Turn]) -> float:
    """Seconds in which at least two of `turns` are active.

    >>> overlap_seconds([Turn(0, 2, "A"), Turn(1, 4, "B"), Turn(1.5, 3, "C")])
    2.0
    """
    # Ends sort before starts at the same time, so that turns that only touch do not overlap.
    edges = sorted([(turn.start, 1) for turn in turns] + [(turn.end, -1) for turn in turns])
    active, since, parts = 0, 0.0, []
    for time, change in edges:
        if active < 2 <= active + change:
            since = time
        elif active + change < 2 <= active:
            parts.append(time - since)
        active += change
    return math.fsum(parts)


def format_json(result: Diarization, file_id: str) -> str:
    """The document of one recording, ending with a line feed; seconds are rounded to 3 decimals.

    Keys stand in a fixed order, each on a line of its own, and each turn too.

    Raises
    ------
    FormatError
        A time is not a finite number.
    """
    from .. import __version__

    totals = speaker_totals(result.turns, result.speakers)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "file": file_id,
        "duration": _seconds(result.duration),
        "offset": _seconds(result.offset),
        "model": result.model,
        "model_checksum": result.checksum,
        "device": result.device,
        "mode": result.mode,
        "recipe": None if result.recipe is None else _recipe(result.recipe),
        "speakers": [{"speaker": t.speaker, "seconds": _seconds(t.seconds), "turns": t.turns} for t in totals],
        "overlap": _seconds(overlap_seconds(result.turns)),
        "turns": _turns(result.turns),
        "exclusive": _turns(result.exclusive),
        "warnings": list(result.warnings),
        "timings": {name: _seconds(value) for name, value in sorted(result.timings.items())},
        "versions": {"diarize": __version__},
    }
    lines = [f"  {_text(key)}: {_value(key, value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_json(path: str | os.PathLike[str]) -> JsonResult:
    """The document in the file at `path`.

    Raises
    ------
    FormatError
        The file cannot be read, is not JSON, or is not a document of this schema.
    """
    name = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise FormatError("is not UTF-8 text; give a result of diarize", name) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FormatError(f"cannot be read ({reason}); check the path", name) from error
    return parse_json(text, name)


def parse_json(text: str, path: str | None = None) -> JsonResult:
    """The document in `text`; `path` serves for messages.

    Raises
    ------
    FormatError
        Not JSON, another schema, or a value that is missing or of the wrong kind.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(f"is not JSON ({error.msg}); give a result of diarize", path, error.lineno) from error
    except RecursionError as error:
        raise FormatError("is nested too deeply; give a result of diarize", path) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise FormatError(f"schema is {schema!r}; allowed is {SCHEMA!r}; give a result of this version", path)
    try:
        return _result(document)
    except KeyError as error:
        raise FormatError(f"{error.args[0]!r} is missing; write the document again", path) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"a value is of the wrong kind ({error}); write the document again", path) from error


def _result(document: Mapping[str, Any]) -> JsonResult:
    """The values of a document whose schema was checked."""
    speakers = tuple(str(item["speaker"]) for item in document["speakers"])
    result = Diarization(
        turns=_read_turns(document["turns"]),
        exclusive=_read_turns(document["exclusive"]),
        speakers=speakers,
        embeddings=np.zeros((len(speakers), 0)),
        duration=float(document["duration"]),
        model=str(document["model"]),
        device=str(document["device"]),
        mode=str(document["mode"]),
        timings={name: float(value) for name, value in document["timings"].items()},
        warnings=tuple(str(sentence) for sentence in document["warnings"]),
        checksum=str(document["model_checksum"]),
        recipe=_read_recipe(document["recipe"]),
        name=str(document["file"]),
        offset=float(document["offset"]),
    )
    return JsonResult(str(document["file"]), result, dict(document["versions"]))


def _read_turns(items: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """Turns of a list in a document."""
    return tuple(
        Turn(float(item["start"]), float(item["end"]), str(item["speaker"]), _optional(item["confidence"]))
        for item in items
    )


def _recipe(recipe: KernelChoices) -> dict[str, Any]:
    return {"source": recipe.source, "layers": dict(recipe.layers)}


def _read_recipe(item: Any) -> KernelChoices | None:
    if item is None:
        return None
    return KernelChoices(str(item["source"]), {str(layer): str(name) for layer, name in item["layers"].items()})


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)


def _turns(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Turns as a list for a document."""
    return [
        {
            "start": _seconds(turn.start),
            "end": _seconds(turn.end),
            "speaker": turn.speaker,
            "confidence": None if turn.confidence is None else _seconds(turn.confidence),
        }
        for turn in turns
    ]


def _seconds(value: float) -> float:
    """`value` rounded to 3 decimals; raises `FormatError` where JSON has no number for it."""
    if not math.isfinite(value):
        raise FormatError(f"a time is {value}; it must be a finite number of seconds")
    # Adding zero turns -0.0 into 0.0.
    return round(float(value), 3) + 0.0


def _value(key: str, value: Any) -> str:
    """JSON of one entry: lists of turns and speakers with one item a line, everything else on one line."""
    if key not in _TURN_LISTS or not value:
        return _text(value)
    return "[\n" + ",\n".join(f"    {_text(item)}" for item in value) + "\n  ]"


def _text(value: Any) -> str:
    """JSON on one line, Unicode kept, and "?" for what UTF-8 cannot hold."""
    return legible(json.dumps(value, ensure_ascii=False, allow_nan=False))
