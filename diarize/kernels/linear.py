"""Linear layer in float32 for few rows and a long sum, such as `seg_1` (5120 -> 256): partial sums, then their total.

The sum is cut into parts of `part` inputs, each added in order, and the parts in order: a row's result does not depend
on the batch. Arithmetic is float32 on the plain cores; at 0.003 GFLOP a row it does not matter beside the trunk.
"""

from __future__ import annotations

import numpy as np

from .ptx import SIMULATOR, cuda, f32_bits, float32, int32, ldg128f, lds128f, stg128f, sts128
from .spec import Kernel
from .unroll import unroll

TILE_ROWS = 64
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

    A block of 256 threads computes 64 rows by 64 outputs, four rows by four outputs a thread. `inputs` is a multiple of
    `part`, `part` of 32, `outputs` of 64. Shared memory 16.6 KB.
    """
    NX = 64 * 33
    NW = 32 * 64
    STEPS = part // 32
    PART = part
    assert part % 32 == 0
    name = f"linear_partial_{part}"

    @unroll(name=name)
    def partial(x, w, out, rows, inputs, outputs):
        xs = cuda.shared.array(NX, float32)
        ws = cuda.shared.array(NW, float32) if SIMULATOR else cuda.shared.array(NW, float32, alignment=16)
        tid = int32(cuda.threadIdx.x)
        r0 = int32(cuda.blockIdx.x * 64)
        o0 = int32(cuda.blockIdx.y * 64)
        k0 = int32(cuda.blockIdx.z * PART)
        row = int32(tid >> 4)
        column = int32((tid & 15) * 4)
        acc = cuda.local.array(16, float32)
        for i in range(16):
            acc[i] = float32(0.0)
        xh = cuda.local.array(8, float32)
        wh = cuda.local.array(8, float32)
        for step in range(STEPS + 1):
            if step > 0:
                cuda.syncthreads()
                for i in range(8):
                    p = int32(tid + int32(i) * 256)
                    xs[(p >> 5) * 33 + (p & 31)] = xh[i]
                for i in range(2):
                    p = int32(tid + int32(i) * 256)
                    w0, w1 = f32_bits(wh[i * 4]), f32_bits(wh[i * 4 + 1])
                    w2, w3 = f32_bits(wh[i * 4 + 2]), f32_bits(wh[i * 4 + 3])
                    sts128(ws, int32((p >> 4) * 64 + (p & 15) * 4), w0, w1, w2, w3)
                cuda.syncthreads()
            # The next tiles are on their way while these are multiplied.
            if step < STEPS:
                k = int32(k0 + int32(step) * 32)
                for i in range(8):
                    p = int32(tid + int32(i) * 256)
                    source = int32(r0 + (p >> 5))
                    inside = int32(1) if source < rows else int32(0)
                    xh[i] = x[source * inside * inputs + k + (p & 31)] * float32(inside)
                for i in range(2):
                    p = int32(tid + int32(i) * 256)
                    at = int32((k + (p >> 4)) * outputs + o0 + (p & 15) * 4)
                    wh[i * 4], wh[i * 4 + 1], wh[i * 4 + 2], wh[i * 4 + 3] = ldg128f(w, at)
            if step > 0:
                for j in range(32):
                    b0, b1, b2, b3 = lds128f(ws, int32(int32(j) * 64 + column))
                    for i in range(4):
                        value = xs[(row + int32(i) * 16) * 33 + int32(j)]
                        acc[i * 4] += value * b0
                        acc[i * 4 + 1] += value * b1
                        acc[i * 4 + 2] += value * b2
                        acc[i * 4 + 3] += value * b3
        for i in range(4):
            r = int32(r0 + row + int32(i) * 16)
            if r < rows:
                at = int32((int32(cuda.blockIdx.z) * rows + r) * outputs + o0 + column)
                stg128f(out, at, acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3])

    return Kernel(name, partial, "fffiii", 256, 0, 2)


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

    return Kernel(name, total, "fffiii", 256, 0, 1)
