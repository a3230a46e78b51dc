"""The convolutional front of the segmentation network: sinc filters, pooling and the two convolutions.

The filters run once over a stretch of samples; windows read their positions in place. What differs between windows,
the instance norm of the waveform, is an affine map: conv(a x + b) = a conv(x - c) + (a c + b) sum(filter), with c the
sample under the filter's centre, so that no two large terms cancel for a quiet signal on a large constant.

Products are of float16 pairs (three instructions), as accurate as float32. A window's results do not depend on the
others.
"""

from __future__ import annotations

import numpy as np

from .ptx import (
    SIMULATOR,
    ctaid_x_again,
    ctaid_y_again,
    cuda,
    f32_bits,
    float16,
    float32,
    int32,
    int64,
    ldg128f,
    leaky,
    make_fill,
    make_split_step,
    opaque32,
    split_half2,
    stg128f,
    sts32,
    sts128,
    tid_x_again,
    udiv32,
)
from .spec import Kernel, lowest_capability
from .split_pack import pack_split
from .unroll import static_range, unroll

SINC_HALF = 125
FILTERS = 80
SINC_TILE = 64
"""Filter positions a block."""

# Samples are scaled before they are split, so that low parts of quiet ones are no subnormal numbers; 16 bits hold the
# sum of four samples of up to 7.
_SAMPLE_SCALE = 2048.0


def pack_sinc(weight: np.ndarray) -> np.ndarray:
    """(80, 251) filters, 40 even ones, then 40 odd ones, as packed taps after the centre: even part, odd part."""
    after = np.zeros((FILTERS, 128))
    after[:, :SINC_HALF] = weight[:, SINC_HALF + 1 :]
    return np.concatenate([pack_split(after[:40]), pack_split(after[40:])])


def pack_conv(weight: np.ndarray, pitch: int) -> np.ndarray:
    """(C_out, C_in, taps) weights for rows of `pitch` channels, outputs padded to 64."""
    c_out, c_in, taps = weight.shape
    padded = np.zeros((c_out, taps, pitch))
    padded[:, :, :c_in] = weight.transpose(0, 2, 1)
    return pack_split(padded.reshape(c_out, taps * pitch), 64)


