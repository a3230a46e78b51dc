"""Speakers from the command line: their number, names, embeddings and confidence."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from .conftest import RATE, Finished, command


def speakers(rttm: str) -> list[str]:
    """Speakers in the order in which they first talk."""
    return list(dict.fromkeys(line.split()[7] for line in rttm.splitlines()))


@pytest.fixture
def clips(speech: np.ndarray, tmp_path: Path) -> dict[str, Path]:
    """Some seconds of each voice of the recording, and of the first one again."""
    spans = {"first": (0.3, 3.5), "again": (3.5, 6.7), "second": (7.2, 11.0)}
    for name, (start, end) in spans.items():
        soundfile.write(tmp_path / f"{name}.wav", speech[round(start * RATE) : round(end * RATE)], RATE, "PCM_16")
    return {name: tmp_path / f"{name}.wav" for name in spans}


def test_known_voices_are_named_and_others_are_not(
    cli: Callable[..., Finished], cut: Path, clips: dict[str, Path]
) -> None:
    done = cli("run", cut, "--enroll", f"Ann Lee={clips['second']}")
    assert (done.code, speakers(done.out)) == (0, ["SPEAKER_00", "Ann_Lee"])
    both = cli("run", cut, "--enroll", f"Bob={clips['first']}", "--enroll", f"Bob={clips['again']}")
    assert speakers(both.out) == ["Bob", "SPEAKER_01"]
    strict = cli("run", cut, "--enroll", f"Ann={clips['second']}", "--voice-threshold", "1")
    assert speakers(strict.out) == ["SPEAKER_00", "SPEAKER_01"]


def test_voices_from_a_file_and_from_an_earlier_run(
    cli: Callable[..., Finished], cut: Path, clips: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "voices.txt").write_text("# relative to this file\nAnn=second.wav\nBob = first.wav\n")
    first = cli("run", cut, "--speakers-file", tmp_path / "voices.txt", "--embeddings", tmp_path / "known.npz")
    assert speakers(first.out) == ["Bob", "Ann"]
    with np.load(tmp_path / "known.npz") as stored:
        assert stored["speakers"].tolist() == ["Bob", "Ann"]
        assert stored["speaker_embeddings"].shape == (2, 192)
        assert stored["window_embeddings"].shape == (len(stored["window_starts"]), 192)
        assert set(stored["window_speakers"].tolist()) == {0, 1}
    later = cli("run", clips["second"], "--speakers-file", tmp_path / "known.npz")
    assert speakers(later.out) == ["Ann"]


def test_voices_that_cannot_be_learnt(cli: Callable[..., Finished], cut: Path, tmp_path: Path) -> None:
    silence = tmp_path / "silence.wav"
    soundfile.write(silence, np.zeros(3 * RATE), RATE)
    wrong = {
        ("--enroll", "ann.wav"): (2, "'ann.wav' names no voice"),
        ("--enroll", f"SPEAKER_01={cut}"): (2, "cannot be called SPEAKER_01"),
        ("--enroll", "Ann=missing.wav"): (1, "missing.wav: no such file"),
        ("--enroll", f"Ann={silence}"): (1, "silence.wav: holds no speech"),
        ("--speakers-file", "missing.txt"): (2, "missing.txt: cannot be read"),
    }
    for options, (code, reason) in wrong.items():
        done = cli("run", cut, *options)
        assert (done.code, done.out) == (code, ""), options
        assert reason in done.errors()[-1], options


def test_a_file_without_named_voices_is_said(cli: Callable[..., Finished], cut: Path, tmp_path: Path) -> None:
    stored = tmp_path / "cut.npz"
    assert cli("run", cut, "-q", "--embeddings", stored).code == 0
    done = cli("run", cut, "--speakers-file", stored)
    assert done.code == 0
    assert (
        f"diarize: warning: {stored} holds no named voice, so it names nobody; --enroll gives speakers names"
        in done.err
    )
    assert cli("run", cut, "-q", "--speakers-file", stored).err == []


def test_embeddings_are_the_same_bytes_with_any_number_of_threads(cut: Path, tmp_path: Path) -> None:
    contents = []
    for threads in ("1", "2"):
        target = tmp_path / f"{threads}.npz"
        subprocess.run(
            command("run", cut, "-q", "--threads", threads, "--embeddings", target),
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads},
        )
        contents.append(target.read_bytes())
    assert contents[0] == contents[1]
    refused = subprocess.run(
        command("run", cut, "-q", "--embeddings", tmp_path / "1.npz"), capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert "1.npz exists already; --force replaces it" in refused.stderr


def test_turns_say_how_sure_they_are(cli: Callable[..., Finished], cut: Path) -> None:
    result = json.loads(cli("run", cut, "--format", "json").out)
    for turn in (*result["turns"], *result["exclusive"]):
        assert 0.9 < turn["confidence"] <= 1
    alone = json.loads(cli("run", cut, "--format", "json", "--num-speakers", "1").out)
    assert {turn["confidence"] for turn in alone["turns"]} == {None}


def test_the_order_of_labels_may_be_that_of_pyannote(cli: Callable[..., Finished], cut: Path) -> None:
    plain = cli("run", cut, "-q").out
    assert cli("run", cut, "-q", "--label-order", "first-appearance").out == plain
    assert speakers(plain) == ["SPEAKER_00", "SPEAKER_01"]
    assert set(speakers(cli("run", cut, "-q", "--label-order", "parity").out)) == set(speakers(plain))


@pytest.mark.parametrize("number", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["ami30/dev00", "pyannote_sample/sample"])
def test_the_number_of_speakers_asked_for_comes_out_of_real_speech(
    cli: Callable[..., Finished], shared: Path, name: str, number: int
) -> None:
    done = cli("run", shared / "data" / f"{name}.flac", "--num-speakers", number, "--mode", "fast")
    assert done.code == 0
    found = len(speakers(done.out))
    assert found == number or any(f"asked for {number} speakers" in line for line in done.err)
