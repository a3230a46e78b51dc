"""`diarize assign` as a user calls it: from an RTTM file, from the recording, through pipes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Finished, command

RTTM = "SPEAKER cut 1 0.4 6.3 <NA> <NA> SPEAKER_00 <NA> <NA>\nSPEAKER cut 1 7.2 4.8 <NA> <NA> SPEAKER_01 <NA> <NA>\n"
WORDS = {"segments": [{"start": 1.0, "end": 6.0, "text": "one"}, {"start": 8.0, "end": 11.0, "text": "two"}]}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """An RTTM file and a transcript of the first 12 s of the dialogue."""
    rttm, transcript = tmp_path / "cut.rttm", tmp_path / "cut.json"
    rttm.write_text(RTTM)
    transcript.write_text(json.dumps(WORDS))
    return rttm, transcript


def speakers(text: str) -> list[str]:
    """Speakers of the segments."""
    return [segment["speaker"] for segment in json.loads(text)["segments"]]


def test_from_an_rttm_file(cli: Callable[..., Finished], files: tuple[Path, Path]) -> None:
    rttm, transcript = files
    done = cli("assign", transcript, "--rttm", rttm)
    assert done.code == 0
    assert speakers(done.out) == ["SPEAKER_00", "SPEAKER_01"]
    assert done.err == [f"diarize: {transcript}: 2 segments, 0 without speaker"]
    assert cli("assign", transcript, "--rttm", rttm, "-q").err == []


def test_from_the_recording(cli: Callable[..., Finished], files: tuple[Path, Path], cut: Path) -> None:
    done = cli("assign", files[1], "--audio", cut, "--model", "campplus", "--device", "cpu")
    assert done.code == 0
    assert speakers(done.out) == ["SPEAKER_00", "SPEAKER_01"]
    one = cli("assign", files[1], "--audio", cut, "--num-speakers", 1, "--exclusive")
    assert speakers(one.out) == ["SPEAKER_00", "SPEAKER_00"]


def test_to_a_file_which_is_not_replaced(
    cli: Callable[..., Finished], files: tuple[Path, Path], tmp_path: Path
) -> None:
    rttm, transcript = files
    target = tmp_path / "out.json"
    assert cli("assign", transcript, "--rttm", rttm, "-o", target).out == ""
    assert speakers(target.read_text()) == ["SPEAKER_00", "SPEAKER_01"]
    again = cli("assign", transcript, "--rttm", rttm, "-o", target)
    assert (again.code, again.err) == (1, [f"diarize: error: {target} exists already; --force replaces it"])
    assert cli("assign", transcript, "--rttm", rttm, "-o", transcript, "--force").code == 0
    assert speakers(transcript.read_text()) == ["SPEAKER_00", "SPEAKER_01"]


def test_through_pipes(files: tuple[Path, Path]) -> None:
    srt = "\ufeff1\r\n00:00:08,000 --> 00:00:09,000\r\nZwölf\r\n"
    done = subprocess.run(
        command("assign", "-", "--rttm", files[0]), input=srt.encode(), capture_output=True, check=True, timeout=60
    )
    assert done.stdout.decode() == srt.replace("Zwölf", "[SPEAKER_01]: Zwölf")
    assert done.stderr.decode() == "diarize: standard input: 1 cue, 0 without speaker\n"


def test_several_recordings_in_one_file(cli: Callable[..., Finished], files: tuple[Path, Path]) -> None:
    rttm, transcript = files
    rttm.write_text(RTTM + "SPEAKER my_talk 1 0 20 <NA> <NA> Ann <NA> <NA>\n")
    refused = cli("assign", transcript, "--rttm", rttm)
    assert refused.code == 2
    assert "turns of 2 recordings (cut, my_talk); choose one with --file-id" in refused.errors()[0]
    assert speakers(cli("assign", transcript, "--rttm", rttm, "--file-id", "my talk").out) == ["Ann", "Ann"]
    unknown = cli("assign", transcript, "--rttm", rttm, "--file-id", "x")
    assert unknown.errors() == [f"diarize: error: {rttm}: holds no turns of 'x', but of cut, my_talk"]


def test_the_gap(cli: Callable[..., Finished], files: tuple[Path, Path]) -> None:
    rttm, transcript = files
    transcript.write_text("cut 1 13.5 0.2 late\n")
    assert cli("assign", transcript, "--rttm", rttm).out == "cut 1 13.5 0.2 late NA lex unknown\n"
    assert cli("assign", transcript, "--rttm", rttm, "--max-gap", 2).out == "cut 1 13.5 0.2 late NA lex SPEAKER_01\n"


def test_nobody_speaks(cli: Callable[..., Finished], files: tuple[Path, Path]) -> None:
    files[0].write_text("")
    done = cli("assign", files[1], "--rttm", files[0])
    assert (done.code, json.loads(done.out)) == (0, WORDS)
    assert "2 without speaker" in done.err[0]


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["t.json"], 2, "give either --rttm FILE or --audio FILE"),
        (["t.json", "--rttm", "a", "--audio", "b"], 2, "give either --rttm FILE or --audio FILE"),
        (["none.json", "--rttm", "a.rttm"], 1, "none.json: cannot be read (No such file or directory)"),
        (["t.json", "--rttm", "none.rttm"], 1, "none.rttm: cannot be read (No such file or directory)"),
        (["t.json", "--rttm", "a.rttm", "--format", "vtt"], 1, "t.json:1: starts with '{"),
        (["latin.srt", "--rttm", "a.rttm"], 1, "latin.srt:2: is not UTF-8 text; convert it"),
        (
            ["wide.srt", "--rttm", "a.rttm"],
            1,
            "wide.srt: is UTF-16 text, as some editors of Windows save it; save it as",
        ),
        (["t.json", "--rttm", "a.rttm", "-o", "none/x.json"], 1, "none/x.json: cannot be written"),
        (["t.json", "--rttm", "a.rttm", "--format", "srt"], 1, "t.json: holds no cue of SRT; name its true format"),
        (["t.json", "--audio", "none.wav"], 1, "none.wav: no such file"),
        (["t.json", "--rttm", "a.rttm", "--num-speakers", "2"], 2, "--num-speakers is for --audio; with --rttm the"),
        (["t.json", "--rttm", "a.rttm", "--max-speakers", "2"], 2, "--max-speakers is for --audio"),
        (["t.json", "--rttm", "a.rttm", "--exclusive"], 2, "--exclusive is for --audio"),
        (["t.json", "--rttm", "a.rttm", "--model", "campplus"], 2, "--model is for --audio"),
        (["t.json", "--rttm", "a.rttm", "--device", "cpu"], 2, "--device is for --audio"),
        (["t.json", "--rttm", "a.rttm", "--threads", "2"], 2, "--threads is for --audio"),
        (["t.json", "--audio", "none.wav", "--file-id", "x"], 2, "--file-id chooses a recording of an RTTM file"),
    ],
)
def test_one_line_for_each_mistake(
    cli: Callable[..., Finished],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.json").write_text(json.dumps(WORDS))
    Path("a.rttm").write_text(RTTM)
    Path("latin.srt").write_bytes(b"1\n\xe9\n")
    Path("wide.srt").write_text("1\n", "utf-16")
    done = cli("assign", *arguments)
    assert done.code == code
    assert len(done.errors()) == 1
    assert part in done.errors()[0]
    assert done.out == ""


def test_words_and_segments_without_words_are_counted_apart(
    cli: Callable[..., Finished], files: tuple[Path, Path]
) -> None:
    rttm, transcript = files
    words = [{"start": 1.0, "end": 1.5, "word": "a"}, {"start": 2.0, "end": 2.5, "word": "b"}]
    spoken = {"start": 1.0, "end": 2.5, "text": "a b", "words": words}
    transcript.write_text(json.dumps({"segments": [spoken, WORDS["segments"][1]]}))
    assert cli("assign", transcript, "--rttm", rttm).err == [
        f"diarize: {transcript}: 2 words and 1 segment, 0 without speaker"
    ]
    transcript.write_text(json.dumps({"segments": [spoken]}))
    assert cli("assign", transcript, "--rttm", rttm).err == [f"diarize: {transcript}: 2 words, 0 without speaker"]


def test_help_states_the_rule(cli: Callable[..., Finished]) -> None:
    text = " ".join(cli("assign", "--help").out.split())
    for words in ("who talks longest while it lasts", "whose turn starts earliest, then the first by name", "SECONDS"):
        assert words in text
