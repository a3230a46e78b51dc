"""TextGrids tile the recording, and are read back by us and by an independent reader."""

from __future__ import annotations

import pytest
import textgrid
from hypothesis import given, settings
from tools.turns import ODD_NAMES, one_line, turns_of

from diarize.errors import FormatError
from diarize.outputs.textgrid import TextGrid, format_textgrid, parse_textgrid, read_textgrid
from diarize.types import Turn

SHORT = '''File type = "ooTextFile"
Object class = "TextGrid"

0
2.5
<exists>
2
"IntervalTier"
"Ann ""x"""
0
2.5
2
0
1.25
""
1.25
2.5
"hello ""you"" 7"
"TextTier"
"clicks"
0
2.5
1
0.5
"click"
'''


def test_whole_text() -> None:
    assert format_textgrid([Turn(0.5, 1.25, 'A "x"')], ['A "x"'], 2.0) == (
        'File type = "ooTextFile"\n'
        'Object class = "TextGrid"\n'
        "\n"
        "xmin = 0\n"
        "xmax = 2.000\n"
        "tiers? <exists>\n"
        "size = 1\n"
        "item []:\n"
        "    item [1]:\n"
        '        class = "IntervalTier"\n'
        '        name = "A ""x"""\n'
        "        xmin = 0\n"
        "        xmax = 2.000\n"
        "        intervals: size = 3\n"
        "        intervals [1]:\n"
        "            xmin = 0.000\n"
        "            xmax = 0.500\n"
        '            text = ""\n'
        "        intervals [2]:\n"
        "            xmin = 0.500\n"
        "            xmax = 1.250\n"
        '            text = "A ""x"""\n'
        "        intervals [3]:\n"
        "            xmin = 1.250\n"
        "            xmax = 2.000\n"
        '            text = ""\n'
    )


@settings(deadline=None, max_examples=60)
@given(turns_of(one_line()))
def test_way_back(turns: list[Turn]) -> None:
    names = list(dict.fromkeys(turn.speaker for turn in turns))
    end = max((turn.end for turn in turns), default=5.0)
    read = parse_textgrid(format_textgrid(turns, names, 5.0))
    assert read == TextGrid(max(end, 5.0), tuple(names) or ("speech",), tuple(turns))


def test_read_by_another(tmp_path) -> None:
    names = [" ".join(name.split()) for name in ODD_NAMES]
    turns = [Turn(n, n + 1.5, name) for n, name in enumerate(names)] + [Turn(20 + n, 21 + n, names[0]) for n in (0, 2)]
    path = tmp_path / "a.TextGrid"
    path.write_text(format_textgrid(turns, names, 30.0), encoding="utf-8")
    read = textgrid.TextGrid.fromFile(str(path))
    # This reader leaves doubled quotation marks as they are in the names of tiers, but not in labels.
    for tier in read.tiers:
        tier.name = tier.name.replace('""', '"')
    assert read.getNames() == names
    assert read.maxTime == 30.0
    for tier in read.tiers:
        assert tier.intervals[0].minTime == 0.0
        assert tier.intervals[-1].maxTime == 30.0
        assert all(a.maxTime == b.minTime for a, b in zip(tier.intervals, tier.intervals[1:], strict=False))
    spoken = [Turn(i.minTime, i.maxTime, t.name) for t in read.tiers for i in t.intervals if i.mark]
    assert sorted(spoken) == sorted(turns)
    assert all(i.mark in ("", t.name) for t in read.tiers for i in t.intervals)


def test_turns_of_a_speaker_that_touch_or_overlap_are_joined() -> None:
    turns = [Turn(0.0, 1.0, "A"), Turn(1.0, 2.0, "A"), Turn(3.0, 5.0, "A"), Turn(4.0, 4.5, "A"), Turn(4.9, 6.2, "A")]
    joined = (Turn(0.0, 2.0, "A"), Turn(3.0, 6.2, "A"))
    assert parse_textgrid(format_textgrid(turns, ["A"], 6.0)) == TextGrid(6.2, ("A",), joined)


def test_nobody_speaks() -> None:
    assert parse_textgrid(format_textgrid([], [], 2.0)) == TextGrid(2.0, ("speech",), ())
    assert parse_textgrid(format_textgrid([], [], 0.0)) == TextGrid(0.0, ("speech",), ())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_short_form_points_and_encodings(tmp_path, encoding: str) -> None:
    path = tmp_path / "a.TextGrid"
    path.write_text(SHORT, encoding=encoding)
    assert read_textgrid(path) == TextGrid(2.5, ('Ann "x"',), (Turn(1.25, 2.5, 'Ann "x"'),))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "a:1: ends before the file type"),
        ("7 8", "a:1: file type is '7'; it must be a text"),
        ('"ooTextFile" "PitchTier"', "a:1: is 'ooTextFile' 'PitchTier'; give a TextGrid in text form"),
        (SHORT[:120], "ends before the"),
        (SHORT.replace("IntervalTier", "Other"), "a:8: class of a tier is 'Other'"),
        (SHORT.replace("\n1.25\n2.5", "\n3\n2.5"), "a:17: xmax 2.5 is before xmin 3"),
        (SHORT.replace("\n2.5\n2\n", "\n2.5\n1.5\n"), "a:12: number of intervals is '1.5'; it must be a whole number"),
        (SHORT.replace("\n1.25\n", "\n-1\n", 1), "a:14: xmax of an interval is '-1'"),
    ],
)
def test_refused(text: str, part: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_textgrid(text, "a")
    assert part in str(caught.value)


def test_files_that_cannot_be_read(tmp_path) -> None:
    (tmp_path / "b").write_bytes(b"\xff\xff\xff")
    for name, text in (("none", "No such file"), ("", "Is a directory"), ("b", "not UTF-8")):
        with pytest.raises(FormatError, match=text):
            read_textgrid(tmp_path / name)
