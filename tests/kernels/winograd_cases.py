"""Cases of the Winograd convolutions; as a script, runs those of the simulator and prints their results."""

from __future__ import annotations

from typing import Any

import numpy as np
from kernels.cuda_cases import Case, conv2d, error, run_in_simulator
from kernels.simulated import launch, main

from diarize.candidates import Request


def winograd(c_in: int, c_out: int, **parameters: Any) -> Request:
    """A float16 kernel."""
    return Request("conv_winograd:make_conv_winograd", {"c_in": c_in, "c_out": c_out, **parameters})


def winograd_f32(c_in: int, c_out: int, **parameters: Any) -> Request:
    """A float32 kernel."""
    return Request("conv_winograd_f32:make_conv_winograd_f32", {"c_in": c_in, "c_out": c_out, **parameters})


QUICK = [
    Case("2x2, residual", winograd(32, 32, warps_across=1, residual=True), 1, 3, 19),
    Case("2x2, overflow", winograd(32, 32, warps_across=1, warps_n=1, stages=2), 1, 1, 3, overflow=True),
    Case(
        "by columns",
        winograd(
            *(32, 64), square=False, octet_rows=4, warp_n=32, warps_across=1, warps_n=1, stages=2, tile_k=32, relu=False
        ),
        *(1, 3, 17),
    ),
    Case("float32", winograd_f32(16, 64, residual=True, tile_rows=4), 1, 5, 19),
]
"""Small cases for the simulator: both forms, and float32."""

SLOW = [
    Case(
        "2x2, side by side",
        winograd(16, 32, octet_rows=1, octet_columns=2, warps_across=1, warps_n=1, relu=False),
        *(1, 3, 35),
    ),
    Case(
        "by columns, two windows",
        winograd(
            *(48, 32), square=False, octet_columns=2, warp_n=32, warps_down=2, warps_across=1, warps_n=1, residual=True
        ),
        *(2, 5, 7),
    ),
    Case("float32, 32 channels", winograd_f32(8, 32, relu=False), 1, 3, 17),
]
"""Others, among them octets that share a fragment side by side."""


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
"""Name, parameters, (windows, height, width) and blocks; all but the first are slow."""


def simulate_case(case: Case) -> dict[str, float]:
    """Error and flag of a case in the simulator."""
    (distance,), flag = run_in_simulator(case)
    return {"error": distance, "flag": flag}


def simulate_hopper(parameters: dict[str, Any], size: tuple[int, int, int], blocks: int) -> dict[str, float]:
    """Error and flag of the Hopper kernel in the simulator."""
    conv = Request("conv_winograd_hopper:make_conv_winograd_hopper", parameters).make()
    arguments, expected = hopper_problem(conv, *size)
    flat = [a.reshape(-1) if isinstance(a, np.ndarray) else a for a in arguments]
    launch(conv.kernel, (blocks, 1, 1), *flat)
    return {"error": error(arguments[4], expected), "flag": int(arguments[5][0])}


def beyond_half() -> dict[str, float]:
    """Largest true output and the flag, where inputs and outputs fit float16 but a transformed input does not.

    Neighbours of the first tile differ by 80,000, and the sum that is infinite enters its output with a minus sign, so
    that ReLU turns it into 0.
    """
    conv = winograd(16, 32, warps_across=1, warps_n=1).make()
    x, weight = np.zeros((1, 2, 4, 16), np.float16), np.full((32, 16, 3, 3), 2.0**-10, np.float32)
    x[0, 0, 0], x[0, 0, 2] = 40000.0, -40000.0
    y, flag = np.zeros((1, 2, 4, 32), np.float16), np.zeros(1, np.int32)
    values = [x, conv.pack(weight), np.zeros(32, np.float32), x, y, flag]
    launch(conv.kernel, conv.grid(1, 2, 4, 1), *[value.reshape(-1) for value in values], 2, 4, 2, 4)
    return {"largest": float(np.abs(conv2d(x, weight)).max()), "flag": int(flag[0])}


if __name__ == "__main__":
    quick = {case.name: lambda case=case: simulate_case(case) for case in QUICK}
    slow = {case.name: lambda case=case: simulate_case(case) for case in SLOW}
    for number, (name, *values) in enumerate(HOPPER):
        (slow if number else quick)[name] = lambda values=values: simulate_hopper(*values)
    main({**quick, "beyond half": beyond_half}, slow)
