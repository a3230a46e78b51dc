"""The dense layers of the segmentation network fused: 256 -> 128 -> 128 -> 7, arg-max, one byte a frame.

A warp owns 16 frames from the LSTM's hidden states to the classes; no block barrier. Activations are pairs of float16
in the warp's share of shared memory, products three tensor-core instructions, as accurate as float32.
"""

from __future__ import annotations

import numpy as np

from .ptx import (
    SIMULATOR,
    cp_async16,
    cp_async_commit,
    cp_async_wait0,
    cuda,
    f32_bits,
    float16,
    float32,
    int32,
    int64,
    lds128f,
    leaky,
    make_fill,
    make_split_step,
    split_half2,
    sts32,
    udiv32,
    umod32,
    warp_sync,
)
from .spec import Kernel, lowest_capability
from .split_pack import pack_split
from .unroll import static_range, unroll

FRAME_TILE = 64
"""Rows (time * windows) a block."""


def pack_dense(weights: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """The three weights (128, 256), (128, 128) and (7, 128), one after the other."""
    return np.concatenate([pack_split(w) for w in weights])


def pack_dense_bias(biases: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """(264,) float32: the three biases, the last padded to 8."""
    return np.concatenate([*biases, [0.0]]).astype(np.float32)


def make_dense(low: bool, pieces: int = 1) -> Kernel:
    """Arguments: hidden states (rows, 256, or 512 with `low` parts), packed weights, biases (264), classes (windows,
    steps) bytes, flag, steps, windows, padded windows. Row = step * padded + window. Grid (rows / 64).

    The lowest of equally probable classes wins. The flag becomes 1 where a score is not finite. With two `pieces`, for
    GPUs with less than 66 KB of shared memory a block, one half of the hidden states comes after the other.
    """
    IN = 512 if low else 256
    PARTS = 2 if low else 1
    assert pieces in (1, 2)
    PIECES = pieces
    PIECE = 256 // pieces
    PITCH = PIECE + 8
    # Lanes that copy a row, and rows that a warp copies at a time.
    LANES = 32 // pieces
    SHIFT = 5 if pieces == 1 else 4
    STEPS = 16 // pieces
    LOW = 16 * PITCH
    first_step = make_split_step([0], LOW, 16, low)
    next_step = make_split_step([0], LOW, 16)
    last_step = make_split_step([0], LOW, 1)
    fill, fill_last = make_fill(64), make_fill(4)
    name = f"dense_x{1 + low}" + ("" if pieces == 1 else "_pieces2")

    @unroll(name=name)
    def dense(x, weights, bias, classes, flag, steps, windows, padded):
        if SIMULATOR:  # noqa: SIM108
            sm = cuda.shared.array(0, float16)
        else:
            sm = cuda.shared.array(0, float16, alignment=128)
        tid = int32(cuda.threadIdx.x)
        lane = int32(tid & 31)
        warp = int32(tid >> 5)
        own = int32(warp * (2 * LOW))
        row0 = int32(cuda.blockIdx.x * 64 + warp * 16)
        limit = int32(steps * padded)
        a = int32(own + (lane & 15) * PITCH + ((lane >> 4) << 3))
        acc = cuda.local.array(64, float32)
        w = int64(lane * 8)
        fill(acc)
        unit = int32((lane & (LANES - 1)) * 8)
        for piece in static_range(PIECES):
            if piece > 0:
                warp_sync()
            for part in static_range(PARTS):
                for i in range(STEPS):
                    row = int32(int32(i) * PIECES + (lane >> SHIFT))
                    source = int32(row0 + row)
                    there = int32(16) if source < limit else int32(0)
                    column = part * 256 + piece * PIECE + unit
                    to = int32(own + part * LOW + row * PITCH + unit)
                    cp_async16(sm, to, x, int64(source if source < limit else 0) * IN + column, there)
            cp_async_commit()
            cp_async_wait0()
            warp_sync()
            for s in range(STEPS):
                first_step(acc, sm, a + int32(s) * 16, weights, w)
                w += 4096
        to = int32(own + (lane >> 2) * PITCH + (lane & 3) * 2)
        for layer in static_range(2):
            if layer == 1:
                fill(acc)
                for s in range(8):
                    next_step(acc, sm, a + int32(s) * 16, weights, w)
                    w += 4096
            warp_sync()
            for j in static_range(16):
                b0 = bias[layer * 128 + j * 8 + (lane & 3) * 2]
                b1 = bias[layer * 128 + j * 8 + (lane & 3) * 2 + 1]
                for half in static_range(2):
                    high, rest = split_half2(leaky(acc[j * 4 + half * 2] + b0), leaky(acc[j * 4 + half * 2 + 1] + b1))
                    sts32(sm, to + half * (8 * PITCH) + j * 8, high)
                    sts32(sm, to + half * (8 * PITCH) + j * 8 + LOW, rest)
            warp_sync()
        scores = cuda.local.array(4, float32)
        fill_last(scores)
        for s in range(8):
            last_step(scores, sm, a + int32(s) * 16, weights, w)
            w += 256
        warp_sync()
        at = int32(own + (lane >> 2) * 16 + (lane & 3) * 4)
        for i in static_range(4):
            value = scores[i] + bias[256 + (lane & 3) * 2 + i % 2]
            sts32(sm, at + (i // 2) * 128 + (i % 2) * 2, f32_bits(value))
        warp_sync()
        if lane < 16:
            row = int32(row0 + lane)
            step = udiv32(row, padded)
            window = umod32(row, padded)
            if (row < limit) & (window < windows):
                v = cuda.local.array(8, float32)
                v[0], v[1], v[2], v[3] = lds128f(sm, own + lane * 16)
                v[4], v[5], v[6], v[7] = lds128f(sm, own + lane * 16 + 8)
                best = v[0]
                index = int32(0)
                total = v[0]
                for i in static_range(6):
                    total += v[i + 1]
                    if v[i + 1] > best:
                        best = v[i + 1]
                        index = int32(i + 1)
                classes[window * steps + step] = index
                # Infinities and NaN survive a multiplication by zero as NaN.
                if total * float32(0.0) != float32(0.0):
                    flag[0] = 1

    shared = 4 * 2 * LOW * 2
    return Kernel(name, dense, "hhfbwiii", 128, shared, 2, lowest_capability(shared))
