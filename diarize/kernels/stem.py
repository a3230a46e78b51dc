"""First convolution of ResNet34: one channel of log-mel features to 32, 3x3, float32 arithmetic, NHWC float16 out.

Reads float32 features through strides, so (frame, mel) features of a whole recording serve overlapping windows in
place, and subtracts a mean per window and mel bin on the way; outside the window it reads zeros. Bias and ReLU are
fused.

A block of 256 threads computes 80 rows (mel) by 16 columns (frames): four threads a column hold eight channels each,
and walk down their 20 rows two at a time. Shared memory: 82 x 19 floats, 6.2 KB; the odd pitch keeps the transposed
writes free of bank conflicts. 6,208 multiply-adds a thread, so memory (the output) and arithmetic take about the same
time.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from .ptx import (
    SIMULATOR,
    float32,
    fma8,
    int32,
    ldg128f,
    make_fill_bias,
    make_finish8,
    raise_flag,
    udiv32,
    umod32,
)
from .spec import Kernel
from .unroll import static_range, unroll

TILE_ROWS = 80
TILE_COLUMNS = 16


def pack_stem(weight: np.ndarray) -> np.ndarray:
    """(32, 1, 3, 3) float32 weights as flat [tap][channel]."""
    return np.ascontiguousarray(weight.reshape(32, 9).T, np.float32).reshape(-1)


def stem_grid(windows: int, height: int, width: int) -> tuple[int, int, int]:
    """Blocks for `windows` images of height x width."""
    return -(-width // TILE_COLUMNS), -(-height // TILE_ROWS), windows


def make_stem() -> Kernel:
    """The kernel. Arguments: x, mean (windows, height), weights, bias, y, flag, strides of x, height, width.

    Strides are in elements, for window, row and column.
    """
    PITCH = 19
    NVALUES = 82 * 18
    NSHARED = 82 * PITCH
    fill_bias = make_fill_bias(1, 32)
    finish8 = make_finish8(False, True)
    name = "stem_c32_80x16"

    @unroll(name=name)
    def stem(x, mean, w, bias, y, flag, sb, sh, sw, H, W):
        if SIMULATOR:  # noqa: SIM108
            sm = cuda.shared.array(NSHARED, float32)
        else:
            sm = cuda.shared.array(NSHARED, float32, alignment=16)
        tid = int32(cuda.threadIdx.x)
        x0 = int32(cuda.blockIdx.x * 16)
        y0 = int32(cuda.blockIdx.y * 80)
        img = int32(cuda.blockIdx.z)
        for i in range(6):
            p = int32(tid + int32(i) * 256)
            if p < NVALUES:
                # Rows (mel bins) are adjacent in memory.
                column = udiv32(p, 82)
                row = umod32(p, 82)
                gy = int32(y0 + row - 1)
                gx = int32(x0 + column - 1)
                value = float32(0.0)
                if (gy >= 0) & (gy < H) & (gx >= 0) & (gx < W):
                    value = x[img * sb + gy * sh + gx * sw] - mean[img * H + gy]
                sm[row * PITCH + column] = value
        held = cuda.local.array(72, float32)
        q = int32(tid & 3)
        for tap in static_range(9):
            k = tap * 8
            held[k], held[k + 1], held[k + 2], held[k + 3] = ldg128f(w, tap * 32 + q * 8)
            held[k + 4], held[k + 5], held[k + 6], held[k + 7] = ldg128f(w, tap * 32 + q * 8 + 4)
        cuda.syncthreads()
        acc = cuda.local.array(16, float32)
        none = cuda.local.array(1, int32)
        top = cuda.local.array(1, int32)
        none[0] = int32(0)
        top[0] = int32(0)
        column = int32((tid >> 2) & 15)
        first = int32((tid >> 6) * 20)
        ox = int32(x0 + column)
        for i in range(10):
            row = int32(first + int32(i) * 2)
            fill_bias(acc, bias, q * 8)
            for dy in static_range(4):
                for dx in static_range(3):
                    value = sm[(row + dy) * PITCH + column + dx]
                    if dy < 3:
                        fma8(acc, 0, value, held, (dy * 3 + dx) * 8)
                    if dy > 0:
                        fma8(acc, 2, value, held, (dy * 3 - 3 + dx) * 8)
            for half in static_range(2):
                oy = int32(y0 + row + half)
                ok = int32(1) if (oy < H) & (ox < W) else int32(0)
                finish8(acc, half * 2, none, 0, y, int32(((img * H + oy) * W + ox) * 32 + q * 8), 0, ok, top)
        raise_flag(top, flag)

    return Kernel(name, stem, "ffffhwiiiii", 256, 0, 2, (8, 0))
