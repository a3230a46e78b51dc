"""The report of a run as one HTML file: tables, bars and timelines drawn as SVG, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..dataset.load import Dataset
from ..outputs.files import write_text
from .record import read_result
from .timeline import timeline

# More would make a file that browsers are slow with; the worst files are the ones to look at.
MOST_TIMELINES = 30
RESULTS = "rttm"
COLOURS = {"missed": "#d1495b", "false_alarm": "#edae49", "confusion": "#7768ae"}
_NAMES = {"missed": "missed", "false_alarm": "false alarm", "confusion": "confusion"}

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; color: #1c2733; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
table { border-collapse: collapse; margin: .6rem 0; } th, td { padding: .25rem .7rem; text-align: right; }
th { font-weight: 600; border-bottom: 2px solid #c9d3dd; } td { border-bottom: 1px solid #e4eaf0; }
th:first-child, td:first-child { text-align: left; } .wide { overflow-x: auto; }
.text th, .text td { text-align: left; overflow-wrap: anywhere; }
.note { color: #5a6a79; } .warning { background: #fff4dc; padding: .4rem .7rem; margin: .3rem 0; border-radius: 4px; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; border-radius: 2px; }
.kind { white-space: nowrap; }
svg { width: 100%; height: auto; display: block; } svg text { font: 12px system-ui, sans-serif; fill: #1c2733; }
footer { margin-top: 3rem; color: #5a6a79; font-size: .85rem; }
"""


