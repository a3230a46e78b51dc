"""Turns made simpler on request: speakers who hardly talk are removed, and short pauses within a speaker are closed.

Names, embeddings and everything else of the remaining speakers stay as they were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from .errors import OptionError
from .types import Diarization, Turn


def postprocess(result: Diarization, min_speaker_time: float = 0.0, merge_gap: float = 0.0) -> Diarization:
    """`result` after `remove_short_speakers` and then `close_gaps`, each with its number of seconds; 0 does nothing.

    Raises
    ------
    OptionError
        A number is negative or not finite.
    """
    check_seconds("min-speaker-time", min_speaker_time)
    check_seconds("merge-gap", merge_gap)
    return close_gaps(remove_short_speakers(result, min_speaker_time), merge_gap)


def check_seconds(name: str, value: float) -> None:
    """Nothing where `value` is a finite number from 0 on.

    Raises
    ------
    OptionError
        It is not.
    """
    if not (math.isfinite(value) and value >= 0):
        raise OptionError(f"{name} is {value:g}; it must be a number of seconds, 0 or more")


def remove_short_speakers(result: Diarization, seconds: float) -> Diarization:
    """`result` without the speakers whose turns last less than `seconds` in all, each named in a warning.

    Overlap counts for each speaker. In the exclusive turns, time of a removed speaker goes to a remaining one who talks
    then, and to nobody else.
    """
    totals = dict.fromkeys(result.speakers, 0.0)
    for turn in result.turns:
        totals[turn.speaker] = totals.get(turn.speaker, 0.0) + turn.duration
    short = {speaker for speaker, total in totals.items() if total < seconds}
    if not short:
        return result
    turns = tuple(turn for turn in result.turns if turn.speaker not in short)
    kept = [index for index, speaker in enumerate(result.speakers) if speaker not in short]
    said = (
        f"{speaker} was removed: {totals[speaker]:.1f} s of speech in all, less than min-speaker-time {seconds:g} s"
        for speaker in sorted(short)
    )
    return replace(
        result,
        turns=turns,
        exclusive=_given_away(result.exclusive, short, turns),
        speakers=tuple(result.speakers[index] for index in kept),
        embeddings=result.embeddings[kept],
        warnings=(*result.warnings, *said),
    )


def close_gaps(result: Diarization, seconds: float) -> Diarization:
    """`result` with turns of one speaker joined that are less than `seconds` apart.

    Exclusive turns are joined only where nobody else talks in between, so that they stay exclusive.
    """
    if seconds <= 0:
        return result
    turns: list[Turn] = []
    last: dict[str, int] = {}
    for turn in result.turns:
        index = last.get(turn.speaker)
        if index is not None and turn.start - turns[index].end < seconds:
            turns[index] = replace(turns[index], end=max(turns[index].end, turn.end))
        else:
            last[turn.speaker] = len(turns)
            turns.append(turn)
    return replace(result, turns=tuple(sorted(turns)), exclusive=_joined(result.exclusive, seconds))


def _joined(exclusive: Sequence[Turn], seconds: float) -> tuple[Turn, ...]:
    """Neighbours of the same speaker joined where they are less than `seconds` apart."""
    turns: list[Turn] = []
    for turn in exclusive:
        if turns and turns[-1].speaker == turn.speaker and turn.start - turns[-1].end < seconds:
            turns[-1] = replace(turns[-1], end=max(turns[-1].end, turn.end))
        else:
            turns.append(turn)
    return tuple(turns)


def _given_away(exclusive: Sequence[Turn], short: set[str], turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Exclusive turns in which the time of `short` speakers went to those of `turns` who talk then."""
    left: list[Turn] = []
    first = 0
    # No turn is longer than this, so the search for those that reach into a stretch can start late.
    longest = max((turn.duration for turn in turns), default=0.0)
    for stretch in exclusive:
        if stretch.speaker not in short:
            left.append(stretch)
            continue
        while first < len(turns) and turns[first].start < stretch.start - longest:
            first += 1
        done = stretch.start
        for turn in turns[first:]:
            if turn.start >= stretch.end:
                break
            # Where several talk, the one who began first keeps the word.
            start, end = max(turn.start, done), min(turn.end, stretch.end)
            if start < end:
                left.append(Turn(start, end, turn.speaker))
                done = end
    # Pieces that touch the same speaker's turn belong to it.
    return _joined(sorted(left), 1e-9)
