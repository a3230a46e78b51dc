"""The `diarize` command: its sub-commands and what ends the process. Heavy imports stay inside the commands."""

from __future__ import annotations

import gc
import sys
from typing import Annotated

import typer

from .. import __version__
from . import _options, assign, bench, cuda, datasets, devices, models, run, score
from ._mistakes import Commands
from ._output import exit_codes
from ._process import leave, open_streams, watch_interrupts

# Plain help: rich's costs 80 ms of start-up and adds only boxes.
app = typer.Typer(
    name="diarize",
    cls=Commands,
    help="Who spoke when: speaker diarization of recordings.",
    epilog="Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 threshold not met, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("assign", short_help="Give the words of a transcript speakers.")(assign.assign)
app.command("score", short_help="Compare turns with a reference: DER, JER.")(score.score)
app.command("bench", short_help="Measure DER and speed on a data set.")(bench.bench)
app.command("devices", short_help="Print every GPU and what it would run.")(devices.devices)
app.add_typer(cuda.app, name="cuda")
app.add_typer(models.app, name="models")
app.add_typer(datasets.app, name="datasets")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"diarize {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    offline: _options.Offline = False,
) -> None:
    pass


def main(alone: bool | None = None) -> None:
    """Run the command line and exit with its code; `alone` says whether the process is there for nothing else."""
    if alone is None:
        # As a script or with -m; not from a test, say, whose process goes on.
        alone = sys._getframe(1).f_globals.get("__name__") == "__main__"
    open_streams()
    watch_interrupts()
    # Imports make many objects and hardly any garbage: looking for it took a tenth of the start.
    gc.set_threshold(50_000)
    try:
        with exit_codes(verbosity=0):
            app(prog_name="diarize")
    except SystemExit as stop:
        leave(stop.code, alone)


if __name__ == "__main__":
    main()