def write_report(path: Path, record: Mapping[str, Any], dataset: Dataset, folder: Path) -> None:
    """Write the report of `record` to `path`; `folder` is where the run has kept its RTTM files.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    write_text(path, report_html(record, dataset, folder))


def report_html(record: Mapping[str, Any], dataset: Dataset, folder: Path) -> str:
    """The whole document."""
    title = f"diarize bench {record['dataset']['name']}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="note">{escape(_subtitle(record))}</p>',
        *(f'<p class="warning">{escape(text)}</p>' for text in record["warnings"]),
        "<h2>Error rate</h2>",
        _table(_results(record)),
        _published(dataset),
        "<h2>Speed</h2>",
        _speed_chart(record),
        '<p class="note">Seconds of audio per second of computing. Whole: the process with start-up and model load, '
        "each file once. Warm: from a file’s path to its turns. Scoring and writing results are in neither.</p>",
        "<h2>Files</h2>",
        _legend(),
        *(_file_bars(name, system) for name, system in record["systems"].items()),
        *_timelines(record, dataset, folder),
        "<h2>Environment</h2>",
        f'<div class="text">{_table(_environment(record))}</div>',
        f"<footer>Made by diarize {escape(record['environment']['diarize'])}, {escape(record['created'])}</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n"
        "</html>\n"
    )


def _subtitle(record: Mapping[str, Any]) -> str:
    files = record["dataset"]["files"]
    minutes = sum(item["duration"] or 0.0 for item in files.values()) / 60
    protocol = record["protocol"]
    overlap = "skipped" if protocol["skip_overlap"] else "scored"
    return (
        f"{len(files)} files, {minutes:.1f} min; collar {protocol['collar_each_side']:g} s on each side, "
        f"overlap {overlap}, regions: {protocol['regions']}; {record['rounds']} rounds"
    )


def _results(record: Mapping[str, Any]) -> list[list[str]]:
    rows = [["system", "DER %", "missed %", "false alarm %", "confusion %", "JER %", "speaker count exact"]]
    for name, system in record["systems"].items():
        total = system["total"] or 1.0
        parts = [system["der"], *(system[part] / total for part in COLOURS), system["jer"]]
        count = system["speaker_count"]
        rows.append([name, *(f"{100 * part:.2f}" for part in parts), f"{count['exact']} of {count['files']}"])
    return rows


def _published(dataset: Dataset) -> str:
    if not dataset.published:
        return ""
    items = "".join(
        f"<li>{escape(item.system)}: {item.der:g} % ({escape('; '.join(filter(None, (item.source, item.note))))})</li>"
        for item in dataset.published
    )
    return f'<div class="note">Published for this set, measured by others:<ul>{items}</ul></div>'


def _speed_chart(record: Mapping[str, Any]) -> str:
    bars = []
    for name, system in record["systems"].items():
        speed = system["rtfx"]
        for label, key in (("whole", "whole_process"), ("warm", "warm")):
            if speed[key] is not None:
                rounds = speed[f"{key}_rounds"]
                bars.append((f"{name}, {label}", speed[key], rounds, "#2e6f95" if key == "warm" else "#8fb8d0"))
    if not bars:
        return "<p>No times.</p>"
    most = max(max(rounds, default=value) for _, value, rounds, _ in bars)
    scale = 640 / max(most, 1e-9)
    parts = []
    for row, (label, value, rounds, colour) in enumerate(bars):
        y = 26 * row
        parts.append(f'<text x="0" y="{y + 15}">{escape(label)}</text>')
        parts.append(f'<rect x="170" y="{y + 3}" width="{value * scale:.1f}" height="16" rx="2" fill="{colour}"/>')
        if len(rounds) > 1:
            low, high = (170 + scale * edge for edge in (min(rounds), max(rounds)))
            parts.append(f'<path d="M{low:.1f} {y + 11}H{high:.1f}" stroke="#1c2733" stroke-width="1.5"/>')
        end = 170 + scale * max([value, *rounds])
        parts.append(f'<text x="{end + 8:.1f}" y="{y + 15}">{value:.1f}x</text>')
    return f'<svg viewBox="0 0 900 {26 * len(bars)}" role="img" aria-label="speed">{"".join(parts)}</svg>'


def _legend() -> str:
    return f'<p class="note">Errors as a share of speaker time:{_keys()}</p>'


def _keys() -> str:
    """Which colour is which kind of error; a name stays with its colour when the line breaks."""
    spans = (
        f'<span class="kind"><span class="key" style="background:{COLOURS[part]}"></span>{_NAMES[part]}</span> '
        for part in COLOURS
    )
    return "".join(spans)


def _file_bars(name: str, system: Mapping[str, Any]) -> str:
    """A bar for each file, its three kinds of error stacked."""
    files = system["files"]
    most = max([item["der"] for item in files.values()] + [0.01])
    parts = []
    for row, (file_id, item) in enumerate(files.items()):
        y, x = 22 * row, 170.0
        label = file_id if len(file_id) <= 22 else file_id[:21] + "…"
        parts.append(f'<text x="0" y="{y + 14}">{escape(label)}</text>')
        for part, colour in COLOURS.items():
            width = 620 * (item[part] / item["total"] if item["total"] else 0.0) / most
            tip = f"<title>{escape(file_id)}: {_NAMES[part]} {item[part]:.2f} s</title>"
            parts.append(f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="14" fill="{colour}">{tip}</rect>')
            x += width
        parts.append(f'<text x="{x + 8:.1f}" y="{y + 14}">{100 * item["der"]:.1f} %</text>')
    drawing = (
        f'<svg viewBox="0 0 900 {22 * len(files)}" role="img" aria-label="DER of each file">{"".join(parts)}</svg>'
    )
    return f"<h3>{escape(name)}</h3>{drawing}"


def _timelines(record: Mapping[str, Any], dataset: Dataset, folder: Path) -> list[str]:
    """Reference against hypothesis of the main system, the worst files first."""
    files = record["systems"][record["main"]]["files"]
    worst = sorted(dataset.recordings, key=lambda item: (-files[item.file_id]["der"], item.file_id))
    shown = worst[:MOST_TIMELINES]
    out = [
        f"<h2>Timelines of {escape(record['main'])}</h2>",
        f'<p class="note">The worst file first{f", {len(shown)} of {len(worst)}" * (len(shown) < len(worst))}. '
        "Above the reference, below the result, each speaker in the colour that fits best; in between the errors: "
        f"{_keys()}</p>",
    ]
    for recording in shown:
        turns = read_result(folder / RESULTS / record["main"] / f"{recording.file_id}.rttm") or ()
        length = record["dataset"]["files"][recording.file_id]["duration"]
        drawing = timeline(recording.reference, turns, recording.regions, length, COLOURS)
        der = 100 * files[recording.file_id]["der"]
        out.append(f"<h3>{escape(recording.file_id)}: DER {der:.2f} %</h3>{drawing}")
    return out


def _environment(record: Mapping[str, Any]) -> list[list[str]]:
    rows = [["what", "value"]]
    for key, value in record["environment"].items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {item}" for name, item in value.items())
        rows.append([key, "-" if value is None else str(value)])
    for name, system in record["systems"].items():
        about = ", ".join(f"{key} {value}" for key, value in system["about"].items() if value not in ("", None))
        rows.append([name, about])
        rows.append([f"{name}, peak memory", f"{system['peak_host_bytes'] / 1e6:.0f} MB"])
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
