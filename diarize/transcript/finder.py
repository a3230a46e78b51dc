"""Who speaks in a stretch of time, by one rule that all transcript formats share."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

from ..types import Turn

# Sums of seconds differ by less than this where the text says the same.
_SAME_SECONDS = 1e-6


class SpeakerFinder:
    """Finds the speaker of a word, a segment or a subtitle.

    The speaker is the one whose turns overlap the stretch for the longest time in all. Of several with the same time it
    is the one whose first such turn starts earliest, and of several of those the first by name. Where nothing overlaps,
    it is the speaker of the nearest turn, if that is no more than `max_gap` seconds away, by the same rules for ties;
    else there is none. A stretch without length lies in a turn that starts before or at it and ends at or after it.

    >>> finder = SpeakerFinder([Turn(0, 2, "A"), Turn(1.5, 4, "B")], max_gap=1)
    >>> finder.find(1, 2), finder.find(1.9, 3), finder.find(4.5, 5), finder.find(7, 8)
    ('A', 'B', 'B', None)
    """

    def __init__(self, turns: Iterable[Turn], max_gap: float) -> None:
        self._turns = sorted(turns, key=lambda turn: (turn.start, turn.speaker, turn.end))
        self._starts = [turn.start for turn in self._turns]
        # Largest end of all turns up to each, which bounds the search backwards.
        self._reach = list(accumulate((turn.end for turn in self._turns), max))
        self._max_gap = max_gap

    def find(self, start: float, end: float) -> str | None:
        """The speaker of the stretch from `start` to `end` in seconds, None where there is none."""
        seconds: dict[str, float] = {}
        first: dict[str, int] = {}
        index = bisect_left(self._starts, end)
        while index > 0 and self._reach[index - 1] > start:
            index -= 1
            turn = self._turns[index]
            overlap = min(turn.end, end) - max(turn.start, start)
            if overlap > 0:
                seconds[turn.speaker] = seconds.get(turn.speaker, 0.0) + overlap
                first[turn.speaker] = index
        if not seconds:
            return self._nearest(start, end)
        most = max(seconds.values())
        return min(
            (speaker for speaker, total in seconds.items() if total >= most - _SAME_SECONDS), key=first.__getitem__
        )

    def _nearest(self, start: float, end: float) -> str | None:
        best, nearest = math.inf, None
        # Turns that end before the stretch, from the last to start back to the first that may be nearer.
        index = bisect_right(self._starts, start)
        while index > 0 and max(0.0, start - self._reach[index - 1]) <= min(best, self._max_gap) + _SAME_SECONDS:
            index -= 1
            distance = max(0.0, start - self._turns[index].end)
            if distance <= best + _SAME_SECONDS:
                best, nearest = min(best, distance), self._turns[index].speaker
        after = bisect_right(self._starts, start)
        if after < len(self._turns):
            distance = max(0.0, self._turns[after].start - end)
            if distance < best - _SAME_SECONDS:
                best, nearest = distance, self._turns[after].speaker
        return nearest if best <= self._max_gap + _SAME_SECONDS else None
