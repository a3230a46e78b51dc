# mypy: disallow-untyped-defs=False
"""Python twins of `ptx_split` for the CUDA simulator."""

from __future__ import annotations

import numpy as np

from .ptx_sim import byte_range, collective, ndarray

_LANE = np.arange(32)


def make_split_step(a_offsets, low_offset, columns, exact=True, group=5):
    blocks = len(a_offsets)

    def matrices(arguments, extra):
        """(blocks * 16, 16) float32: lanes 0 to 15 give the first eight columns of the rows, the others the rest."""
        out = np.empty((blocks, 16, 16), np.float32)
        for i, offset in enumerate(a_offsets):
            for lane, (_, sm, a, _, _) in enumerate(arguments):
                values = byte_range(sm, a + offset + extra).view(np.float16)
                out[i, lane % 16, 8 * (lane // 16) : 8 * (lane // 16) + 8] = values
        return out.reshape(-1, 16)

    def work(arguments):
        high = matrices(arguments, 0)
        total = high if not exact else None
        b_high, b_low = np.zeros((16, columns, 8), np.float32), np.zeros((16, columns, 8), np.float32)
        row = (2 * (_LANE % 4))[:, None] + np.array([0, 1, 8, 9])
        for j in range(columns):
            words = np.stack([byte_range(a[3], a[4] + 256 * j).view(np.float16) for a in arguments]).astype(np.float32)
            b_high[row, j, (_LANE // 4)[:, None]] = words[:, :4]
            b_low[row, j, (_LANE // 4)[:, None]] = words[:, 4:]
        b_high, b_low = b_high.reshape(16, -1), b_low.reshape(16, -1)
        total = high @ b_high + high @ b_low
        if exact:
            total = total + matrices(arguments, low_offset) @ b_high
        total = total.reshape(blocks, 2, 8, columns, 4, 2)
        for lane, (acc, *_) in enumerate(arguments):
            sums = acc[: blocks * columns * 4].reshape(blocks, columns, 2, 2)
            sums += total[:, :, lane // 4, :, lane % 4].transpose(0, 2, 1, 3)
        return [None] * 32

    def step(acc, sm, a, weights, w):
        collective(work, ndarray(acc), sm, int(a), weights, int(w))

    return step


def split_half2(first, second):
    values = np.array([first, second], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        high = values.astype(np.float16)
        low = (values - high.astype(np.float32)).astype(np.float16)
    return int(high.view(np.int32)[0]), int(low.view(np.int32)[0])


def sts32(sm, index, word):
    byte_range(sm, index, 4)[:] = np.array([int(word) & 0xFFFFFFFF], np.uint32).view(np.uint8)


def leaky(x):
    return np.maximum(np.float32(x), np.float32(x) * np.float32(0.01))


__all__ = ["leaky", "make_split_step", "split_half2", "sts32"]
