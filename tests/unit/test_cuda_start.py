"""What makes a warm start on a GPU quick: names looked up late, a rehearsal beside the rest, an end at once."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from diarize.clustering import Clusterer
from diarize.kernels.deferred import Deferred, resolved
from diarize.model.weights import load_model
from diarize.rehearsal import _rehearse
from diarize.switching import quick_switching

KERNELS = Path(__file__).resolve().parents[2] / "diarize" / "kernels"
# The modules of intrinsics, which are looked up when a kernel is compiled.
INTRINSICS = "ptx_"

CODE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"diarize.kernels.{name}")
from diarize.kernels.block32 import make_block32
from diarize.kernels.lstm import make_lstm_recurrence
make_block32(groups=3).kernel.name
make_lstm_recurrence(8, True, True, True).name
print(sorted(name for name in ("numba", "llvmlite", "cuda", "scipy") if name in sys.modules))
"""


def test_kernels_are_described_without_numba() -> None:
    names = [path.stem for path in sorted(KERNELS.glob("*.py")) if not path.stem.startswith(INTRINSICS)]
    assert "campplus_tdnn" in names
    command = [sys.executable, "-c", CODE, *(name for name in names if name != "__init__")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "[]"


def test_a_deferred_name_is_looked_up_once_and_its_calls_with_it() -> None:
    asked = []

    def look_up() -> object:
        asked.append(1)
        return lambda a, b=0: (a, b)

    name = Deferred("pair", look_up)
    call = name(1, b=2)
    assert isinstance(call, Deferred)
    assert not asked
    assert resolved(call) == (1, 2)
    assert resolved(call) is resolved(call)
    assert len(asked) == 1
    assert resolved(3) == 3


def test_a_name_that_no_intrinsic_has() -> None:
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'diarize-cuda[cuda]'")
    from diarize.kernels import ptx

    with pytest.raises(ImportError, match="kernels name ldg129"):
        ptx.ldg129.resolve()


def test_the_shortest_interval_counts_and_the_usual_one_comes_back() -> None:
    usual = sys.getswitchinterval()
    with quick_switching(2e-3):
        assert sys.getswitchinterval() == pytest.approx(2e-3)
        ended = threading.Event()
        inner = threading.Thread(target=lambda: hurry(ended))
        inner.start()
        ended.wait()
        inner.join()
        assert sys.getswitchinterval() == pytest.approx(2e-3)
    assert sys.getswitchinterval() == pytest.approx(usual)


def hurry(ended: threading.Event) -> None:
    with quick_switching(1e-4):
        assert sys.getswitchinterval() == pytest.approx(1e-4)
    ended.set()


@pytest.mark.parametrize("grid", [False, True])
def test_the_rehearsal_gets_to_the_end(grid: bool, caplog: pytest.LogCaptureFixture) -> None:
    clusterer = Clusterer.of(load_model("campplus"), grid)
    with caplog.at_level(logging.DEBUG, "diarize.rehearsal"):
        _rehearse(clusterer, 16_000)
    assert "rehearsed in" in caplog.text
    assert "failed" not in caplog.text


ENDING = """
import atexit, sys, threading, types
driver = types.ModuleType("diarize.backend.cuda_driver")
driver.Gpu = types.SimpleNamespace(opened=int(sys.argv[1]))
sys.modules["diarize.backend.cuda_driver"] = driver
from diarize.cli import _process
atexit.register(lambda: print("tidied up"))

class Late:
    def __del__(self):
        print("taken apart")

late = Late()
print("done")
if sys.argv[3] == "130":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
_process.leave(int(sys.argv[3]), sys.argv[2] == "alone")
"""


@pytest.mark.parametrize(
    ("opened", "who", "code", "lines"),
    [
        ("1", "alone", 3, ["done", "tidied up"]),
        ("1", "shared", 3, ["done", "tidied up", "taken apart"]),
        ("0", "alone", 3, ["done", "tidied up", "taken apart"]),
        # Interrupted, while a thread still computes.
        ("0", "alone", 130, ["done"]),
        ("0", "shared", 130, ["done", "tidied up", "taken apart"]),
    ],
)
def test_the_end_of_a_process(opened: str, who: str, code: int, lines: list[str]) -> None:
    command = [sys.executable, "-c", ENDING, opened, who, str(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == lines
    assert done.returncode == code
