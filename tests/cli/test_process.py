"""The process around a command: closed standard streams, interrupts, and locales that know ASCII only."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from .conftest import RATE, command


def in_shell(redirection: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command with the shell's `redirection`."""
    script = f'exec "$0" "$@" {redirection}'
    return subprocess.run(["bash", "-c", script, *command(*arguments)], capture_output=True, text=True, timeout=120)


def test_closed_standard_error_drops_messages_only(cut: Path, tmp_path: Path) -> None:
    target = tmp_path / "cut.rttm"
    done = in_shell("2>&-", "run", cut, "-o", target)
    assert (done.returncode, done.stdout) == (0, "")
    assert len(target.read_text().splitlines()) == 2
    failed = in_shell("2>&-", "run", tmp_path / "none.wav", "-o", tmp_path / "none.rttm")
    assert (failed.returncode, failed.stdout) == (1, "")


def test_closed_standard_output_is_said_before_the_work(cut: Path, tmp_path: Path) -> None:
    done = in_shell(">&-", "run", cut)
    assert done.returncode == 1
    assert done.stderr == "diarize: error: standard output is closed; open it, or name a file with --output\n"
    target = tmp_path / "cut.rttm"
    assert in_shell(">&-", "run", cut, "-q", "-o", target).returncode == 0
    assert target.exists()
    assert in_shell("<&-", "run", "-").stderr.splitlines()[-1].startswith("diarize: error: standard input: is closed")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_half_way_makes_it_fail(unbuffered: str) -> None:
    # More than a pipe holds, so that the rest is still to be written when the reader leaves.
    process = subprocess.Popen(
        command("cuda", "candidates", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(timeout=60)) == (b"", 1)
    process.stderr.close()


def test_closed_standard_output_without_an_output_option() -> None:
    for arguments in (["devices", "--json"], ["cuda", "candidates"], ["cuda", "recipes"], ["models", "list"]):
        done = in_shell(">&-", *arguments)
        assert (done.returncode, done.stderr) == (1, "diarize: error: standard output is closed; open it\n")


@pytest.mark.parametrize("module", ["typer", "diarize.cli.run", "diarize.cli.bench"])
def test_an_interrupt_while_the_command_is_being_loaded(module: str) -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupter:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupter())\n"
        "from diarize.cli.start import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "devices"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "diarize: interrupted\n")


@pytest.mark.parametrize("form", ["text", "json", "rttm"])
def test_names_are_utf8_in_a_locale_of_ascii(cut: Path, tmp_path: Path, form: str) -> None:
    recording = tmp_path / "zwei übung.wav"
    shutil.copy(cut, recording)
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    options = ("run", recording, "-q", "--format", form)
    done = subprocess.run(command(*options), capture_output=True, env=environment, timeout=120, check=True)
    assert "übung" in done.stdout.decode("utf-8")
    target = tmp_path / "out"
    subprocess.run(command(*options, "-o", target), env=environment, timeout=120, check=True)
    assert "übung" in target.read_text(encoding="utf-8")


def test_an_interrupt_does_not_wait_for_running_stretches(speech: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "hour.wav"
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16") as file:
        for _ in range(300):
            file.write(speech)
    # Many threads make each stretch slow, as a loaded machine does.
    arguments = command("run", path, "-o", f"{tmp_path}/results/", "--device", "cpu", "--threads", "16")
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("diarize: model ")
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 130
    # Sixteen stretches of 24 windows take several times as long on two cores.
    assert time.monotonic() - sent < 2.5
    assert rest.splitlines()[-1] == "diarize: interrupted"
    assert "Traceback" not in rest
    assert os.listdir(tmp_path / "results") == []
