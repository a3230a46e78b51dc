"""`diarize score`: turns compared with a reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import _options
from ._output import exit_codes, say, start_logging, write_stdout

if TYPE_CHECKING:
    from ..score.parts import DerParts, JerParts
    from ..score.report import Report


def score(
    reference: Annotated[Path, typer.Argument(metavar="REFERENCE", help="RTTM file, or folder of *.rttm files.")],
    hypothesis: Annotated[
        Path, typer.Argument(metavar="HYPOTHESIS", help="RTTM file, or folder of *.rttm files, of any system.")
    ],
    uem: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Regions to score. [default: for each file, from the first to the last moment of any turn]",
            show_default=False,
        ),
    ] = None,
    collar: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Seconds on each side of every reference boundary that are not scored; NIST's is 0.25. "
            "pyannote.metrics states the total width, which is twice this.",
        ),
    ] = 0.0,
    skip_overlap: Annotated[
        bool, typer.Option("--skip-overlap", help="Do not score where the reference has two or more speakers.")
    ] = False,
    per_file: Annotated[bool, typer.Option("--per-file", help="Show a line for each file as well.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for machines, with every file; rates are fractions.")
    ] = False,
    verbose: _options.Verbose = 0,
    quiet: _options.Quiet = 0,
) -> None:
    """Score turns against a reference: DER with its parts, JER and speaker counts, pooled over files.

    Pooled means that seconds are summed over all files and divided once. Overlapped speech is scored and nothing is
    forgiven around boundaries, unless the options say so.
    """
    verbosity = _options.verbosity_of(verbose, quiet)
    with exit_codes(verbosity):
        start_logging(verbosity)
        from ..score import report as reports
        from ..score.der import Protocol
        from ..score.inputs import read_regions, read_turns

        protocol = Protocol(collar, skip_overlap)
        regions = None if uem is None else read_regions(uem)
        report = reports.score_files(read_turns(reference), read_turns(hypothesis), regions, protocol)
        if verbosity >= 0:
            for warning in report.warnings:
                say(f"warning: {warning}")
        if as_json:
            write_stdout(json.dumps(reports.as_json(report), indent=2, ensure_ascii=False) + "\n")
        else:
            write_stdout(_table(report, per_file))


def _table(report: Report, per_file: bool) -> str:
    width = max([len(score.file_id) for score in report.files if per_file] + [6])

    def row(name: str, der: DerParts, jer: JerParts, speakers: str) -> str:
        parts = (der.der, der.share(der.missed), der.share(der.false_alarm), der.share(der.confusion))
        cells = [f"{100 * part:.2f}" if der.is_defined else "n/a" for part in parts]
        cells.append(f"{100 * jer.jer:.2f}" if jer.is_defined else "n/a")
        return f"{name:{width}}" + "".join(f"{cell:>11}" for cell in cells) + f"{speakers:>12}\n"

    heads = ("DER %", "missed %", "false %", "confused %", "JER %")
    text = f"{'':{width}}" + "".join(f"{head:>11}" for head in heads) + f"{'speakers':>12}\n"
    if per_file:
        for score in report.files:
            speakers = f"{score.speakers} of {score.reference_speakers}"
            text += row(score.file_id, score.der, score.jer, speakers)
    der, jer, count = report.pooled
    text += row("pooled", der, jer, f"{count.exact}/{count.files} exact")
    return text + "\n".join(_notes(report)) + "\n"


def _notes(report: Report) -> list[str]:
    der, _, count = report.pooled
    protocol = report.protocol
    overlap = "skipped" if protocol.skip_overlap else "scored"
    regions = "from the UEM" if report.has_regions else "from the first to the last moment of reference and hypothesis"
    return [
        f"{der.total:.2f} s of speaker time in {count.files} files; missed {der.missed:.2f} s, "
        f"false alarm {der.false_alarm:.2f} s, confusion {der.confusion:.2f} s",
        f"speaker count: exact in {count.exact} of {count.files} files, absolute differences sum to {count.difference}",
        f"collar {protocol.collar:g} s on each side, overlap {overlap}, regions {regions}",
    ]
