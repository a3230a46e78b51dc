# mypy: disallow-untyped-defs=False
"""Python twins of `ptx_winograd` for the CUDA simulator."""

from __future__ import annotations

import numpy as np

from .ptx_sim import byte_range, collective, hmax2_nan, ndarray

_LANE = np.arange(32)
_B = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
_A = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float32)


def _along(values, axis):
    """Four inputs along `axis` to four positions; every position is one addition, rounded to float16."""
    moved = np.moveaxis(values.astype(np.float32), axis, 0)
    return np.moveaxis(np.tensordot(_B, moved, 1), 0, axis).astype(np.float16)


def make_winograd_step(tile, row_pitch, n16):
    def pixels(arguments):
        """(input rows, octet columns, 4 pixels, 8 tiles, 16 channels) float16."""
        out = np.empty((tile.input_rows, tile.columns, 4, 8, 16), np.float16)
        for i, c, part, lane in np.ndindex(tile.input_rows, tile.columns, 2, 32):
            _, sm, a, _ = arguments[lane]
            half, pixel = lane // 8 % 2, 2 * part + lane // 16
            words = byte_range(sm, a + i * row_pitch + c * 64 + part * 8).view(np.float16)
            out[i, c, pixel, lane % 8, 8 * half : 8 * half + 8] = words
        return out

    def weights(arguments, factor):
        """(16 channels, 8 * blocks columns) float32."""
        out = np.empty((16, tile.blocks, 8), np.float32)
        for lane, (_, sm, _, w) in enumerate(arguments):
            q, g = lane % 4, lane // 4
            for j in range(tile.blocks // 2):
                words = byte_range(sm, w + (factor * n16 + j) * 256).view(np.float16)
                for b in range(2):
                    out[[2 * q, 2 * q + 1, 2 * q + 8, 2 * q + 9], 2 * j + b, g] = words[4 * b : 4 * b + 4]
        return out.reshape(16, -1)

    def work(arguments):
        with np.errstate(over="ignore", invalid="ignore"):
            lines = _along(pixels(arguments), 2)
            factors = [weights(arguments, f) for f in range(tile.factors)]
            for r, c in np.ndindex(tile.rows, tile.columns):
                if tile.square:
                    inputs = _along(lines[2 * r : 2 * r + 4, c], 0).reshape(16, 8, 16).astype(np.float32)
                    sums = [x @ u for x, u in zip(inputs, factors, strict=True)]
                else:
                    inputs = lines[r : r + 3, c].astype(np.float32)
                    sums = [sum(inputs[tap, j] @ factors[4 * tap + j] for tap in range(3)) for j in range(4)]
                for position, total in enumerate(sums):
                    for block, lane in np.ndindex(tile.blocks, 32):
                        at = tile.sum_index(r, c, position, block)
                        column = 8 * block + 2 * (lane % 4)
                        arguments[lane][0][at : at + 2] += total[lane // 4, column : column + 2]
        return [None] * 32

    def step(acc, sm, a, w):
        collective(work, ndarray(acc), sm, int(a), int(w))

    return step


def make_winograd_finish(tile, channels, residual, relu):
    own = 2 * tile.blocks

    def finish(acc, r, c, bias, res, y, at, across, rows, columns, top, bad):
        sums = np.empty((tile.positions, tile.blocks, 2), np.float32)
        for position, block in np.ndindex(tile.positions, tile.blocks):
            where = tile.sum_index(r, c, position, block)
            sums[position, block] = ndarray(acc)[where : where + 2]
        with np.errstate(over="ignore", invalid="ignore"):
            if tile.square:
                values = np.einsum("ia,jb,abk->ijk", _A, _A, sums.reshape(4, 4, own))
            else:
                values = np.einsum("jb,bk->jk", _A, sums.reshape(4, own))[None]
            values = values + ndarray(bias)[:own]
            for i, j in np.ndindex(min(tile.tile_rows, max(rows, 0)), min(2, max(columns, 0))):
                index, value = at + i * across + j * channels, values[i, j]
                if residual:
                    value = value + byte_range(res, index, 2 * own).view(np.float16).astype(np.float32)
                ndarray(bad)[0] += np.sum(value * np.float32(0))
                packed = (np.maximum(value, 0) if relu else value).astype(np.float16)
                for word in np.abs(packed).view(np.int32):
                    ndarray(top)[0] = hmax2_nan(ndarray(top)[0], word)
                byte_range(y, index, 2 * own)[:] = packed.view(np.uint8)

    return finish


__all__ = ["make_winograd_finish", "make_winograd_step"]
