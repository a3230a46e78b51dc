"""What a warm start on a GPU leaves out: numba stays away from kernels that are in the cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from diarize.kernels.deferred import Deferred, resolved

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
