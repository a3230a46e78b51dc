"""Time-delay part of CAM++ for ragged batches: products with batch norm and taps, context masks, statistics.

Sequences lie in spans of rows (20 ms) with free rows between them. `part` holds the context part (100 rows of one
sequence) of each row, -1 where free. What every later layer reads is float32 and multiplied as pairs of float16; the
bottleneck of a layer is float16. Sums are float32, weights pairs of float16.

References
----------
Wang et al. 2023, CAM++: A Fast and Efficient Network for Speaker Verification Using Context-Aware Masking.
"""

from __future__ import annotations

import math

import numpy as np

from .conv_pack import channel_order
from .ptx import (
    SIMULATOR,
    ctaid_x_again,
    ctaid_y_again,
    cuda,
    float16,
    float32,
    hmax2_nan,
    int32,
    int64,
    ldg128,
    ldg128f,
    make_fill,
    make_split_step,
    opaque32,
    pack_half2,
    raise_flag,
    split_half2,
    sqrt_rn,
    stg128,
    stg128f,
    sts128,
    tid_x_again,
    udiv32,
)
from .spec import Kernel
from .split_pack import pack_split
from .unroll import static_range, unroll

ROW_TILE = 64
"""Rows a block of the products."""
CONTEXT_ROWS = 100
BOTTLENECK, CONTEXT, GROWTH = 128, 64, 32


