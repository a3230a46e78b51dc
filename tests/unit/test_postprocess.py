"""Removing speakers and closing gaps change what they should, and keep results consistent."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarize.errors import OptionError
from diarize.postprocess import close_gaps, postprocess, remove_short_speakers
from diarize.types import Diarization, Turn, WindowEmbeddings


def result_of(turns: list[Turn], exclusive: list[Turn] | None = None) -> Diarization:
    """A result whose speaker embeddings tell the speakers apart."""
    names = tuple(sorted({turn.speaker for turn in turns}))
    embeddings = np.array([[ord(name[0])] for name in names], float).reshape(len(names), 1)
    parts = tuple(sorted(turns if exclusive is None else exclusive))
    return Diarization(tuple(sorted(turns)), parts, names, embeddings, 100.0, "m", "cpu", "exact", warnings=("first",))


def exclusive_of(turns: list[Turn]) -> list[Turn]:
    """One speaker at a time, second by second: the last by name of those who talk."""
    parts: list[Turn] = []
    for second in range(100):
        active = [turn.speaker for turn in turns if turn.start <= second < turn.end]
        if not active:
            continue
        name = max(active)
        if parts and parts[-1].speaker == name and parts[-1].end == second:
            parts[-1] = Turn(parts[-1].start, second + 1, name)
        else:
            parts.append(Turn(second, second + 1, name))
    return parts


def test_a_short_speaker_goes_and_a_warning_says_so() -> None:
    turns = [Turn(0, 5, "A"), Turn(4, 6, "B"), Turn(8, 8.5, "B"), Turn(10, 20, "C")]
    done = remove_short_speakers(result_of(turns), 2.6)
    assert done.turns == (Turn(0, 5, "A"), Turn(10, 20, "C"))
    assert done.speakers == ("A", "C")
    assert done.embeddings.tolist() == [[65.0], [67.0]]
    assert done.warnings == ("first", "B was removed: 2.5 s of speech in all, less than min-speaker-time 2.6 s")
    assert remove_short_speakers(result_of(turns), 2.5).speakers == ("A", "B", "C")


def test_windows_keep_pointing_at_their_speakers() -> None:
    windows = WindowEmbeddings(
        np.arange(4.0), np.ones(4), np.array([0, 1, 2, -1], np.int32), np.zeros((4, 1), np.float32)
    )
    turns = [Turn(0, 5, "A"), Turn(5, 6, "B"), Turn(10, 20, "C")]
    before = dataclasses.replace(result_of(turns), windows=windows)
    after = remove_short_speakers(before, 2).windows
    assert after is not None
    assert (after.speakers.tolist(), after.speakers.dtype) == ([0, -1, 1, -1], np.int32)


def test_exclusive_time_goes_to_whoever_talks_then() -> None:
    turns = [Turn(0, 10, "A"), Turn(4, 12, "B"), Turn(8, 9, "C")]
    exclusive = [Turn(0, 4, "A"), Turn(4, 12, "B")]
    done = remove_short_speakers(result_of(turns, exclusive), 9)
    assert done.exclusive == (Turn(0, 10, "A"),)
    # C goes and never had the word; B keeps what A does not need.
    assert remove_short_speakers(result_of(turns, exclusive), 2).exclusive == (Turn(0, 4, "A"), Turn(4, 12, "B"))


def test_everybody_may_go() -> None:
    done = remove_short_speakers(result_of([Turn(0, 1, "A")]), 5)
    assert (done.turns, done.exclusive, done.speakers, done.embeddings.shape) == ((), (), (), (0, 1))


def test_gaps_are_closed_below_the_limit() -> None:
    turns = [Turn(0, 1, "A", 0.5), Turn(1.25, 1.5, "B"), Turn(1.5, 4.5, "A", 0.9), Turn(5, 6, "A"), Turn(6, 7, "A")]
    exclusive = [Turn(0, 1, "A"), Turn(1.25, 1.5, "B"), Turn(1.5, 4.5, "A"), Turn(5, 6, "A"), Turn(6, 7, "A")]
    done = close_gaps(result_of(turns, exclusive), 0.5)
    assert done.turns == (Turn(0, 1, "A"), Turn(1.25, 1.5, "B"), Turn(1.5, 4.5, "A"), Turn(5, 7, "A"))
    wider = close_gaps(result_of(turns, exclusive), 0.6)
    assert wider.turns == (Turn(0, 7, "A"), Turn(1.25, 1.5, "B"))
    # The mean of 1 s at 0.5 and 3 s at 0.9, then with turns that have none.
    assert wider.turns[0].confidence == 0.8
    # B talks between the first two turns of A, so they stay two where one talks at a time.
    assert wider.exclusive == (Turn(0, 1, "A"), Turn(1.25, 1.5, "B"), Turn(1.5, 7, "A"))


def test_a_turn_within_another_changes_nothing() -> None:
    assert close_gaps(result_of([Turn(0, 9, "A"), Turn(2, 3, "A")]), 1).turns == (Turn(0, 9, "A"),)


def test_short_speakers_go_before_gaps_close() -> None:
    turns = [Turn(0, 1, "A"), Turn(2, 3, "A"), Turn(10, 20, "B")]
    assert postprocess(result_of(turns), min_speaker_time=2.5, merge_gap=5).turns == (Turn(10, 20, "B"),)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_numbers_that_make_no_sense(value: float) -> None:
    with pytest.raises(OptionError, match=f"merge-gap is {value:g}; it must be a number of seconds, 0 or more"):
        postprocess(result_of([]), merge_gap=value)
    with pytest.raises(OptionError, match="min-speaker-time is"):
        postprocess(result_of([]), min_speaker_time=value)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 80), st.integers(1, 15), st.sampled_from("ABCD")), max_size=9),
    st.integers(0, 25),
    st.integers(0, 8),
)
def test_results_stay_consistent(spans: list[tuple[int, int, str]], least: int, gap: int) -> None:
    # Turns of one speaker do not overlap in a result.
    busy: set[tuple[str, int]] = set()
    turns = []
    for start, length, name in spans:
        seconds = {(name, second) for second in range(start, start + length)}
        if not seconds & busy:
            busy |= seconds
            turns.append(Turn(start, start + length, name))
    before = result_of(turns, exclusive_of(turns))
    done = postprocess(before, least, gap)
    totals = {name: sum(turn.duration for turn in turns if turn.speaker == name) for name in before.speakers}
    assert done.speakers == tuple(name for name in before.speakers if totals[name] >= least)
    assert {turn.speaker for turn in done.turns} == set(done.speakers)
    assert list(done.turns) == sorted(done.turns)
    assert list(done.exclusive) == sorted(done.exclusive)
    assert all(one.end <= two.start for one, two in pairwise(done.exclusive))
    for name in done.speakers:
        own = [turn for turn in done.turns if turn.speaker == name]
        assert all(two.start - one.end >= max(gap, 0) for one, two in pairwise(own))
    # Every second in which one of the remaining talked still belongs to one of those who talked.
    for second in range(95):
        active = {turn.speaker for turn in turns if turn.start <= second < turn.end} & set(done.speakers)
        holder = {turn.speaker for turn in done.exclusive if turn.start <= second < turn.end}
        assert len(holder) == 1 if active else True
        if active:
            assert holder <= active
