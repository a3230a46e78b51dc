"""SRT and WebVTT are read back, by us and by independent readers."""

from __future__ import annotations

import html

import pysubs2
import pytest
import webvtt
from hypothesis import given, settings
from tools.turns import ODD_NAMES, one_line, turns_of

from diarize.errors import FormatError
from diarize.outputs.subtitles import (
    format_srt,
    format_vtt,
    parse_srt,
    parse_vtt,
    srt_cues,
    voice_of,
    vtt_cues,
    without_voice,
)
from diarize.types import Turn

PLAIN = [
    Turn(0.5, 2.0, "Ann Lee"),
    Turn(1.25, 3.125, "日本 語"),
    Turn(59.9994, 61.0, "C"),
    Turn(3599.9996, 3600.5, "C"),
    Turn(362439.0, 362440.0, "D"),
]


def test_whole_srt() -> None:
    assert format_srt([Turn(61.5, 3725.0405, "B\nx"), Turn(0, 0.0004, "a --> b")]) == (
        "1\n00:00:00,000 --> 00:00:00,001\na -> b\n\n2\n00:01:01,500 --> 01:02:05,040\nB x\n"
    )
    assert format_srt([]) == ""


def test_whole_vtt() -> None:
    assert format_vtt([Turn(61.5, 3725.0405, "<i>B</i> & Co"), Turn(0, 1, "A")]) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n<v A>A</v>\n\n00:01:01.500 --> 01:02:05.040\n"
        "<v &lt;i&gt;B&lt;/i&gt; &amp; Co>&lt;i&gt;B&lt;/i&gt; &amp; Co</v>\n"
    )
    assert format_vtt([]) == "WEBVTT\n"


@settings(deadline=None, max_examples=60)
@given(turns_of(one_line()))
def test_way_back(turns: list[Turn]) -> None:
    assert parse_vtt(format_vtt(turns)) == turns
    arrows = [Turn(turn.start, turn.end, turn.speaker.replace("-->", "->")) for turn in turns]
    assert parse_srt(format_srt(turns)) == arrows


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names(name: str) -> None:
    line = " ".join(name.split())
    turns = [Turn(1, 2, name), Turn(1.5, 3, "B"), Turn(2.5, 4, name)]
    assert [turn.speaker for turn in parse_vtt(format_vtt(turns))] == [line, "B", line]
    assert [turn.speaker for turn in parse_srt(format_srt(turns))] == [
        line.replace("-->", "->"),
        "B",
        line.replace("-->", "->"),
    ]


def test_srt_read_by_pysubs2() -> None:
    # This reader knows no more than 99 hours.
    turns = PLAIN[:-1]
    read = pysubs2.SSAFile.from_string(format_srt(turns), format_="srt")
    assert [(event.start, event.end, event.text) for event in read] == [
        (round(turn.start * 1000), round(turn.end * 1000), turn.speaker) for turn in turns
    ]


def test_vtt_read_by_webvtt() -> None:
    turns = [*PLAIN, Turn(362441.0, 362442.0, "Bo & <Co>")]
    read = webvtt.from_string(format_vtt(turns))
    assert [(cue.start_in_seconds, html.unescape(cue.voice), html.unescape(cue.text)) for cue in read] == [
        (int(round(turn.start * 1000) / 1000), turn.speaker, turn.speaker) for turn in turns
    ]
    assert read[1].start == "00:00:01.250"
    assert read[4].end == "100:40:40.000"


def spans(cues) -> list[tuple[float, float, int, int]]:
    return [(cue.start, cue.end, cue.first, cue.last) for cue in cues]


def test_srt_of_others() -> None:
    lines = [
        "1",
        "00:00:01.5 --> 0:00:02,25  X1:40 X2:600",
        "two --> lines",
        "of text",
        "2",
        "01:02 --> 01:03",
        "no empty line before, no hours",
        "",
        "",
        "00:00:09,000 --> 00:00:09,000",
        "",
        "3",
        "00:00:10,000 --> 00:00:11,000",
        "7",
    ]
    assert spans(srt_cues(lines)) == [(1.5, 2.25, 2, 4), (62.0, 63.0, 6, 7), (9.0, 9.0, 10, 10), (10.0, 11.0, 13, 14)]


def test_vtt_of_others() -> None:
    lines = [
        "\ufeffWEBVTT - a title",
        "Kind: captions",
        "",
        "STYLE",
        "::cue { color: red }",
        "",
        "NOTE",
        "a note",
        "",
        "name of a cue",
        "00:01.000 --> 00:02.000 align:start position:10%",
        "<v.loud Ann &amp; Bo>Hello</v> there",
        "",
        "00:03.000 --> 00:04.000",
        "none",
    ]
    assert spans(vtt_cues(lines)) == [(1.0, 2.0, 11, 12), (3.0, 4.0, 14, 15)]
    assert voice_of(lines[11]) == "Ann & Bo"
    assert without_voice(lines[11]) == "Hello there"
    assert voice_of(lines[14]) is None
    assert without_voice("a <v B>b") == "a <v B>b"


@pytest.mark.parametrize(
    ("parse", "text", "part"),
    [
        (parse_srt, "1\n00:00:xx --> 00:00:02,000\nA\n", "a:2: times are '00:00:xx --> 00:00:02,000'"),
        (parse_srt, "1\n00:00:03,000 --> 00:00:02,000\nA\n", "a:2: the cue ends at 2 s, before it starts at 3 s"),
        (parse_srt, "1\n00:00:01,000 --> 00:00:02,000\n\n2\n", "a:2: the cue has no text"),
        (parse_vtt, "1\n00:00:01.000 --> 00:00:02.000\nA\n", "a:1: starts with '1'; a WebVTT file starts with WEBVTT"),
        (parse_vtt, "WEBVTTx\n", "a:1: starts with 'WEBVTTx'"),
        (parse_vtt, "", "a:1: starts with ''"),
        (parse_vtt, "WEBVTT\n\n00:01.000 --> 2\nA\n", "a:3: times are '00:01.000 --> 2'"),
        (parse_vtt, "WEBVTT\n\n00:01.000 --> 00:02.000\nA\n", "a:4: the cue has no voice"),
    ],
)
def test_refused(parse, text: str, part: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(text, "a")
    assert part in str(caught.value)
