"""Results as text for people: one row for each system, stages, warnings, and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .compare import Comparison, paired_seconds, speed_ratios


def result_table(record: Mapping[str, Any], per_file: bool = False) -> str:
    """The results of a record, ending with a line feed."""
    dataset, protocol = record["dataset"], record["protocol"]
    seconds = sum(item["duration"] or 0.0 for item in dataset["files"].values())
    overlap = "skipped" if protocol["skip_overlap"] else "scored"
    lines = [
        f"{dataset['name']}: {len(dataset['files'])} files, {seconds / 60:.1f} min; collar "
        f"{protocol['collar_each_side']:g} s on each side, overlap {overlap}, regions: {protocol['regions']}",
        "",
        *_rows(_results(record)),
        "",
        "RTFx: seconds of audio per second. Whole: the process with start-up and model load, each file once. Warm:",
        f"from path to turns, median of rounds ({record['rounds']}). Scoring and writing results are in neither. "
        "Memory: peak.",
    ]
    lines += _peers(record)
    for name, system in record["systems"].items():
        if system["stages"].get("total"):
            lines += ["", f"stages of {name}: {_stages(system['stages'])}"]
    if per_file:
        lines += ["", *_rows(_files(record))]
    return "\n".join(lines) + "\n"


def comparison_table(comparison: Comparison) -> str:
    """A comparison, ending with a line feed."""
    rows = [["file", "DER % A", "DER % B", "B - A", "speed B/A", "same RTTM"]]
    for item in comparison.files:
        ratio = "-" if item.speed_ratio is None else f"{item.speed_ratio:.3f}"
        difference = item.der_second - item.der_first
        rows.append([
            item.file_id, _percent(item.der_first), _percent(item.der_second), f"{100 * difference:+.2f}", ratio,
            "yes" if item.identical else "no",
        ])  # fmt: skip
    difference = comparison.der_second - comparison.der_first
    pooled = "-" if comparison.speed_ratio is None else f"{comparison.speed_ratio:.3f}"
    rows.append([
        "pooled", _percent(comparison.der_first), _percent(comparison.der_second), f"{100 * difference:+.2f}", pooled,
        f"{comparison.identical}/{len(comparison.files)}",
    ])  # fmt: skip
    lines = [f"A: {comparison.first}", f"B: {comparison.second}", "", *_rows(rows)]
    if comparison.spread is not None:
        low, middle, high = comparison.spread
        lines.append(f"speed B/A of the files: {low:.3f} to {high:.3f}, median {middle:.3f}; above 1, B is faster")
    return "\n".join([*lines, *(f"note: {note}" for note in comparison.notes)]) + "\n"


def published_table(published: Sequence[Any]) -> str:
    """What others have published for the set; empty where nothing is known."""
    if not published:
        return ""
    lines = ["published for this set, measured by others, perhaps on other files or with another scorer:"]
    lines += [
        f"  {item.system}: DER {item.der:g} % ({'; '.join(filter(None, (item.source, item.note)))})"
        for item in published
    ]
    return "\n".join(lines) + "\n"


def _results(record: Mapping[str, Any]) -> list[list[str]]:
    rows = [["system", "DER %", "missed", "false", "confused", "JER %", "RTFx whole", "RTFx warm", "host MB", "GPU MB"]]
    for name, system in record["systems"].items():
        total = system["total"] or 1.0
        speed = system["rtfx"]
        gpu = system["peak_gpu_bytes"]
        rows.append([
            name,
            _percent(system["der"]),
            *(_percent(system[part] / total) for part in ("missed", "false_alarm", "confusion")),
            _percent(system["jer"]),
            _speed(speed["whole_process"], speed["whole_process_rounds"]),
            _speed(speed["warm"], speed["warm_rounds"]),
            f"{system['peak_host_bytes'] / 1e6:.0f}",
            "-" if gpu is None else f"{gpu / 1e6:.0f}",
        ])  # fmt: skip
    return rows


def _files(record: Mapping[str, Any]) -> list[list[str]]:
    rows = [["file", "seconds", "speakers", *(f"{name} DER %" for name in record["systems"])]]
    for name, about in record["dataset"]["files"].items():
        files = [system["files"][name] for system in record["systems"].values()]
        duration = "-" if about["duration"] is None else f"{about['duration']:.1f}"
        speakers = f"{files[0]['speakers']} of {files[0]['reference_speakers']}"
        rows.append([name, duration, speakers, *(_percent(item["der"]) for item in files)])
    return rows


def _peers(record: Mapping[str, Any]) -> list[str]:
    """How much faster the main system is than each other one, in pairs of the same file."""
    main = record["main"]
    lines = []
    for name, system in record["systems"].items():
        total, spread = speed_ratios(paired_seconds(system, record["systems"][main])) if name != main else (None, None)
        if total is not None and spread is not None:
            lines += [
                "",
                f"{main} is {total:.2f} times as fast as {name}, warm; by file {spread[0]:.2f} to {spread[2]:.2f}",
            ]
    return lines


def _stages(stages: Mapping[str, float]) -> str:
    total = stages["total"]
    parts = [f"{name} {seconds:.2f} s" for name, seconds in stages.items() if name != "total"]
    return ", ".join(parts) + f"; total {total:.2f} s"


def _rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need, the first to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _speed(value: float | None, rounds: Sequence[float]) -> str:
    if value is None:
        return "-"
    spread = f" ({min(rounds):.1f}-{max(rounds):.1f})" if len(rounds) > 1 else ""
    return f"{value:.1f}{spread}"
