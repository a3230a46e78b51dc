"""Words of transcripts get the speaker who talks longest meanwhile, in every format, and nothing else changes."""

from __future__ import annotations

import json
import math
from typing import Any

import pysubs2
import pytest
import webvtt
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diarize.errors import FormatError, OptionError
from diarize.transcript import TranscriptFormat, assign_speakers, detect
from diarize.transcript.finder import SpeakerFinder
from diarize.transcript.positions import line_of
from diarize.types import Turn

TURNS = [Turn(0.0, 2.0, "Ann"), Turn(1.5, 4.0, "Bo Lee"), Turn(10.0, 12.0, "Ann")]


def slow_find(turns: list[Turn], start: float, end: float, max_gap: float) -> str | None:
    """The rule in its plainest form."""
    seconds: dict[str, float] = {}
    begins: dict[str, float] = {}
    for turn in turns:
        overlap = min(turn.end, end) - max(turn.start, start)
        if overlap > 0:
            seconds[turn.speaker] = seconds.get(turn.speaker, 0) + overlap
            begins[turn.speaker] = min(begins.get(turn.speaker, math.inf), turn.start)
    if seconds:
        return min(seconds, key=lambda name: (-seconds[name], begins[name], name))
    away = [(max(turn.start - end, start - turn.end, 0), turn.start, turn.speaker) for turn in turns]
    away = [item for item in away if item[0] <= max_gap]
    return min(away)[2] if away else None


@settings(deadline=None, max_examples=400)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.sampled_from("ABC")), max_size=8),
    st.integers(0, 40),
    st.integers(0, 6),
    st.integers(0, 5),
)
@example([(0, 5, "B"), (0, 5, "A")], 1, 2, 0)
@example([(3, 5, "A"), (0, 8, "B")], 4, 2, 0)
@example([(0, 1, "B"), (3, 1, "A")], 2, 0, 1)
def test_the_rule(spans: list[tuple[int, int, str]], start: int, length: int, max_gap: int) -> None:
    turns = [Turn(first, first + size, name) for first, size, name in spans]
    finder = SpeakerFinder(turns, max_gap)
    assert finder.find(start, start + length) == slow_find(turns, start, start + length, max_gap)


def test_overlaps_add_up_and_ties_are_decided() -> None:
    parts = SpeakerFinder([Turn(0, 1, "A"), Turn(1, 2.5, "B"), Turn(2.5, 3.2, "A")], 0)
    assert parts.find(0, 3.2) == "A"
    # Sums that differ in the last digit only are a tie.
    assert SpeakerFinder([Turn(0.1, 0.4, "B"), Turn(0.4, 0.7, "A")], 0).find(0.1, 0.7) == "B"
    assert SpeakerFinder([Turn(0, 1, "B"), Turn(0, 1, "A")], 0).find(0, 1) == "A"


def test_the_gap_is_a_limit() -> None:
    finder = SpeakerFinder(TURNS, 0.3)
    assert finder.find(4.3, 4.5) == "Bo Lee"
    assert finder.find(4.31, 4.5) is None
    assert finder.find(9.0, 9.7) == "Ann"
    assert SpeakerFinder([], 5).find(0, 1) is None


WHISPERX: dict[str, Any] = {
    "segments": [
        {
            "start": 0.031,
            "end": 3.5,
            "text": " Hello ünd 42 x",
            "words": [
                {"word": "42"},
                {"word": "Hello", "start": 0.0, "end": 0.5, "score": 0.9},
                {"word": "ünd", "start": 1.9, "end": 2.4, "speaker": "old"},
                {"word": "42"},
            ],
        },
        {"start": 6.0, "end": 6.5, "text": "nobody", "speaker": "old", "avg_logprob": math.nan},
        {"start": 11.0, "end": 11.5, "text": "no times", "words": [{"word": "x"}, {"word": "y", "start": None}]},
    ],
    "word_segments": [{"word": "Hello", "start": 0.0, "end": 0.5}, {"word": "42"}],
    "language": "de",
}


def test_whisperx() -> None:
    done = assign_speakers(json.dumps(WHISPERX), TURNS)
    assert (done.form, done.units, done.missing) == (TranscriptFormat.JSON, 3, 1)
    document = json.loads(done.text)
    first, second, third = document["segments"]
    assert first["speaker"] == "Bo Lee"
    assert [word.get("speaker") for word in first["words"]] == ["Ann", "Ann", "Bo Lee", "Bo Lee"]
    assert "speaker" not in second
    assert [third["speaker"], *(word["speaker"] for word in third["words"])] == ["Ann"] * 3
    assert [word["speaker"] for word in document["word_segments"]] == ["Ann", "Ann"]
    assert '"text": " Hello ünd 42 x"' in done.text
    # Nothing but speakers has changed, and a second run changes nothing.
    assert assign_speakers(done.text, TURNS).text == done.text
    assert assign_speakers(done.text, []).text == assign_speakers(json.dumps(WHISPERX), []).text
    assert '"speaker"' not in assign_speakers(done.text, []).text


