"""Cases of the Winograd convolutions; as a script, runs those of the simulator and prints one JSON line each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from kernels.cuda_cases import Case, conv2d, error, run_in_simulator

from diarize.backend.cuda_compile import Request


def winograd(c_in: int, c_out: int, **parameters: Any) -> Request:
    """A float16 kernel."""
    return Request("conv_winograd:make_conv_winograd", {"c_in": c_in, "c_out": c_out, **parameters})


def winograd_f32(c_in: int, c_out: int, **parameters: Any) -> Request:
    """A float32 kernel."""
    return Request("conv_winograd_f32:make_conv_winograd_f32", {"c_in": c_in, "c_out": c_out, **parameters})


SIMULATED = [
    Case("2x2, residual", winograd(32, 32, warps_across=1, residual=True), 1, 3, 19),
    Case("2x2, overflow", winograd(32, 32, warps_across=1, warps_n=1, stages=2), 1, 1, 3, overflow=True),
    Case(
        "2x2, side by side",
        winograd(16, 32, octet_rows=1, octet_columns=2, warps_across=1, warps_n=1, relu=False),
        *(1, 3, 35),
    ),
    Case(
        "by columns",
        winograd(
            32,
            64,
            square=False,
            octet_rows=4,
            warp_n=32,
            warps_across=1,
            warps_n=1,
            stages=2,
            tile_k=32,
            relu=False,
        ),
        *(1, 3, 17),
    ),
    Case(
        "by columns, two windows",
        winograd(
            48,
            32,
            square=False,
            octet_columns=2,
            warp_n=32,
            warps_down=2,
            warps_across=1,
            warps_n=1,
            residual=True,
        ),
        *(2, 5, 7),
    ),
    Case("float32", winograd_f32(16, 64, residual=True, tile_rows=4), 1, 5, 19),
    Case("float32, 32 channels", winograd_f32(8, 32, relu=False), 1, 3, 17),
]
"""Small cases for the simulator, a few seconds each: both forms, both ways in which octets share a fragment."""


def hopper_problem(conv: Any, windows: int, height: int, width: int) -> tuple[list[Any], np.ndarray]:
    """Arguments of the persistent Hopper kernel, y the fifth and the flag the sixth, and the float64 output."""
    rng = np.random.default_rng(windows * height + width)
    shape = (windows, height, width, conv.c_out)
    x = rng.standard_normal((*shape[:3], conv.c_in)).astype(np.float16)
    residual, bias = rng.standard_normal(shape).astype(np.float16), rng.standard_normal(conv.c_out).astype(np.float32)
    weight = (rng.standard_normal((conv.c_out, conv.c_in, 3, 3)) / (3 * conv.c_in**0.5)).astype(np.float32)
    expected = conv2d(x, weight) + bias + (residual.astype(np.float64) if conv.residual else 0)
    y, flag = np.full(shape, np.nan, np.float16), np.zeros(1, np.int32)
    arguments = [x, conv.pack(weight), bias, residual, y, flag, height, width, windows, 0]
    return arguments, np.maximum(expected, 0) if conv.relu else expected


HOPPER = [
    ("Hopper, residual", {"c_in": 32, "c_out": 64, "residual": True, "stages": 3}, (1, 5, 35), 1),
    ("Hopper, two windows", {"c_in": 64, "c_out": 128, "relu": False}, (2, 5, 7), 3),
]
"""Name, parameters, (windows, height, width) and blocks."""


def simulate_hopper(parameters: dict[str, Any], size: tuple[int, int, int], blocks: int) -> tuple[float, int]:
    """Error and flag of the Hopper kernel in the simulator."""
    from numba import cuda

    conv = Request("conv_winograd_hopper:make_conv_winograd_hopper", parameters).make()
    kernel = conv.kernel
    arguments, expected = hopper_problem(conv, *size)
    flat = [a.reshape(-1) if isinstance(a, np.ndarray) else a for a in arguments]
    cuda.jit(kernel.function)[(blocks, 1, 1), kernel.threads, 0, kernel.shared_bytes](*flat)
    return error(arguments[4], expected), int(arguments[5][0])


def beyond_half() -> tuple[float, int]:
    """Largest true output and the flag, where inputs and outputs fit float16 but a transformed input does not.

    Neighbours of the first tile differ by 80,000, and the sum that is infinite enters its output with a minus sign, so
    that ReLU turns it into 0.
    """
    from numba import cuda

    conv = winograd(16, 32, warps_across=1, warps_n=1).make()
    x, weight = np.zeros((1, 2, 4, 16), np.float16), np.full((32, 16, 3, 3), 2.0**-10, np.float32)
    x[0, 0, 0], x[0, 0, 2] = 40000.0, -40000.0
    y, flag = np.zeros((1, 2, 4, 32), np.float16), np.zeros(1, np.int32)
    values = [x, conv.pack(weight), np.zeros(32, np.float32), x, y, flag]
    kernel = conv.kernel
    launch = cuda.jit(kernel.function)[conv.grid(1, 2, 4, 1), kernel.threads, 0, kernel.shared_bytes]
    launch(*[value.reshape(-1) for value in values], 2, 4, 2, 4)
    return float(np.abs(conv2d(x, weight)).max()), int(flag[0])


if __name__ == "__main__":
    for case in SIMULATED:
        errors, flag = run_in_simulator(case)
        print(json.dumps({"name": case.name, "errors": errors, "flag": flag}), flush=True)
    for name, parameters, size, blocks in HOPPER:
        distance, flag = simulate_hopper(parameters, size, blocks)
        print(json.dumps({"name": name, "errors": [distance], "flag": flag}), flush=True)
    largest, flag = beyond_half()
    print(json.dumps({"name": "beyond half", "largest": largest, "flag": flag}), flush=True)
