"""Many files scored together, pooled, and the result as a versioned JSON document.

Schema history
--------------
diarize-score/1: der and its parts, jer, speaker_count, protocol, missing, unknown, warnings, files; der and jer are
null where no speech of the reference was scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import FormatError
from ..types import Turn
from .der import Protocol, Regions, score_file
from .parts import CountParts, DerParts, FileScore, JerParts, sum_parts

SCHEMA = "diarize-score/1"


@dataclass(frozen=True)
class Report:
    """Scores of all reference files, sorted by file id.

    `unknown`: file ids of the hypothesis that the reference does not have; they are not scored. `has_regions`: whether
    a UEM said what is scored. `warnings`: one sentence each, with what to do.
    """

    files: tuple[FileScore, ...]
    protocol: Protocol
    has_regions: bool
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def pooled(self) -> tuple[DerParts, JerParts, CountParts]:
        """Parts of all files together."""
        return sum_parts(self.files)

    @property
    def missing(self) -> tuple[str, ...]:
        """File ids without a hypothesis."""
        return tuple(score.file_id for score in self.files if score.missing)


def score_files(
    reference: Mapping[str, Sequence[Turn]],
    hypothesis: Mapping[str, Sequence[Turn]],
    regions: Mapping[str, Regions] | None = None,
    protocol: Protocol | None = None,
) -> Report:
    """Score every file of `reference`; those that `hypothesis` lacks count as missed.

    Raises
    ------
    FormatError
        `regions` are given but lack a file of the reference.
    """
    protocol = protocol or Protocol()
    if regions is not None and (absent := sorted(set(reference) - set(regions))):
        raise FormatError(f"the UEM has no region for {_listed(absent)}; add them, or score without a UEM")
    files = tuple(
        score_file(name, reference[name], hypothesis.get(name), None if regions is None else regions[name], protocol)
        for name in sorted(reference)
    )
    unknown = tuple(sorted(set(hypothesis) - set(reference)))
    missing = tuple(score.file_id for score in files if score.missing)
    empty = tuple(score.file_id for score in files if not score.der.is_defined)
    doubled = (
        *_doubled("reference", reference),
        *_doubled("hypothesis", {n: hypothesis.get(n, ()) for n in reference}),
    )
    return Report(files, protocol, regions is not None, unknown, _warnings(missing, unknown, empty, doubled))


def as_json(report: Report) -> dict[str, Any]:
    """The report as a JSON document: rates as fractions, times in seconds."""
    der, jer, count = report.pooled
    return {
        "schema": SCHEMA,
        **_defined(der_json(der), der),
        **_jer_json(jer),
        "speaker_count": {"files": count.files, "exact": count.exact, "difference": count.difference},
        "protocol": protocol_json(report.protocol, report.has_regions),
        "missing": list(report.missing),
        "unknown": list(report.unknown),
        "warnings": list(report.warnings),
        "files": {
            score.file_id: {**_defined(file_json(score), score.der), **_jer_json(score.jer)} for score in report.files
        },
    }


def _defined(document: Mapping[str, Any], der: DerParts) -> dict[str, Any]:
    """`document` without a rate that nothing was divided by."""
    return dict(document) if der.is_defined else {**document, "der": None}


def _jer_json(jer: JerParts) -> dict[str, float | None]:
    return {"jer": jer.jer if jer.is_defined else None}


def der_json(der: DerParts) -> dict[str, float]:
    """DER as a fraction, and its parts in seconds."""
    return {
        "der": der.der,
        "missed": der.missed,
        "false_alarm": der.false_alarm,
        "confusion": der.confusion,
        "total": der.total,
    }


def file_json(score: FileScore) -> dict[str, Any]:
    """One file of the document."""
    return {
        **der_json(score.der),
        "jer": score.jer.jer,
        "speakers": score.speakers,
        "reference_speakers": score.reference_speakers,
        "missing": score.missing,
    }


def protocol_json(protocol: Protocol, has_regions: bool) -> dict[str, Any]:
    """What was scored, and how."""
    return {
        "collar_each_side": protocol.collar,
        "skip_overlap": protocol.skip_overlap,
        "regions": "uem" if has_regions else "extent of reference and hypothesis",
    }


def _warnings(
    missing: Sequence[str], unknown: Sequence[str], empty: Sequence[str], doubled: Sequence[str]
) -> tuple[str, ...]:
    found = []
    if missing:
        found.append(
            f"no hypothesis for {_listed(missing)}: everything in them counts as missed; "
            "diarize them, or take them out of the reference"
        )
    if unknown:
        found.append(
            f"not in the reference, so not scored: {_listed(unknown)}; "
            "give both sides the same file ids (diarize run --file-id)"
        )
    if empty:
        found.append(
            f"no speech of the reference was scored in {_listed(empty)}: error rates are undefined there; "
            "check reference, regions and collar"
        )
    if doubled:
        found.append(f"overlap themselves, which counts twice: {_listed(doubled)}; merge the turns of each speaker")
    return tuple(found)


def _doubled(side: str, files: Mapping[str, Sequence[Turn]]) -> tuple[str, ...]:
    """Speakers with two turns at once, as "side file speaker"."""
    found = []
    for name in sorted(files):
        ends: dict[str, float] = {}
        guilty = set()
        for turn in sorted(files[name]):
            if turn.start < ends.get(turn.speaker, 0.0):
                guilty.add(turn.speaker)
            ends[turn.speaker] = max(turn.end, ends.get(turn.speaker, 0.0))
        found += [f"{side} {name} {speaker}" for speaker in sorted(guilty)]
    return tuple(found)


def _listed(names: Sequence[str], shown: int = 10) -> str:
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest
