"""First convolution of ResNet34: one channel of log-mel features to 32, 3x3, NHWC float16 out, on tensor cores.

Reads float32 features through strides, so (frame, mel) features of a whole recording serve overlapping windows in
place, and subtracts a mean per window and mel bin on the way; outside the window it reads zeros. Bias and ReLU are
fused.

The nine taps are the inner dimension of a 16x8x16 product (seven of its sixteen places have zero weights). Features
enter as two float16 terms, their rounded value and the rest, so that only the weights are rounded to float16.

A block of 256 threads computes 80 rows (mel) by 32 columns (frames); each warp ten rows, 16 pixels a product. Shared
memory: 82 x 35 floats, 11.5 KB; the odd pitch keeps the transposed writes free of bank conflicts. The output's bytes
are the floor.
"""

from __future__ import annotations

import numpy as np

from .conv_pack import channel_order
from .ptx import (
    cuda,
    float32,
    int32,
    make_fill_bias,
    make_finish8,
    mma_f16_16816,
    opaque32,
    pack_half2,
    raise_flag,
    udiv32,
    umod32,
    unpack_half2,
)
from .spec import Kernel
from .unroll import static_range, unroll

LARGEST = 3.0e38
"""A larger magnitude, or NaN, raises the flag of the float32 form."""

TILE_ROWS = 80
TILE_COLUMNS = 32


def pack_stem(weight: np.ndarray) -> np.ndarray:
    """(32, 1, 3, 3) float32 weights as the second operand of four products: flat int32 [block of 8][word][lane].

    Rows (taps) 9 to 15 are zero; columns are output channels in `channel_order`.
    """
    taps = np.zeros((16, 32), np.float16)
    taps[:9] = weight.reshape(32, 9).T[:, channel_order()]
    lane = np.arange(32)
    k, n = (lane % 4) * 2, lane // 4
    words = [
        np.stack([taps[k + 8 * word, 8 * block + n], taps[k + 8 * word + 1, 8 * block + n]], axis=-1)
        for block in range(4)
        for word in range(2)
    ]
    return np.ascontiguousarray(np.stack(words)).view(np.int32).reshape(-1)


