"""Where recordings come from: pipes, folders, patterns, lists; parts and channels of them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from diarize.cli._inputs import Inputs, expand

from .conftest import RATE, Finished, command


def starts(rttm: str) -> list[tuple[float, str]]:
    """Start and speaker of each line."""
    return [(float(line.split()[3]), line.split()[7]) for line in rttm.splitlines()]


def test_standard_input(cut: Path) -> None:
    cat = subprocess.Popen(["cat", cut], stdout=subprocess.PIPE)
    done = subprocess.run(command("run", "-", "-q"), stdin=cat.stdout, capture_output=True, text=True)
    assert cat.stdout is not None
    cat.stdout.close()
    cat.wait()
    assert (done.returncode, done.stderr) == (0, "")
    found = starts(done.stdout)
    assert [speaker for _, speaker in found] == ["SPEAKER_00", "SPEAKER_01"]
    assert done.stdout.startswith("SPEAKER stdin 1 ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty (0 bytes)"),
        (b"hello\n", "is a text file"),
        (b"RIFF", "the file ends within its header"),
    ],
)
def test_bad_standard_input_is_one_line(content: bytes, reason: str) -> None:
    done = subprocess.run(command("run", "-", "-q"), input=content, capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"diarize: error: standard input: {reason}")


def test_a_pipe_that_the_shell_makes(cut: Path) -> None:
    script = 'exec "$0" "$@" <(cat "$CUT")'
    done = subprocess.run(
        ["bash", "-c", script, *command("run", "-q")],
        capture_output=True,
        text=True,
        env={**os.environ, "CUT": str(cut)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(starts(done.stdout)) == 2


def test_only_a_part_is_diarized_and_times_stay_those_of_the_recording(cli: Callable[..., Finished], cut: Path) -> None:
    whole = starts(cli("run", cut, "-q").out)
    done = cli("run", cut, "--start", "6.9", "--end", "11.5", "--format", "json")
    result = json.loads(done.out)
    assert (result["offset"], result["duration"]) == (6.9, 4.6)
    (turn,) = result["turns"]
    assert turn["start"] == pytest.approx(whole[1][0], abs=0.1)
    assert 11.3 < turn["end"] <= 11.6
    late = cli("run", cut, "--start", "60")
    assert late.code == 1
    assert late.errors() == [
        f"diarize: error: {cut}: start is 60 s; the recording ends before, choose an earlier start"
    ]
    assert cli("run", cut, "--start", "5", "--end", "5").code == 2
    assert cli("run", cut, "--start", "-1").code == 2


def test_channels_of_a_call_are_diarized_apart(
    cli: Callable[..., Finished], speech: np.ndarray, tmp_path: Path
) -> None:
    right = speech[round(7.1 * RATE) :]
    path = tmp_path / "call.wav"
    soundfile.write(path, np.stack([speech[: len(right)], right], axis=1), RATE, "PCM_16")
    done = cli("run", path, "--channel", "split")
    assert done.code == 0
    assert {speaker for _, speaker in starts(done.out)} == {"CH1_SPEAKER_00", "CH2_SPEAKER_00"}
    each = {channel: starts(cli("run", path, "--channel", channel, "-q").out) for channel in ("1", "2")}
    merged = sorted((start, f"CH{channel}_{speaker}") for channel, found in each.items() for start, speaker in found)
    assert sorted(starts(done.out)) == merged
    assert cli("run", path, "--channel", "mix", "-q").out == cli("run", path, "-q").out
    for wrong in ("0", "left", "1.5"):
        refused = cli("run", path, "--channel", wrong)
        assert refused.code == 2
        assert "allowed are a number from 1, mix and split" in refused.err[-1]


def test_arguments_mean_files_folders_patterns_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.wav", "a.FLAC", "notes.txt", "._b.wav", "odd[1].wav", "deep/c.mp3", "deep/er/d.m4a"):
        file = tmp_path / "calls" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    Path("list.txt").write_text("# calls\n\ncalls/notes.txt\n  calls/*.wav  \n")
    direct = ["calls/a.FLAC", "calls/b.wav", "calls/odd[1].wav"]
    expected = {
        ("calls",): direct,
        ("calls/*.wav", "calls/b.wav"): ["calls/b.wav", "calls/odd[1].wav"],
        ("calls/**/*.m*",): ["calls/deep/c.mp3", "calls/deep/er/d.m4a"],
        ("calls/odd[1].wav", "missing.wav", "-"): ["calls/odd[1].wav", "missing.wav", "-"],
        ("@list.txt",): ["calls/notes.txt", "calls/b.wav", "calls/odd[1].wav"],
    }
    for arguments, recordings in expected.items():
        assert expand(arguments) == Inputs(recordings, []), arguments
    below = ["calls/deep/c.mp3", "calls/deep/er/d.m4a"]
    assert expand(["calls"], recursive=True).recordings == [*direct[:2], *below, direct[2]]
    Path("@list.txt").touch()
    assert expand(["@list.txt"]).recordings == ["@list.txt"]


def test_arguments_that_mean_nothing_are_problems_and_the_others_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("none.txt").write_text("# nothing\n")
    Path("nested.txt").write_text("first.wav\n@none.txt\nlast.wav\n")
    Path("binary.txt").write_bytes(b"\xff\xfe")
    reasons = {
        "empty": "is a directory with no recording in it; --recursive also looks below",
        "*.wav": "no file matches *.wav",
        "@missing.txt": "@missing.txt: the list of recordings cannot be read",
        "@none.txt": "the list names no recording",
        "@nested.txt": "nested.txt holds @none.txt; a list of recordings may not name another list",
        "@binary.txt": "not UTF-8 text",
    }
    inputs = expand(["a.wav", *reasons, "b.wav"])
    assert inputs.recordings == ["a.wav", "first.wav", "last.wav", "b.wav"]
    assert len(inputs.problems) == len(reasons)
    for problem, reason in zip(inputs.problems, reasons.values(), strict=True):
        assert reason in problem


def test_an_input_without_recordings_fails_and_the_others_go_on(
    cli: Callable[..., Finished], cut: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = cli("run", empty, cut, f"{tmp_path}/*.wav", "@no.txt")
    assert done.code == 1
    assert len(starts(done.out)) == 2
    assert sum("no recording in it" in line for line in done.errors()) == 1
    assert done.err[-1] == "diarize: error: 3 of 4 recordings failed"
    alone = cli("run", empty)
    assert (alone.code, alone.out, len(alone.err)) == (1, "", 1)
    assert "no recording in it" in alone.err[0]
