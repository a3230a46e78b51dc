"""`diarize cuda`: what could compute each layer on a GPU, and the recipes that choose from it. Needs no GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..user_folders import expanded
from . import _tune
from ._output import exit_codes, printable, start_logging, write_stdout
from ._tables import table

if TYPE_CHECKING:
    from ..candidates import Candidate
    from ..recipe import Entry, Recipe

_SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(
    name="cuda", help="GPU kernels: candidates of each layer, and recipes.", no_args_is_help=True, **_SETTINGS
)
recipes_app = typer.Typer(
    name="recipes",
    help="Print the recipes in the package, or what one holds.\n\nA recipe says which candidate computes each layer on "
    "a GPU. The first source that has a layer decides it: --tune-file FILE; the tune file of diarize cuda tune; the "
    "recipe measured on this GPU model; the default of the nearest GPU generation; portable, the first candidate that "
    "runs. diarize devices prints what comes of it here.",
    invoke_without_command=True,
    **_SETTINGS,
)
app.add_typer(recipes_app, name="recipes")
app.command("tune", short_help="Measure which candidate is the fastest on a GPU here.")(_tune.tune)

Verbose = Annotated[int, typer.Option("-v", "--verbose", count=True, help="Say more; -vv with tracebacks.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

_CANDIDATES_SCHEMA = "diarize-candidates/1"
_RECIPES_SCHEMA = "diarize-recipes/1"


@app.command("candidates", short_help="Print every way to compute each layer on a GPU.")
def candidates(
    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer",
            metavar="LAYER",
            help="Only this layer, such as resnet34.layer3.conv1, or the layers of a network: fbank, pyannet, resnet34 "
            "or campplus. Can be repeated, or several with commas between them.",
        ),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Print every candidate: a way to compute a layer on a GPU, of which a recipe or a tune file chooses one.

    needs: the lowest compute capability, or without + the only one. evidence: where whole recordings showed that the
    precision is enough; a candidate without any wins only in a tuning that validates recordings. A layer of several
    parts has the candidate "separate", which stands for the choices of its parts.
    """
    with exit_codes(verbose):
        start_logging(verbose)
        found = _candidates(_tune.split_names(layer, "--layer"))
        if as_json:
            document = {"schema": _CANDIDATES_SCHEMA, "candidates": [_candidate_as_json(c) for c in found]}
            write_stdout(json.dumps(document, indent=2) + "\n")
            return
        heads = ("layer", "candidate", "version", "precision", "parameters", "needs", "evidence")
        rows = [
            (c.layer, c.name, str(c.version), c.precision, _parameters(c.tuning), c.needs, c.evidence or "none")
            for c in found
        ]
        number = len({c.layer for c in found})
        write_stdout(table(heads, rows, ("version",)) + f"\n{len(found)} candidates of {number} layers\n")


@recipes_app.callback()
def recipes(context: typer.Context, as_json: AsJson = False, verbose: Verbose = 0) -> None:
    """Print the recipes in the package: name, kind, GPUs, layers, whether it was measured."""
    if context.invoked_subcommand is not None:
        return
    with exit_codes(verbose):
        start_logging(verbose)
        found = {path.stem: _read(path) for path in _shipped()}
        if as_json:
            items = [{"name": name, **_recipe_as_json(recipe, False)} for name, recipe in found.items()]
            write_stdout(json.dumps({"schema": _RECIPES_SCHEMA, "recipes": items}, indent=2, ensure_ascii=False) + "\n")
            return
        rows = [
            (
                name,
                recipe.kind,
                _made_for(recipe),
                str(len({entry.layer for entry in recipe.entries})),
                _measured(recipe),
            )
            for name, recipe in found.items()
        ]
        write_stdout(table(("name", "kind", "for", "layers", "measured"), rows, ("layers",)))


