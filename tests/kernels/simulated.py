"""What the scripts of simulated cases share: launching, comparing, printing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np


def launch(kernel: Any, grid: tuple[int, ...], *values: Any) -> None:
    """Run a kernel in the simulator."""
    from numba import cuda

    cuda.jit(kernel.function)[grid, kernel.threads, 0, kernel.shared_bytes](*values)


def distance(got: np.ndarray, expected: np.ndarray) -> float:
    """Relative L2 distance; NaN where an output was not written."""
    return float(np.linalg.norm(got.astype(np.float64) - expected) / np.linalg.norm(expected))


def unwritten(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """A flat array of NaN."""
    return np.full(int(np.prod(shape)), np.nan, dtype)


def main(quick: dict[str, Callable[[], dict[str, float]]], slow: dict[str, Callable[[], dict[str, float]]]) -> None:
    """Print the results of the quick cases, or with the argument "slow" of the slow ones, as JSON."""
    cases = slow if sys.argv[1:] == ["slow"] else quick
    print(json.dumps({name: {k: float(v) for k, v in case().items()} for name, case in cases.items()}))
