"""Every GPU kernel on small shapes in numba's simulator against float64 numpy: indices, layouts and barrier phases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'diarize-cuda[cuda]'")

from kernels.cuda_cases import SIMULATED, SIMULATED_SLOW, Case

SCRIPT = Path(__file__).with_name("cuda_simulate.py")


def simulate(cases: list[Case]) -> dict[str, dict]:
    """Results by name: the simulator is chosen before numba is imported, hence a process of its own."""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, str(SCRIPT), *[case.name for case in cases]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


def check(case: Case, row: dict) -> None:
    """Errors within the rounding of the output; the flag raised exactly for planted overflows."""
    if case.overflow:
        assert row["flag"] == 1
        return
    assert row["flag"] == 0
    # 2^-11 / sqrt(3) = 2.8e-4 is the rounding of a float16 result; 16-bit sums would give ten times more.
    assert all(value < 6e-4 for value in row["errors"])


@pytest.fixture(scope="module")
def simulated() -> dict[str, dict]:
    return simulate(SIMULATED)


@pytest.mark.parametrize("case", SIMULATED, ids=lambda case: case.name)
def test_kernel_agrees_with_numpy(case: Case, simulated: dict[str, dict]) -> None:
    check(case, simulated[case.name])


@pytest.mark.slow
@pytest.mark.parametrize("case", SIMULATED_SLOW, ids=lambda case: case.name)
def test_large_kernel_agrees_with_numpy(case: Case) -> None:
    check(case, simulate([case])[case.name])
