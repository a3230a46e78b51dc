"""Several recordings in one call: a bad one does not stop the others, and each result is as if it were alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diarize import Pipeline

from .conftest import Finished


@pytest.fixture
def recordings(cut: Path, tmp_path: Path) -> list[Path]:
    """A good recording, one that is text, one that is missing, and another good one."""
    first, last = tmp_path / "first.wav", tmp_path / "last take.wav"
    shutil.copy(cut, first)
    shutil.copy(cut, last)
    (tmp_path / "text.wav").write_text("hello\n")
    return [first, tmp_path / "text.wav", tmp_path / "missing.wav", last]


def test_a_bad_recording_is_reported_and_the_rest_go_on(
    cli: Callable[..., Finished], recordings: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    done = cli("run", *recordings, "-o", folder)
    assert (done.code, done.out) == (1, "")
    assert sorted(os.listdir(folder)) == ["first.rttm", "last take.rttm"]
    assert (folder / "last take.rttm").read_text().startswith("SPEAKER last_take 1 ")
    errors = done.errors()
    assert len(errors) == 3
    assert f"{recordings[1]}: is a text file" in errors[0]
    assert f"{recordings[2]}: no such file" in errors[1]
    assert errors[2] == "diarize: error: 2 of 4 recordings failed"


def test_results_follow_the_order_of_the_recordings(
    cli: Callable[..., Finished], recordings: list[Path], tmp_path: Path
) -> None:
    first, last = recordings[0], recordings[-1]
    alone = [cli("run", path, "-q").out for path in (first, last)]
    assert all(alone)
    together = cli("run", last, first, "-q")
    assert (together.code, together.out) == (0, alone[1] + alone[0])
    one_file = tmp_path / "all.rttm"
    assert cli("run", first, last, "-o", one_file).code == 0
    assert one_file.read_text() == alone[0] + alone[1]


def test_a_fault_of_our_own_does_not_stop_the_others(
    cli: Callable[..., Finished], recordings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    diarize = Pipeline.diarize

    def faulty(self: Pipeline, source: str, **options: Any) -> Any:
        if Path(source).name == "text.wav":
            raise ZeroDivisionError("by zero")
        return diarize(self, source, **options)

    monkeypatch.setattr(Pipeline, "diarize", faulty)
    done = cli("run", recordings[1], recordings[0])
    assert done.code == 1
    assert done.out.startswith("SPEAKER first 1 ")
    assert done.errors()[0] == (
        f"diarize: error: {recordings[1]}: internal error, ZeroDivisionError: by zero; "
        "-vv shows the traceback, please report it"
    )
    assert not any("Traceback" in line for line in done.err)


def test_no_file_appears_where_every_recording_failed(
    cli: Callable[..., Finished], recordings: list[Path], tmp_path: Path
) -> None:
    before = sorted(os.listdir(tmp_path))
    done = cli("run", recordings[1], recordings[2], "-o", tmp_path / "all.rttm")
    assert (done.code, done.out) == (1, "")
    assert sorted(os.listdir(tmp_path)) == before


def test_recordings_of_one_name_are_refused_before_the_work(
    cli: Callable[..., Finished], cut: Path, tmp_path: Path
) -> None:
    twin = tmp_path / "cut.flac"
    done = cli("run", cut, twin, "-o", tmp_path / "results")
    assert done.code == 2
    assert done.err == [
        f"diarize: error: {cut} and {twin} have the same name in the result; rename one, run them apart, or give "
        "--output a template with {parent}"
    ]
    assert os.listdir(tmp_path) == []
