"""Options that several commands share: their names, units, environment variables and help, stated once."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import OptionError
from ..user_folders import expanded


class Mode(StrEnum):
    """How much is computed for each second of audio."""

    exact = "exact"
    fast = "fast"


def check_model(value: str) -> None:
    """Nothing where `value` is a known model's name or something that exists; the library checks the rest.

    Raises
    ------
    OptionError
        It is neither.
    """
    from ..model.registry import AUTO, NAMES

    if value not in (AUTO, *NAMES) and not expanded(value).exists():
        raise OptionError(f"unknown model {value!r}; allowed are {AUTO}, {', '.join(NAMES)} and a folder with a model")


Model = Annotated[
    str,
    typer.Option(
        metavar="auto|campplus|community-1|DIR",
        help="Networks and clustering. auto: community-1 where it is installed, else campplus, which is bundled. "
        "DIR: a folder that diarize models pull has written.",
        envvar="DIARIZE_MODEL",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda[:N]",
        help="Where the networks run. auto: a CUDA GPU where one is usable, else the CPU.",
        envvar="DIARIZE_DEVICE",
    ),
]
StepMode = Annotated[
    Mode,
    typer.Option(
        help="exact: windows of 10 s start every 1 s, each with embeddings of its own. fast: every 2 s, or with "
        "campplus every 1 s with shared embeddings of 1.5 s pieces; about half of the time."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="CPU threads; the result does not depend on it. [default: all cores]",
        show_default=False,
        envvar="DIARIZE_THREADS",
    ),
]
TuneFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="GPU: take the kernels that this tune file or recipe chooses; it must fit. [default: that of diarize cuda "
        "tune, where it fits; see diarize devices]",
        show_default=False,
    ),
]
Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        metavar="",
        show_default=False,
        help="-v: seconds per stage, peak memory, and what chose the GPU's kernels. -vv: also each kernel, debug "
        "messages, and tracebacks of errors.",
    ),
]
Quiet = Annotated[
    int,
    typer.Option("-q", "--quiet", count=True, metavar="", show_default=False, help="Nothing on stderr but errors."),
]


def verbosity_of(verbose: int, quiet: int) -> int:
    """How much is said: below 0 errors only, from 2 on tracebacks too, which -vv brings whatever else is given."""
    return verbose if verbose >= 2 else verbose - quiet


def _go_offline(wanted: bool) -> None:
    if wanted:
        # The library and huggingface_hub read these; processes that are started inherit them.
        os.environ["DIARIZE_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"


Offline = Annotated[
    bool,
    typer.Option(
        "--offline",
        callback=_go_offline,
        is_eager=True,
        help="Never use the network: a command that would have to says so and ends. DIARIZE_OFFLINE=1 does the same.",
    ),
]


def is_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter stands on the command line, rather than in an environment variable or nowhere."""
    # By its name, since the enumeration is typer's or click's, depending on the release.
    return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
