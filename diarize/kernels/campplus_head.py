"""Convolutional head of CAM++ for ragged batches: gathered frames, first convolution, 3x3 and 1x1 convolutions.

Several sequences share one axis of columns (10 ms frames), with free columns between them; `item` holds the sequence
of each column, -1 where free. Activations are pairs of float16, [high, low][row][column][32 channels], rows are
frequency, zero in free columns, so that no sequence sees another. Weights are pairs too, sums float32: the products
are as accurate as float32; with float16 activations the embeddings of some sequences were 3e-3 off.
"""

from __future__ import annotations

import numpy as np

from .conv_pack import channel_order
from .ptx import (
    SIMULATOR,
    cp_async16,
    cp_async_commit,
    cp_async_wait0,
    cuda,
    float16,
    float32,
    hmax2_nan,
    int32,
    int64,
    ldg128,
    lds128f,
    make_fill,
    make_split_step,
    opaque32,
    raise_flag,
    split_half2,
    stg128,
    udiv32,
    unpack_half2,
)
from .spec import Kernel, lowest_capability
from .split_pack import pack_split
from .unroll import static_range, unroll

CHANNELS = 32
MELS = 80
TILE_ROWS, TILE_COLUMNS = 4, 64
"""Output rows and columns a block of the other convolutions."""


