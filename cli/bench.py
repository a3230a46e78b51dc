"""`diarize bench`: DER and speed on a data set, beside other systems if wanted, and comparison of two runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from . import _options
from ._output import FAILED, exit_codes, say, start_logging, write_stdout
from ._progress import progress

THRESHOLD = 3
_COMPARE = "compare"


def bench(
    context: typer.Context,
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME|DIR|MANIFEST",
            help="A data set of diarize datasets list, a folder with audio and RTTM, or a manifest (.json). "
            "compare A.json B.json: the difference of two records instead.",
        ),
    ],
    model: _options.Model = "auto",
    device: _options.Device = "auto",
    mode: _options.StepMode = _options.Mode.exact,
    threads: _options.Threads = None,
    tune_file: _options.TuneFile = None,
    files: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N files.")] = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Rounds; each is a fresh process of each system.")
    ] = 3,
    warmup: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Files at the start of each process that do not count as warm."),
    ] = 1,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="pyannote|speakrs", help="Run this system too; can be repeated.")
    ] = None,
    peer_python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PEER=]PATH",
            help="Interpreter in which a peer is installed; without PEER= for all. [default: this one]",
            show_default=False,
        ),
    ] = None,
    peer_model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PEER=]NAME|DIR",
            help="A peer's own model; without PEER= for all. [default: what it downloads]",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN.json", help="Compare with this record afterwards; can be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Keep record.json, every RTTM, and what lets an interrupted run go on.",
        ),
    ] = None,
    html: Annotated[bool, typer.Option("--html", help="Write report.html into the output folder as well.")] = False,
    fail_above_der: Annotated[
        float | None, typer.Option(metavar="PERCENT", min=0, help="Exit with 3 if the pooled DER is above.")
    ] = None,
    fail_below_rtfx: Annotated[
        float | None, typer.Option(metavar="X", min=0, help="Exit with 3 if the warm RTFx is below.")
    ] = None,
    per_file: Annotated[bool, typer.Option("--per-file", help="Show a line for each file as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record (or comparison) as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a run that the output folder holds.")] = False,
    verbose: _options.Verbose = 0,
    quiet: _options.Quiet = 0,
) -> None:
    """Diarize every file of a data set, score the results, and time it.

    RTFx is seconds of audio per second, given twice: of the whole process with start-up and model load, and warm, from
    a file's path to its turns. Scoring and writing of results are in neither. A file that fails is reported and counts
    as missed; the exit code is then 1.
    """
    verbosity = _options.verbosity_of(verbose, quiet)
    with exit_codes(verbosity):
        start_logging(verbosity)
        from ..errors import OptionError

        if target[0] == _COMPARE:
            _refuse_given(context, ("target", "as_json", "verbose", "quiet"), "is of no use with compare")
            _compare(target[1:], as_json)
            return
        if len(target) > 1:
            raise OptionError(f"one data set at a time, but {len(target)} are given: {' '.join(target)}")
        if html and output is None:
            raise OptionError("--html needs --output DIR for its report")
        from ..backend.select import check_device_name, check_tune_file, choose_device
        from ..bench.benchmark import Options, benchmark
        from ..bench.record import read_record
        from ..bench.systems import by_peer, our_system, peer_system
        from ..dataset.load import load_dataset

        _options.check_model(model)
        check_device_name(device)
        if tune_file is not None:
            check_tune_file(tune_file, choose_device(device))
        names = [str(path) for path in against or ()]
        others = [read_record(Path(name)) for name in names]
        dataset = load_dataset(target[0]).first(files)
        if not peer and (peer_python or peer_model):
            raise OptionError(f"--peer-{'python' if peer_python else 'model'} needs --peer")
        systems = [our_system(model, device, mode.value, threads, tune_file)]
        pythons, models = by_peer(peer_python, sys.executable), by_peer(peer_model, "")
        systems += [peer_system(name, pythons(name), models(name), device, mode.value) for name in peer or ()]
        if len({system.name for system in systems}) < len(systems):
            raise OptionError("a peer is named twice; name each once")
        options = Options(rounds, warmup, _gpu_index(device), output, force)
        try:
            with progress(dataset.name, verbosity) as show:
                record, folder = benchmark(dataset, systems, options, show, list(zip(names, others, strict=True)))
        except KeyboardInterrupt:
            if output is not None:
                say(f"what was measured so far is in {output}; the same command goes on with it")
            raise
        if html and folder is not None:
            from ..bench.html import write_report

            write_report(folder / "report.html", record, dataset, folder)
        _show(record, others, names, dataset.published, per_file, as_json, verbosity)
        if folder is not None and verbosity >= 0:
            say(f"record, RTTM files{' and report.html' * html} are in {folder}")
        _finish(record, fail_above_der, fail_below_rtfx)


def _refuse_given(context: typer.Context, allowed: Collection[str], why: str) -> None:
    """Raises `OptionError` where an option that is not among the parameters `allowed` was given."""
    from ..errors import OptionError

    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in allowed and _options.is_given(context, name):
            raise OptionError(f"{max(parameter.opts, key=len)} {why}; leave it out")


def _gpu_index(device: str) -> int | None:
    """The GPU whose memory is watched; none for the CPU."""
    if device == "cpu":
        return None
    index = device.partition(":")[2]
    return int(index) if index else 0


def _show(
    record: dict[str, Any],
    others: list[dict[str, Any]],
    names: list[str],
    published: Any,
    per_file: bool,
    as_json: bool,
    verbosity: int,
) -> None:
    from ..bench.compare import as_json as document
    from ..bench.compare import compare
    from ..bench.record_text import record_text
    from ..bench.table import comparison_table, published_table, result_table

    if verbosity >= 0:
        for warning in record["warnings"]:
            say(f"warning: {warning}")
    comparisons = [compare(other, record, (name, "this run")) for other, name in zip(others, names, strict=True)]
    if as_json:
        against = {"against": [document(item) for item in comparisons]} if comparisons else {}
        write_stdout(record_text({**against, **record}))
        return
    text = result_table(record, per_file)
    if notes := published_table(published):
        text += "\n" + notes
    write_stdout(text + "".join("\n" + comparison_table(item) for item in comparisons))


def _compare(paths: list[str], as_json: bool) -> None:
    from ..bench.compare import as_json as document
    from ..bench.compare import compare
    from ..bench.record import read_record
    from ..bench.table import comparison_table
    from ..errors import OptionError

    if len(paths) != 2:
        raise OptionError(f"compare takes two records, but {len(paths)} are given")
    first, second = (read_record(Path(path)) for path in paths)
    result = compare(first, second, (paths[0], paths[1]))
    write_stdout(json.dumps(document(result), indent=2) + "\n" if as_json else comparison_table(result))


def _finish(record: dict[str, Any], fail_above_der: float | None, fail_below_rtfx: float | None) -> None:
    """Report failed files and thresholds that are not met, and exit accordingly."""
    main = record["systems"][record["main"]]
    for item in record["failed"]:
        say(f"error: {item['system']}: {item['file']}: {item['error']}")
    der, speed = 100 * main["der"], main["rtfx"]["warm"]
    missed = []
    if fail_above_der is not None and der > fail_above_der:
        missed.append(f"DER is {der:.2f} %, above {fail_above_der:g} %")
    if fail_below_rtfx is not None and (speed is None or speed < fail_below_rtfx):
        missed.append(f"warm RTFx is {'unknown' if speed is None else f'{speed:.1f}'}, below {fail_below_rtfx:g}")
    for sentence in missed:
        say(f"error: threshold not met: {sentence}")
    if record["failed"]:
        raise typer.Exit(FAILED)
    if missed:
        raise typer.Exit(THRESHOLD)
