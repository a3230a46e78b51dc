"""Where one hypothesis errs: the stretches of missed speech, false alarm and confusion, for pictures.

The same count as in `der.py` without a collar, told moment by moment instead of summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

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
    shared = np.zeros((len(labels), len(names)))
    for start, end, truth, found in _moments(reference, hypothesis, regions):
        for label in found:
            for name in truth:
                shared[labels.index(label), names.index(name)] += end - start
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
) -> list[tuple[float, float, set[str], set[str]]]:
    """(start, end, speakers of the reference, labels of the hypothesis) between any two edges."""
    edges = sorted({time for turn in (*reference, *hypothesis) for time in (turn.start, turn.end)} | _ends(regions))
    found = []
    for start, end in pairwise(edges):
        middle = (start + end) / 2
        if any(low <= middle < high for low, high in regions):
            truth = {turn.speaker for turn in reference if turn.start <= middle < turn.end}
            labels = {turn.speaker for turn in hypothesis if turn.start <= middle < turn.end}
            found.append((start, end, truth, labels))
    return found


def _ends(regions: Regions) -> set[float]:
    return {time for region in regions for time in region}


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