def test_other_forms_of_json() -> None:
    cpp = {
        "result": {"language": "en"},
        "transcription": [
            {
                "timestamps": {"from": "00:00:02,500", "to": "00:00:03,000"},
                "offsets": {"from": 2500, "to": 3000},
                "text": "a",
            }
        ],
    }
    assert json.loads(assign_speakers(json.dumps(cpp), TURNS).text)["transcription"][0]["speaker"] == "Bo Lee"
    chunks = {"text": "a b", "chunks": [{"timestamp": [0, 1], "text": "a"}, {"timestamp": [11.0, None], "text": "b"}]}
    found = json.loads(assign_speakers(json.dumps(chunks), TURNS).text)["chunks"]
    assert [chunk["speaker"] for chunk in found] == ["Ann", "Ann"]
    interface = {"words": [{"word": "a", "start": 2.5, "end": 3}]}
    assert json.loads(assign_speakers(json.dumps(interface), TURNS).text)["words"][0]["speaker"] == "Bo Lee"
    alone = [{"start": "2.5", "end": "3", "text": "a"}]
    assert json.loads(assign_speakers(json.dumps(alone), TURNS).text)[0]["speaker"] == "Bo Lee"


SRT = (
    "\ufeff1\r\n00:00:00,100 --> 00:00:01,000\r\nHello -> you\r\nagain\r\n\r\n"
    "2\r\n00:00:02.5 --> 00:00:03.5\r\nB\r\n\r\n"
    "3\r\n00:01:00,000 --> 00:01:01,000\r\nnobody\r\n"
)


def test_srt_keeps_everything_else() -> None:
    done = assign_speakers(SRT, TURNS)
    assert (done.form, done.units, done.missing) == (TranscriptFormat.SRT, 3, 1)
    assert done.text == SRT.replace("Hello", "[Ann]: Hello").replace("\nB\r", "\n[Bo Lee]: B\r")
    assert assign_speakers(done.text, TURNS).text == done.text
    assert assign_speakers(done.text, []).text == SRT
    read = pysubs2.SSAFile.from_string(done.text.removeprefix("\ufeff").replace("\r", ""), format_="srt")
    assert [event.plaintext for event in read] == ["[Ann]: Hello -> you\nagain", "[Bo Lee]: B", "nobody"]


VTT = """WEBVTT

NOTE a note

STYLE
::cue(v) { color: red }

first
00:00.100 --> 00:01.000 align:start
<v old>Hello</v>

00:02.500 --> 00:03.500
<i>B</i> &amp; C

00:05.000 --> 00:05.500
"""


def test_vtt_keeps_everything_else() -> None:
    done = assign_speakers(VTT, [*TURNS[:1], Turn(1.5, 4.0, "Bo & <Co>")])
    assert (done.form, done.units, done.missing) == (TranscriptFormat.VTT, 2, 0)
    assert done.text == VTT.replace("<v old>Hello</v>", "<v Ann>Hello").replace("<i>B", "<v Bo &amp; &lt;Co&gt;><i>B")
    assert [(cue.voice, cue.text) for cue in webvtt.from_string(done.text)][:1] == [("Ann", "Hello")]


def test_ctm() -> None:
    ctm = (
        ";; notes\ntalk 1 0.10 0.40 hello\r\ntalk 1 2.5 0.4 you 0.93\n"
        "talk 1 * * <ALT_BEGIN>\ntalk\t1 60 1 far 0.5 fp old\n"
    )
    done = assign_speakers(ctm, TURNS)
    assert (done.form, done.units, done.missing) == (TranscriptFormat.CTM, 3, 1)
    assert done.text == (
        ";; notes\ntalk 1 0.10 0.40 hello NA lex Ann\r\ntalk 1 2.5 0.4 you 0.93 lex Bo_Lee\n"
        "talk 1 * * <ALT_BEGIN>\ntalk 1 60 1 far 0.5 fp unknown\n"
    )
    assert assign_speakers(done.text, TURNS).text == done.text


