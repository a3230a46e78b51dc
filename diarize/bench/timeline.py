"""One file as a drawing: turns of the reference, errors, turns of the result, over the time of the recording."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from ..score.der import Regions
from ..score.stretches import ErrorKind, best_mapping, error_stretches
from ..types import Turn

# Told apart also by those who see few colours; speakers beyond these start over.
SPEAKERS = ("#2e6f95", "#4c956c", "#c9793c", "#8c6bb1", "#5f6f7a", "#b3567a", "#3aa6a6", "#a59132")
_UNMAPPED = "#b8c2cc"
_KEYS = {ErrorKind.MISSED: "missed", ErrorKind.FALSE_ALARM: "false_alarm", ErrorKind.CONFUSION: "confusion"}
_LEFT, _WIDTH, _ROW = 130.0, 760.0, 16


def timeline(
    reference: Sequence[Turn],
    result: Sequence[Turn],
    regions: Regions | None,
    length: float | None,
    colours: Mapping[str, str],
) -> str:
    """An SVG; `length` of the recording in seconds where it is known, `colours` by kind of error."""
    turns = [*reference, *result]
    end = max([length or 0.0, *(turn.end for turn in turns), 0.1])
    start = min((turn.start for turn in turns), default=0.0)
    scored = regions if regions is not None else ((start, end),)
    scale = _WIDTH / end
    names = sorted({turn.speaker for turn in reference})
    colour = {name: SPEAKERS[number % len(SPEAKERS)] for number, name in enumerate(names)}
    mapping = best_mapping(reference, result, scored)
    labels = sorted({turn.speaker for turn in result}, key=lambda label: (mapping.get(label, "\uffff"), label))
    parts, y = [], 0
    for name in names:
        parts.append(_row(y, name, [turn for turn in reference if turn.speaker == name], colour[name], scale))
        y += _ROW
    y += 4
    parts.append(f'<text x="0" y="{y + 11}">errors</text>')
    for item in error_stretches(reference, result, scored):
        key = _KEYS[item.kind]
        parts.append(_bar(item.start, item.end, y, 12, colours[key], scale, f"{item.kind.value} x{item.speakers}"))
    y += _ROW + 4
    for label in labels:
        own = [turn for turn in result if turn.speaker == label]
        shade = colour[mapping[label]] if label in mapping else _UNMAPPED
        parts.append(_row(y, label, own, shade, scale))
        y += _ROW
    parts.append(_axis(y, end, scale))
    return f'<svg viewBox="0 0 900 {y + 22}" role="img" aria-label="timeline">{"".join(parts)}</svg>'


def _row(y: int, name: str, turns: Sequence[Turn], colour: str, scale: float) -> str:
    label = name if len(name) <= 17 else name[:16] + "…"
    bars = (_bar(turn.start, turn.end, y, 12, colour, scale, name) for turn in turns)
    return f'<text x="0" y="{y + 11}">{escape(label)}</text>' + "".join(bars)


def _bar(start: float, end: float, y: int, height: int, colour: str, scale: float, what: str) -> str:
    tip = f"<title>{escape(what)}, {start:.2f} to {end:.2f} s</title>"
    x, width = _LEFT + start * scale, max((end - start) * scale, 0.3)
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}">{tip}</rect>'


def _axis(y: int, end: float, scale: float) -> str:
    """Seconds or minutes, at most ten marks at round times."""
    steps = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
    step = next((step for step in steps if end / step <= 10), 10 ** math.ceil(math.log10(max(end, 1.0))))
    parts = [f'<path d="M{_LEFT} {y + 2.5}H{_LEFT + _WIDTH}" stroke="#c9d3dd"/>']
    for number in range(int(end // step) + 1):
        time = number * step
        x = _LEFT + time * scale
        text = f"{time} s" if step < 60 else f"{time // 60} min"
        parts.append(f'<path d="M{x:.1f} {y + 2.5}v4" stroke="#5a6a79"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{text}</text>')
    return "".join(parts)
