"""Turns made simpler on request: speakers who hardly talk are removed, and short pauses within a speaker are closed.

Names, embeddings and everything else of the remaining speakers stay as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .types import Diarization, Turn, WindowEmbeddings
from .values import check_seconds


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
        windows=_renumbered(result.windows, kept),
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
            turns[index] = _union(turns[index], turn)
        else:
            last[turn.speaker] = len(turns)
            turns.append(turn)
    return replace(result, turns=tuple(sorted(turns)), exclusive=_joined(result.exclusive, seconds))


def _joined(exclusive: Sequence[Turn], seconds: float) -> tuple[Turn, ...]:
    """Neighbours of the same speaker joined where they are less than `seconds` apart."""
    turns: list[Turn] = []
    for turn in exclusive:
        if turns and turns[-1].speaker == turn.speaker and turn.start - turns[-1].end < seconds:
            turns[-1] = _union(turns[-1], turn)
        else:
            turns.append(turn)
    return tuple(turns)


def _union(first: Turn, second: Turn) -> Turn:
    """One turn from the start of `first` to the later end, with the mean confidence of both by their lengths."""
    known = [turn for turn in (first, second) if turn.confidence is not None]
    seconds = sum(turn.duration for turn in known)
    confidence = first.confidence
    if known and seconds > 0:
        confidence = round(sum((turn.confidence or 0.0) * turn.duration for turn in known) / seconds, 3)
    return Turn(first.start, max(first.end, second.end), first.speaker, confidence)


def _renumbered(windows: WindowEmbeddings | None, kept: Sequence[int]) -> WindowEmbeddings | None:
    """`windows` whose speakers are indices into the speakers that are kept, -1 for those of the others."""
    if windows is None:
        return None
    numbers = {old: new for new, old in enumerate(kept)}
    speakers = [numbers.get(int(old), -1) for old in windows.speakers]
    return replace(windows, speakers=np.array(speakers, windows.speakers.dtype))


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
                left.append(replace(turn, start=start, end=end))
                done = end
    # Pieces that touch the same speaker's turn belong to it.
    return _joined(sorted(left), 1e-9)
