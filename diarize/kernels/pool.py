"""Masked statistics pooling of the trunk's output for the active slots: weighted mean and standard deviation over time.

A slot is one local speaker of one window. With weights w over the columns: v1 = sum w + 1e-8, v2 = sum w^2,
mean = sum w x / v1, variance = sum w (x - mean)^2 / (v1 - v2 / v1 + 1e-8). Two passes in float32, in a fixed order: a
slot's result does not depend on what else is in the batch.

A block handles one slot and one row (mel): 256 threads, 8 channels each, every eighth column. Shared memory 8.3 KB.

References
----------
Wang et al. 2023, WeSpeaker (TSTP); pyannote.audio StatsPool (weighted, unbiased by reliability weights).
"""

from __future__ import annotations

from numba import cuda

from .ptx import SIMULATOR, float32, int32, ldg128_nc, sqrt_rn, stg128f, unpack_half2
from .spec import Kernel
from .unroll import static_range, unroll

_EPSILON = 1e-8


def make_pool(channels: int = 256) -> Kernel:
    """Arguments: x NHWC, weights (slots, width), window of each slot, statistics (slots, 2, height, channels), height,
    width.

    Grid (slots, height); the kernel is for 256 channels.
    """
    C = channels
    NSHARED = 8 * channels
    EPS = _EPSILON
    assert channels == 256
    name = f"pool_c{channels}"

    @unroll(name=name)
    def pool(x, weights, window, stats, H, W):
        if SIMULATOR:  # noqa: SIM108
            sm = cuda.shared.array(NSHARED, float32)
        else:
            sm = cuda.shared.array(NSHARED, float32, alignment=16)
        sums = cuda.shared.array(16, float32)
        tid = int32(cuda.threadIdx.x)
        slot = int32(cuda.blockIdx.x)
        row = int32(cuda.blockIdx.y)
        channel = int32((tid & 31) * 8)
        part = int32(tid >> 5)
        base = int32((window[slot] * H + row) * W)
        acc = cuda.local.array(8, float32)
        mean = cuda.local.array(8, float32)
        v = cuda.local.array(8, float32)
        v1 = float32(0.0)
        v2 = float32(0.0)
        for j in static_range(8):
            mean[j] = float32(0.0)
        for turn in static_range(2):
            for j in static_range(8):
                acc[j] = float32(0.0)
            s1 = float32(0.0)
            s2 = float32(0.0)
            column = part
            while column < W:
                weight = weights[slot * W + column]

                a, b, c, d = ldg128_nc(x, (base + column) * C + channel)
                v[0], v[1] = unpack_half2(a)
                v[2], v[3] = unpack_half2(b)
                v[4], v[5] = unpack_half2(c)
                v[6], v[7] = unpack_half2(d)
                for j in static_range(8):
                    if turn == 0:
                        acc[j] += weight * v[j]
                    else:
                        acc[j] += weight * (v[j] - mean[j]) * (v[j] - mean[j])
                s1 += weight
                s2 += weight * weight
                column = int32(column + 8)
            cuda.syncthreads()
            for j in static_range(8):
                sm[part * C + channel + j] = acc[j]
            if channel == 0:
                sums[part] = s1
                sums[8 + part] = s2
            cuda.syncthreads()
            if turn == 0:
                for i in static_range(8):
                    v1 += sums[i]
                    v2 += sums[8 + i]
                v1 += float32(EPS)
            for j in static_range(8):
                total = float32(0.0)
                for i in static_range(8):
                    total += sm[i * C + channel + j]
                if turn == 0:
                    mean[j] = total / v1
                else:
                    v[j] = sqrt_rn(total / (v1 - v2 / v1 + float32(EPS)))
        if part == 0:
            out = int32((slot * 2 * H + row) * C + channel)
            stg128f(stats, out, mean[0], mean[1], mean[2], mean[3])
            stg128f(stats, out + 4, mean[4], mean[5], mean[6], mean[7])
            out = int32(out + H * C)
            stg128f(stats, out, v[0], v[1], v[2], v[3])
            stg128f(stats, out + 4, v[4], v[5], v[6], v[7])

    return Kernel(name, pool, "hfwfii", 256, 0, 2, (8, 0))
