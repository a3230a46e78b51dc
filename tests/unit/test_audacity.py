"""Audacity labels are read back exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tools.turns import one_line, turns_of

from diarize.errors import FormatError
from diarize.outputs.audacity import format_audacity, parse_audacity, read_audacity
from diarize.types import Turn


def test_whole_text() -> None:
    assert format_audacity([Turn(0.5, 2.0, "Ann\tLee"), Turn(1 / 3, 7200, "B")]) == (
        "0.500000\t2.000000\tAnn Lee\n0.333333\t7200.000000\tB\n"
    )
    assert format_audacity([]) == ""


@settings(deadline=None, max_examples=60)
@given(turns_of(one_line()))
def test_way_back(turns: list[Turn]) -> None:
    assert parse_audacity(format_audacity(turns)) == turns


def test_what_audacity_writes(tmp_path) -> None:
    # With the frequencies of a spectral selection, a point, and a label without text.
    path = tmp_path / "labels.txt"
    path.write_bytes(b"0.5\t2.0\tAnn Lee\r\n\\\t120.0\t4000.0\r\n3.0\t3.0\tpoint\r\n4.0\t5.0\t\r\n")
    assert read_audacity(path) == [Turn(0.5, 2.0, "Ann Lee"), Turn(3.0, 3.0, "point"), Turn(4.0, 5.0, "")]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0.5 2.0 Ann", "a.txt:1: has 1 fields; a label has 3, separated by tabs"),
        ("0\t1\tA\n0\tx\tA", "a.txt:2: end is 'x'"),
        ("2\t1\tA", "a.txt:1: end 1 is before start 2"),
    ],
)
def test_refused(text: str, part: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_audacity(text, "a.txt")
    assert part in str(caught.value)
