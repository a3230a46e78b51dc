"""Instance norm over time with leaky ReLU, as vector code over columns of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..cache import njit
from .simd import LANES, CountedLoop, Emitter, data_pointer

# Rows that are summed in float32 before the sum goes on in float64.
STRETCH = 64


def make_column_sums(vectors: int, squared: bool) -> Any:
    """Intrinsic (x, x_offset, x_stride, rows, centre, sums, column): sums over rows of x less the centre.

    Adds up `rows` rows of vectors * LANES floats, the first at x_offset + column, each less centre[column + ...], or
    the squares of that; writes them to sums[column ...].
    """

    @intrinsic
    def column_sums(typingctx, x, x_offset, x_stride, rows, centre, sums, column):  # type: ignore[no-untyped-def]
        long = types.int64
        signature = types.void(x, long, long, long, centre, sums, long)

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)
            x_start, centre_start, sums_start = (
                data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 4, 5)
            )
            start = emit.address(x_start, builder.add(args[1], args[6]))
            middle = [emit.load(emit.address(centre_start, args[6]), j * LANES) for j in range(vectors)]
            loop = CountedLoop(builder, args[3], [emit.constant(0.0)] * vectors)
            row = emit.address(start, builder.mul(loop.index, args[2]))
            totals = []
            for j in range(vectors):
                value = emit.sub(emit.load(row, j * LANES), middle[j])
                total = loop.values[j]
                totals.append(emit.fma(value, value, total) if squared else emit.add(value, total))
            loop.end(totals)
            for j in range(vectors):
                emit.store(loop.values[j], emit.address(sums_start, args[6]), j * LANES)
            return context.get_dummy_value()

        return signature, codegen

    return column_sums


@intrinsic
def _normalise_column(  # type: ignore[no-untyped-def]
    typingctx, x, x_stride, rows, centre, scale, shift, out, out_stride, column
):
    """LANES channels from `column` on: leaky((x - centre) * scale + shift) for all rows; out may be x."""
    long = types.int64
    signature = types.void(x, long, long, centre, scale, shift, out, long, long)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        x_start, *constants, out_start = (
            emit.address(data_pointer(context, builder, signature.args[i], args[i]), args[8]) for i in (0, 3, 4, 5, 6)
        )
        centre, scale, shift = (emit.load(pointer) for pointer in constants)
        loop = CountedLoop(builder, args[2], [])
        value = emit.load(x_start, builder.mul(loop.index, args[1]))
        value = emit.activate(emit.fma(emit.sub(value, centre), scale, shift), "leaky")
        emit.store(value, out_start, builder.mul(loop.index, args[7]))
        loop.end([])
        return context.get_dummy_value()

    return signature, codegen


_sums, _squares = make_column_sums(1, False), make_column_sums(1, True)
_sums4, _squares4 = make_column_sums(4, False), make_column_sums(4, True)


@njit(cache=True, nogil=True)
def _add_columns(x: np.ndarray, centre: np.ndarray, squared: bool, part: np.ndarray, total: np.ndarray) -> None:
    """Adds the column sums of x less centre, or of its square, to `total` (float64)."""
    times, stride, width = x.shape[0], x.shape[1], total.size
    total[:] = 0.0
    for first in range(0, times, STRETCH):
        rows, at = min(STRETCH, times - first), first * stride
        column = 0
        while column < width:
            if column + 4 * LANES <= width:
                if squared:
                    _squares4(x, at, stride, rows, centre, part, column)
                else:
                    _sums4(x, at, stride, rows, centre, part, column)
                column += 4 * LANES
            else:
                if squared:
                    _squares(x, at, stride, rows, centre, part, column)
                else:
                    _sums(x, at, stride, rows, centre, part, column)
                column += LANES
        for c in range(width):
            total[c] += part[c]


@njit(cache=True, nogil=True)
def normalise_leaky(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, epsilon: float, out: np.ndarray) -> None:
    """Instance norm over time, population variance, then leaky ReLU with slope 0.01.

    x (T, width) float32, width a multiple of LANES; weight, bias (C) float32; out (T, C) float32 with
    LANES <= C <= width. `out` may be x where C is a multiple of LANES.
    """
    times, width = x.shape
    channels = out.shape[1]
    part = np.empty(width, np.float32)
    centre, scale, shift = x[0].copy(), np.zeros(width, np.float32), np.zeros(width, np.float32)
    total = np.empty(width, np.float64)
    # Sums of differences from the first row: the mean of a channel that does not vary, as in silence, is exact, and
    # the norm, which divides by sqrt(epsilon) then, has no rounding to magnify.
    _add_columns(x, centre, False, part, total)
    for c in range(width):
        centre[c] += total[c] / times
    _add_columns(x, centre, True, part, total)
    for c in range(channels):
        scale[c] = weight[c] / np.sqrt(total[c] / times + epsilon)
        shift[c] = bias[c]
    for column in range(0, channels - LANES + 1, LANES):
        _normalise_column(x, width, times, centre, scale, shift, out, channels, column)
    if channels % LANES:
        # The last vector overlaps the one before it, so that nothing is written past the row.
        _normalise_column(x, width, times, centre, scale, shift, out, channels, channels - LANES)
