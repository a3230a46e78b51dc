"""What a result can be turned into."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pandas
import pytest

from diarize import Diarization, OptionError, Turn
from diarize.outputs.json import parse_json


@pytest.fixture
def result() -> Diarization:
    """Two speakers who overlap, one label less sure than the other."""
    turns = (Turn(0.5, 3.0, "Ann", 0.9), Turn(2.0, 4.0, "SPEAKER_01"))
    exclusive = (Turn(0.5, 2.5, "Ann", 0.9), Turn(2.5, 4.0, "SPEAKER_01"))
    return Diarization(
        turns, exclusive, ("Ann", "SPEAKER_01"), np.eye(2), 5.0, "campplus", "cpu", "exact", name="my talk"
    )


def test_rttm_takes_the_name_of_the_recording_unless_another_is_given(result: Diarization) -> None:
    assert result.to_rttm().splitlines()[0] == "SPEAKER my_talk 1 0.500 2.500 <NA> <NA> Ann <NA> <NA>"
    assert result.to_rttm("x").startswith("SPEAKER x 1 ")
    assert replace(result, name="").to_rttm().startswith("SPEAKER recording 1 ")
    assert " 2.000 " in result.to_rttm(exclusive=True).splitlines()[0]


def test_json_can_be_read_back(result: Diarization) -> None:
    text = result.to_json()
    assert parse_json(text).file_id == "my talk"
    assert parse_json(text).diarization.turns == result.turns
    assert json.loads(result.to_json("x"))["file"] == "x"


def test_annotation_holds_every_turn_even_where_two_have_the_same_times(result: Diarization) -> None:
    twin = replace(result, turns=(*result.turns, Turn(2.0, 4.0, "Zoe")))
    annotation = twin.to_annotation()
    assert annotation.uri == "my talk"
    found = [(segment.start, segment.end, label) for segment, _, label in annotation.itertracks(yield_label=True)]
    assert sorted(found) == [(turn.start, turn.end, turn.speaker) for turn in twin.turns]
    assert result.to_annotation(exclusive=True).get_overlap().duration() == 0
    assert result.to_annotation().get_overlap().duration() == 1.0


def test_data_frame_has_a_row_for_each_turn(result: Diarization) -> None:
    frame = result.to_dataframe()
    assert list(frame.columns) == ["start", "end", "duration", "speaker", "confidence"]
    assert frame["duration"].tolist() == [2.5, 2.0]
    assert frame["confidence"].tolist()[0] == 0.9
    assert np.isnan(frame["confidence"][1])
    assert frame.groupby("speaker")["duration"].sum()["Ann"] == 2.5
    empty = replace(result, turns=()).to_dataframe()
    assert isinstance(empty, pandas.DataFrame)
    assert len(empty) == 0
    assert empty["confidence"].dtype == np.float64


def test_without_pandas_one_line_says_what_to_install(result: Diarization, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionError, match="pip install pandas"):
        result.to_dataframe()
