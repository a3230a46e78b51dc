# ruff: noqa: E402 (the imports need numba-cuda or a path that is set first)
"""Runs the simulator cases named on the command line and prints one JSON line each; NUMBA_ENABLE_CUDASIM must be 1."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from kernels.cuda_cases import FULL_PRECISION, FULL_PRECISION_SLOW, SIMULATED, SIMULATED_SLOW, run_in_simulator

for case in [*SIMULATED, *SIMULATED_SLOW, *FULL_PRECISION, *FULL_PRECISION_SLOW]:
    if case.name in sys.argv[1:]:
        errors, flag = run_in_simulator(case)
        print(json.dumps({"name": case.name, "errors": errors, "flag": flag}), flush=True)
