"""Options that several commands share: their names, units, environment variables and help, stated once."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import OptionError

MODELS = ("auto", "campplus", "community-1")


class Mode(StrEnum):
    """How far apart the windows start: 1 s or 2 s."""

    exact = "exact"
    fast = "fast"


def check_model(value: str) -> str:
    """`value`, if it is a known model's name or a folder.

    Raises
    ------
    OptionError
        It is neither.
    """
    if value in MODELS or Path(value).is_dir():
        return value
    raise OptionError(f"unknown model {value!r}; allowed are {', '.join(MODELS)} and an existing folder with weights")


def check_device(value: str) -> str:
    """`value`, if it has the form of a device: auto, cpu, cuda or cuda:N.

    Raises
    ------
    OptionError
        It has another form.
    """
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        return value
    raise OptionError(f"unknown device {value!r}; allowed are auto, cpu, cuda and cuda:N with a GPU's number")


Model = Annotated[
    str,
    typer.Option(
        metavar="auto|campplus|community-1|DIR",
        help="Networks and clustering. auto: community-1 where it is installed, else campplus, which is bundled. "
        "DIR: a folder with community-1's files.",
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
    typer.Option(help="exact: windows of 10 s start every 1 s. fast: every 2 s, for about half of the time."),
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
Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        metavar="",
        show_default=False,
        help="-v: seconds per stage and peak memory. -vv: also debug messages, and tracebacks of errors.",
    ),
]
Quiet = Annotated[
    int,
    typer.Option("-q", "--quiet", count=True, metavar="", show_default=False, help="Nothing on stderr but errors."),
]
