"""Whole recordings with the new choices against float32: turns must stay, or nothing is written.

The policy: against float32's own turns the diarization error rate may be 0.1 points at most; with a reference it may
change by as much. Both pipelines read a file of choices as the user's pipeline will.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..candidates import SEPARATE, Candidate
from ..errors import OptionError, RecipeError
from ..pipeline import Pipeline
from ..recipe import DEFAULT, Entry, Key, Recipe, Validation, write
from ..registry import LAYERS, candidates
from ..score.der import score_file
from ..score.inputs import read_turns
from ..types import Diarization, Turn
from .search import STORAGES

LIMIT = 0.1
"""Points of the diarization error rate."""

Diarizer = Callable[[Path], Diarization]


@dataclass(frozen=True)
class Example:
    """A recording, and its reference turns where they are known."""

    path: Path
    reference: tuple[Turn, ...] | None = None


def examples(audio: Sequence[Path], references: Sequence[Path]) -> list[Example]:
    """Recordings with their references, by name where there are any.

    Raises
    ------
    OptionError
        A recording has no turns among them, or there are references but no recordings.
    FormatError
        A reference cannot be read.
    """
    if references and not audio:
        raise OptionError("--reference goes with --validate; name the recordings")
    turns: dict[str, list[Turn]] = {}
    for path in references:
        turns |= read_turns(path)
    turns = {name: own for name, own in turns.items() if own}
    if references and not turns:
        raise OptionError(f"{', '.join(map(str, references))}: nobody speaks in the references; leave them out")
    if references and len(audio) == len(turns) == 1:
        return [Example(audio[0], tuple(next(iter(turns.values()))))]
    found = []
    for path in audio:
        name = "_".join(path.stem.split())
        if references and name not in turns:
            known = ", ".join(sorted(turns))
            raise OptionError(f"{path}: no turns of {name!r} in the references, which hold {known}")
        found.append(Example(path, tuple(turns[name]) if references else None))
    return found


def validate(
    recordings: Sequence[Example],
    tuned: Diarizer,
    exact: Diarizer,
    limit: float = LIMIT,
    heard: Callable[[int, int, str], None] | None = None,
) -> list[Validation]:
    """A record for each recording.

    Raises
    ------
    RecipeError
        The turns of one differ by more than `limit` points, or nobody speaks in any, which shows nothing.
    """
    records = []
    anyone = False
    for number, example in enumerate(recordings):
        if heard is not None:
            heard(number, len(recordings), f"validate {example.path.name}")
        result, truth = tuned(example.path), exact(example.path)
        record = compared(example, result, truth, limit)
        records.append(record)
        anyone = anyone or bool(truth.turns)
    if recordings and not anyone:
        names = ", ".join(str(example.path) for example in recordings)
        raise RecipeError(f"nothing written: {names}: no speech is found; validate recordings of conversations")
    return records


def compared(example: Example, result: Diarization, truth: Diarization, limit: float = LIMIT) -> Validation:
    """The record of one recording.

    Raises
    ------
    RecipeError
        The turns differ by more than `limit` points.
    """
    name = str(example.path)
    against = "float32" if example.reference is None else "reference"
    if result.turns == truth.turns:
        return Validation(name, result.duration, 0.0, limit, against)
    if example.reference is None:
        before, after = 0.0, _points(truth.turns, result.turns)
        seen = f"its turns differ from float32's by a diarization error rate of {after:.2f} %"
    else:
        before, after = (_points(example.reference, r.turns) for r in (truth, result))
        seen = f"its diarization error rate is {after:.2f} %, with float32 {before:.2f} %"
    # Sums of seconds are not exact.
    change = round(abs(after - before), 6)
    if change > limit:
        raise RecipeError(
            f"nothing written: {name}: {seen}; {limit:g} points are allowed; tune without the precisions that were "
            "asked for, or report this if none was"
        )
    return Validation(name, result.duration, round(change, 4), limit, against)


def _points(reference: Sequence[Turn], turns: Sequence[Turn]) -> float:
    return 100.0 * score_file("recording", reference, turns).der.der


def float32_recipe(capability: tuple[int, int]) -> Recipe:
    """The choices that tuned ones are compared with: float32 for ResNet34, exact pairs for the LSTM stack."""
    return Recipe(
        DEFAULT,
        Key(capability=capability),
        {"what": "float32, for validation"},
        tuple(Entry.of(_exact(layer, capability), 1) for layer in LAYERS),
    )


def _exact(layer: str, capability: tuple[int, int]) -> Candidate:
    """The most exact candidate of a layer that runs."""
    own = [c for c in candidates(layer) if c.layer == layer and c.runs_on(capability) and not c.exactly and c.evidence]
    if any(c.name == SEPARATE for c in own):
        return next(c for c in own if c.name == SEPARATE)
    return next((c for c in own if c.precision == "fp32" and c.storage in ("", STORAGES["fp32"])), own[0])


def opener(recipe: Recipe, path: Path, model: str, device: str) -> Diarizer:
    """Diarizes with the choices of `recipe`, which is written to `path` for this."""
    write(path, recipe)
    pipeline = Pipeline.from_pretrained(model, device, "exact", tune_file=path)
    return lambda recording: pipeline.diarize(recording)