def stem_grid(windows: int, height: int, width: int) -> tuple[int, int, int]:
    """Blocks for `windows` images of height x width."""
    return -(-width // TILE_COLUMNS), -(-height // TILE_ROWS), windows


def make_stem() -> Kernel:
    """The kernel. Arguments: x, mean (windows, height), weights, bias, y, flag, strides of x, height, width.

    Strides are in elements, for window, row and column.
    """
    PITCH = 35
    NVALUES = 82 * 34
    LOADS = -(-NVALUES // 256)
    NSHARED = 82 * PITCH
    fill_bias = make_fill_bias(1, 32)
    finish8 = make_finish8(False, True, guarded=True)
    name = "stem_c32_80x32"

    @unroll(name=name)
    def stem(x, mean, w, bias, y, flag, sb, sh, sw, H, W):
        sm = cuda.shared.array(NSHARED, float32)
        tid = int32(cuda.threadIdx.x)
        x0 = int32(cuda.blockIdx.x * 32)
        y0 = int32(cuda.blockIdx.y * 80)
        img = int32(cuda.blockIdx.z)
        for i in range(LOADS):
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
        b = cuda.local.array(8, int32)
        lane = int32(tid & 31)
        for i in static_range(8):
            b[i] = w[i * 32 + lane]
        q = int32(lane & 3)
        g = int32(lane >> 2)
        # This thread's taps 2q, 2q + 1 and 8, as offsets in the tile.
        t0 = int32(q * 2)
        t1 = int32(q * 2 + 1)
        at0 = int32(udiv32(t0, 3) * PITCH + umod32(t0, 3) + g)
        at1 = int32(udiv32(t1, 3) * PITCH + umod32(t1, 3) + g)
        at2 = int32(2 * PITCH + 2 + g)
        acc = cuda.local.array(16, float32)
        a = cuda.local.array(4, int32)
        rest = cuda.local.array(4, int32)
        none = cuda.local.array(1, int32)
        top = cuda.local.array(1, int32)
        none[0] = int32(0)
        top[0] = int32(0)
        first = int32((tid >> 5) * 10)
        cuda.syncthreads()
        # A bound that the compiler cannot see keeps the loop rolled.
        last = opaque32(first + 10)
        row = first
        while row < last:
            oy = int32(y0 + row)
            for part in static_range(2):
                base = int32(row * PITCH + part * 16)
                for half in static_range(2):
                    u = sm[base + half * 8 + at0]
                    v = sm[base + half * 8 + at1]
                    a[half] = pack_half2(u, v)
                    ur, vr = unpack_half2(a[half])
                    rest[half] = pack_half2(u - ur, v - vr)
                    u = sm[base + half * 8 + at2]
                    a[2 + half] = pack_half2(u, float32(0.0))
                    ur, vr = unpack_half2(a[2 + half])
                    rest[2 + half] = pack_half2(u - ur, float32(0.0))
                fill_bias(acc, bias, q * 8)
                for n in static_range(4):
                    k = n * 4
                    acc[k], acc[k + 1], acc[k + 2], acc[k + 3] = mma_f16_16816(
                        a[0], a[1], a[2], a[3], b[2 * n], b[2 * n + 1], acc[k], acc[k + 1], acc[k + 2], acc[k + 3]
                    )
                    r0, r1, r2, r3 = rest[0], rest[1], rest[2], rest[3]
                    acc[k], acc[k + 1], acc[k + 2], acc[k + 3] = mma_f16_16816(
                        r0, r1, r2, r3, b[2 * n], b[2 * n + 1], acc[k], acc[k + 1], acc[k + 2], acc[k + 3]
                    )
                for half in static_range(2):
                    ox = int32(x0 + part * 16 + half * 8 + g)
                    ok = int32(1) if (oy < H) & (ox < W) else int32(0)
                    finish8(acc, half * 2, none, 0, y, int32(((img * H + oy) * W + ox) * 32 + q * 8), 0, ok, top)
            row = int32(row + 1)
        raise_flag(top, flag)

    return Kernel(name, stem, "ffwfhwiiiii", 256, 0, 3)


def pack_stem_f32(weight: np.ndarray) -> np.ndarray:
    """(32, 1, 3, 3) float32 weights as flat [tap][channel]."""
    return np.ascontiguousarray(weight.reshape(32, 9).T, np.float32).reshape(-1)


def stem_f32_grid(windows: int, height: int, width: int) -> tuple[int, int, int]:
    """Blocks of `make_stem_f32`."""
    return -(-width // 64), height, windows


def make_stem_f32() -> Kernel:
    """The same with float32 weights and output, for GPUs without tensor cores for float16 and as the fallback.

    Arguments as `make_stem`, with `pack_stem_f32` weights and float32 y. A thread computes one pixel and eight
    channels.
    """
    BIG = LARGEST
    name = "stem_f32_c32"

    @unroll(name=name)
    def stem(x, mean, w, bias, y, flag, sb, sh, sw, H, W):
        tid = int32(cuda.threadIdx.x)
        ox = int32(cuda.blockIdx.x * 64 + (tid >> 2))
        oy = int32(cuda.blockIdx.y)
        img = int32(cuda.blockIdx.z)
        channel = int32((tid & 3) * 8)
        acc = cuda.local.array(8, float32)
        for j in range(8):
            acc[j] = bias[channel + j]
        for tap in range(9):
            gy = int32(oy + udiv32(int32(tap), 3) - 1)
            gx = int32(ox + umod32(int32(tap), 3) - 1)
            if (gy >= 0) & (gy < H) & (gx >= 0) & (gx < W):
                value = x[img * sb + gy * sh + gx * sw] - mean[img * H + gy]
                for j in range(8):
                    acc[j] += value * w[int32(tap) * 32 + channel + j]
        if ox < W:
            at = int32(((img * H + oy) * W + ox) * 32 + channel)
            for j in range(8):
                if not (abs(acc[j]) <= float32(BIG)):
                    flag[0] = int32(1)
                y[at + j] = max(acc[j], float32(0.0))

    return Kernel(name, stem, "fffffwiiiii", 256, 0, 1)
