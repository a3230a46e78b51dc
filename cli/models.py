"""`diarize models`: which models there are, fetching community-1, checking files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import _options
from ._output import exit_codes, report, say, start_logging, write_stdout

if TYPE_CHECKING:
    from ..model.registry import ModelState

app = typer.Typer(
    name="models",
    help="List, fetch and check models.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Verbose = Annotated[int, typer.Option("-v", "--verbose", count=True, help="Say more; -vv with tracebacks.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="campplus or community-1.")]

_LIST_SCHEMA = 1


@app.command("list", short_help="Print every model and whether it is installed.")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Print every model: name, whether it is installed, size, checksum, licences."""
    with exit_codes(verbose):
        from ..errors import ModelError
        from ..model.registry import NAMES, resolve, state

        states, failed = [], False
        for name in NAMES:
            try:
                states.append(state(name))
            except ModelError as error:
                report(error, verbose)
                failed = True
        default = str(resolve("auto"))
        if as_json:
            content = {"schema": _LIST_SCHEMA, "auto": default, "models": [_as_json(model) for model in states]}
            write_stdout(json.dumps(content, indent=2) + "\n")
        else:
            write_stdout("".join(_as_text(model, model.name == default) for model in states))
        if failed:
            raise typer.Exit(1)


@app.command("path")
def path(name: Name, verbose: Verbose = 0) -> None:
    """Print the folder where a model lies or would lie."""
    with exit_codes(verbose):
        from ..model.registry import model_folder

        write_stdout(f"{model_folder(_known(name))}\n")


@app.command("licences", short_help="Print the licence of each part of the models.")
def licences(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Models; all if none is given.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Also print the texts that come with the package.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Print the licence of each part of the models, installed or not."""
    with exit_codes(verbose):
        from ..model import registry

        for name in [_known(name) for name in names or registry.NAMES]:
            write_stdout("".join(f"{name}: {line}\n" for line in registry.licences(name)))
            for title, text in registry.licence_texts(name) if full else ():
                write_stdout(f"\n{title}\n\n{text.strip()}\n\n")


@app.command("verify", short_help="Check every file against its checksum.")
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Models; all installed ones if none is given.")
    ] = None,
    verbose: Verbose = 0,
) -> None:
    """Check every file of the models against its checksum; exit with 1 if one is missing or damaged."""
    with exit_codes(verbose):
        from ..errors import ModelError
        from ..model import registry

        # The bundled model should always be there, so that it is checked even where its files are not.
        present = [name for name in registry.NAMES if name == registry.CAMPPLUS or registry.installed(name)]
        chosen = [_known(name) for name in names or []] or present
        failed = False
        for name in chosen:
            try:
                registry.verify(name)
                write_stdout(f"{name}: ok\n")
            except ModelError as error:
                report(error, verbose)
                failed = True
        if failed:
            raise typer.Exit(1)


@app.command("pull", short_help="Fetch a model and convert it, once.")
def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="community-1; campplus is in the package.")],
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="HF_TOKEN",
            show_envvar=True,
            help="Hugging Face access token of a user who has accepted the conditions of "
            "pyannote/speaker-diarization-community-1; better given by the environment than on the command line. "
            "Else the one that hf auth login has stored.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Read DIR/embedding/pytorch_model.bin and DIR/plda/*.npz, as in a clone of "
            "pyannote/speaker-diarization-community-1, and download nothing.",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write this model folder, for --model DIR, and leave the cache alone."),
    ] = None,
    offline: _options.Offline = False,
    verbose: Verbose = 0,
) -> None:
    """Fetch a model and convert it, once; where the connection breaks, the download goes on from there.

    It is kept in DIARIZE_CACHE, else XDG_CACHE_HOME/diarize, else ~/.cache/diarize. HF_ENDPOINT names a mirror of the
    hub, such as https://hub.example.org.
    """
    with exit_codes(verbose):
        start_logging(verbose)
        _calm_hub(verbose)
        from ..model import registry

        if _known(name) == registry.CAMPPLUS:
            registry.verify(name)
            say("campplus is part of the package; nothing to do")
            return
        from ..model.hub import check_online, pull_community

        if source is None:
            check_online()
        target = to or registry.model_folder(name)
        say(f"fetching {name}, 27 MB" if source is None else f"converting {name} from {source}")
        # An empty variable, as CI systems set it for a missing secret, is no token.
        pull_community(target, token or None, source)
        say(f"{name} is installed in {target}")


def _calm_hub(verbosity: int) -> None:
    """Let huggingface_hub say nothing of its own unless asked; it reads these when it is imported."""
    if verbosity == 0:
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _known(name: str) -> str:
    from ..errors import OptionError
    from ..model.registry import NAMES

    if name not in NAMES:
        raise OptionError(f"unknown model {name!r}; known are {', '.join(NAMES)}")
    return name


def _as_json(model: ModelState) -> dict[str, object]:
    return {
        "name": model.name,
        "installed": model.installed,
        "path": str(model.path),
        "bytes": model.size,
        "sha256": model.checksum or None,
        "licences": list(model.licences),
    }


def _as_text(model: ModelState, is_default: bool) -> str:
    mark = " (used by --model auto)" if is_default else ""
    if not model.installed:
        return f"{model.name}{mark}\n  not installed; run: diarize models pull {model.name}\n"
    lines = [
        f"{model.name}{mark}",
        f"  installed, {model.size / 1e6:.1f} MB, sha256 {model.checksum}",
        f"  {model.path}",
    ]
    return "\n".join([*lines, *(f"  {licence}" for licence in model.licences)]) + "\n"
