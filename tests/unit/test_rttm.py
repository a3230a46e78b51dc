"""RTTM is written as pyannote writes it and comes back with exact times."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarize.errors import FormatError
from diarize.outputs.rttm import RttmTurn, format_rttm, parse_rttm, read_rttm
from diarize.types import Turn

LINE = "SPEAKER talk 1 0.824 3.409 <NA> <NA> SPEAKER_00 <NA> <NA>"


def test_written_lines():
    turns = [Turn(0.824, 4.233, "SPEAKER_00"), Turn(4.4351, 4.78949, "SPEAKER_01"), Turn(7200, 7200.0004, "B")]
    assert format_rttm(turns, "clip_16k") == (
        "SPEAKER clip_16k 1 0.824 3.409 <NA> <NA> SPEAKER_00 <NA> <NA>\n"
        "SPEAKER clip_16k 1 4.435 0.354 <NA> <NA> SPEAKER_01 <NA> <NA>\n"
        "SPEAKER clip_16k 1 7200.000 0.000 <NA> <NA> B <NA> <NA>\n"
    )
    assert format_rttm([], "clip_16k") == ""


def test_captured_files_of_pyannote_come_back_byte_for_byte(shared):
    paths = sorted((shared / "fixtures").glob("*/reference.rttm"))
    assert paths
    for path in paths:
        ((file_id, turns),) = read_rttm(path).items()
        assert "".join(turn.line + "\n" for turn in turns) == path.read_text()
        floats = [Turn(float(turn.start), float(turn.end), turn.speaker) for turn in turns]
        assert format_rttm(floats, file_id) == path.read_text()


def test_parsed_values():
    ((file_id, (turn,)),) = parse_rttm(LINE).items()
    assert (file_id, turn) == ("talk", RttmTurn("talk", "1", Decimal("0.824"), Decimal("3.409"), "SPEAKER_00"))
    assert turn.end == Decimal("4.233")
    assert turn.line == LINE


def test_files_are_kept_apart_in_order():
    text = "\n".join(f"SPEAKER {name} 1 {start} 1 <NA> <NA> {name}s <NA> <NA>" for start, name in enumerate("bab"))
    assert {name: [int(turn.start) for turn in turns] for name, turns in parse_rttm(text).items()} == {
        "b": [0, 2],
        "a": [1],
    }


@pytest.mark.parametrize(
    "text",
    [
        LINE + "\r\n",
        "\ufeff".encode().decode("utf-8-sig") + LINE,
        ";; comment\n\n" + LINE + "\n\n",
        LINE.replace(" ", "\t"),
        "  " + LINE.replace(" ", "   ") + "  ",
        LINE.removesuffix(" <NA>"),
        LINE.removesuffix(" <NA> <NA>"),
        "SPKR-INFO talk 1 <NA> <NA> <NA> unknown SPEAKER_00 <NA> <NA>\nLEXEME talk 1 0 1 hi lex A 1\n" + LINE,
    ],
)
def test_what_readers_must_bear(text):
    assert parse_rttm(text)["talk"][0].line == LINE


def test_a_byte_order_mark_is_left_out(tmp_path):
    (tmp_path / "a.rttm").write_text(LINE, encoding="utf-8-sig")
    assert read_rttm(tmp_path / "a.rttm")["talk"][0].line == LINE


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("SPEAKER talk 1 0.8 3.4 <NA> <NA>", "has 7 fields"),
        ("SPEAKER talk 1 0.8 3.4 <NA> <NA> A <NA> <NA> <NA>", "has 11 fields"),
        ("SPEAKER talk 1 abc 3.4 <NA> <NA> A <NA> <NA>", "start is 'abc'"),
        ("SPEAKER talk 1 -1 3.4 <NA> <NA> A <NA> <NA>", "start is '-1'"),
        ("SPEAKER talk 1 0 -3.4 <NA> <NA> A <NA> <NA>", "duration is '-3.4'"),
        ("SPEAKER talk 1 0 nan <NA> <NA> A <NA> <NA>", "duration is 'nan'"),
        ("SPEAKER talk 1 0 Infinity <NA> <NA> A <NA> <NA>", "duration is 'Infinity'"),
        ("SPEAKER talk 1 0 1_0 <NA> <NA> A <NA> <NA>", "duration is '1_0'"),
        ("SPEAKER talk 1 ٣ 1 <NA> <NA> A <NA> <NA>", "start is '٣'"),
        ("hello world", "line type is 'hello'"),
        ("speaker talk 1 0 1 <NA> <NA> A <NA> <NA>", "line type is 'speaker'"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, text):
    path = tmp_path / "a.rttm"
    path.write_text(f"{LINE}\n;; note\n{line}\n", encoding="utf-8")
    with pytest.raises(FormatError) as caught:
        read_rttm(path)
    assert str(caught.value).startswith(f"{path}:3: {text}")
    assert "\n" not in str(caught.value)
    assert (caught.value.path, caught.value.line) == (str(path), 3)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.rttm").write_bytes(b"SPEAKER caf\xe9 1 0 1 <NA> <NA> A <NA> <NA>\n")
    for name, text in (("none.rttm", "No such file"), ("", "Is a directory"), ("latin.rttm", "not UTF-8")):
        with pytest.raises(FormatError, match=text):
            read_rttm(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("my  long\ttalk", "my_long_talk"),
        (" a ", "a"),
        ("Ünïcödé", "Ünïcödé"),
        ("会议 一", "会议_一"),
        ("a\u00a0b\u2028c\nd", "a_b_c_d"),
        ("caf\udce9", "caf?"),
    ],
)
def test_names_become_one_field(name, field):
    text = format_rttm([Turn(0, 1, name)], name)
    assert text == f"SPEAKER {field} 1 0.000 1.000 <NA> <NA> {field} <NA> <NA>\n"
    ((file_id, (turn,)),) = parse_rttm(text).items()
    assert (file_id, turn.speaker) == (field, field)


@pytest.mark.parametrize("name", ["", " ", "\n\t"])
def test_empty_names_are_refused(name):
    with pytest.raises(FormatError, match="file id is"):
        format_rttm([], name)
    with pytest.raises(FormatError, match="label is"):
        format_rttm([Turn(0, 1, name)], "a")


NAMES = st.text(min_size=1, max_size=8).filter(lambda text: text.strip())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**6), NAMES), max_size=5), NAMES)
def test_what_is_written_comes_back(values, file_id):
    turns = [Turn(start / 1000, (start + length) / 1000, label) for start, length, label in values]
    text = format_rttm(turns, file_id)
    read = [turn for turns in parse_rttm(text).values() for turn in turns]
    assert "".join(turn.line + "\n" for turn in read) == text
    assert [turn.start for turn in read] == [Decimal(start).scaleb(-3) for start, _, _ in values]
    assert len({turn.file_id for turn in read}) <= 1
