"""From choices to a tune file: entries, provenance, and what a file that is there already is worth."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import RecipeError
from ..recipe import MAX_BYTES, TUNE, Entry, Key, Recipe, Validation
from ..recipe_lookup import fitting
from ..registry import LAYERS
from .search import Outcome


def known(path: Path, key: Key) -> tuple[Recipe | None, str]:
    """The tune file at `path` if it fits the GPU and build of `key`; else None and why, "" where none is.

    It comes without the entries of networks that have other weights in `key`.
    """
    if not os.path.isfile(path):
        return None, ""
    try:
        recipe = fitting(path, replace(key, models={}))
    except RecipeError as error:
        return None, str(error)
    if recipe.kind != TUNE:
        return None, f"{path} is a {recipe.kind}, no tune file"
    models = {n: c for n, c in recipe.key.models.items() if key.models.get(n, c) == c}
    gone = set(recipe.key.models) - set(models)
    entries = tuple(entry for entry in recipe.entries if LAYERS[entry.layer].network not in gone)
    return replace(recipe, key=replace(recipe.key, models=models), entries=entries), ""


def foreign(path: Path) -> bool:
    """Whether the file at `path` is something else than a tune file, fitting or not; an empty one is nothing yet."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        return bool(content) and json.loads(content)["kind"] != TUNE
    except OSError:
        return False
    except (ValueError, LookupError, TypeError, RecursionError):
        return True


def lacking(recipe: Recipe, layers: Collection[str]) -> list[str]:
    """Those of `layers` that a file has no entry for."""
    there = {entry.layer for entry in recipe.entries}
    return [layer for layer in layers if layer not in there]


def compose(
    outcome: Outcome,
    key: Key,
    before: Recipe | None,
    about: Mapping[str, Any],
    validated: Collection[Validation] = (),
) -> Recipe:
    """The tune file of the choices, together with the entries of `before` for other layers."""
    fresh = [d.entry() for by_batch in outcome.decisions.values() for d in by_batch.values()]
    networks = {LAYERS[entry.layer].network for entry in fresh}
    models = {name: checksum for name, checksum in key.models.items() if name in networks}
    kept: list[Entry] = []
    if before is not None:
        kept = [entry for entry in before.entries if entry.layer not in outcome.decisions]
        models = {**{n: c for n, c in before.key.models.items() if any(_in(n, e) for e in kept)}, **models}
    provenance: dict[str, Any] = {
        **about,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "totals_us": {name: round(value, 1) for name, value in outcome.totals_us.items()},
    }
    records = [asdict(record) for record in validated]
    if kept and before is not None:
        records += before.provenance.get("validation", [])
        provenance["kept"] = f"{len(kept)} entries of {before.provenance.get('made', 'an earlier file')}"
    if records:
        provenance["validation"] = records
    order = list(LAYERS)
    entries = sorted([*fresh, *kept], key=lambda entry: (order.index(entry.layer), entry.batch))
    return Recipe(TUNE, replace(key, models=models), provenance, tuple(entries))


def _in(network: str, entry: Entry) -> bool:
    return LAYERS[entry.layer].network == network
