"""Two records of the same data under the same protocol, side by side; anything else is refused."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError

SCHEMA = "diarize-bench-compare/1"


@dataclass(frozen=True)
class FileDifference:
    """One file: DER as fractions, the speed of the second over that of the first (None without times), same RTTM."""

    file_id: str
    der_first: float
    der_second: float
    speed_ratio: float | None
    identical: bool


@dataclass(frozen=True)
class Comparison:
    """The second record against the first.

    `speed_ratio`: total warm seconds of the first over those of the second, over files that both have timed, above 1
    where the second is faster. `spread`: smallest, median and largest of the files' own ratios.
    """

    first: str
    second: str
    der_first: float
    der_second: float
    files: tuple[FileDifference, ...]
    speed_ratio: float | None
    spread: tuple[float, float, float] | None
    notes: tuple[str, ...]

    @property
    def identical(self) -> int:
        """How many files have the same RTTM, byte for byte."""
        return sum(item.identical for item in self.files)


def compare(first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Compare the main systems of two records, as `read_record` gives them; `names` stand for them in messages.

    Raises
    ------
    OptionError
        They are of different data or protocols.
    """
    refuse_others(first, second, names)
    one, two = first["systems"][first["main"]], second["systems"][second["main"]]
    pairs = paired_seconds(one, two)
    files = []
    for name in sorted(one["files"]):
        a, b = one["files"][name], two["files"][name]
        ratio = pairs[name][0] / pairs[name][1] if name in pairs else None
        same = a["rttm_sha256"] is not None and a["rttm_sha256"] == b["rttm_sha256"]
        files.append(FileDifference(name, a["der"], b["der"], ratio, same))
    speed_ratio, spread = speed_ratios(pairs)
    return Comparison(
        names[0],
        names[1],
        one["der"],
        two["der"],
        tuple(files),
        speed_ratio,
        spread,
        _notes(first, second),
    )


def paired_seconds(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Median warm seconds of two systems of records, for each file that both have timed."""
    found = {}
    for name, item in first["files"].items():
        other = second["files"][name]
        if item["seconds"] and other["seconds"]:
            found[name] = (statistics.median(item["seconds"]), statistics.median(other["seconds"]))
    return found


def speed_ratios(pairs: Mapping[str, tuple[float, float]]) -> tuple[float | None, tuple[float, float, float] | None]:
    """Total seconds of the first over those of the second, and smallest, median and largest ratio of the files."""
    if not pairs:
        return None, None
    ratios = [first / second for first, second in pairs.values()]
    total = sum(first for first, _ in pairs.values()) / sum(second for _, second in pairs.values())
    return total, (min(ratios), statistics.median(ratios), max(ratios))


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as a JSON document."""
    return {
        "schema": SCHEMA,
        "first": comparison.first,
        "second": comparison.second,
        "der": [comparison.der_first, comparison.der_second],
        "der_difference": comparison.der_second - comparison.der_first,
        "identical_rttm": comparison.identical,
        "files": {
            item.file_id: {
                "der": [item.der_first, item.der_second],
                "speed_ratio": item.speed_ratio,
                "identical_rttm": item.identical,
            }
            for item in comparison.files
        },
        "speed_ratio": comparison.speed_ratio,
        "speed_ratio_spread": comparison.spread,
        "notes": list(comparison.notes),
    }


def refuse_others(first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str]) -> None:
    """Nothing where two records, of which only dataset and protocol are looked at, can be compared.

    Raises
    ------
    OptionError
        They are of different data or protocols.
    """
    pair = f"{names[0]} and {names[1]}"
    sets = [record["dataset"] for record in (first, second)]
    if set(sets[0]["files"]) != set(sets[1]["files"]):
        only = sorted(set(sets[0]["files"]) ^ set(sets[1]["files"]))
        raise OptionError(f"{pair} are of different files, only one has {', '.join(only[:5])}; run both on the same")
    if sets[0]["fingerprint"] != sets[1]["fingerprint"]:
        raise OptionError(f"{pair} have files of the same names, but with other audio, references or channels")
    if first["protocol"] != second["protocol"]:
        changed = sorted(key for key in first["protocol"] if first["protocol"][key] != second["protocol"].get(key))
        raise OptionError(f"{pair} were scored differently, in {', '.join(changed)}; run both with the same protocol")


def _notes(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences of the machines that make a comparison of speed unfair."""
    found = []
    for key in ("processor", "processors", "gpu", "driver"):
        values = [record["environment"].get(key) for record in (first, second)]
        if values[0] != values[1]:
            found.append(f"{key}: {values[0]} against {values[1]}; compare speeds on one machine only")
    return tuple(found)