def make_sinc(passes: int = 1) -> Kernel:
    """Filter outputs of 64 positions a block of four warps: two groups of 32 positions by even and odd filters.

    Arguments: samples, packed taps, out (positions, 80), positions, number of samples. Position p is centred on sample
    10 p + 125. Symmetry halves the products: x[c + k] + x[c - k] meets the even taps, the difference the odd ones.
    With two `passes`, for GPUs with less than 70 KB of shared memory a block, even filters come before odd ones and a
    warp has 16 positions.
    """
    assert passes in (1, 2)
    PASSES = passes
    # Halves of a position: even high, even low, odd high, odd low parts of 128 taps, or one pass's of them; 8 more keep
    # rows on other banks.
    PITCH = 512 // passes + 8
    ODD = 256 if passes == 1 else 0
    NSAMPLES = 896
    SCALE = _SAMPLE_SCALE
    UNSCALE = 1.0 / _SAMPLE_SCALE
    BLOCKS = 2 // passes
    ROWS = 16 * BLOCKS
    GROUPS = 2 * passes
    step = make_split_step([m * 16 * PITCH for m in range(BLOCKS)], 128, 5)
    fill = make_fill(20 * BLOCKS)
    NACC = 20 * BLOCKS
    name = "sinc_p64" if passes == 1 else "sinc_p64_passes2"

    @unroll(name=name)
    def sinc(x, weights, out, positions, samples):
        xs = cuda.shared.array(NSAMPLES, float32)
        if SIMULATOR:  # noqa: SIM108
            sm = cuda.shared.array(0, float16)
        else:
            sm = cuda.shared.array(0, float16, alignment=128)
        tid = int32(cuda.threadIdx.x)
        p0 = int32(cuda.blockIdx.x * 64)
        for i in static_range(7):
            # Four places in front, for taps that are not there.
            place = int32(tid + i * 128)
            source = int32(p0 * 10 + place - 4)
            value = float32(0.0)
            if (source >= 0) & (source < samples):
                value = x[source]
            xs[place] = value
        cuda.syncthreads()
        lane = int32(tid & 31)
        acc = cuda.local.array(NACC, float32)
        for turn in static_range(PASSES):
            if turn > 0:
                cuda.syncthreads()
            k = int32((tid & 63) * 2)
            for i in range(32):
                row = int32(int32(i) * 2 + (tid >> 6))
                centre = int32(row * 10 + 129)
                middle = xs[centre]
                a0 = xs[centre + 1 + k]
                a1 = xs[centre + 2 + k]
                b0 = xs[centre - 1 - k]
                b1 = xs[centre - 2 - k]
                if turn == 0:
                    e0 = ((a0 - middle) + (b0 - middle)) * float32(SCALE)
                    e1 = ((a1 - middle) + (b1 - middle)) * float32(SCALE)
                    high, low = split_half2(e0, e1)
                    sts32(sm, row * PITCH + k, high)
                    sts32(sm, row * PITCH + 128 + k, low)
                if turn == PASSES - 1:
                    high, low = split_half2((a0 - b0) * float32(SCALE), (a1 - b1) * float32(SCALE))
                    sts32(sm, row * PITCH + ODD + k, high)
                    sts32(sm, row * PITCH + ODD + 128 + k, low)
            cuda.syncthreads()
            rows = int32(((tid >> 5) & (GROUPS - 1)) * ROWS)
            odd = int32(turn if PASSES == 2 else tid >> 6)
            a = int32((rows + (lane & 15)) * PITCH + odd * ODD + ((lane >> 4) << 3))
            w = int64(odd * 10240 + lane * 8)
            fill(acc)
            for s in static_range(8):
                step(acc, sm, a + s * 16, weights, w + s * 1280)
            for m in static_range(BLOCKS):
                for half in static_range(2):
                    position = int32(p0 + rows + m * 16 + half * 8 + (lane >> 2))
                    if position < positions:
                        at = int32(position * 80 + odd * 40 + (lane & 3) * 2)
                        for j in static_range(5):
                            out[at + j * 8] = acc[(m * 5 + j) * 4 + half * 2] * float32(UNSCALE)
                            out[at + j * 8 + 1] = acc[(m * 5 + j) * 4 + half * 2 + 1] * float32(UNSCALE)

    shared = SINC_TILE * PITCH * 2
    return Kernel(name, sinc, "fhfii", 128, shared, 3, lowest_capability(shared + 4 * NSAMPLES))