def test_recordings_are_told_apart_in_ctm_only() -> None:
    turns = {"a": [Turn(0, 1, "A")], "b": [Turn(0, 1, "B")]}
    text = "a 1 0 1 x\nb 1 0 1 y"
    assert assign_speakers(text, turns).text == "a 1 0 1 x NA lex A\nb 1 0 1 y NA lex B"
    assert assign_speakers("z 1 0 1 x", {"a": turns["a"]}).text == "z 1 0 1 x NA lex A"
    with pytest.raises(FormatError, match=r"t:2: file id is 'b'; there are turns of a; rename one"):
        assign_speakers(text, {"a": turns["a"]}, path="t")
    with pytest.raises(OptionError, match=r"turns of 2 recordings \(a, b\); choose one with --file-id"):
        assign_speakers(SRT, turns)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("\ufeff\n {", TranscriptFormat.JSON),
        ("[]", TranscriptFormat.JSON),
        ("WEBVTT", TranscriptFormat.VTT),
        ("1\n00:00:00,000 --> 00:00:01,000\n", TranscriptFormat.SRT),
        (";; a\n\na 1 0.1 .5 word 1.0\n", TranscriptFormat.CTM),
        ("a A * * <ALT_BEGIN>", TranscriptFormat.CTM),
    ],
)
def test_formats_are_told_by_their_first_lines(text: str, form: TranscriptFormat) -> None:
    assert detect(text) is form


@pytest.mark.parametrize(
    ("text", "form", "part"),
    [
        ("", None, "t:1: is no transcript in a known format"),
        ("Just some words, five at least.", None, "t:1: is no transcript in a known format"),
        ('{"segments": [\n{"start": 0,\n]}', None, "t:3: is not JSON"),
        ("[" * 200_000, None, "is nested too deeply"),
        ('{"text": ""}', None, "t:1: its keys are 'text'; a transcript has segments"),
        ("3", TranscriptFormat.JSON, "t:1: is JSON, but no object or list"),
        ('{"segments": {}}', None, "t:1: segments is dict; it must be a list"),
        ('{"segments": [{"start": 0, "end": 1},\n\n 5]}', None, "t:3: segments[1] is int; it must be an object"),
        ('{"segments": [\n {"start": "x", "end": 1}]}', None, "t:2: segments[0] has no valid times"),
        ('{"segments": [\n {"start": 2, "end": 1}]}', None, "t:2: segments[0] ends at 1 s, before it starts at 2 s"),
        ('{"segments": [\n {"start": -2, "end": 1}]}', None, "t:2: segments[0] goes from -2.0 to 1.0"),
        ('{"segments": [\n {"start": NaN, "end": 1}]}', None, "t:2: segments[0] goes from nan to 1.0"),
        ('{"segments": [\n {"start": true, "end": 1}]}', None, "t:2: segments[0] has no valid times (True is not"),
        (
            '{"x": "]}", "segments": [{"start": 0, "end": 1, "words": [\n{},\n{"start": 1, "end": []}]}]}',
            None,
            "t:3: segments[0].words[1] has no valid times",
        ),
        ('{"transcription": [\n{"text": ""}]}', None, "t:2: transcription[0] has no valid times ('offsets')"),
        ('{"chunks": [\n{"timestamp": [1]}]}', None, "t:2: chunks[0] has no valid times"),
        ("1\n00:00:xx --> 00:00:01,000\n", None, "t:2: times are '00:00:xx"),
        ("WEBVTT\n\n00:00:02.000 --> 00:00:01.000\na", None, "t:3: the cue ends at 1 s"),
        ("1\n", TranscriptFormat.VTT, "t:1: starts with '1'"),
        ("a 1 0.1 0.5 word\na 1 x 0.5 word", None, "t:2: start is 'x'"),
        ("a 1 0.1 0.5 word\na 1 0.5 word", None, "t:2: has 4 fields; a CTM line has 5 to 8"),
    ],
)
def test_damaged_transcripts_are_refused_with_their_line(text: str, form: TranscriptFormat | None, part: str) -> None:
    with pytest.raises(FormatError) as caught:
        assign_speakers(text, TURNS, form, path="t")
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_are_checked() -> None:
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(OptionError, match="max-gap is"):
            assign_speakers(SRT, TURNS, max_gap=value)


def test_lines_of_values() -> None:
    text = '\n{"a":\n1, "b" : [ {"c":\n[]} ,\n2, "]"],\n"a": 3}'
    assert line_of(text, []) == 2
    assert line_of(text, ["a"]) == 6
    assert line_of(text, ["b", 0, "c"]) == 4
    assert line_of(text, ["b", 2]) == 5
    assert line_of(text, ["b", 3]) is None
    assert line_of(text, ["b", "c"]) is None
    assert line_of(text, ["z"]) is None
