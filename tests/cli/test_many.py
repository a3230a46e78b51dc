"""Many recordings in one call: resuming, worker processes, a process that is killed, and what is shown meanwhile."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from diarize.cli._batch import BatchProgress, Tally

from .conftest import RATE, Finished, command


@pytest.fixture
def folder(speech: np.ndarray, tmp_path: Path) -> Path:
    """A folder of three short recordings and a text under a recording's name, one of them further below."""
    calls = tmp_path / "calls"
    (calls / "below").mkdir(parents=True)
    for name, seconds in (("a", 3), ("b", 5), ("below/c", 4)):
        soundfile.write(calls / f"{name}.wav", speech[: seconds * RATE], RATE, "PCM_16")
    (calls / "text.wav").write_text("hello\n")
    return calls


def test_a_folder_by_worker_processes(cli: Callable[..., Finished], folder: Path, tmp_path: Path) -> None:
    done = cli("run", folder, "-r", "-o", tmp_path / "out", "--jobs", "2", "--model", "campplus", "--device", "cpu")
    assert (done.code, done.out) == (1, "")
    assert sorted(os.listdir(tmp_path / "out")) == ["a.rttm", "b.rttm", "c.rttm"]
    assert done.err[-2:] == [
        f"diarize: failed: {folder / 'text.wav'}: is a text file, not a recording; give a wav, flac, mp3, ogg, m4a or "
        "other audio file",
        "diarize: error: 1 of 4 recordings failed",
    ]
    # Standard output has the order of the arguments, whoever finishes first.
    alone = [cli("run", folder / f"{name}.wav", "-q").out for name in "ab"]
    paths = [folder / "a.wav", folder / "b.wav"]
    together = cli("run", *paths, "-q", "--devices", "cpu,cpu")
    assert (together.code, together.out, together.err) == (0, "".join(alone), [])


def test_resuming_leaves_out_what_is_there(cli: Callable[..., Finished], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    paths = [folder / "a.wav", folder / "b.wav"]
    options = ("-o", out, "--format", "rttm,json", "--skip-existing")
    assert cli("run", paths[0], *options).code == 0
    first = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    # One of two formats is not enough.
    (out / "b.rttm").write_text("")
    done = cli("run", *paths, *options)
    assert done.code == 0
    assert "diarize: 1 recording skipped: results exist; 1 to do" in done.err
    assert (out / "b.rttm").read_text().startswith("SPEAKER b ")
    assert {name: (out / name).stat().st_mtime_ns for name in first} == first
    again = cli("run", *paths, *options)
    assert (again.code, again.err) == (0, ["diarize: 2 recordings skipped: results exist; 0 to do"])
    assert cli("run", *paths, "--skip-existing").code == 2


def test_contradictions_are_wrong_usage(cli: Callable[..., Finished], folder: Path) -> None:
    wrong = {
        ("--jobs", "2", "--devices", "cpu,cpu"): "both set the number of workers",
        ("--devices", "cpu,tpu"): "device is 'tpu'",
        ("--scheduler", "tcp://x:1", "--jobs", "2"): "brings its own workers",
        ("--jobs", "0"): "Invalid value for '-j' / '--jobs'",
        ("--embeddings", "-"): "are no text",
    }
    for options, reason in wrong.items():
        done = cli("run", folder / "a.wav", *options)
        assert (done.code, done.out) == (2, ""), options
        assert reason in done.err[-1], options


def test_a_process_that_is_killed_leaves_whole_files_only(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number in range(12):
        shutil.copy(folder / "a.wav", folder / f"copy{number}.wav")
    (folder / "text.wav").unlink()
    arguments = command("run", folder, "-o", f"{out}/", "--format", "rttm,json", "--skip-existing", "-q")
    whole: dict[str, bytes] = {}
    kills = 0
    for delay in (0.0, 0.03, 0.1, 0.2, 0.3):
        process = subprocess.Popen(arguments)
        known = len(whole)
        # Until something new appears, and then a little longer each time.
        while process.poll() is None and (not out.exists() or len(os.listdir(out)) <= known):
            time.sleep(0.002)
        time.sleep(delay)
        kills += process.poll() is None
        process.kill()
        process.wait()
        for name in os.listdir(out):
            content = (out / name).read_bytes()
            assert re.fullmatch(r"(a|b|copy\d+)\.(rttm|json)", name), name
            assert content.endswith(b"}\n" if name.endswith("json") else b"<NA> <NA>\n"), name
            assert whole.setdefault(name, content) == content or name.endswith("json")
    assert kills >= 3
    assert subprocess.run(arguments).returncode == 0
    assert len(os.listdir(out)) == 2 * 14


def test_shares_speed_and_time_left() -> None:
    tally = Tally([60.0, 120.0, 0.0], started=100.0)
    assert tally.left(100.0) is None
    tally.advance("a.wav", 30.0)
    tally.advance("b.wav", 60.0)
    assert (tally.done, tally.speed(103.0), tally.left(103.0)) == (90.0, 30.0, 3.0)
    tally.finish("a.wav", 0)
    tally.finish("c.wav", 2)
    assert tally.text(104.0) == "2 of 3 recordings, 120 of 180 s, 30.0x real time, 0:02 left"
    tally.advance("b.wav", 500.0)
    assert tally.done == 180.0


def test_lines_now_and_then_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for verbosity, expected in ((0, 3), (-1, 0)):
        now = 100.0
        with BatchProgress([600.0, 600.0], verbosity) as shown:
            for step in range(1, 61):
                now = 100.0 + step
                shown("a.wav", "analyse", 10.0 * step, 600.0)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == expected + (verbosity >= 0)
        if lines:
            assert lines[0] == "diarize: 0 of 2 recordings, 150 of 1200 s, 10.0x real time, 1:45 left"


def test_a_terminal_shows_recordings_seconds_speed_and_time_left(folder: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("run", folder / "a.wav", folder / "b.wav", "-o", tmp_path / "out"),
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    shown = b""
    # Linux reports the end of a terminal as an error.
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    assert process.wait() == 0
    text = shown.decode()
    # The second recording may be under way when the first is done.
    assert re.search(r"1 of 2 recordings, [3-8] of 8 s, \d+\.\dx real time, \d:\d\d left", text)
    assert re.search(r"2 of 2 recordings, 8 of 8 s, \d+\.\dx real time, 0:00 left", text)
    assert "━" in text
    assert re.search(r"b\.wav: 1 speaker, 1 turn; 5\.0 s of audio", text)


def test_workers_end_with_whoever_started_them(folder: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("run", folder / "a.wav", folder / "b.wav", "-q", "-j", "2", "-o", tmp_path / "out")
    )
    try:
        workers: set[str] = set()
        while not workers and process.poll() is None:
            listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            workers = {pid for pid in listed.split() if b"diarize.workers" in Path(f"/proc/{pid}/cmdline").read_bytes()}
            time.sleep(0.005)
        assert workers
    finally:
        process.kill()
        process.wait()
    for _ in range(400):
        if not any(Path(f"/proc/{pid}").exists() for pid in workers):
            break
        time.sleep(0.05)
    else:
        pytest.fail("a worker has outlived its owner")
