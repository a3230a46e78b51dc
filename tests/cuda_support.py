"""Help for tests of GPU kernels without a GPU: simulated cases in a process of their own, and offline compilation."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent

slow = pytest.mark.slow

needs_numba_cuda = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed: pip install diarize-cuda[cuda]"
)


def simulate(script: str, speed: str = "quick") -> dict[str, dict[str, float]]:
    """Results of the quick or slow cases of tests/kernels/`script`, run once in the CUDA simulator."""
    return _simulate(script, speed)


@cache
def _simulate(script: str, speed: str) -> dict[str, dict[str, float]]:
    """As `simulate`.

    The simulator is chosen by an environment variable before numba is imported, hence the process of its own.
    """
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE)])
    command = [sys.executable, str(HERE / "kernels" / script), speed]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, dict[str, float]] = json.loads(done.stdout)
    return result


@cache
def _ptx(key: str, factory: str, items: tuple[tuple[str, Any], ...], old: bool) -> tuple[Any, str]:
    from diarize.backend.cuda_compile import compile_ptx
    from diarize.candidates import Request

    made = Request(factory, dict(items)).make()
    kernel = getattr(made, "kernel", made)
    return kernel, compile_ptx(kernel, kernel.capability if old else max(kernel.capability, (8, 0)))


def assembled(request: Any, capability: tuple[int, int]) -> Any:
    """The kernel of `request` compiled for its lowest capability and assembled for `capability`.

    PTX for capabilities below 8.0 is rewritten, so that newer ones start from 8.0.
    """
    from diarize.backend.cuda_compile import architecture, assemble

    items = tuple(sorted(request.parameters.items()))
    kernel, ptx = _ptx(repr((request.factory, items)), request.factory, items, capability < (8, 0))
    return assemble(kernel.name, ptx, architecture(kernel, capability))


def assert_clean(request: Any, capability: tuple[int, int]) -> None:
    """The kernel of `request`, compiled for `capability`, keeps everything in registers and fits a multiprocessor.

    Skips where no assembler tells.
    """
    from diarize.backend.cuda_compile import architecture, assemble, compile_ptx

    made = request.make()
    kernel = getattr(made, "kernel", made)
    image = assemble(kernel.name, compile_ptx(kernel, capability), architecture(kernel, capability))
    if not image.assembled:
        pytest.skip("no ptxas on this machine: install nvidia-cuda-nvcc")
    assert (image.spilled_bytes, image.stack_bytes) == (0, 0)
    # Notes tell of wgmma that waits for each product.
    assert not image.notes
    assert 0 < image.registers * kernel.threads * kernel.min_blocks <= 65536


def quick_first(quick: Sequence[str], others: Sequence[str]) -> list[Any]:
    """Parameters of a test, `others` marked slow."""
    return [*quick, *[pytest.param(name, marks=slow) for name in others if name not in quick]]
