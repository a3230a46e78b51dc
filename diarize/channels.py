"""Recordings with one speaker, or a few, on each channel: results of the channels joined into one.

Speakers are named by their channel, CH1_SPEAKER_00, and never taken for one another across channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .errors import OptionError
from .types import Diarization, Turn, WindowEmbeddings
from .values import whole_number

MIX = "mix"
SPLIT = "split"
Channel = int | str | None
"""One channel counted from 1, "mix" or None for the mean of all, "split" for each on its own."""


def parse_channel(value: Channel) -> int | str | None:
    """`value` with numbers as int and "mix" as None.

    >>> parse_channel("2"), parse_channel("mix"), parse_channel("split")
    (2, None, 'split')

    Raises
    ------
    OptionError
        It is none of those allowed.
    """
    if value is None or value == MIX:
        return None
    if value == SPLIT:
        return SPLIT
    try:
        number = int(value) if isinstance(value, str) else whole_number("channel", value)
    except (ValueError, OptionError):
        number = 0
    if number < 1:
        raise OptionError(f"channel is {value!r}; allowed are a number from 1, {MIX} and {SPLIT}")
    return number


def label(channel: int, speaker: str) -> str:
    """The name of a speaker of one channel, counted from 1.

    >>> label(2, "SPEAKER_00")
    'CH2_SPEAKER_00'
    """
    return f"CH{channel}_{speaker}"


def joined(results: Sequence[Diarization]) -> Diarization:
    """One result from those of channels 1, 2, ... of the same recording.

    Turns of different channels may overlap. Exclusive turns may not: where two channels speak, the one that began
    first keeps the word, and the other has what is left of its turn afterwards.
    """
    turns, exclusive, warnings = [], [], []
    for channel, result in enumerate(results, start=1):
        turns += [replace(turn, speaker=label(channel, turn.speaker)) for turn in result.turns]
        exclusive += [replace(turn, speaker=label(channel, turn.speaker)) for turn in result.exclusive]
        warnings += [f"channel {channel}: {sentence}" for sentence in result.warnings]
    timings: dict[str, float] = {}
    for result in results:
        for stage, seconds in result.timings.items():
            timings[stage] = timings.get(stage, 0.0) + seconds
    return replace(
        results[0],
        turns=tuple(sorted(turns)),
        exclusive=one_at_a_time(exclusive),
        speakers=tuple(label(n, speaker) for n, result in enumerate(results, 1) for speaker in result.speakers),
        embeddings=np.concatenate([result.embeddings for result in results]),
        duration=max(result.duration for result in results),
        timings=timings,
        warnings=tuple(warnings),
        windows=_windows(results),
    )


def one_at_a_time(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """`turns` cut so that none overlaps: whoever began first keeps the word.

    >>> [(turn.start, turn.end) for turn in one_at_a_time([Turn(0, 3, "A"), Turn(1, 2, "B"), Turn(2, 5, "C")])]
    [(0, 3), (3, 5)]
    """
    kept: list[Turn] = []
    free = -np.inf
    for turn in sorted(turns):
        if turn.end > free:
            kept.append(replace(turn, start=max(turn.start, free)))
            free = turn.end
    return tuple(kept)


def _windows(results: Sequence[Diarization]) -> WindowEmbeddings | None:
    """The windows of all channels, their speakers numbered on."""
    found = [result.windows for result in results if result.windows is not None]
    if len(found) < len(results):
        return None
    firsts = np.cumsum([0, *(len(result.speakers) for result in results)])
    speakers = [np.where(w.speakers >= 0, w.speakers + first, -1) for w, first in zip(found, firsts, strict=False)]
    return WindowEmbeddings(
        np.concatenate([w.starts for w in found]),
        np.concatenate([w.alone for w in found]),
        np.concatenate(speakers).astype(np.int32),
        np.concatenate([w.embeddings for w in found]),
    )
