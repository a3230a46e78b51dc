"""The Python of the README runs as it stands there."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from pathlib import Path

import pytest
import soundfile

from .conftest import RATE

ROOT = Path(__file__).resolve().parents[2]


def test_python_of_the_readme(cut: Path, speech, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("\n## Python\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for name in ("meeting", "a", "b"):
        shutil.copy(cut, tmp_path / f"{name}.wav")
    soundfile.write(tmp_path / "ann.wav", speech[round(7.2 * RATE) : 11 * RATE], RATE)
    monkeypatch.chdir(tmp_path)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, "README.md", "exec"), {})
    lines = shown.getvalue().splitlines()
    assert re.fullmatch(r"0\.4 6\.\d SPEAKER_00 0\.9\d+", lines[0])
    assert any(line.startswith("SPEAKER meeting 1 ") for line in lines)
    assert lines[-2:] == ["a.wav ('SPEAKER_00', 'Ann')", "b.wav ('SPEAKER_00', 'Ann')"]