def pack_stem(weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """(32, 1, 3, 3) weights as [tap][channel], then the bias: 320 float32."""
    return np.concatenate([weight.reshape(32, 9).T.ravel(), bias]).astype(np.float32)


def pack_conv(weight: np.ndarray) -> np.ndarray:
    """(32, 32, k, k) weights in fragments, outputs ordered so that a lane holds eight adjacent channels."""
    return pack_split(weight[channel_order()].transpose(0, 2, 3, 1).reshape(32, -1))


def make_cam_mean() -> Kernel:
    """Mean of each mel bin over a sequence's frames. Grid (sequences), 640 threads: 80 bins by eight parts.

    Arguments: features (frames, 80), source frame of each column, spans (sequences, 2: first column, length), mean
    (sequences, 80).
    """
    name = "cam_mean"

    @unroll(name=name)
    def cam_mean(x, source, spans, mean):
        sums = cuda.shared.array(640, float32)
        tid = int32(cuda.threadIdx.x)
        item = int32(cuda.blockIdx.x)
        part = udiv32(tid, 80)
        band = int32(tid - part * 80)
        first = spans[item * 2]
        count = spans[item * 2 + 1]
        total = float32(0.0)
        frame = part
        while frame < count:
            total += x[int64(source[first + frame]) * 80 + band]
            frame = int32(frame + 8)
        sums[tid] = total
        cuda.syncthreads()
        if tid < 80:
            total = float32(0.0)
            for i in static_range(8):
                total += sums[i * 80 + tid]
            mean[item * 80 + tid] = total / float32(count)

    return Kernel(name, cam_mean, "fwwf", 640, 0, 1)


def make_cam_stem() -> Kernel:
    """First convolution, 1 to 32 channels, of gathered frames less their mean, with bias and ReLU.

    Arguments: features (frames, 80), source frame of each column, item, mean (sequences, 80), packed weights (320), y
    (2, 80, columns, 32), columns. A block of 256 threads makes all 80 rows of 32 columns, all channels a thread.
    """
    PITCH = 35
    NSHARED = 82 * PITCH
    NLOAD = 82 * 34
    name = "cam_stem"

    @unroll(name=name)
    def stem(x, source, item, mean, w, y, columns):
        xs = cuda.shared.array(NSHARED, float32)
        if SIMULATOR:  # noqa: SIM108
            ws = cuda.shared.array(320, float32)
        else:
            ws = cuda.shared.array(320, float32, alignment=16)
        tid = int32(cuda.threadIdx.x)
        x0 = int32(cuda.blockIdx.x * 32)
        for i in range(2):
            p = int32(tid + int32(i) * 256)
            if p < 320:
                ws[p] = w[p]
        p = tid
        while p < NLOAD:
            # Mel bins are adjacent in memory.
            c = udiv32(p, 82)
            r = int32(p - c * 82)
            column = int32(x0 + c - 1)
            value = float32(0.0)
            if (column >= 0) & (column < columns) & (r > 0) & (r < 81):
                sequence = item[column]
                if sequence >= 0:
                    value = x[int64(source[column]) * 80 + r - 1] - mean[sequence * 80 + r - 1]
            xs[r * PITCH + c] = value
            p = int32(p + 256)
        cuda.syncthreads()
        c = int32(tid & 31)
        column = int32(x0 + c)
        if column < columns:
            acc = cuda.local.array(32, float32)
            words = cuda.local.array(16, int32)
            rest = cuda.local.array(16, int32)
            valid = item[column] >= 0
            for i in range(10):
                row = int32((tid >> 5) + int32(i) * 8)
                for k in static_range(32):
                    acc[k] = ws[288 + k]
                for tap in static_range(9):
                    value = xs[(row + tap // 3) * PITCH + c + tap % 3]
                    for q in static_range(8):
                        a, b, d, e = lds128f(ws, tap * 32 + q * 4)
                        acc[q * 4] += value * a
                        acc[q * 4 + 1] += value * b
                        acc[q * 4 + 2] += value * d
                        acc[q * 4 + 3] += value * e
                for k in static_range(16):
                    words[k], rest[k] = split_half2(max(acc[2 * k], float32(0.0)), max(acc[2 * k + 1], float32(0.0)))
                    if not valid:
                        words[k] = 0
                        rest[k] = 0
                to = (int64(row) * columns + column) * 32
                for q in static_range(4):
                    stg128(y, to + q * 8, words[4 * q], words[4 * q + 1], words[4 * q + 2], words[4 * q + 3])
                to += int64(columns) * 2560
                for q in static_range(4):
                    stg128(y, to + q * 8, rest[4 * q], rest[4 * q + 1], rest[4 * q + 2], rest[4 * q + 3])

    return Kernel(name, stem, "fwwffhi", 256, 0, 2)


def make_cam_conv(stride: int, size: int, residual: bool, relu: bool, passes: int = 1) -> Kernel:
    """Convolution of 32 to 32 channels, `size` 3 (padding 1) or 1, `stride` over rows only.

    Arguments: x (2, rows in, columns, 32), packed weights, bias (32), residual, y (2, rows, columns, 32), item, flag,
    rows in, rows, columns. Grid (columns / 64, rows / 4), four warps, a row each. The flag becomes 1 where an output
    leaves float16's range. With two `passes`, for GPUs with little shared memory, the block's right half comes after
    its left half.
    """
    assert passes in (1, 2)
    PASSES = passes
    SIZE = size
    HALO = size // 2
    WIDTH = TILE_COLUMNS // passes
    COLUMNS = WIDTH + size - 1
    # Rows between are left out where no tap reads them.
    BETWEEN = stride if size == 1 else 1
    STRIDE = stride // BETWEEN
    BLOCK_STRIDE = stride
    ROWS = STRIDE * (TILE_ROWS - 1) + size
    BLOCKS = WIDTH // 16
    NACC = 16 * BLOCKS
    UNITS = ROWS * COLUMNS * 4
    PITCH = 40
    RESIDUAL = int(residual)
    RELU = int(relu)
    LOW = ROWS * COLUMNS * PITCH
    step = make_split_step([m * 16 * PITCH for m in range(BLOCKS)], LOW, 4)
    fill = make_fill(NACC)
    name = f"cam_conv_k{size}_s{stride}" + ("_res" if residual else "") + ("_relu" if relu else "")
    name += "" if passes == 1 else "_passes2"

    @unroll(name=name)
    def conv(x, weights, bias, res, y, item, flag, rows_in, rows, columns):
        if SIMULATOR:  # noqa: SIM108
            sm = cuda.shared.array(0, float16)
        else:
            sm = cuda.shared.array(0, float16, alignment=128)
        tid = int32(cuda.threadIdx.x)
        y0 = int32(cuda.blockIdx.y * 4)
        lane = int32(tid & 31)
        warp = int32(tid >> 5)
        acc = cuda.local.array(NACC, float32)
        top = cuda.local.array(1, int32)
        top[0] = int32(0)
        for turn in static_range(PASSES):
            if turn > 0:
                cuda.syncthreads()
            x0 = int32(cuda.blockIdx.x * 64 + turn * WIDTH)
            p = tid
            while p < UNITS:
                pixel = int32(p >> 2)
                unit = int32((p & 3) * 8)
                r = udiv32(pixel, COLUMNS)
                gy = int32(y0 * BLOCK_STRIDE + r * BETWEEN - HALO)
                gx = int32(x0 + pixel - r * COLUMNS - HALO)
                inside = (gy >= 0) & (gy < rows_in) & (gx >= 0) & (gx < columns)
                at = (int64(gy) * columns + gx) * 32 + unit
                there = int32(16) if inside else int32(0)
                cp_async16(sm, pixel * PITCH + unit, x, at if inside else int64(0), there)
                at += int64(rows_in) * columns * 32
                cp_async16(sm, LOW + pixel * PITCH + unit, x, at if inside else int64(0), there)
                p = int32(p + 128)
            cp_async_commit()
            cp_async_wait0()
            cuda.syncthreads()
            a = int32((warp * (STRIDE * COLUMNS) + (lane & 15)) * PITCH + ((lane >> 4) << 3))
            w = int64(lane * 8)
            fill(acc)
            # The count is hidden, so that the loop stays rolled: unrolled, the loads of all taps would be in flight.
            left = int32(SIZE * SIZE)
            across = int32(SIZE)
            while left > 0:
                step(acc, sm, a, weights, w)
                step(acc, sm, a + 16, weights, w + 1024)
                w += 2048
                a = int32(a + PITCH)
                across = int32(across - 1)
                if across == 0:
                    across = int32(SIZE)
                    a = int32(a + (COLUMNS - SIZE) * PITCH)
                left = int32(opaque32(left) - 1)
            row = int32(y0 + warp)
            channel = int32((lane & 3) * 8)
            v = cuda.local.array(8, float32)
            r4 = cuda.local.array(4, int32)
            rest = cuda.local.array(4, int32)
            lows = int64(rows) * columns * 32
            if row < rows:
                for m in static_range(BLOCKS):
                    for half in static_range(2):
                        column = int32(x0 + m * 16 + half * 8 + (lane >> 2))
                        if column < columns:
                            to = (int64(row) * columns + column) * 32 + channel
                            for j in static_range(4):
                                v[2 * j] = acc[(m * 4 + j) * 4 + half * 2] + bias[channel + 2 * j]
                                v[2 * j + 1] = acc[(m * 4 + j) * 4 + half * 2 + 1] + bias[channel + 2 * j + 1]
                            if RESIDUAL:
                                r4[0], r4[1], r4[2], r4[3] = ldg128(res, to)
                                rest[0], rest[1], rest[2], rest[3] = ldg128(res, to + lows)
                                for j in static_range(4):
                                    even, odd = unpack_half2(r4[j])
                                    even_low, odd_low = unpack_half2(rest[j])
                                    v[2 * j] += even + even_low
                                    v[2 * j + 1] += odd + odd_low
                            for j in static_range(4):
                                if RELU:
                                    v[2 * j] = max(v[2 * j], float32(0.0))
                                    v[2 * j + 1] = max(v[2 * j + 1], float32(0.0))
                                r4[j], rest[j] = split_half2(v[2 * j], v[2 * j + 1])
                            if item[column] < 0:
                                for j in static_range(4):
                                    r4[j] = int32(0)
                                    rest[j] = int32(0)
                            for j in static_range(4):
                                top[0] = hmax2_nan(top[0], r4[j] & 0x7FFF7FFF)
                            stg128(y, to, r4[0], r4[1], r4[2], r4[3])
                            stg128(y, to + lows, rest[0], rest[1], rest[2], rest[3])
        raise_flag(top, flag)

    shared = 2 * LOW * 2
    return Kernel(name, conv, "hhfhhwwiii", 128, shared, 2, lowest_capability(shared))