def pack_product(weight: np.ndarray) -> np.ndarray:
    """Weights (outputs, inputs) in fragments, outputs ordered so that a lane holds eight adjacent ones."""
    outputs = weight.shape[0]
    assert outputs % 32 == 0
    order = (np.arange(outputs) // 32) * 32 + channel_order()[np.arange(outputs) % 32]
    return pack_split(weight[order])


def pack_context(first: np.ndarray, bias1: np.ndarray, second: np.ndarray, bias2: np.ndarray) -> np.ndarray:
    """The context weights (64, 128) and (32, 64) by input, each with its bias behind: flat float32."""
    return np.concatenate([first.T.ravel(), bias1, second.T.ravel(), bias2]).astype(np.float32)


def make_cam_product(mode: str, min_blocks: int = 0) -> Kernel:
    """Products of 64 rows by 128 outputs a block of four warps (32 outputs for mode "taps").

    Mode "norm": inputs are ReLU(scale * x + shift) of float32 x (rows, pitch), exact to 22 bits; outputs get a bias
    and, where `relu`, a ReLU, and are float16. Mode "transit" is the same with float32 outputs, like the others.
    Mode "head": inputs are those of a convolution over time with five taps and stride 2 over x (2, 10, columns, 32), in
    the order frequency row, tap, channel; `pitch` is the columns. Mode "taps": inputs are the rows `extra` before, at
    and after of x (rows, 128); outputs are multiplied by the gates of the row's part.

    Arguments: x, scale, shift, packed weights, bias, gates (parts, 32), part, out, flag, pitch, chunks of 32 inputs,
    rows, blocks of eight outputs, out pitch, out column, relu, extra. Grid (rows / 64, outputs / 128). `min_blocks`
    blocks share a multiprocessor's registers, 0 for the mode's own number.
    """
    NORM = int(mode in ("norm", "transit"))
    HALF = int(mode == "norm")
    HEAD = int(mode == "head")
    TAPS = int(mode == "taps")
    assert NORM + HEAD + TAPS == 1
    # Only float16 outputs can leave their range; the others are caught where they are split next.
    PITCH = 40
    LOW = 64 * PITCH
    BUFFER = LOW * (1 if TAPS else 2)
    # Warps by rows and columns: 2 x 2 of 32 x 64, or 4 x 1 of 16 x 32.
    WARPS = 4 if TAPS else 2
    SHIFT = 2 if TAPS else 1
    BLOCKS = 1 if TAPS else 2
    COLUMNS = 4 if TAPS else 8
    GROUPS = COLUMNS // 4
    step = make_split_step(
        [m * 16 * PITCH for m in range(BLOCKS)], LOW, COLUMNS, exact=not TAPS, group=4 if TAPS else 2
    )
    fill = make_fill(BLOCKS * COLUMNS * 4)
    NACC = BLOCKS * COLUMNS * 4
    name = f"cam_product_{mode}" + (f"_m{min_blocks}" if min_blocks else "")

    @unroll(name=name)
    def product(
        x, scale, shift, weights, bias, gates, part, out, flag,
        pitch, chunks, rows, blocks, out_pitch, out_column, relu, extra,
    ):  # fmt: skip
        if SIMULATOR:  # noqa: SIM108
            sm = cuda.shared.array(0, float16)
        else:
            sm = cuda.shared.array(0, float16, alignment=128)
        tid = int32(cuda.threadIdx.x)
        lane = int32(tid & 31)
        warp = int32(tid >> 5)
        row0 = int32(cuda.blockIdx.x * 64)
        unit = int32((tid & 3) * 8)
        own = int32(tid >> 2)
        raw = cuda.local.array(16, int32)
        values = cuda.local.array(16, float32)
        words = cuda.local.array(4, int32)
        rest = cuda.local.array(4, int32)
        v = cuda.local.array(8, float32)
        s = cuda.local.array(8, float32)
        b = cuda.local.array(8, float32)
        acc = cuda.local.array(NACC, float32)
        fill(acc)
        wr = int32((warp & (WARPS - 1)) * (16 * BLOCKS))
        wc = int32(warp >> SHIFT)
        a = int32((wr + (lane & 15)) * PITCH + ((lane >> 4) << 3))
        w = (int64(cuda.blockIdx.y) * 16 + wc * 8) * 256 + lane * 8
        # The counter is hidden, so that the loop stays rolled: registers are short.
        c = int32(0)
        while c <= chunks:
            if c > 0:
                # The chunk that was loaded a turn ago goes to shared memory.
                if NORM:
                    for k in static_range(2):
                        at = int32(c * 32 - 32 + unit + k * 4)
                        s[k * 4], s[k * 4 + 1], s[k * 4 + 2], s[k * 4 + 3] = ldg128f(scale, at)
                        b[k * 4], b[k * 4 + 1], b[k * 4 + 2], b[k * 4 + 3] = ldg128f(shift, at)
                for i in static_range(2):
                    if NORM:
                        for k in static_range(4):
                            words[k], rest[k] = split_half2(
                                max(values[i * 8 + 2 * k] * s[2 * k] + b[2 * k], float32(0.0)),
                                max(values[i * 8 + 2 * k + 1] * s[2 * k + 1] + b[2 * k + 1], float32(0.0)),
                            )
                    else:
                        for k in static_range(4):
                            words[k] = raw[i * 4 + k]
                            rest[k] = raw[8 + i * 4 + k]
                    to = int32((c & 1) * BUFFER + (own + i * 32) * PITCH + unit)
                    sts128(sm, to, words[0], words[1], words[2], words[3])
                    if TAPS == 0:
                        sts128(sm, to + LOW, rest[0], rest[1], rest[2], rest[3])
                cuda.syncthreads()
            if c < chunks:
                for i in static_range(2):
                    row = int32(row0 + own + i * 32)
                    if NORM:
                        inside = row < rows
                        source = int64(row) * pitch + c * 32 + unit
                    elif HEAD:
                        f = udiv32(c, 5)
                        column = int32(2 * row - 2 + c - f * 5)
                        inside = (column >= 0) & (column < pitch)
                        source = (int64(f) * pitch + column) * 32 + unit
                    else:
                        tap = int32(c >> 2)
                        at = int32(row + (tap - 1) * extra)
                        inside = (at >= 0) & (at < rows)
                        source = int64(at) * 128 + (c & 3) * 32 + unit
                    if NORM:
                        for k in static_range(8):
                            values[i * 8 + k] = float32(0.0)
                        if inside:
                            for k in static_range(2):
                                f0, f1, f2, f3 = ldg128f(x, source + k * 4)
                                values[i * 8 + k * 4] = f0
                                values[i * 8 + k * 4 + 1] = f1
                                values[i * 8 + k * 4 + 2] = f2
                                values[i * 8 + k * 4 + 3] = f3
                    else:
                        for k in static_range(4):
                            raw[i * 4 + k] = int32(0)
                            raw[8 + i * 4 + k] = int32(0)
                        if inside:
                            e0, e1, e2, e3 = ldg128(x, source)
                            raw[i * 4] = e0
                            raw[i * 4 + 1] = e1
                            raw[i * 4 + 2] = e2
                            raw[i * 4 + 3] = e3
                            if HEAD:
                                e0, e1, e2, e3 = ldg128(x, source + int64(pitch) * 320)
                                raw[8 + i * 4] = e0
                                raw[8 + i * 4 + 1] = e1
                                raw[8 + i * 4 + 2] = e2
                                raw[8 + i * 4 + 3] = e3
            if c > 0:
                at = int32(a + (c & 1) * BUFFER)
                step(acc, sm, at, weights, w)
                w += blocks * 256
                step(acc, sm, at + 16, weights, w)
                w += blocks * 256
            c = int32(opaque32(c) + 1)
        # Read again, so that no address of what follows takes a register in the loop.
        tid = tid_x_again()
        lane = int32(tid & 31)
        warp = int32(tid >> 5)
        row0 = int32(ctaid_x_again() * 64)
        wr = int32((warp & (WARPS - 1)) * (16 * BLOCKS))
        wc = int32(warp >> SHIFT)
        top = cuda.local.array(1, int32)
        top[0] = int32(0)
        for q in static_range(GROUPS):
            channel = int32((ctaid_y_again() * 128 + wc * 64) + q * 32 + (lane & 3) * 8)
            for m in static_range(BLOCKS):
                for half in static_range(2):
                    row = int32(row0 + wr + m * 16 + half * 8 + (lane >> 2))
                    if row < rows:
                        place = part[row]
                        for j in static_range(8):
                            value = acc[(m * COLUMNS + q * 4 + j // 2) * 4 + half * 2 + j % 2]
                            if TAPS:
                                if place >= 0:
                                    value *= gates[place * 32 + channel + j]
                            else:
                                value += bias[channel + j]
                                if relu > 0:
                                    value = max(value, float32(0.0))
                            if place < 0:
                                value = float32(0.0)
                            v[j] = value
                        to64 = int64(row) * out_pitch + out_column + channel
                        if HALF:
                            for k in static_range(4):
                                words[k] = pack_half2(v[2 * k], v[2 * k + 1])
                                top[0] = hmax2_nan(top[0], words[k] & 0x7FFF7FFF)
                            stg128(out, to64, words[0], words[1], words[2], words[3])
                        else:
                            stg128f(out, to64, v[0], v[1], v[2], v[3])
                            stg128f(out, to64 + 4, v[4], v[5], v[6], v[7])
        raise_flag(top, flag)

    arguments = ("f" if NORM else "h") + "ffhffw" + ("h" if HALF else "f") + "w" + "i" * 8
    return Kernel(name, product, arguments, 128, 2 * BUFFER * 2, min_blocks or (2 if HEAD else 3))


def make_cam_context() -> Kernel:
    """Gates of every part: sigmoid of two small layers over the part's mean plus the sequence's mean.

    Arguments: hidden (rows, 128), spans (sequences, 3: first row, length, first part), packed context weights, sums
    (parts, 128) scratch, gates (parts, 32). Grid (sequences), 512 threads.
    """
    name = "cam_context"

    @unroll(name=name)
    def context(hidden, spans, weights, sums, gates):
        red = cuda.shared.array(512, float32)
        mean = cuda.shared.array(128, float32)
        middle = cuda.shared.array(64, float32)
        tid = int32(cuda.threadIdx.x)
        item = int32(cuda.blockIdx.x)
        first = spans[item * 3]
        length = spans[item * 3 + 1]
        part0 = spans[item * 3 + 2]
        parts = udiv32(int32(length + 99), 100)
        channel = int32(tid & 127)
        lane = int32(tid >> 7)
        whole = float32(0.0)
        for index in range(parts):
            start = int32(int32(index) * 100)
            rows = int32(min(100, int32(length - start)))
            total = float32(0.0)
            r = lane
            while r < rows:
                total += float32(hidden[int64(first + start + r) * 128 + channel])
                r = int32(r + 4)
            red[tid] = total
            cuda.syncthreads()
            if tid < 128:
                total = ((red[tid] + red[tid + 128]) + red[tid + 256]) + red[tid + 384]
                whole += total
                sums[(part0 + int32(index)) * 128 + tid] = total / float32(rows)
            cuda.syncthreads()
        whole = whole / float32(length)
        output = int32(tid & 63)
        slice_ = int32(tid >> 6)
        second = int32(tid & 31)
        share = int32(tid >> 5)
        for index in range(parts):
            at = int32(part0 + int32(index))
            if tid < 128:
                mean[tid] = sums[at * 128 + tid] + whole
            cuda.syncthreads()
            total = float32(0.0)
            for i in range(16):
                k = int32(slice_ * 16 + int32(i))
                total += mean[k] * weights[k * 64 + output]
            red[tid] = total
            cuda.syncthreads()
            if tid < 64:
                total = weights[8192 + tid]
                for i in static_range(8):
                    total += red[i * 64 + tid]
                middle[tid] = max(total, float32(0.0))
            cuda.syncthreads()
            total = float32(0.0)
            for i in static_range(4):
                k = int32(share * 4 + i)
                total += middle[k] * weights[8256 + k * 32 + second]
            red[tid] = total
            cuda.syncthreads()
            if tid < 32:
                total = weights[10304 + tid]
                for i in static_range(16):
                    total += red[i * 32 + tid]
                gates[at * 32 + tid] = float32(1.0) / (float32(1.0) + math.exp(-total))
            cuda.syncthreads()

    return Kernel(name, context, "hwfff", 512, 0, 2)


def make_cam_statistics() -> Kernel:
    """Mean and unbiased standard deviation of each channel over a sequence: two passes, fixed order.

    Arguments: x (rows, 512), spans (sequences, 3), out (sequences, 1024). Grid (sequences, 4), 512 threads.
    """
    name = "cam_statistics"

    @unroll(name=name)
    def statistics(x, spans, out):
        red = cuda.shared.array(512, float32)
        tid = int32(cuda.threadIdx.x)
        item = int32(cuda.blockIdx.x)
        first = spans[item * 3]
        length = spans[item * 3 + 1]
        inside = int32(tid & 127)
        channel = int32(cuda.blockIdx.y * 128 + inside)
        mean = float32(0.0)
        for turn in static_range(2):
            total = float32(0.0)
            r = int32(tid >> 7)
            while r < length:
                value = x[int64(first + r) * 512 + channel]
                if turn == 0:
                    total += value
                else:
                    total += (value - mean) * (value - mean)
                r = int32(r + 4)
            cuda.syncthreads()
            red[tid] = total
            cuda.syncthreads()
            total = ((red[inside] + red[inside + 128]) + red[inside + 256]) + red[inside + 384]
            if turn == 0:
                mean = total / float32(length)
            elif tid < 128:
                out[item * 1024 + channel] = mean
                out[item * 1024 + 512 + channel] = sqrt_rn(total / float32(length - 1))

    return Kernel(name, statistics, "fwf", 512, 0, 2)


def make_cam_dense() -> Kernel:
    """Last layer, 1024 to 192 with bias and ReLU, float32. Grid (sequences), 192 threads, one an output.

    Arguments: x (sequences, 1024), weights by input [1024][192], bias (192), out (sequences, 192).
    """
    name = "cam_dense"

    @unroll(name=name)
    def dense(x, weights, bias, out):
        row = cuda.shared.array(1024, float32)
        tid = int32(cuda.threadIdx.x)
        item = int32(cuda.blockIdx.x)
        k = tid
        while k < 1024:
            row[k] = x[item * 1024 + k]
            k = int32(k + 192)
        cuda.syncthreads()
        total = float32(0.0)
        for i in range(1024):
            total += row[int32(i)] * weights[int32(i) * 192 + tid]
        out[item * 192 + tid] = max(total + bias[tid], float32(0.0))

    return Kernel(name, dense, "ffff", 192, 0, 4)
