"""CSV is read back exactly, by us and by the standard library."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from tools.turns import ODD_NAMES, one_line, turns_of

from diarize.errors import FormatError
from diarize.outputs.csv import HEADER, format_csv, parse_csv, read_csv
from diarize.types import Turn


def test_whole_text() -> None:
    turns = [Turn(0.5, 2.0, "Ann, chair", 0.9371), Turn(1.23449, 7200, 'the "other"\none')]
    assert format_csv(turns, "my  talk") == (
        "file,start,end,duration,speaker,confidence\n"
        'my talk,0.500,2.000,1.500,"Ann, chair",0.937\n'
        'my talk,1.234,7200.000,7198.766,"the ""other"" one",\n'
    )
    assert format_csv([], "my talk") == HEADER
    assert [turn.confidence for turn in parse_csv(format_csv(turns, "a"))["a"]] == [0.937, None]


@settings(deadline=None, max_examples=60)
@given(turns_of(one_line()))
def test_way_back(turns: list[Turn]) -> None:
    text = format_csv(turns, "my talk")
    assert parse_csv(text) == ({"my talk": turns} if turns else {})
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["speaker"] for row in rows] == [turn.speaker for turn in turns]


def test_files_of_others(tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfspeaker,note,end,start,file\r\n"A ""x""",,2.5,1,b\r\n\r\nB,n,3,.5,a\r\nA,,9,8,b\r\n')
    assert read_csv(path) == {"b": [Turn(1.0, 2.5, 'A "x"'), Turn(8.0, 9.0, "A")], "a": [Turn(0.5, 3.0, "B")]}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "a.csv:1: the header lacks file, start, end, speaker"),
        ("file,start,end\n", "a.csv:1: the header lacks speaker"),
        (HEADER + "a,0,1,1\n", "a.csv:2: has 4 fields; the header has 6"),
        (HEADER + "a,0,1,1,A,\na,x,1,1,A,\n", "a.csv:3: start is 'x'"),
        (HEADER + "a,2,1,1,A,\n", "a.csv:2: end 1 is before start 2"),
        (HEADER + 'a,2,1,1,"A\n', "a.csv:2: is not CSV"),
    ],
)
def test_refused(text: str, part: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_csv(text, "a.csv")
    assert part in str(caught.value)


def test_names_of_nothing_are_refused() -> None:
    with pytest.raises(FormatError, match="label is ' '"):
        format_csv([Turn(0, 1, " ")], "a")
    with pytest.raises(FormatError, match="file id is ''"):
        format_csv([Turn(0, 1, "A")], "")


def test_odd_names() -> None:
    turns = [Turn(n, n + 1, " ".join(name.split())) for n, name in enumerate(ODD_NAMES)]
    assert parse_csv(format_csv(turns, "a"))["a"] == turns
