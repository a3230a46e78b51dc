"""Keys, recipes and folders of recipes for tests: a GPU that does not exist, and files for it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from diarize.candidates import Candidate
from diarize.hardware import Device
from diarize.recipe import DEFAULT, TUNE, Entry, Key, Recipe, RunnerUp, to_text
from diarize.registry import find

SUMS = {name: digit * 64 for name, digit in (("pyannet", "1"), ("resnet34", "2"), ("campplus", "3"))}
H200 = Device("cuda", "NVIDIA H200", 0, (9, 0), 132, 150_754_820_096, "580.159.04", "13.0")
KEY = Key("NVIDIA H200", (9, 0), 132, "580.159.04", "13.0", "0.30.4", "0.1.0", "a" * 64, SUMS)
NETWORKS = ("fbank", "pyannet", "resnet34")


def candidate(layer: str, name: str) -> Candidate:
    """A candidate of the registry, which must be there."""
    found = find(layer, name)
    assert found is not None, (layer, name)
    return found


def entry(layer: str, name: str, batch: int = 1) -> Entry:
    """A measured entry."""
    return Entry.of(candidate(layer, name), batch, 10.5, (10.0, 10.5, 11.5), 1e-4, RunnerUp("other", 1, 12.0))


def tuned(entries: Iterable[Entry], key: Key = KEY, kind: str = TUNE, **provenance: object) -> Recipe:
    """A measured file."""
    return Recipe(kind, key, {"date": "2026-11-30", **provenance}, tuple(entries))


def default(folder: Path, capability: tuple[int, int], choices: dict[str, str]) -> Path:
    """Write the default of a generation into a folder of recipes."""
    entries = tuple(Entry.of(candidate(layer, name), 1) for layer, name in choices.items())
    path = folder / f"default-sm{capability[0]}{capability[1]}.json"
    path.write_text(to_text(Recipe(DEFAULT, Key(capability=capability), {"measured": "not measured"}, entries)))
    return path