@recipes_app.command("show", short_help="Print what a recipe or tune file holds.")
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="A name of diarize cuda recipes, or a recipe or tune file.")
    ],
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Print a recipe or tune file: what it was made for, where it comes from, and the choice of each layer.

    A file that diarize would refuse for what is in it is refused here as well, with exit code 1; whether it fits this
    machine is not asked.
    """
    with exit_codes(verbose):
        start_logging(verbose)
        path = _find(name)
        recipe = _read(path)
        if as_json:
            document = {"schema": _RECIPES_SCHEMA, "name": path.stem, **_recipe_as_json(recipe, True)}
            write_stdout(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
            return
        write_stdout(_recipe_as_text(path.stem, recipe))


def _candidates(wanted: list[str]) -> list[Candidate]:
    """Candidates of the layers and networks named, of all without any."""
    from .. import registry
    from ..errors import OptionError

    networks = list(dict.fromkeys(layer.network for layer in registry.LAYERS.values()))
    for name in wanted:
        if name not in networks and name not in registry.LAYERS:
            allowed = ", ".join([*networks, *registry.LAYERS])
            raise OptionError(f"unknown layer {name!r}; allowed are {allowed}")
    return [c for c in registry.candidates() if not wanted or {c.layer, c.layer.partition(".")[0]} & set(wanted)]


def _candidate_as_json(candidate: Candidate) -> dict[str, Any]:
    from ..registry import LAYERS

    layer = LAYERS[candidate.layer]
    return {
        "layer": candidate.layer,
        "operation": layer.operation,
        "what": layer.what,
        "candidate": candidate.name,
        "version": candidate.version,
        "precision": candidate.precision,
        "storage": candidate.storage or None,
        "parameters": dict(candidate.tuning),
        "capability": list(candidate.capability),
        "exactly": candidate.exactly,
        "parts": list(layer.parts) if not candidate.requests else [],
        "kernels": [request.factory for request in candidate.requests],
        "evidence": candidate.evidence or None,
    }


def _parameters(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in parameters.items())


def _value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " or ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _shipped() -> list[Path]:
    """Files of the package's recipes: measured ones first, then the defaults by generation."""
    from ..resources import data_dir

    paths = data_dir("recipes").glob("*.json")
    return sorted(paths, key=lambda path: (path.stem.startswith("default-"), len(path.stem), path.stem))


def _find(name: str) -> Path:
    """The file that a name or path stands for."""
    from ..errors import OptionError

    shipped = {path.stem: path for path in _shipped()}
    if name in shipped:
        return shipped[name]
    path = expanded(name)
    if path.exists():
        return path
    raise OptionError(f"{name!r} is neither a recipe nor a file; recipes are {', '.join(shipped)}")


def _read(path: Path) -> Recipe:
    from ..recipe_parse import read

    return read(path)


def _made_for(recipe: Recipe) -> str:
    key = recipe.key
    capability = ".".join(map(str, key.capability))
    if not key.device:
        return f"from compute capability {capability} on"
    return f"{key.device}, {key.multiprocessors} multiprocessors, compute capability {capability}"


def _measured(recipe: Recipe) -> str:
    """Whether the choices were measured: a default says it in its provenance."""
    said = recipe.provenance.get("measured")
    return said if isinstance(said, str) else "yes" if recipe.key.device else "no"


def _recipe_as_json(recipe: Recipe, whole: bool) -> dict[str, Any]:
    """The content of the file itself, whose form recipes/README.md describes; without entries unless `whole`."""
    from ..recipe import to_text

    content = json.loads(to_text(recipe))
    return content if whole else {**{k: v for k, v in content.items() if k != "entries"}, "layers": _layers(recipe)}


def _layers(recipe: Recipe) -> list[str]:
    return list(dict.fromkeys(entry.layer for entry in recipe.entries))


def _recipe_as_text(name: str, recipe: Recipe) -> str:
    content = _recipe_as_json(recipe, False)
    kind = {"tune": "tune file for ", "recipe": "recipe for ", "default": "default "}[recipe.kind]
    lines = [f"{name}: {kind}{_made_for(recipe)}", "", "key"]
    lines += [f"  {field}: {_plain(value)}" for field, value in content["key"].items()]
    lines += ["", "provenance"]
    for field, value in content["provenance"].items():
        if isinstance(value, list) and value:
            lines += [f"  {field}:", *(f"    - {_plain(item)}" for item in value)]
        else:
            lines.append(f"  {field}: {_plain(value)}")
    # The file may be a stranger's.
    return "".join(f"{printable(line)}\n" for line in lines) + "\n" + _entries(recipe.entries)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items()) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _entries(entries: tuple[Entry, ...]) -> str:
    heads = ("layer", "batch", "candidate", "version", "precision", "median us", "samples", "error", "runner-up")
    rows = []
    for entry in entries:
        other = entry.runner_up
        rows.append(
            (
                entry.layer,
                str(entry.batch),
                entry.candidate,
                str(entry.version),
                entry.precision,
                "-" if entry.median_us is None else f"{entry.median_us:.2f}",
                str(len(entry.samples_us)) if entry.samples_us else "-",
                "-" if entry.error is None else f"{entry.error:.1e}",
                "-" if other is None else f"{other.candidate} {other.median_us:.2f} us",
            )
        )
    return table(heads, rows, ("batch", "version", "median us", "samples", "error"))
