"""Results of several channels joined into one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarize.channels import joined, one_at_a_time, parse_channel
from diarize.errors import OptionError
from diarize.types import Diarization, Turn, WindowEmbeddings


def windows(*speakers: int) -> WindowEmbeddings:
    number = len(speakers)
    return WindowEmbeddings(
        np.arange(float(number)), np.ones(number), np.array(speakers, np.int32), np.ones((number, 2), np.float32)
    )


def result(turns: list[Turn], speakers: tuple[str, ...], **values: object) -> Diarization:
    fields = {"exclusive": tuple(turns), "embeddings": np.full((len(speakers), 2), len(speakers)), "duration": 10.0}
    return Diarization(
        turns=tuple(turns), speakers=speakers, model="m", device="cpu", mode="exact", **{**fields, **values}
    )  # type: ignore[arg-type]


def test_speakers_keep_apart_and_bear_their_channel() -> None:
    left = result([Turn(0, 4, "SPEAKER_00", 0.5)], ("SPEAKER_00",), timings={"total": 1.0}, warnings=("hm",))
    right = result(
        [Turn(2, 3, "SPEAKER_00"), Turn(5, 6, "SPEAKER_01")], ("SPEAKER_00", "SPEAKER_01"), timings={"total": 2.0}
    )
    both = joined([left, right])
    assert [(turn.start, turn.speaker) for turn in both.turns] == [
        (0, "CH1_SPEAKER_00"), (2, "CH2_SPEAKER_00"), (5, "CH2_SPEAKER_01"),
    ]  # fmt: skip
    assert both.turns[0].confidence == 0.5
    # The one who began first keeps the word; nothing is left of the other's turn.
    assert [turn.speaker for turn in both.exclusive] == ["CH1_SPEAKER_00", "CH2_SPEAKER_01"]
    assert both.speakers == ("CH1_SPEAKER_00", "CH2_SPEAKER_00", "CH2_SPEAKER_01")
    assert both.embeddings[:, 0].tolist() == [1, 2, 2]
    assert both.timings == {"total": 3.0}
    assert both.warnings == ("channel 1: hm",)
    assert both.windows is None


def test_speakers_of_windows_are_numbered_on() -> None:
    left = result([], ("SPEAKER_00",), windows=windows(0, -1))
    right = result([], ("SPEAKER_00", "SPEAKER_01"), windows=windows(1, 0))
    found = joined([left, right]).windows
    assert found is not None
    assert found.speakers.tolist() == [0, -1, 2, 1]
    assert found.speakers.dtype == np.int32
    assert len(found.embeddings) == 4


times = st.integers(0, 30)


@given(st.lists(st.tuples(times, times, st.sampled_from("ABC")).filter(lambda t: t[0] < t[1]), max_size=8))
def test_one_at_a_time_covers_the_same_time_without_overlap(spans: list[tuple[int, int, str]]) -> None:
    turns = [Turn(*span) for span in spans]
    found = one_at_a_time(turns)
    assert all(before.end <= after.start for before, after in pairwise(found))
    covered = {second for turn in turns for second in range(int(turn.start), int(turn.end))}
    assert {second for turn in found for second in range(int(turn.start), int(turn.end))} == covered
    assert all(any(t.start <= f.start and f.end <= t.end and t.speaker == f.speaker for t in turns) for f in found)


@pytest.mark.parametrize("value", ["0", "-1", "left", "", "1.5", 0])
def test_channels_that_are_none(value: int | str) -> None:
    with pytest.raises(OptionError, match="allowed are a number from 1, mix and split"):
        parse_channel(value)
