"""The JSON document: its whole text, its totals, and the way back."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import diarize
from diarize.errors import FormatError
from diarize.outputs.json import format_json, overlap_seconds, parse_json, read_json, speaker_totals
from diarize.types import Diarization, KernelChoices, Turn

RESULT = Diarization(
    turns=(Turn(0.0004, 2.5, "SPEAKER_00", 0.9876), Turn(2.0, 3.25, "SPEAKER_01"), Turn(4.0, 5.0, "SPEAKER_00")),
    exclusive=(Turn(0.0004, 2.5, "SPEAKER_00"), Turn(2.5, 3.25, "SPEAKER_01"), Turn(4.0, 5.0, "SPEAKER_00")),
    speakers=("SPEAKER_00", "SPEAKER_01"),
    embeddings=np.zeros((2, 4)),
    duration=6.12345,
    model="campplus",
    device="cpu",
    mode="exact",
    timings={"total": 1.23456, "analysis": 1.0},
    warnings=("the audio ends early: the header says 7.0 s, 6.1 s decoded",),
    checksum="c0ffee",
)


def test_whole_text():
    assert format_json(RESULT, "Sitzung eins") == (
        "{\n"
        '  "schema": "diarize/1",\n'
        '  "file": "Sitzung eins",\n'
        '  "duration": 6.123,\n'
        '  "offset": 0.0,\n'
        '  "model": "campplus",\n'
        '  "model_checksum": "c0ffee",\n'
        '  "device": "cpu",\n'
        '  "mode": "exact",\n'
        '  "recipe": null,\n'
        '  "speakers": [\n'
        '    {"speaker": "SPEAKER_00", "seconds": 3.5, "turns": 2},\n'
        '    {"speaker": "SPEAKER_01", "seconds": 1.25, "turns": 1}\n'
        "  ],\n"
        '  "overlap": 0.5,\n'
        '  "turns": [\n'
        '    {"start": 0.0, "end": 2.5, "speaker": "SPEAKER_00", "confidence": 0.988},\n'
        '    {"start": 2.0, "end": 3.25, "speaker": "SPEAKER_01", "confidence": null},\n'
        '    {"start": 4.0, "end": 5.0, "speaker": "SPEAKER_00", "confidence": null}\n'
        "  ],\n"
        '  "exclusive": [\n'
        '    {"start": 0.0, "end": 2.5, "speaker": "SPEAKER_00", "confidence": null},\n'
        '    {"start": 2.5, "end": 3.25, "speaker": "SPEAKER_01", "confidence": null},\n'
        '    {"start": 4.0, "end": 5.0, "speaker": "SPEAKER_00", "confidence": null}\n'
        "  ],\n"
        '  "warnings": ["the audio ends early: the header says 7.0 s, 6.1 s decoded"],\n'
        '  "timings": {"analysis": 1.0, "total": 1.235},\n'
        f'  "versions": {{"diarize": "{diarize.__version__}"}}\n'
        "}\n"
    )


def test_only_timings_vary():
    other = dataclasses.replace(RESULT, timings={"analysis": 9.0, "total": 10.0})
    first, second = (json.loads(format_json(result, "a")) for result in (RESULT, other))
    assert first.pop("timings") != second.pop("timings")
    assert json.dumps(first) == json.dumps(second)


def test_way_back(tmp_path):
    text = format_json(RESULT, 'Ünï 日本\n"x"')
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    read = read_json(path)
    assert read.file_id == 'Ünï 日本\n"x"'
    assert read.versions == {"diarize": diarize.__version__}
    assert read.diarization.turns[1] == Turn(2.0, 3.25, "SPEAKER_01")
    assert read.diarization.speakers == RESULT.speakers
    assert read.diarization.warnings == RESULT.warnings
    assert [turn.confidence for turn in read.diarization.turns] == [0.988, None, None]
    assert format_json(read.diarization, read.file_id) == text


def test_nothing_said():
    empty = dataclasses.replace(RESULT, turns=(), exclusive=(), speakers=(), warnings=(), timings={}, duration=0.0)
    document = json.loads(format_json(empty, "a"))
    assert (document["turns"], document["speakers"], document["overlap"]) == ([], [], 0.0)
    assert parse_json(format_json(empty, "a")).diarization.turns == ()


def test_values_that_json_lacks_are_refused():
    for value in (float("nan"), float("inf")):
        with pytest.raises(FormatError, match="must be a finite number"):
            format_json(dataclasses.replace(RESULT, duration=value), "a")


def test_numpy_numbers_and_broken_characters():
    result = dataclasses.replace(RESULT, duration=np.float64(1.5), turns=(Turn(np.float64(-0.0001), 1, "caf\udce9"),))
    document = json.loads(format_json(result, "caf\udce9").encode())
    assert (document["file"], document["duration"]) == ("caf?", 1.5)
    assert str(document["turns"][0]["start"]) == "0.0"


def broken(**changes: object) -> str:
    """The document with entries changed, or left out where the value is `...`."""
    document = json.loads(format_json(RESULT, "a")) | changes
    return json.dumps({key: value for key, value in document.items() if value is not ...})


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is not JSON"),
        ("{\n\n,", "a.json:3: is not JSON"),
        ("[" * 200_000, "is nested too deeply"),
        ("[]", "schema is None"),
        (broken(schema="diarize/2"), "schema is 'diarize/2'; allowed is 'diarize/1'"),
        (broken(turns=...), "'turns' is missing"),
        (broken(turns=[{"start": 0, "end": 1}]), "'speaker' is missing"),
        (broken(turns=[{"start": "x", "end": 1, "speaker": "A"}]), "a value is of the wrong kind"),
        (broken(turns=5), "a value is of the wrong kind"),
        (broken(timings=[1]), "a value is of the wrong kind"),
    ],
)
def test_documents_that_are_refused(text, part):
    with pytest.raises(FormatError) as caught:
        parse_json(text, "a.json")
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    for name, text in (("none.json", "No such file"), ("", "Is a directory"), ("binary.json", "not UTF-8")):
        with pytest.raises(FormatError, match=text):
            read_json(tmp_path / name)


def test_what_chose_the_kernels_is_recorded():
    recipe = KernelChoices("recipe nvidia-h200", {"resnet34.conv1": "stem", "pyannet.lstm": "1: a, 32: b"})
    text = format_json(dataclasses.replace(RESULT, recipe=recipe), "x")
    layers = '{"resnet34.conv1": "stem", "pyannet.lstm": "1: a, 32: b"}'
    assert f'  "recipe": {{"source": "recipe nvidia-h200", "layers": {layers}}},' in text.splitlines()
    assert parse_json(text).diarization.recipe == recipe


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10), st.sampled_from("ABC")), max_size=12))
def test_overlap_and_totals_against_counting(values):
    turns = [Turn(start, start + length, label) for start, length, label in values]
    active = np.zeros(50, int)
    for turn in turns:
        active[int(turn.start) : int(turn.end)] += 1
    assert overlap_seconds(turns) == np.sum(active >= 2)
    totals = speaker_totals(turns, ["A", "B", "C"])
    assert sum(total.seconds for total in totals) == active.sum()
    assert sum(total.turns for total in totals) == len(turns)
    assert [total.speaker for total in totals] == ["A", "B", "C"]
