"""Recipes and tune files: which candidate computes each layer on a GPU, and what it measured.

One JSON format serves three kinds of file. A *tune* file is written by `diarize cuda tune` for one GPU, driver and
build; a *recipe* ships with the package and was measured on one GPU model; a *default* ships for a generation of GPUs
and was chosen, not measured. recipes/README.md describes the fields. Reading them is `recipe_parse.parse`.

Format history
--------------
1: format, kind, key, provenance, entries.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .candidates import Candidate, Selection, Value
from .errors import OutputError
from .hardware import Device
from .outputs.files import write_bytes
from .outputs.text import legible
from .registry import POLICY, find
from .user_folders import config_home, expanded

FORMAT = 1
MAX_BYTES = 4 << 20
TUNE, RECIPE, DEFAULT = KINDS = ("tune", "recipe", "default")
NETWORKS = ("pyannet", "resnet34", "campplus")
"""Networks with weights; the key of a file names the checksum of those that it has entries for."""


@dataclass(frozen=True)
class Key:
    """What a file was made for, or what there is now; a default has only the capability.

    `device` is the GPU's name as the driver gives it, `driver` its release, `cuda` the CUDA version it supports,
    `kernels` the hash of the kernel sources, `models` the sha256 of each network's weights, `policy` the accuracy
    policy under which candidates were allowed to win.
    """

    device: str = ""
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 0
    driver: str = ""
    cuda: str = ""
    numba_cuda: str = ""
    diarize: str = ""
    kernels: str = ""
    models: Mapping[str, str] = field(default_factory=dict)
    policy: str = POLICY


@dataclass(frozen=True)
class RunnerUp:
    """The second fastest candidate of a layer and its median in microseconds."""

    candidate: str
    version: int
    median_us: float


@dataclass(frozen=True)
class Entry:
    """The choice for a layer at a batch size in windows.

    `precision` and `parameters` repeat what the registry says of the candidate, so that a file can be read alone.
    `median_us` is the median of `samples_us`, both in microseconds; `error` the largest difference from the layer's
    float32 twin, relative to the twin's largest value. A default has no measurements: None, none and None.
    """

    layer: str
    batch: int
    candidate: str
    version: int
    precision: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    median_us: float | None = None
    samples_us: tuple[float, ...] = ()
    error: float | None = None
    runner_up: RunnerUp | None = None

    @classmethod
    def of(
        cls,
        candidate: Candidate,
        batch: int,
        median_us: float | None = None,
        samples_us: tuple[float, ...] = (),
        error: float | None = None,
        runner_up: RunnerUp | None = None,
    ) -> Entry:
        """The entry of a candidate of the registry."""
        c = candidate
        values = (median_us, samples_us, error, runner_up)
        return cls(c.layer, batch, c.name, c.version, c.precision, dict(c.tuning), *values)


@dataclass(frozen=True)
class Validation:
    """One recording whose turns were compared with those of float32 before a file was written.

    `der_change` is the change of the DER in points, `limit` the most that was allowed, `seconds` the recording's
    length, `against` what both were scored against: "float32" (its turns) or "reference" (an RTTM).
    """

    recording: str
    seconds: float
    der_change: float
    limit: float
    against: str = "float32"


@dataclass(frozen=True)
class Recipe:
    """A whole file. `provenance` says in free form who measured what, when and how.

    Its entry "validation", where there is one, is a list of `Validation` records as objects.
    """

    kind: str
    key: Key
    provenance: Mapping[str, Any] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()


def to_selection(recipe: Recipe, origin: str = "") -> Selection:
    """The candidates that a recipe names, for its layers alone; `origin` says where they came from.

    >>> recipe = Recipe("default", Key(capability=(8, 0)), {}, (Entry("fbank.mean", 1, "window_mean", 1, "fp32"),))
    >>> to_selection(recipe, "default sm80").origins
    {'fbank.mean': 'default sm80'}
    """
    choices: dict[str, dict[int, Candidate]] = {}
    for entry in recipe.entries:
        candidate = find(entry.layer, entry.candidate)
        assert candidate is not None, f"{entry.layer} {entry.candidate} was not checked against the registry"
        choices.setdefault(entry.layer, {})[entry.batch] = candidate
    return Selection(choices, dict.fromkeys(choices, origin))


def tune_path(device: Device) -> Path:
    """Where the tune file of a GPU lies: DIARIZE_TUNE_FILE, else in the user's configuration folder (XDG).

    Its name has the device, capability and multiprocessors, such as nvidia-h200-sm90-132.json.
    """
    if named := os.environ.get("DIARIZE_TUNE_FILE"):
        return expanded(named)
    generation = "".join(map(str, device.compute_capability or ()))
    return config_home() / "diarize" / f"{device.slug or 'gpu'}-sm{generation}-{device.multiprocessors}.json"


def to_text(recipe: Recipe) -> str:
    """The file's text: fields in a fixed order, one entry a line."""
    key: dict[str, Any] = {"capability": list(recipe.key.capability)}
    if recipe.kind != DEFAULT:
        k = recipe.key
        key = {"device": k.device, **key, "multiprocessors": k.multiprocessors, "driver": k.driver, "cuda": k.cuda,
               "numba_cuda": k.numba_cuda, "diarize": k.diarize, "kernels": k.kernels,
               "models": dict(sorted(k.models.items())), "policy": k.policy}  # fmt: skip
    fields = ",\n".join(f"    {_json(name)}: {_json(value)}" for name, value in key.items())
    entries = ",\n".join(f"    {_json(_entry(entry))}" for entry in recipe.entries)
    return (
        f'{{\n  "format": {FORMAT},\n  "kind": {_json(recipe.kind)},\n'
        f'  "key": {{\n{fields}\n  }},\n  "provenance": {_indented(dict(recipe.provenance))},\n'
        f'  "entries": [{f"{chr(10)}{entries}{chr(10)}  " if entries else ""}]\n}}\n'
    )


def write(path: Path, recipe: Recipe) -> None:
    """Write a file that appears whole or not at all; a tune file is for its user alone to read.

    A link is followed. A pipe or device is written to and stays what it is.

    Raises
    ------
    RecipeError
        The recipe is not one that could be read back.
    OutputError
        The folder cannot be made or written.
    """
    from .recipe_parse import parse

    data = legible(to_text(recipe)).encode()
    # Whatever would be refused later is refused now, with the field's name.
    parse(data, str(path))
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        write_bytes(target, data)
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, data, 0o600 if recipe.kind == TUNE else 0o644)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; name another place with --output FILE"
        ) from error


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Write under a temporary name in the same folder, bring it to the disk, rename, and the folder's entry too."""
    # mkstemp gives mode 0600.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _entry(entry: Entry) -> dict[str, Any]:
    """The object of an entry."""
    runner_up = entry.runner_up
    return {
        "layer": entry.layer,
        "batch": entry.batch,
        "candidate": entry.candidate,
        "version": entry.version,
        "precision": entry.precision,
        "parameters": dict(entry.parameters),
        "median_us": entry.median_us,
        "samples_us": list(entry.samples_us),
        "error": entry.error,
        "runner_up": None if runner_up is None else vars(runner_up),
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _indented(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2).replace("\n", "\n  ")
