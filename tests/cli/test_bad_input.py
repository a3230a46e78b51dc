"""Bad and odd input: the right result or one clear line, the right exit code, and nothing half-written."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from .conftest import RATE, Finished, command

ROOT = Path(__file__).resolve().parents[2]


def turns_of(path: Path) -> list[tuple[float, float, str]]:
    """Start, end and speaker of each line of an RTTM file."""
    fields = [line.split() for line in path.read_text().splitlines()]
    return [(float(field[3]), float(field[3]) + float(field[4]), field[7]) for field in fields]


def test_files_that_hold_no_usable_recording(cli: Callable[..., Finished], speech: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("hello\n")
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "noise.wav").write_bytes(np.random.default_rng(0).bytes(20_000))
    broken = speech[:RATE].copy()
    broken[5_000] = np.nan
    soundfile.write(tmp_path / "nan.wav", broken, RATE, "FLOAT")
    reasons = {
        "missing.wav": "no such file",
        "text.wav": "is a text file, not a recording",
        "empty.wav": "the file is empty (0 bytes)",
        "noise.wav": "not a recording in a known format",
        "nan.wav": "the sample at 0.312 s is nan",
    }
    results = tmp_path / "results"
    done = cli("run", *(tmp_path / name for name in reasons), "-o", results)
    assert (done.code, done.out) == (1, "")
    assert os.listdir(results) == []
    lines = done.errors()
    assert len(lines) == len(reasons) + 1
    for line, (name, reason) in zip(lines, reasons.items(), strict=False):
        assert line.startswith(f"diarize: error: {tmp_path / name}: {reason}")
    assert not any("Traceback" in line for line in done.err)


def test_recordings_without_speech_give_an_empty_result(
    cli: Callable[..., Finished], speech: np.ndarray, tmp_path: Path
) -> None:
    samples = {"silence": np.zeros(12 * RATE), "hundred": speech[-100:], "none": speech[:0]}
    for name, values in samples.items():
        soundfile.write(tmp_path / f"{name}.wav", values, RATE, "PCM_16")
    results = tmp_path / "results"
    done = cli("run", *(tmp_path / f"{name}.wav" for name in samples), "-o", results, "--num-speakers", "2")
    assert (done.code, done.errors()) == (0, [])
    assert {path.name: path.read_text() for path in results.iterdir()} == {f"{name}.rttm": "" for name in samples}
    assert any("silence.wav: the recording is silent" in line for line in done.err)
    assert any("none.wav: the recording holds no samples" in line for line in done.err)
    short = "hundred.wav: 0.00625 s is too short to tell speakers; give 1 s or more"
    assert [line.endswith(short) for line in done.err].count(True) == 1
    assert sum("too short to tell speakers" in line for line in done.err) == 1
    assert sum("found 0: there is no speech" in line for line in done.err) == len(samples)


def test_every_kind_of_wav_gives_the_same_turns(
    cli: Callable[..., Finished], cut: Path, speech: np.ndarray, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "bits24.wav", speech, RATE, "PCM_24")
    soundfile.write(tmp_path / "float64.wav", speech, RATE, "DOUBLE")
    soundfile.write(tmp_path / "channels8.wav", np.repeat(speech[:, None], 8, axis=1), RATE, "PCM_16")
    shutil.copy(cut, tmp_path / "zwei Stimmen – übung.wav")
    header = bytearray(cut.read_bytes())
    assert header[36:40] == b"data"
    for name, size in (("header_large", b"\xff\xff\xff\xff"), ("header_zero", bytes(4))):
        header[4:8] = header[40:44] = size
        (tmp_path / f"{name}.wav").write_bytes(header)
    soundfile.write(tmp_path / "about_bits8.wav", speech, RATE, "PCM_U8")
    soundfile.write(tmp_path / "about_mulaw.wav", speech, RATE, "ULAW")
    for rate in (8_000, 96_000):
        soundfile.write(tmp_path / f"about_rate{rate}.wav", soxr.resample(speech, RATE, rate), rate, "PCM_16")
    recordings = sorted(tmp_path.glob("*.wav"))
    assert len(recordings) == 10
    results = tmp_path / "results"
    done = cli("run", cut, *recordings, "-o", results)
    assert (done.code, done.errors()) == (0, [])
    expected = turns_of(results / "cut.rttm")
    assert len(expected) == 2
    for recording in recordings:
        found = turns_of(results / f"{recording.stem}.rttm")
        if recording.stem.startswith("about_"):
            # These hold slightly other samples, so a boundary may fall a few frames of 17 ms away.
            assert [turn[2] for turn in found] == [turn[2] for turn in expected], recording.name
            assert np.allclose([turn[:2] for turn in found], [turn[:2] for turn in expected], atol=0.1), recording.name
        else:
            assert found == expected, recording.name
    first = (results / "zwei Stimmen – übung.rttm").read_text().split()
    assert first[1] == "zwei_Stimmen_–_übung"


def test_a_truncated_recording_is_used_as_far_as_it_goes(
    cli: Callable[..., Finished], cut: Path, speech: np.ndarray, tmp_path: Path
) -> None:
    whole = cut.read_bytes()
    (tmp_path / "cut_wav.wav").write_bytes(whole[: len(whole) // 2 + 1])
    soundfile.write(tmp_path / "whole.flac", speech, RATE, "PCM_16")
    packed = (tmp_path / "whole.flac").read_bytes()
    (tmp_path / "cut_flac.flac").write_bytes(packed[: len(packed) // 2])
    results = tmp_path / "results"
    done = cli("run", tmp_path / "cut_wav.wav", tmp_path / "cut_flac.flac", "-o", results)
    assert (done.code, done.errors()) == (0, [])
    assert sum("the audio ends early" in line for line in done.err) == 2
    for name in ("cut_wav", "cut_flac"):
        (turn,) = turns_of(results / f"{name}.rttm")
        assert turn[:2] == (pytest.approx(0.4, abs=0.1), pytest.approx(6.1, abs=0.2))


def test_places_that_cannot_be_written_are_found_before_the_work(
    cli: Callable[..., Finished], cut: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder" / "cut.rttm").mkdir(parents=True)
    places = {
        tmp_path / "missing" / "x.rttm": "No such file or directory",
        tmp_path / "file" / "x.rttm": "Not a directory",
        f"{tmp_path}/file/": "File exists",
        tmp_path / "folder": "Is a directory",
        "/proc/version": "exists already",
    }
    for place, reason in places.items():
        done = cli("run", cut, "-o", place)
        assert (done.code, done.out) == (1, "")
        # Only the error: neither a model was loaded nor a recording read.
        assert len(done.err) == 1, done.err
        assert reason in done.err[0], done.err
    assert (tmp_path / "file").read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_gpu_is_refused_in_one_line(cli: Callable[..., Finished], cut: Path, tmp_path: Path) -> None:
    done = cli("run", cut, "--device", "cuda", "-o", tmp_path / "x.rttm")
    assert (done.code, done.out, len(done.err)) == (1, "", 1)
    assert "device cuda cannot be used" in done.err[0]
    assert os.listdir(tmp_path) == []


def test_a_folder_without_a_model(cli: Callable[..., Finished], cut: Path, tmp_path: Path) -> None:
    done = cli("run", cut, "--model", tmp_path)
    assert (done.code, done.out, len(done.err)) == (1, "", 1)
    assert done.err[0].startswith("diarize: error: ")
    assert str(tmp_path) in done.err[0]


def test_damaged_weights_and_a_traceback_only_when_asked_for(cut: Path, tmp_path: Path) -> None:
    # A copy of the package, as a wheel has it, that Python finds first in the folder it starts in.
    shutil.copytree(ROOT / "diarize", tmp_path / "diarize", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "cli", tmp_path / "diarize" / "cli", ignore=shutil.ignore_patterns("__pycache__"))
    weights = tmp_path / "diarize" / "weights" / "campplus.safetensors"
    whole = weights.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]

    def run(*options: str) -> tuple[int, str, list[str]]:
        options = ("--model", "campplus", *options)
        done = subprocess.run(command("run", cut, *options), capture_output=True, text=True, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr.splitlines()

    weights.write_bytes(flipped)
    code, out, err = run()
    assert (code, out, len(err)) == (1, "", 1)
    assert err[0].startswith(f"diarize: error: {weights}")
    code, out, loud = run("-vv")
    assert (code, out) == (1, "")
    assert any(line.startswith("Traceback") for line in loud)
    assert loud[-1] == err[0]
    weights.write_bytes(whole[:middle])
    code, out, err = run()
    assert (code, out, len(err)) == (1, "", 1)


def test_a_full_disk_leaves_nothing_behind(cli: Callable[..., Finished], cut: Path, tmp_path: Path) -> None:
    # What this compiles is kept before the disk is full.
    assert cli("run", cut, "-q").code == 0

    def limit() -> None:
        # A limit on the size of files fails a write half-way, as a full disk does.
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, resource.RLIM_INFINITY))

    target = tmp_path / "x.rttm"
    done = subprocess.run(command("run", cut, "-o", target), capture_output=True, text=True, preexec_fn=limit)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"diarize: error: {target}: cannot be written (File too large)")
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_standard_output_that_is_full(cut: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(command("run", cut), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == ("diarize: error: cannot write to standard output: No space left on device")
    assert "Traceback" not in done.stderr


def test_a_reader_that_went_away_is_no_error_message(cut: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command("run", cut, "-q"), stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_interrupt_leaves_nothing_behind(speech: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "hour.wav"
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16") as file:
        for _ in range(300):
            file.write(speech)
    results = tmp_path / "results"
    # As a job in the background of a shell script.
    process = subprocess.Popen(
        command("run", path, "-o", f"{results}/"),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert process.stderr is not None
    # Said when the model is loaded and the work begins.
    assert process.stderr.readline().startswith("diarize: model ")
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 130
    assert rest.splitlines()[-1] == "diarize: interrupted"
    assert "Traceback" not in rest
    assert os.listdir(results) == []
