"""The command line called within the test's process, and pieces of the recording that ships."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from diarize import resources

RATE = 16_000


@dataclass(frozen=True)
class Finished:
    """What a call of the command left: exit code, standard output and the lines of standard error."""

    code: int
    out: str
    err: list[str]

    def errors(self) -> list[str]:
        """The lines that report an error."""
        return [line for line in self.err if line.startswith("diarize: error: ")]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finished]:
    """Calls the command in this process, so that compiled code and imports are shared by the tests."""

    def call(*arguments: object) -> Finished:
        from diarize.cli.main import main

        monkeypatch.setattr(sys, "argv", ["diarize", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capfd.readouterr()
        code = stop.value.code
        assert isinstance(code, int | None)
        return Finished(code or 0, captured.out, captured.err.splitlines())

    return call


def command(*arguments: object) -> list[str]:
    """Command line of a process of its own."""
    return [sys.executable, "-m", "diarize.cli.main", *map(str, arguments)]


def spawn(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with the environment of the tests."""
    env = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=env, timeout=120, **options)


@pytest.fixture(scope="session")
def speech() -> np.ndarray:
    """(num_samples,) float64: the first 12 s of the dialogue, one turn of each of two speakers."""
    samples, rate = soundfile.read(resources.demo_recording(), frames=12 * RATE)
    assert rate == RATE
    return samples


@pytest.fixture(scope="session")
def cut(speech: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 12 s of the dialogue as a 16-bit wav."""
    path = tmp_path_factory.mktemp("cut") / "cut.wav"
    soundfile.write(path, speech, RATE, "PCM_16")
    return path
