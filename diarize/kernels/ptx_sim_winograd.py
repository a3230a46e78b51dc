# mypy: disallow-untyped-defs=False
"""Python twins of `ptx_winograd` for the CUDA simulator."""

from __future__ import annotations

import numpy as np

from .ptx_sim import _all_ldmatrix, all_bytes, byte_range, collective, hmax2_nan, ndarray
from .ptx_sim_hopper import _operand

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


def make_winograd_pixels(tile, row_pitch):
    def work(arguments):
        words = np.empty((32, tile.input_rows, 4, 2), np.int32)
        for i, part in np.ndindex(tile.input_rows, 2):
            found = _all_ldmatrix([(sm, a + i * row_pitch + part * 8) for sm, a in arguments])
            words[:, i, 2 * part : 2 * part + 2] = np.array(found, np.int64).astype(np.int32).reshape(32, 2, 2)
        return list(words.reshape(32, -1))

    def pixels(words, sm, a):
        found = collective(work, sm, int(a))
        ndarray(words)[: len(found)] = found

    return pixels


def make_winograd_operands(tile):
    ((r, _), (s, _)) = tile.pairs()[0]

    def operands(out, words):
        held = np.ascontiguousarray(ndarray(words)[: tile.input_rows * 8]).view(np.float16)
        with np.errstate(over="ignore", invalid="ignore"):
            lines = _along(held.reshape(tile.input_rows, 4, 2, 2), 1).view(np.int32)[..., 0]
        for tap, j in np.ndindex(3, 4):
            first, second = lines[r + tap, j], lines[s + tap, j]
            ndarray(out)[(4 * tap + j) * 4 : (4 * tap + j) * 4 + 4] = first[0], second[0], first[1], second[1]

    return operands


def make_winograd_products(pitch):

    def work(arguments):
        words = np.stack([a[0] for a in arguments])
        # (factor, octet, tile, channel) from (tile, q, factor, half of the channels, octet, e).
        halves = np.ascontiguousarray(words).view(np.float16).reshape(8, 4, 12, 2, 2, 2)
        inputs = halves.transpose(2, 4, 0, 3, 1, 5).reshape(12, 16, 16).astype(np.float32)
        memory, descriptor = all_bytes(arguments[0][1]), arguments[0][2]
        total = np.zeros((4, 16, 64), np.float32)
        for tap, j in np.ndindex(3, 4):
            b = _operand(memory, descriptor + (4 * tap + j) * pitch, 64, 64)
            total[j] += inputs[4 * tap + j] @ b.T
        out = []
        for lane in range(32):
            mine = total.reshape(4, 2, 8, 8, 4, 2)[:, :, lane // 4, :, lane % 4]
            out.append(mine.transpose(0, 2, 1, 3).reshape(-1))
        return out

    def products(acc, words, sm, db, more):
        found = collective(work, ndarray(words).copy(), sm, int(db))
        sums = ndarray(acc)[:128]
        sums[:] = found + (sums if more else 0)

    return products


def make_winograd_finish(tile, channels, residual, relu, first_block=0):
    width = min(tile.blocks, 4)
    own = 2 * width

    def finish(acc, r, c, bias, res, y, at, across, rows, columns, top, bad):
        sums = np.empty((tile.positions, width, 2), np.float32)
        for position, block in np.ndindex(tile.positions, width):
            where = tile.sum_index(r, c, position, first_block + block)
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


__all__ = [
    "make_winograd_finish",
    "make_winograd_operands",
    "make_winograd_pixels",
    "make_winograd_products",
    "make_winograd_step",
]
