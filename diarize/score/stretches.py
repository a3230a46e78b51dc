"""Where one hypothesis errs: the stretches of missed speech, false alarm and confusion, for pictures.

The same count as in `der.py` without a collar, told moment by moment instead of summed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..types import Turn
from .der import Regions


class ErrorKind(Enum):
    """What is wrong in a stretch."""

    MISSED = "missed"
    FALSE_ALARM = "false alarm"
    CONFUSION = "confusion"


@dataclass(frozen=True)
class ErrorStretch:
    """From `start` to `end`, in seconds, `speakers` speakers at once are wrong in this way."""

    start: float
    end: float
    kind: ErrorKind
    speakers: int


def best_mapping(reference: Sequence[Turn], hypothesis: Sequence[Turn], regions: Regions) -> dict[str, str]:
    """Label of the reference for each label of the hypothesis that has one: the pairs that share most time in all."""
    from scipy.optimize import linear_sum_assignment

    names = sorted({turn.speaker for turn in reference})
    labels = sorted({turn.speaker for turn in hypothesis})
    row_of, column_of = ({name: number for number, name in enumerate(items)} for items in (labels, names))
    shared = np.zeros((len(labels), len(names)))
    for start, end, truth, found in _moments(reference, hypothesis, regions):
        for label in found:
            for name in truth:
                shared[row_of[label], column_of[name]] += end - start
    rows, columns = linear_sum_assignment(-shared)
    return {labels[row]: names[column] for row, column in zip(rows, columns, strict=True) if shared[row, column] > 0}


def error_stretches(reference: Sequence[Turn], hypothesis: Sequence[Turn], regions: Regions) -> list[ErrorStretch]:
    """Every stretch with an error inside `regions`, in order of time; neighbours of the same kind are one."""
    mapping = best_mapping(reference, hypothesis, regions)
    found: list[ErrorStretch] = []
    for start, end, truth, labels in _moments(reference, hypothesis, regions):
        right = sum(mapping.get(label) in truth for label in labels)
        counts = {
            ErrorKind.MISSED: max(0, len(truth) - len(labels)),
            ErrorKind.FALSE_ALARM: max(0, len(labels) - len(truth)),
            ErrorKind.CONFUSION: min(len(truth), len(labels)) - right,
        }
        found += [ErrorStretch(start, end, kind, count) for kind, count in counts.items() if count]
    return _joined(found)


def _moments(
    reference: Sequence[Turn], hypothesis: Sequence[Turn], regions: Regions
) -> Iterator[tuple[float, float, frozenset[str], frozenset[str]]]:
    """(start, end, speakers of the reference, labels of the hypothesis) between any two edges inside `regions`."""
    # One pass over all edges, with counts, since a speaker's turns may overlap each other.
    edges: list[tuple[float, int, str, int]] = []
    for side, turns in enumerate((reference, hypothesis)):
        for turn in turns:
            edges += [(turn.start, side, turn.speaker, 1), (turn.end, side, turn.speaker, -1)]
    for start, end in regions:
        edges += [(start, 2, "", 1), (end, 2, "", -1)]
    active: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    before = 0.0
    for time, side, name, change in sorted(edges):
        if time > before and active[2][""]:
            yield before, time, frozenset(+active[0]), frozenset(+active[1])
        active[side][name] += change
        before = time


def _joined(stretches: Sequence[ErrorStretch]) -> list[ErrorStretch]:
    joined: list[ErrorStretch] = []
    last: dict[tuple[ErrorKind, int], int] = {}
    for item in stretches:
        key = (item.kind, item.speakers)
        before = last.get(key)
        if before is not None and joined[before].end == item.start:
            joined[before] = ErrorStretch(joined[before].start, item.end, item.kind, item.speakers)
        else:
            last[key] = len(joined)
            joined.append(item)
    return joined