def make_rectify_pool() -> Kernel:
    """Largest of three adjacent |filter outputs| of the normalised waveform, and their moments.

    Arguments: filtered, samples, wave (windows, 2: mean and scale), filter sums (80), out (windows, rows, 80), partial
    (windows, tiles, 2, 80), wave offset, samples and positions between windows, rows, tiles. Grid (tiles, windows),
    320 threads: 20 groups of four filters by 16 rows, four times.
    """
    name = "rectify_pool"

    @unroll(name=name)
    def rectify_pool(filtered, x, wave, sums, out, partial, offset, step, step_positions, rows, tiles):
        red = cuda.shared.array(1280, float32)
        middle = cuda.shared.array(80, float32)
        tid = int32(cuda.threadIdx.x)
        tile = int32(cuda.blockIdx.x)
        window = int32(cuda.blockIdx.y)
        part = int32(tid // 20)
        c = int32((tid - part * 20) * 4)
        mean = wave[window * 2]
        scale = wave[window * 2 + 1]
        f0, f1, f2, f3 = ldg128f(sums, c)
        v = cuda.local.array(16, float32)
        count = int32(min(64, int32(rows - tile * 64)))
        for i in static_range(4):
            v[i * 4] = float32(0.0)
            v[i * 4 + 1] = float32(0.0)
            v[i * 4 + 2] = float32(0.0)
            v[i * 4 + 3] = float32(0.0)
            row = int32(part + i * 16)
            if row < count:
                position = int32((tile * 64 + row) * 3)
                for j in static_range(3):
                    z = scale * (x[window * step + (position + j) * 10 + 125] - mean) + offset
                    a0, a1, a2, a3 = ldg128f(filtered, (int64(window * step_positions + position) + j) * 80 + c)
                    v[i * 4] = max(v[i * 4], abs(scale * a0 + z * f0))
                    v[i * 4 + 1] = max(v[i * 4 + 1], abs(scale * a1 + z * f1))
                    v[i * 4 + 2] = max(v[i * 4 + 2], abs(scale * a2 + z * f2))
                    v[i * 4 + 3] = max(v[i * 4 + 3], abs(scale * a3 + z * f3))
                at = (int64(window) * rows + tile * 64 + row) * 80 + c
                stg128f(out, at, v[i * 4], v[i * 4 + 1], v[i * 4 + 2], v[i * 4 + 3])
        if part == 0:
            for j in static_range(4):
                middle[c + j] = v[j]
        cuda.syncthreads()
        for turn in static_range(2):
            for j in static_range(4):
                total = float32(0.0)
                for i in static_range(4):
                    if part + i * 16 < count:
                        away = v[i * 4 + j] - middle[c + j]
                        if turn == 0:
                            total += away
                        else:
                            total += away * away
                red[part * 80 + c + j] = total
            cuda.syncthreads()
            if tid < 80:
                total = float32(0.0)
                for i in range(16):
                    total += red[int32(i) * 80 + tid]
                at32 = int32((window * tiles + tile) * 160 + tid)
                if turn == 0:
                    middle[tid] += total / float32(count)
                    partial[at32] = middle[tid]
                else:
                    partial[at32 + 80] = total
            cuda.syncthreads()

    return Kernel(name, rectify_pool, "ffffffsiiii", 320, 0, 3)


def make_conv_pool(channels: int, taps: int = 5, passes: int = 1) -> Kernel:
    """Norm and leaky ReLU of the input, convolution over time, largest of three adjacent outputs, and their moments.

    Arguments: x (windows, rows in, channels), norm (windows, 2, channels), norm bias (channels), packed weights, bias
    (64), out (windows, rows, 64), partial (windows, tiles, 2, 64), rows in, rows, tiles. Grid (tiles, windows). A block
    of eight warps computes 64 pooled rows by 64 channels from 192 convolution rows; a warp has three blocks of 16
    rows, row r of block i being position 3 r + i, so that the largest of three stays in one lane. Weights come from
    the caches, a word of fragments a lane. With two `passes`, for GPUs with less than 87 KB of shared memory a block,
    half of the rows come after the others.
    """
    assert channels % 16 == 0
    assert passes in (1, 2)
    C = channels
    TAPS = taps
    PASSES = passes
    UNITS = channels // 8
    GROUP = 256 // UNITS
    # Convolution rows and pooled rows a pass.
    TAKEN = 192 // passes
    POOLED = 64 // passes
    ROWS = TAKEN + taps - 1
    PITCH = channels + 8
    LOW = ROWS * PITCH
    STEPS = channels // 16
    NTILE = 64 * 65
    # Warps by rows and columns: 4 x 2 of 16 x 32 pooled outputs, or 2 x 4 of 16 x 16.
    WARPS = 4 // passes
    SHIFT = 2 if passes == 1 else 1
    COLUMNS = 4 // passes
    NACC = 12 * COLUMNS
    step = make_split_step([0, PITCH, 2 * PITCH], LOW, COLUMNS)
    fill = make_fill(NACC)
    name = f"conv_pool_c{channels}_t{taps}" + ("" if passes == 1 else "_passes2")

    @unroll(name=name)
    def conv_pool(x, norm, nbias, weights, bias, out, partial, rows_in, rows, tiles):
        pooled = cuda.shared.array(NTILE, float32)
        red = cuda.shared.array(256, float32)
        if SIMULATOR:  # noqa: SIM108
            sm = cuda.shared.array(0, float16)
        else:
            sm = cuda.shared.array(0, float16, alignment=128)
        acc = cuda.local.array(NACC, float32)
        for turn in static_range(PASSES):
            if turn > 0:
                cuda.syncthreads()
            tid = tid_x_again()
            tile = ctaid_x_again()
            window = ctaid_y_again()
            row = udiv32(tid, UNITS)
            unit = int32((tid - row * UNITS) * 8)
            if row < GROUP:
                v = cuda.local.array(8, float32)
                mean = cuda.local.array(8, float32)
                scale = cuda.local.array(8, float32)
                shift = cuda.local.array(8, float32)
                high = cuda.local.array(4, int32)
                low = cuda.local.array(4, int32)
                for k in static_range(2):
                    j = int32(window * 2 * C + unit + k * 4)
                    mean[k * 4], mean[k * 4 + 1], mean[k * 4 + 2], mean[k * 4 + 3] = ldg128f(norm, j)
                    scale[k * 4], scale[k * 4 + 1], scale[k * 4 + 2], scale[k * 4 + 3] = ldg128f(norm, j + C)
                    shift[k * 4], shift[k * 4 + 1], shift[k * 4 + 2], shift[k * 4 + 3] = ldg128f(nbias, unit + k * 4)
                while row < ROWS:
                    source = int32(tile * 192 + turn * TAKEN + row)
                    if source < rows_in:
                        at = (int64(window) * rows_in + source) * C + unit
                        v[0], v[1], v[2], v[3] = ldg128f(x, at)
                        v[4], v[5], v[6], v[7] = ldg128f(x, at + 4)
                        for k in static_range(8):
                            v[k] = leaky((v[k] - mean[k]) * scale[k] + shift[k])
                    else:
                        for k in static_range(8):
                            v[k] = float32(0.0)
                    for k in static_range(4):
                        high[k], low[k] = split_half2(v[2 * k], v[2 * k + 1])
                    to = int32(row * PITCH + unit)
                    sts128(sm, to, high[0], high[1], high[2], high[3])
                    sts128(sm, to + LOW, low[0], low[1], low[2], low[3])
                    row = int32(opaque32(row) + GROUP)
            cuda.syncthreads()
            lane = int32(tid & 31)
            warp = int32(tid >> 5)
            wr = int32((warp & (WARPS - 1)) * 16)
            wc = int32(warp >> SHIFT)
            a = int32((wr + (lane & 15)) * (3 * PITCH) + ((lane >> 4) << 3))
            w = int64(wc * (256 * COLUMNS) + lane * 8)
            fill(acc)
            # The count of steps is hidden, so that the loop stays rolled: unrolled, the loads of all steps would be in
            # flight and run out of registers.
            inner = int32(STEPS)
            left = int32(TAPS * STEPS)
            while left > 0:
                cuda.syncthreads()
                step(acc, sm, a, weights, w)
                a = int32(a + 16)
                w += 2048
                inner = int32(inner - 1)
                if inner == 0:
                    inner = int32(STEPS)
                    a = int32(a + (PITCH - C))
                left = int32(opaque32(left) - 1)
            # Read again, so that no address of what follows takes a register in the loop.
            tid = tid_x_again()
            lane = int32(tid & 31)
            wr = int32(((tid >> 5) & (WARPS - 1)) * 16 + turn * POOLED)
            wc = int32((tid >> 5) >> SHIFT)
            for j in static_range(COLUMNS):
                for i in static_range(4):
                    column = int32(wc * (8 * COLUMNS) + j * 8 + (lane & 3) * 2 + i % 2)
                    k = j * 4 + i
                    value = max(max(acc[k], acc[4 * COLUMNS + k]), acc[8 * COLUMNS + k])
                    at32 = int32((wr + (lane >> 2)) * 65 + wc * (8 * COLUMNS) + (lane & 3) * 2)
                    sts32(pooled, at32 + (i // 2) * 520 + j * 8 + i % 2, f32_bits(value + bias[column]))
        cuda.syncthreads()
        tid = tid_x_again()
        tile = ctaid_x_again()
        window = ctaid_y_again()
        column = int32(tid & 63)
        part = int32(tid >> 6)
        count = int32(min(64, int32(rows - tile * 64)))
        middle = pooled[column]
        base = (int64(window) * rows + tile * 64) * 64 + column
        for turn in static_range(2):
            total = float32(0.0)
            for i in range(16):
                r = int32(part * 16 + int32(i))
                if r < count:
                    value = pooled[r * 65 + column]
                    away = value - middle
                    if turn == 0:
                        out[base + r * 64] = value
                        total += away
                    else:
                        total += away * away
            red[tid] = total
            cuda.syncthreads()
            total = ((red[column] + red[64 + column]) + red[128 + column]) + red[192 + column]
            if turn == 0:
                middle += total / float32(count)
            elif part == 0:
                at32 = int32((window * tiles + tile) * 128 + column)
                partial[at32] = middle
                partial[at32 + 64] = total
            cuda.syncthreads()

    shared = 2 * LOW * 2
    return Kernel(name, conv_pool, "fffhfffiii", 256, shared, 2, lowest_capability(shared + 4 * (NTILE + 256)))
