"""Reads a recipe or tune file, and refuses it as a whole where anything in it is not as it should be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .candidates import Candidate
from .recipe import DEFAULT, FORMAT, KINDS, MAX_BYTES, NETWORKS, Entry, Key, Recipe, RunnerUp, Validation
from .recipe_fields import Fields, Words, is_number, plain_name, refusal
from .registry import LAYERS, find

_FIELDS = ("format", "kind", "key", "provenance", "entries")
_KEY = ("device", "capability", "multiprocessors", "driver", "cuda", "numba_cuda", "diarize", "kernels", "models",
        "policy")  # fmt: skip
_ENTRY = ("layer", "batch", "candidate", "version", "precision", "parameters", "median_us", "samples_us", "error",
          "runner_up")  # fmt: skip
_VALIDATION = ("recording", "seconds", "der_change", "limit", "against")
ACTIVATIONS = "activations of ResNet34"
"""Group of the layers that hand each other activations in float16 ("half") or float32 ("float")."""
_DEEPEST = 20
LSTM_STACK = ("pyannet.lstm_input0", "pyannet.lstm_input", "pyannet.lstm", "pyannet.dense")
"""Layers that hand each other activations in the form of one LSTM precision."""


def read(path: Path) -> Recipe:
    """The recipe in a file.

    Raises
    ------
    RecipeError
        It cannot be read, is too large, or is refused by `parse`.
    """
    try:
        with path.open("rb") as file:
            # One byte more than allowed tells a file that is too large without reading all of it.
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise refusal(str(path), "the file", Words(f"unreadable ({error.strerror or error})"), "a tune file") from error
    return parse(data, str(path))


def parse(data: bytes, where: str) -> Recipe:
    """The recipe in `data`, checked against the registry; `where` names the file in messages.

    Raises
    ------
    RecipeError
        Anything in it is not as it should be: the message names the field, what it is and what was wanted.
    """
    if len(data) > MAX_BYTES:
        raise refusal(where, "the size", Words("above 4 MiB"), f"at most {MAX_BYTES} bytes")
    content = _load(data, where)
    form = content.get("format", Words("missing")) if isinstance(content, dict) else None
    if isinstance(content, dict) and (type(form) is not int or form != FORMAT):
        raise refusal(where, "format", form, str(FORMAT))
    top = Fields(content, where, "", _FIELDS)
    _check_values(content, where)
    kind = top.one_of("kind", KINDS)
    key = _key(top.values["key"], where, kind)
    provenance = top.values["provenance"]
    if not isinstance(provenance, dict):
        raise top.refuse("provenance", provenance, "an object")
    validated = bool(_validations(provenance, where))
    entries = []
    seen: set[tuple[str, int]] = set()
    for index, item in enumerate(top.items("entries")):
        entry = _entry(item, where, f"entries[{index}]", kind, key, validated)
        if (entry.layer, entry.batch) in seen:
            raise refusal(
                where, f"entries[{index}]", Words(f"a second one for {entry.layer}, batch {entry.batch}"), "one each"
            )
        seen.add((entry.layer, entry.batch))
        entries.append(entry)
    _check_together(entries, where)
    return Recipe(kind, key, provenance, tuple(entries))


def validations(recipe: Recipe) -> tuple[Validation, ...]:
    """The recordings on which the choices of a recipe were compared with float32; none where it records none."""
    return _validations(recipe.provenance, "the recipe")


def joint_form(candidate: Candidate) -> tuple[str, str] | None:
    """What must be the same in all layers of a group: the group in words and its form; None where nothing must.

    ResNet34's layers share the type of their activations in memory, those of the LSTM stack its precision.
    """
    if candidate.storage:
        return ACTIVATIONS, candidate.storage
    if candidate.layer in LSTM_STACK:
        return "the LSTM stack", candidate.precision
    return None


def mixture(chosen: Iterable[Candidate]) -> tuple[Candidate, Candidate] | None:
    """The first two candidates that cannot work together, None where all can."""
    first: dict[str, tuple[str, Candidate]] = {}
    for candidate in chosen:
        form = joint_form(candidate)
        if form is not None:
            known, other = first.setdefault(form[0], (form[1], candidate))
            if known != form[1]:
                return other, candidate
    return None


def _load(data: bytes, where: str) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in items:
            if name in found:
                raise refusal(where, f"the field {name[:60]!a}", Words("there twice"), "each once")
            found[name] = value
        return found

    try:
        return json.loads(data.decode(), object_pairs_hook=pairs)
    except UnicodeDecodeError as error:
        raise refusal(where, "the text", Words("not UTF-8"), "JSON in UTF-8") from error
    except RecursionError as error:
        raise refusal(where, "the text", Words("nested too deeply"), "JSON as diarize writes it") from error
    except ValueError as error:
        raise refusal(where, "the text", Words(f"not JSON ({error})"), "JSON as diarize writes it") from error


def _check_values(content: Any, where: str) -> None:
    """Nothing where every number is finite and nothing is nested deeply, wherever it stands."""
    waiting: list[tuple[str, Any, int]] = [("", content, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        if depth > _DEEPEST:
            raise refusal(where, path.partition(".")[0].partition("[")[0], Words("nested too deeply"), "less of it")
        if isinstance(value, dict):
            names = {name: plain_name(name) for name in value}
            waiting += [(f"{path}.{names[name]}" if path else names[name], value[name], depth + 1) for name in value]
        elif isinstance(value, list):
            waiting += [(f"{path}[{index}]", item, depth + 1) for index, item in enumerate(value)]
        elif type(value) in (int, float) and not is_number(value):
            seen = value if isinstance(value, float) else Words("too large")
            raise refusal(where, path, seen, "a finite number")


def _key(value: Any, where: str, kind: str) -> Key:
    if kind == DEFAULT:
        return Key(capability=_capability(Fields(value, where, "key", ("capability",))))
    key = Fields(value, where, "key", _KEY)
    models = key.values["models"]
    if not isinstance(models, dict):
        raise key.refuse("models", models, "an object")
    for name in models:
        if name not in NETWORKS:
            raise key.refuse(f"models.{plain_name(name)}", Words("unknown"), f"only {', '.join(NETWORKS)}")
    named = Fields(models, where, "key.models", tuple(models))
    return Key(
        device=key.text("device"),
        capability=_capability(key),
        multiprocessors=key.count("multiprocessors"),
        driver=key.text("driver", empty=True),
        cuda=key.text("cuda", empty=True),
        numba_cuda=key.text("numba_cuda"),
        diarize=key.text("diarize"),
        kernels=key.sha256("kernels"),
        models={name: named.sha256(name) for name in models},
        policy=key.text("policy"),
    )


def _capability(key: Fields) -> tuple[int, int]:
    value = key.values["capability"]
    if not isinstance(value, list) or [type(part) for part in value] != [int, int] or not 0 < value[0] < 100:
        raise key.refuse("capability", value, "two whole numbers such as [9, 0]")
    if not 0 <= value[1] < 10:
        raise key.refuse("capability", value, "two whole numbers such as [9, 0]")
    return value[0], value[1]


def _validations(provenance: Mapping[str, Any], where: str) -> tuple[Validation, ...]:
    records = provenance.get("validation", [])
    if not isinstance(records, list):
        raise refusal(where, "provenance.validation", records, "a list")
    found = []
    for index, record in enumerate(records):
        fields = Fields(record, where, f"provenance.validation[{index}]", _VALIDATION)
        change, limit = fields.number("der_change"), fields.number("limit")
        if change > limit:
            raise fields.refuse("der_change", change, f"at most the limit of {limit:g} points")
        found.append(
            Validation(
                fields.text("recording"),
                fields.positive("seconds"),
                change,
                limit,
                fields.one_of("against", ("float32", "reference")),
            )
        )
    return tuple(found)


def _entry(value: Any, where: str, path: str, kind: str, key: Key, validated: bool) -> Entry:
    fields = Fields(value, where, path, _ENTRY)
    layer = fields.values["layer"]
    if not isinstance(layer, str) or layer not in LAYERS:
        raise fields.refuse("layer", layer, "a layer that diarize cuda candidates lists")
    network = LAYERS[layer].network
    if kind != DEFAULT and network in NETWORKS and network not in key.models:
        raise fields.refuse("layer", layer, f"a layer of the networks in key.models, or {network} there")
    batch = fields.count("batch")
    candidate = _candidate(fields, layer, key, validated)
    median, samples, error, runner_up = _measurements(fields, kind)
    return Entry(
        layer, batch, candidate.name, candidate.version, candidate.precision, dict(candidate.tuning),
        median, samples, error, runner_up,
    )  # fmt: skip


def _candidate(fields: Fields, layer: str, key: Key, validated: bool) -> Candidate:
    """The candidate that an entry names, which must be as the registry has it and allowed to win."""
    name = fields.values["candidate"]
    candidate = find(layer, name) if isinstance(name, str) else None
    if candidate is None:
        raise fields.refuse("candidate", name, f"one that diarize cuda candidates --layer {layer} lists")
    version, precision, parameters = (fields.values[name] for name in ("version", "precision", "parameters"))
    if type(version) is not int or version != candidate.version:
        raise fields.refuse("version", version, f"{candidate.version} for {layer} {name}")
    if precision != candidate.precision:
        raise fields.refuse("precision", precision, f"{candidate.precision!r} for {layer} {name}")
    if not isinstance(parameters, dict) or _plain(parameters) != _plain(candidate.tuning):
        raise fields.refuse("parameters", parameters, f"{_plain(candidate.tuning)} for {layer} {name}")
    if not candidate.runs_on(key.capability):
        have = ".".join(map(str, key.capability))
        raise fields.refuse(
            "candidate", name, f"one that runs on compute capability {have}, this one needs {candidate.needs}"
        )
    if not candidate.evidence and not validated:
        raise fields.refuse(
            "candidate", name, f"evidence for precision {candidate.precision} or a record in provenance.validation"
        )
    return candidate


def _measurements(fields: Fields, kind: str) -> tuple[float | None, tuple[float, ...], float | None, RunnerUp | None]:
    if kind == DEFAULT:
        for name, empty in (("median_us", None), ("samples_us", []), ("error", None), ("runner_up", None)):
            if fields.values[name] != empty:
                raise fields.refuse(name, fields.values[name], f"{_plain(empty)}: a default is not measured")
        return None, (), None, None
    median = fields.positive("median_us")
    samples = fields.items("samples_us")
    for index, sample in enumerate(samples):
        if not is_number(sample) or sample <= 0:
            raise fields.refuse(f"samples_us[{index}]", sample, "a finite number above 0")
    if not samples:
        raise fields.refuse("samples_us", samples, "at least one sample")
    error = fields.number("error")
    if error < 0:
        raise fields.refuse("error", error, "a number not below 0")
    runner_up = None
    if fields.values["runner_up"] is not None:
        other = Fields(
            fields.values["runner_up"], fields.where, fields.name("runner_up"), ("candidate", "version", "median_us")
        )
        runner_up = RunnerUp(other.text("candidate"), other.count("version"), other.positive("median_us"))
    return median, tuple(map(float, samples)), error, runner_up


def _plain(value: Any) -> str:
    """JSON of a value for comparing: 1, 1.0 and true differ in it, lists and tuples do not."""
    plain: Callable[[Any], Any] = dict if isinstance(value, Mapping) else lambda same: same
    return json.dumps(plain(value), sort_keys=True, default=repr)


def _check_together(entries: list[Entry], where: str) -> None:
    chosen = [find(entry.layer, entry.candidate) for entry in entries]
    mixed = mixture(c for c in chosen if c is not None)
    if mixed is not None:
        one, other = mixed
        (group, form), (_, other_form) = joint_form(one) or ("", ""), joint_form(other) or ("", "")
        seen = Words(f"{form} in {one.layer} {one.name} and {other_form} in {other.layer} {other.name}")
        raise refusal(where, group, seen, "the same in all layers")
