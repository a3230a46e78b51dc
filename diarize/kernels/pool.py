"""Masked statistics pooling of the trunk's output for the active slots: weighted mean and standard deviation over time.

A slot is one local speaker of one window. With weights w over the columns: v1 = sum w + 1e-8, v2 = sum w^2,
mean = sum w x / v1, variance = sum w (x - mean)^2 / (v1 - v2 / v1 + 1e-8). Two passes in float32 over values held in
registers, in a fixed order: a slot's result does not depend on what else is in the batch.

A block handles one slot, one row (mel) and 128 channels: 256 threads, 8 channels each, every 16th column.

References
----------
Wang et al. 2023, WeSpeaker (TSTP); pyannote.audio StatsPool (weighted, unbiased by reliability weights).
"""

from __future__ import annotations

from .ptx import cuda, float32, int32, ldg128_nc, make_weighted_sum, sqrt_rn
from .spec import Kernel
from .unroll import static_range, unroll

_EPSILON = 1e-8


def make_pool(channels: int = 256) -> Kernel:
    """Arguments: x NHWC, weights (slots, width), window of each slot, statistics (slots, 2, height, channels), height,
    width.

    Grid (slots, height, channels / 128); a width of at most 128.
    """
    C = channels
    EPS = _EPSILON
    assert channels % 128 == 0
    add_values = make_weighted_sum(8, False)
    add_squares = make_weighted_sum(8, True)
    name = f"pool_c{channels}"

    @unroll(name=name)
    def pool(x, weights, window, stats, H, W):
        sm = cuda.shared.array(2048, float32)
        means = cuda.shared.array(128, float32)
        sums = cuda.shared.array(32, float32)
        tid = int32(cuda.threadIdx.x)
        slot = int32(cuda.blockIdx.x)
        row = int32(cuda.blockIdx.y)
        own = int32((tid & 15) * 8)
        channel = int32(cuda.blockIdx.z * 128 + own)
        part = int32(tid >> 4)
        base = int32((window[slot] * H + row) * W)
        words = cuda.local.array(32, int32)
        weight = cuda.local.array(8, float32)
        acc = cuda.local.array(8, float32)
        mean = cuda.local.array(8, float32)
        s1 = float32(0.0)
        s2 = float32(0.0)
        # All of this thread's columns are loaded before the first is used.
        for i in range(8):
            column = int32(part + int32(i) * 16)
            inside = int32(1) if column < W else int32(0)
            place = int32(column * inside)
            at = int32((base + place) * C + channel)
            words[i * 4], words[i * 4 + 1], words[i * 4 + 2], words[i * 4 + 3] = ldg128_nc(x, at)
            weight[i] = weights[slot * W + place] * float32(inside)
            s1 += weight[i]
            s2 += weight[i] * weight[i]
        if own == 0:
            sums[part] = s1
            sums[16 + part] = s2
        v1 = float32(0.0)
        v2 = float32(0.0)
        for j in range(8):
            mean[j] = float32(0.0)
        out = int32((slot * 2 * H + row) * C + cuda.blockIdx.z * 128 + tid)
        for turn in static_range(2):
            for j in range(8):
                acc[j] = float32(0.0)
            if turn == 0:
                add_values(acc, words, weight, mean)
            else:
                add_squares(acc, words, weight, mean)
            for j in range(8):
                sm[part * 128 + own + j] = acc[j]
            cuda.syncthreads()
            # One thread a channel adds the parts, in order.
            if tid < 128:
                total = float32(0.0)
                for i in range(16):
                    total += sm[i * 128 + tid]
                if turn == 0:
                    for i in range(16):
                        v1 += sums[i]
                        v2 += sums[16 + i]
                    v1 += float32(EPS)
                    means[tid] = total / v1
                    stats[out] = total / v1
                else:
                    stats[out + H * C] = sqrt_rn(total / (v1 - v2 / v1 + float32(EPS)))
            if turn == 0:
                cuda.syncthreads()
                for j in range(8):
                    mean[j] = means[own + j]

    return Kernel(name, pool, "hfwfii", 256, 0, 2)


def make_pool_f32(channels: int = 256) -> Kernel:
    """The same for float32 activations of any width, grid (slots, height); a thread sums one channel."""
    C = channels
    EPS = _EPSILON
    name = f"pool_f32_c{channels}"

    @unroll(name=name)
    def pool(x, weights, window, stats, H, W):
        channel = int32(cuda.threadIdx.x)
        slot = int32(cuda.blockIdx.x)
        row = int32(cuda.blockIdx.y)
        base = int32((window[slot] * H + row) * W)
        v1 = float32(0.0)
        v2 = float32(0.0)
        total = float32(0.0)
        for column in range(W):
            weight = weights[slot * W + column]
            v1 += weight
            v2 += weight * weight
            total += weight * x[(base + int32(column)) * C + channel]
        v1 += float32(EPS)
        mean = total / v1
        total = float32(0.0)
        for column in range(W):
            distance = x[(base + int32(column)) * C + channel] - mean
            total += weights[slot * W + column] * distance * distance
        out = int32((slot * 2 * H + row) * C + channel)
        stats[out] = mean
        stats[out + H * C] = sqrt_rn(total / (v1 - v2 / v1 + float32(EPS)))

    return Kernel(name, pool, "ffwfii", channels, 0, 1)
