"""lab files are read back, and are those that pyannote.core writes."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyannote.core import Annotation, Segment
from tools.turns import turns_of

from diarize.errors import FormatError
from diarize.outputs.lab import format_lab, parse_lab, read_lab
from diarize.types import Turn


def test_whole_text() -> None:
    assert format_lab([Turn(0.5, 2.0, "Ann  Lee"), Turn(1.2345, 7200, "B")]) == (
        "0.500 2.000 Ann_Lee\n1.234 7200.000 B\n"
    )
    assert format_lab([]) == ""


def test_as_pyannote_writes_it() -> None:
    turns = [Turn(0.5, 2.0, "A"), Turn(1.25, 3.5, "B"), Turn(4.0, 5.125, "A")]
    annotation = Annotation(uri="a")
    for number, turn in enumerate(turns):
        annotation[Segment(turn.start, turn.end), number] = turn.speaker
    theirs = io.StringIO()
    annotation.write_lab(theirs)
    assert format_lab(turns) == theirs.getvalue()


@settings(deadline=None, max_examples=60)
@given(turns_of(st.text(st.characters(exclude_categories=("Cs", "Z", "C")), min_size=1, max_size=8)))
def test_way_back(turns: list[Turn]) -> None:
    assert parse_lab(format_lab(turns)) == turns


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0 1", "a.lab:1: has 2 fields; a lab line has 3"),
        ("0 1 A\n\n0 x A", "a.lab:3: end is 'x'"),
        ("2 1 A", "a.lab:1: end 1 is before start 2"),
    ],
)
def test_refused(text: str, part: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_lab(text, "a.lab")
    assert part in str(caught.value)


def test_windows_line_ends(tmp_path) -> None:
    (tmp_path / "a.lab").write_bytes(b"\xef\xbb\xbf0 1.5 A\r\n")
    assert read_lab(tmp_path / "a.lab") == [Turn(0.0, 1.5, "A")]
