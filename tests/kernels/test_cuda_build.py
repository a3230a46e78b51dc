"""Kernels compiled by interpreters of their own: progress, what is there already, and what goes wrong."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from cuda_support import needs_numba_cuda

from diarize.backend.cuda_build import build, missing
from diarize.candidates import Request
from diarize.errors import BackendError

pytestmark = needs_numba_cuda

GATHER = Request("gather:make_gather", {})
MEAN = Request("fbank:make_window_mean", {})


def test_what_is_missing_is_compiled_once(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    assert len(missing([GATHER, MEAN], (9, 0), tmp_path)) == 2
    assert build([GATHER, MEAN], (9, 0), tmp_path, 2, lambda done, total: heard.append((done, total))) == 2
    assert heard == [(0, 2), (1, 2), (2, 2)]
    assert missing([GATHER, MEAN], (9, 0), tmp_path) == []
    assert build([GATHER, MEAN], (9, 0), tmp_path, 2, lambda done, total: heard.append((done, total))) == 0
    assert len(heard) == 3


def test_a_kernel_of_another_gpu_is_another_kernel(tmp_path: Path) -> None:
    build([GATHER], (9, 0), tmp_path, 1)
    assert missing([GATHER], (8, 0), tmp_path) == [GATHER]


def test_a_damaged_file_is_compiled_again(tmp_path: Path) -> None:
    build([GATHER], (9, 0), tmp_path, 1)
    (kept,) = tmp_path.rglob("*.kernel")
    kept.write_bytes(kept.read_bytes()[:-10])
    assert build([GATHER], (9, 0), tmp_path, 1) == 1


def test_a_compiler_that_dies_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarize.backend.cuda_build._MAIN", "raise SystemExit('no room to work')")
    with pytest.raises(BackendError, match="ended early: no room to work"):
        build([GATHER], (9, 0), tmp_path, 1)


def test_a_capability_that_is_too_low(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"does not run on compute capability 7\.0"):
        build([GATHER], (7, 0), tmp_path, 1)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_kernel_that_fails_ends_the_other_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = "import sys, time; sys.stdin.readline(); asked = sys.stdin.readline(); "
    answer = "print('failed: no such thing', flush=True) if 'gather' in asked else time.sleep(60)"
    monkeypatch.setattr("diarize.backend.cuda_build._MAIN", asked + answer)
    before = threading.active_count()
    with pytest.raises(BackendError, match="no such thing"):
        build([GATHER, MEAN], (9, 0), tmp_path, 2)
    # Nobody is left who reads what they say.
    assert threading.active_count() == before
