"""Linear layer in float32 for few rows and a long sum, such as `seg_1` (5120 -> 256): partial sums, then their total.

The sum is cut into parts of `part` inputs, each added in order, and the parts in order: a row's result does not depend
on the batch. Arithmetic is float32 on the plain cores; at 0.003 GFLOP a row it does not matter beside the trunk.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from .ptx import SIMULATOR, f32_bits, float32, int32, ldg128f, lds128f, stg128f, sts128
from .spec import Kernel
from .unroll import static_range, unroll

TILE_ROWS = 16
TILE_OUTPUTS = 64


def pack_linear(weight: np.ndarray) -> np.ndarray:
    """(outputs, inputs) float32 weights as flat [inputs][outputs]."""
    return np.ascontiguousarray(weight.T, np.float32).reshape(-1)


def partial_grid(rows: int, inputs: int, outputs: int, part: int) -> tuple[int, int, int]:
    """Blocks of the partial sums."""
    return -(-rows // TILE_ROWS), outputs // TILE_OUTPUTS, inputs // part


def make_linear_partial(part: int = 256) -> Kernel:
    """Partial sums. Arguments: x (rows, inputs), weights, partial (inputs / part, rows, outputs), rows, inputs,
    outputs.

    A block of 256 threads computes 16 rows by 64 outputs, four outputs a thread. `inputs` is a multiple of `part`,
    `part` of 32, `outputs` of 64. Shared memory 10.3 KB.
    """
    NX = 16 * 33
    NW = 32 * 64
    STEPS = part // 32
    PART = part
    assert part % 32 == 0
    name = f"linear_partial_{part}"

    @unroll(name=name)
    def partial(x, w, out, rows, inputs, outputs):
        xs = cuda.shared.array(NX, float32)
        if SIMULATOR:  # noqa: SIM108
            ws = cuda.shared.array(NW, float32)
        else:
            ws = cuda.shared.array(NW, float32, alignment=16)
        tid = int32(cuda.threadIdx.x)
        r0 = int32(cuda.blockIdx.x * 16)
        o0 = int32(cuda.blockIdx.y * 64)
        k0 = int32(cuda.blockIdx.z * PART)
        row = int32(tid >> 4)
        column = int32((tid & 15) * 4)
        a0 = float32(0.0)
        a1 = float32(0.0)
        a2 = float32(0.0)
        a3 = float32(0.0)
        held = cuda.local.array(10, float32)
        for i in static_range(2):
            p = int32(tid + i * 256)
            source = int32(r0 + (p >> 5))
            inside = int32(1) if source < rows else int32(0)
            held[i] = x[source * inside * inputs + k0 + (p & 31)] * float32(inside)
            at = int32((k0 + (p >> 4)) * outputs + o0 + (p & 15) * 4)
            held[2 + i * 4], held[3 + i * 4], held[4 + i * 4], held[5 + i * 4] = ldg128f(w, at)
        for step in static_range(STEPS):
            cuda.syncthreads()
            for i in static_range(2):
                p = int32(tid + i * 256)
                xs[(p >> 5) * 33 + (p & 31)] = held[i]
                at = int32((p >> 4) * 64 + (p & 15) * 4)
                w0, w1 = f32_bits(held[2 + i * 4]), f32_bits(held[3 + i * 4])
                w2, w3 = f32_bits(held[4 + i * 4]), f32_bits(held[5 + i * 4])
                sts128(ws, at, w0, w1, w2, w3)
            cuda.syncthreads()
            # The next tiles are on their way while these are multiplied.
            if step + 1 < STEPS:
                k = int32(k0 + (step + 1) * 32)
                for i in static_range(2):
                    p = int32(tid + i * 256)
                    source = int32(r0 + (p >> 5))
                    inside = int32(1) if source < rows else int32(0)
                    held[i] = x[source * inside * inputs + k + (p & 31)] * float32(inside)
                    at = int32((k + (p >> 4)) * outputs + o0 + (p & 15) * 4)
                    held[2 + i * 4], held[3 + i * 4], held[4 + i * 4], held[5 + i * 4] = ldg128f(w, at)
            for j in range(32):
                value = xs[row * 33 + int32(j)]
                b0, b1, b2, b3 = lds128f(ws, int32(int32(j) * 64 + column))
                a0 += value * b0
                a1 += value * b1
                a2 += value * b2
                a3 += value * b3
        if r0 + row < rows:
            stg128f(out, (int32(cuda.blockIdx.z) * rows + r0 + row) * outputs + o0 + column, a0, a1, a2, a3)

    return Kernel(name, partial, "fffiii", 256, 0, 2, (7, 5))


def make_linear_total() -> Kernel:
    """Total of the partial sums. Arguments: partial, bias, out (rows, outputs), parts, rows, outputs. Grid (rows,)."""
    name = "linear_total"

    @unroll(name=name)
    def total(partial, bias, out, parts, rows, outputs):
        row = int32(cuda.blockIdx.x)
        column = int32(cuda.threadIdx.x)
        while column < outputs:
            value = float32(0.0)
            for part in range(parts):
                value += partial[(int32(part) * rows + row) * outputs + column]
            out[row * outputs + column] = value + bias[column]
            column = int32(column + 256)

    return Kernel(name, total, "fffiii", 256, 0, 1, (7, 5))
