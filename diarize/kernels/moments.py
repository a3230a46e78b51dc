"""Means and variances over time without cancellation, float32, in a fixed order: instance norm of many windows.

A part of the rows gives its mean and its sum of squared differences from that mean; parts are merged by Chan's formula.
Sums are of differences from the part's first row, so a channel that does not vary has exactly that value as its mean
and no variance, and the norm, which then divides by sqrt(epsilon), has no rounding to magnify.

References
----------
Chan, Golub and LeVeque 1983, Algorithms for computing the sample variance, The American Statistician 37(3).
"""

from __future__ import annotations

from .ptx import cuda, float32, int32, int64, ldg128f, leaky, split_half2, sqrt_rn, stg128
from .spec import Kernel
from .unroll import static_range, unroll

EPSILON = 1e-5


def make_wave_moments(part: int = 16000) -> Kernel:
    """Moments of parts of every window's samples. Grid (parts, windows), 256 threads.

    Arguments: samples, partial (windows, parts, 2), distance of window starts, parts, samples of a window.
    """
    PART = part
    name = f"wave_moments_{part}"

    @unroll(name=name)
    def moments(x, partial, step, parts, total):
        sums = cuda.shared.array(256, float32)
        tid = int32(cuda.threadIdx.x)
        part_index = int32(cuda.blockIdx.x)
        window = int32(cuda.blockIdx.y)
        first = int32(window * step + part_index * PART)
        count = int32(min(PART, int32(total - part_index * PART)))
        mean = x[first]
        for turn in static_range(2):
            a = float32(0.0)
            i = tid
            while i < count:
                value = x[first + i] - mean
                if turn == 0:
                    a += value
                else:
                    a += value * value
                i = int32(i + 256)
            cuda.syncthreads()
            sums[tid] = a
            for level in static_range(8):
                cuda.syncthreads()
                if tid < (128 >> level):
                    sums[tid] += sums[tid + (128 >> level)]
            cuda.syncthreads()
            if turn == 0:
                mean += sums[0] / float32(count)
            elif tid == 0:
                at = int32((window * parts + part_index) * 2)
                partial[at] = mean
                partial[at + 1] = sums[0]

    return Kernel(name, moments, "ffiii", 256, 0, 4)


def make_merge() -> Kernel:
    """Mean and scale (weight / deviation) of each window and channel from its parts' moments.

    Arguments: partial (windows, parts, 2, channels), weight (channels), out (windows, 2, channels), parts, channels,
    rows of a part, rows in all. Grid (windows), 128 threads, one a channel.
    """
    EPS = EPSILON
    name = "merge_moments"

    @unroll(name=name)
    def merge(partial, weight, out, parts, channels, part_rows, rows):
        channel = int32(cuda.threadIdx.x)
        window = int32(cuda.blockIdx.x)
        if channel < channels:
            base = int32(window * parts * 2 * channels + channel)
            first = partial[base]
            total = float32(0.0)
            for part in range(parts):
                p = int32(part)
                count = float32(min(part_rows, int32(rows - p * part_rows)))
                total += count * (partial[base + p * 2 * channels] - first)
            mean = first + total / float32(rows)
            squares = float32(0.0)
            for part in range(parts):
                p = int32(part)
                count = float32(min(part_rows, int32(rows - p * part_rows)))
                away = partial[base + p * 2 * channels] - mean
                squares += partial[base + p * 2 * channels + channels] + count * away * away
            at = int32(window * 2 * channels + channel)
            out[at] = mean
            out[at + channels] = weight[channel] / sqrt_rn(squares / float32(rows) + float32(EPS))

    return Kernel(name, merge, "fffiiii", 128, 0, 4)


def make_norm_split(low: bool = True) -> Kernel:
    """Normalised, leaky activations as inputs of the LSTM: float16 high parts, then low parts.

    Arguments: x (windows, steps, 64), norm (windows, 2, 64), bias (64), out (steps * padded windows, 128), steps,
    padded windows. Grid (steps / 32, windows), 256 threads, eight channels each. Without `low` rows are 64 wide.
    """
    LOW = int(low)
    PITCH = 128 if low else 64
    name = f"norm_split_{PITCH}"

    @unroll(name=name)
    def norm_split(x, norm, bias, out, steps, padded):
        tid = int32(cuda.threadIdx.x)
        window = int32(cuda.blockIdx.y)
        step = int32(cuda.blockIdx.x * 32 + (tid >> 3))
        channel = int32((tid & 7) * 8)
        if step < steps:
            v = cuda.local.array(8, float32)
            high = cuda.local.array(4, int32)
            rest = cuda.local.array(4, int32)
            for part in static_range(2):
                at = (int64(window) * steps + step) * 64 + channel + part * 4
                a, b, c, d = ldg128f(x, at)
                m0, m1, m2, m3 = ldg128f(norm, window * 128 + channel + part * 4)
                s0, s1, s2, s3 = ldg128f(norm, window * 128 + 64 + channel + part * 4)
                b0, b1, b2, b3 = ldg128f(bias, channel + part * 4)
                v[part * 4] = leaky((a - m0) * s0 + b0)
                v[part * 4 + 1] = leaky((b - m1) * s1 + b1)
                v[part * 4 + 2] = leaky((c - m2) * s2 + b2)
                v[part * 4 + 3] = leaky((d - m3) * s3 + b3)
            for i in static_range(4):
                high[i], rest[i] = split_half2(v[2 * i], v[2 * i + 1])
            to = (int64(step) * padded + window) * PITCH + channel
            stg128(out, to, high[0], high[1], high[2], high[3])
            if LOW:
                stg128(out, to + 64, rest[0], rest[1], rest[2], rest[3])

    return Kernel(name, norm_split, "fffhii", 256, 0, 4)
