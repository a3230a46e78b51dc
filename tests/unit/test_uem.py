"""UEM files come back with exact times."""

from __future__ import annotations

from decimal import Decimal

import pytest

from diarize.errors import FormatError
from diarize.outputs.uem import UemRegion, format_uem, parse_uem, read_uem


def test_round_trip():
    text = format_uem([(0, 30.0004), (31, Decimal("45.5"))], "my talk")
    assert text == "my_talk 1 0.000 30.000\nmy_talk 1 31.000 45.500\n"
    regions = parse_uem(text)["my_talk"]
    assert regions[1] == UemRegion("my_talk", "1", Decimal("31.000"), Decimal("45.500"))
    assert "".join(region.line + "\n" for region in regions) == text


def test_files_of_data_sets_come_back_byte_for_byte(shared):
    paths = sorted((shared / "data").rglob("*.uem"))
    assert paths
    for path in paths:
        regions = [region for regions in read_uem(path).values() for region in regions]
        expected = path.read_text().split("\n")
        assert [region.line for region in regions] == [" ".join(line.split()) for line in expected if line.strip()]


def test_comments_spaces_and_several_files():
    text = ";; scored parts\r\n\r\nb NA 0 1\r\n  a\t1  2   3 \r\nb NA 5 6\r\n"
    assert {name: len(regions) for name, regions in parse_uem(text).items()} == {"b": 2, "a": 1}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("a 1 0", "has 3 fields"),
        ("a 1 0 1 2", "has 5 fields"),
        ("a 1 x 1", "start is 'x'"),
        ("a 1 0 -1", "end is '-1'"),
        ("a 1 2 1", "end 1 is before start 2"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, text):
    path = tmp_path / "a.uem"
    path.write_text(f"a 1 0 1\n{line}\n")
    with pytest.raises(FormatError) as caught:
        read_uem(path)
    assert str(caught.value).startswith(f"{path}:2: {text}")


def test_an_empty_file_id_is_refused():
    with pytest.raises(FormatError, match="file id is ' '"):
        format_uem([(0, 1)], " ")


def test_a_missing_file(tmp_path):
    with pytest.raises(FormatError, match="No such file"):
        read_uem(tmp_path / "none.uem")
