"""Convolutional head of CAM++: 3x3 convolutions of 32 channels, all by Winograd's minimal filtering.

Stride 1 uses F(4x4, 3x3): 36 products for 16 outputs instead of 144. Stride 2 over frequency uses F(4, 3) along time
only: 6 instead of 12 a row tap. Activations are (rows, columns, 32): rows are frequency with one zero row above and
below, columns are time; several sequences share the columns, with at least four zero columns between them, starts at
multiples of four, so that a sequence's tiles, and with them its bits, never depend on its neighbours.

References
----------
Lavin and Gray 2016, Fast Algorithms for Convolutional Neural Networks, section 4 and its F(4x4, 3x3).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..cache import njit
from .campplus_tile import make_fixed_tile, own_function
from .gemm import PANEL, TILE_ROWS, VECTORS
from .simd import F32, I64, LANES, CountedLoop, Emitter, data_pointer

CHANNELS = 32
TILE = 4
POINTS = 6
FIRST_COLUMN = 4
# Columns that one product handles: TILE_ROWS tiles of four.
GROUP = TILE * TILE_ROWS

_tile_square = make_fixed_tile(CHANNELS, "none")
_tile_strided = make_fixed_tile(3 * CHANNELS, "none")

# G of F(4, 3): turns three taps into six points.
_FILTER_TRANSFORM = np.array(
    [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], np.float64
) / 24.0  # fmt: skip


def transform_square(weight: np.ndarray) -> np.ndarray:
    """Points (36, C_out, C_in) float64 of 3x3 filters (C_out, C_in, 3, 3); rows of points first."""
    points = np.einsum("pi,qj,ocij->pqoc", _FILTER_TRANSFORM, _FILTER_TRANSFORM, weight.astype(np.float64))
    return points.reshape(POINTS * POINTS, *weight.shape[:2])


def transform_rows(weight: np.ndarray) -> np.ndarray:
    """Points (6, C_out, 3 C_in) float64 of 3x3 filters, transformed along the last axis only; row taps come first."""
    points = np.einsum("qj,ocij->qoic", _FILTER_TRANSFORM, weight.astype(np.float64))
    return points.reshape(POINTS, weight.shape[0], 3 * weight.shape[1])


def _to_points(emit: Emitter, d: list[ir.Value]) -> list[ir.Value]:
    """B^T of F(4, 3): six neighbouring inputs to six points."""
    four, two = emit.constant(4.0), emit.constant(2.0)
    minus_two, minus_four, minus_five = emit.constant(-2.0), emit.constant(-4.0), emit.constant(-5.0)
    even, odd = emit.fma(minus_four, d[2], d[4]), emit.fma(minus_four, d[1], d[3])
    outer, inner = emit.sub(d[4], d[2]), emit.sub(d[3], d[1])
    return [
        emit.fma(four, d[0], emit.fma(minus_five, d[2], d[4])),
        emit.add(even, odd),
        emit.sub(even, odd),
        emit.fma(two, inner, outer),
        emit.fma(minus_two, inner, outer),
        emit.fma(four, d[1], emit.fma(minus_five, d[3], d[5])),
    ]


def _from_points(emit: Emitter, m: list[ir.Value]) -> list[ir.Value]:
    """A^T of F(4, 3): six points to four neighbouring outputs."""
    plus1, minus1 = emit.add(m[1], m[2]), emit.sub(m[1], m[2])
    plus2, minus2 = emit.add(m[3], m[4]), emit.sub(m[3], m[4])
    return [
        emit.add(emit.add(m[0], plus1), plus2),
        emit.fma(emit.constant(2.0), minus2, minus1),
        emit.fma(emit.constant(4.0), plus2, plus1),
        emit.add(emit.fma(emit.constant(8.0), minus2, minus1), m[5]),
    ]


def _starts(
    context: Any, builder: ir.IRBuilder, signature: Any, args: Any, emit: Emitter, *places: int
) -> list[ir.Value]:
    """Addresses for the arguments at `places`, each an array followed by its offset."""
    return [emit.address(data_pointer(context, builder, signature.args[i], args[i]), args[i + 1]) for i in places]


def _scaled(builder: ir.IRBuilder, value: ir.Value, factor: int) -> ir.Value:
    return builder.mul(value, ir.Constant(I64, factor))


@intrinsic
def _squares_to_points(typingctx, x, x_offset, row_stride, v, v_offset):  # type: ignore[no-untyped-def]
    """36 points of each of TILE_ROWS neighbouring 6x6 patches, LANES channels.

    The first patch starts at x_offset, the next TILE columns later; point p of patch t is written at
    v_offset + (p * TILE_ROWS + t) * CHANNELS. Patches overlap by two columns, whose transform down is made once.
    """
    long = types.int64
    signature = types.void(x, long, long, v, long)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        start, target = _starts(context, builder, signature, args, emit, 0, 3)
        builder.call(_squares_function(builder.module), [start, args[2], target])
        return context.get_dummy_value()

    return signature, codegen


def _squares_function(module: ir.Module) -> ir.Function:
    pointer = F32.as_pointer()
    function = own_function(module, "diarize_squares_to_points", [pointer, I64, pointer])
    if function.blocks:
        return function
    builder = ir.IRBuilder(function.append_basic_block())
    emit = Emitter(builder)
    x, row_stride, v = function.args
    rows = [emit.address(x, _scaled(builder, row_stride, i)) for i in range(POINTS)]

    def down(place: ir.Value, column: int) -> list[ir.Value]:
        at = builder.add(place, ir.Constant(I64, column * CHANNELS))
        return _to_points(emit, [emit.load(row, at) for row in rows])

    zero = ir.Constant(I64, 0)
    loop = CountedLoop(builder, ir.Constant(I64, TILE_ROWS), [*down(zero, 0), *down(zero, 1)])
    place = _scaled(builder, loop.index, TILE * CHANNELS)
    columns = [loop.values[:POINTS], loop.values[POINTS:], *(down(place, j) for j in range(2, POINTS))]
    target = emit.address(v, _scaled(builder, loop.index, CHANNELS))
    for i in range(POINTS):
        for j, value in enumerate(_to_points(emit, [column[i] for column in columns])):
            emit.store(value, target, (i * POINTS + j) * TILE_ROWS * CHANNELS)
    loop.end([*columns[4], *columns[5]])
    builder.ret_void()
    return function


def _make_points_to_square(residual: bool) -> Any:
    """Intrinsic (m, m_offset, point_stride, bias, bias_offset, out, out_offset, row_stride) for LANES channels.

    36 points to a 4x4 patch of outputs, plus the bias, plus what `out` holds where `residual`, then ReLU.
    """

    @intrinsic
    def points_to_square(typingctx, m, m_offset, point_stride, bias, bias_offset, out, out_offset, row_stride):  # type: ignore[no-untyped-def]
        long = types.int64
        signature = types.void(m, long, long, bias, long, out, long, long)

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)
            start, bias_start, target = _starts(context, builder, signature, args, emit, 0, 3, 5)
            bias_value, zero = emit.load(bias_start), emit.constant(0.0)
            columns = []
            for j in range(POINTS):
                points = [emit.address(start, _scaled(builder, args[2], i * POINTS + j)) for i in range(POINTS)]
                columns.append(_from_points(emit, [emit.load(point) for point in points]))
            for i in range(TILE):
                row = emit.address(target, _scaled(builder, args[7], i))
                for j, value in enumerate(_from_points(emit, [columns[k][i] for k in range(POINTS)])):
                    value = emit.add(value, bias_value)
                    if residual:
                        value = emit.add(value, emit.load(row, j * CHANNELS))
                    emit.store(emit.maximum(value, zero), row, j * CHANNELS)
            return context.get_dummy_value()

        return signature, codegen

    return points_to_square


_points_to_square = _make_points_to_square(residual=False)
_points_to_square_add = _make_points_to_square(residual=True)


@intrinsic
def _row_to_points(typingctx, x, x_offset, v, v_offset, point_stride):  # type: ignore[no-untyped-def]
    """Six points of six neighbouring columns, LANES channels."""
    long = types.int64
    signature = types.void(x, long, v, long, long)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        start, target = _starts(context, builder, signature, args, emit, 0, 2)
        for j, value in enumerate(_to_points(emit, [emit.load(start, j * CHANNELS) for j in range(POINTS)])):
            emit.store(value, emit.address(target, _scaled(builder, args[4], j)))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _points_to_row(typingctx, m, m_offset, point_stride, bias, bias_offset, out, out_offset, column_stride):  # type: ignore[no-untyped-def]
    """Six points to four neighbouring outputs, plus the bias, then ReLU; LANES channels."""
    long = types.int64
    signature = types.void(m, long, long, bias, long, out, long, long)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        start, bias_start, target = _starts(context, builder, signature, args, emit, 0, 3, 5)
        bias_value, zero = emit.load(bias_start), emit.constant(0.0)
        points = [emit.load(emit.address(start, _scaled(builder, args[2], j))) for j in range(POINTS)]
        for j, value in enumerate(_from_points(emit, points)):
            value = emit.maximum(emit.add(value, bias_value), zero)
            emit.store(value, emit.address(target, _scaled(builder, args[7], j)))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _stem_columns(typingctx, x, x_offset, row_stride, weights, channel, out, out_offset, count):  # type: ignore[no-untyped-def]
    """3x3 convolution of one channel to PANEL channels from `channel` on, bias and ReLU, for `count` columns.

    The patch's first element lies at x_offset; weights (10, 32): nine taps, then the bias.
    """
    long = types.int64
    signature = types.void(x, long, long, weights, long, out, long, long)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        start, weight_start, target = _starts(context, builder, signature, args, emit, 0, 3, 5)
        rows = [emit.address(start, _scaled(builder, args[2], i)) for i in range(3)]
        taps = [[emit.load(weight_start, k * CHANNELS + j * LANES) for j in range(VECTORS)] for k in range(10)]
        loop = CountedLoop(builder, args[7], [])
        sums = taps[9]
        for k in range(9):
            value = emit.broadcast(emit.address(rows[k // 3], loop.index), k % 3)
            sums = [emit.fma(value, taps[k][j], sums[j]) for j in range(VECTORS)]
        place = emit.address(target, _scaled(builder, loop.index, CHANNELS))
        for j in range(VECTORS):
            emit.store(emit.maximum(sums[j], emit.constant(0.0)), place, j * LANES)
        loop.end([])
        return context.get_dummy_value()

    return signature, codegen


@njit(cache=True, nogil=True)
def _clear_free_columns(x, row_at, column_stride, first, stop, spans):  # type: ignore[no-untyped-def]
    """Zero the columns of [first, stop) that belong to no span, in one row of flat `x`."""
    free = first
    for item in range(spans.shape[0]):
        start, end = spans[item, 0], spans[item, 0] + spans[item, 1]
        for column in range(free, min(start, stop)):
            at = row_at + column * column_stride
            x[at : at + CHANNELS] = 0.0
        free = max(free, end)
    for column in range(free, stop):
        at = row_at + column * column_stride
        x[at : at + CHANNELS] = 0.0


@njit(cache=True, nogil=True)
def square_conv(x, rows, columns, group, stop, spans, weights, bias, zeros, residual, scratch, out):  # type: ignore[no-untyped-def]
    """3x3 convolution, bias, plus what `out` holds where `residual`, ReLU, for one group of columns.

    x and out (rows + 2, columns, 32) flat; weights (36, 32 * 32) packed points; scratch 2 * 36 * TILE_ROWS * 32 floats.
    Free columns of `out` from the group's first to `stop` become zero.
    """
    points = POINTS * POINTS
    stride = TILE_ROWS * CHANNELS
    half = points * stride
    row_stride = columns * CHANNELS
    column = FIRST_COLUMN + group * GROUP
    for row in range(0, rows, TILE):
        at = row * row_stride + (column - 1) * CHANNELS
        for c in range(0, CHANNELS, LANES):
            _squares_to_points(x, at + c, row_stride, scratch, c)
        for point in range(points):
            for c in range(0, CHANNELS, PANEL):
                _tile_square(
                    scratch, point * stride, 0, weights, (point * CHANNELS + c) * CHANNELS, CHANNELS,
                    zeros, 0, scratch, half + point * stride + c, CHANNELS,
                )  # fmt: skip
        for tile in range(TILE_ROWS):
            at = (row + 1) * row_stride + (column + tile * TILE) * CHANNELS
            for c in range(0, CHANNELS, LANES):
                source = half + tile * CHANNELS + c
                if residual:
                    _points_to_square_add(scratch, source, stride, bias, c, out, at + c, row_stride)
                else:
                    _points_to_square(scratch, source, stride, bias, c, out, at + c, row_stride)
    for row in range(1, rows + 1):
        _clear_free_columns(out, row * row_stride, CHANNELS, column, stop, spans)


@njit(cache=True, nogil=True)
def strided_row(x, above, middle, below, group, stop, spans, weights, bias, zeros, scratch, out, out_at, out_stride):  # type: ignore[no-untyped-def]
    """One output row of a 3x3 convolution, bias and ReLU, from three input rows that start at the given offsets of x.

    weights (6, 96 * 32) packed points; scratch 6 * TILE_ROWS * 128 floats; output column c is written at
    out_at + c * out_stride. Free columns from the group's first to `stop` become zero.
    """
    inner = 3 * CHANNELS
    in_stride, stride = TILE_ROWS * inner, TILE_ROWS * CHANNELS
    half = POINTS * in_stride
    column = FIRST_COLUMN + group * GROUP
    for tap in range(3):
        source = above if tap == 0 else (middle if tap == 1 else below)
        for tile in range(TILE_ROWS):
            at = source + (column + tile * TILE - 1) * CHANNELS
            for c in range(0, CHANNELS, LANES):
                _row_to_points(x, at + c, scratch, tile * inner + tap * CHANNELS + c, in_stride)
    for point in range(POINTS):
        for c in range(0, CHANNELS, PANEL):
            _tile_strided(
                scratch, point * in_stride, 0, weights, (point * CHANNELS + c) * inner, inner,
                zeros, 0, scratch, half + point * stride + c, CHANNELS,
            )  # fmt: skip
    for tile in range(TILE_ROWS):
        at = out_at + (column + tile * TILE) * out_stride
        for c in range(0, CHANNELS, LANES):
            _points_to_row(scratch, half + tile * CHANNELS + c, stride, bias, c, out, at + c, out_stride)
    _clear_free_columns(out, out_at, out_stride, column, stop, spans)


@njit(cache=True, nogil=True)
def shortcut_row(x, source, group, weights, bias, out, target):  # type: ignore[no-untyped-def]
    """1x1 convolution of a group of one row, 32 to 32 channels, with bias, from offset `source` to `target`."""
    for part in range(TILE):
        at = (FIRST_COLUMN + group * GROUP + part * TILE_ROWS) * CHANNELS
        for c in range(0, CHANNELS, PANEL):
            _tile_square(x, source + at, 0, weights, c * CHANNELS, CHANNELS, bias, c, out, target + at + c, CHANNELS)


@njit(cache=True, nogil=True)
def stem_row(mel, row, columns, group, spans, weights, out, target):  # type: ignore[no-untyped-def]
    """First convolution, 1 to 32 channels, one frequency row, for a group and the column on either side of it.

    mel (82 * columns) flat with a zero row at each end.
    """
    column = FIRST_COLUMN + group * GROUP - 1
    count = GROUP + 2
    for c in range(0, CHANNELS, PANEL):
        at = row * columns + column - 1
        _stem_columns(mel, at, columns, weights, c, out, target + column * CHANNELS + c, count)
    _clear_free_columns(out, target, CHANNELS, column, column + count, spans)


@njit(cache=True, nogil=True)
def _first_stage(
    mel, rows, columns, group, stop, spans, stem, weights, bias, one, one_bias, zeros, ring, scratch, a, b
):  # type: ignore[no-untyped-def]
    """First convolution, which lives in a ring of three rows only, then the strided one into a, the shortcut into b."""
    row_stride = columns * CHANNELS
    edge = 2 * row_stride + (FIRST_COLUMN + group * GROUP - 1) * CHANNELS
    ring[edge : edge + (GROUP + 2) * CHANNELS] = 0.0
    for row in range(rows // 2):
        # Row 2 row - 1 is still there from the round before.
        above, middle, below = (2 * row + 2) % 3 * row_stride, 2 * row % 3 * row_stride, (2 * row + 1) % 3 * row_stride
        stem_row(mel, 2 * row, columns, group, spans, stem, ring, middle)
        stem_row(mel, 2 * row + 1, columns, group, spans, stem, ring, below)
        target = (row + 1) * row_stride
        strided_row(
            ring, above, middle, below, group, stop, spans, weights, bias, zeros, scratch, a, target, CHANNELS
        )  # fmt: skip
        shortcut_row(ring, middle, group, one, one_bias, b, target)


@njit(cache=True, nogil=True)
def _second_stage(b, rows, columns, group, stop, spans, weights, bias, one, one_bias, zeros, scratch, c, d):  # type: ignore[no-untyped-def]
    """Strided convolution of b into c and its shortcut into d."""
    row_stride = columns * CHANNELS
    for row in range(rows // 4):
        above, target = 2 * row * row_stride, (row + 1) * row_stride
        strided_row(
            b, above, above + row_stride, above + 2 * row_stride, group, stop, spans, weights, bias, zeros, scratch,
            c, target, CHANNELS,
        )  # fmt: skip
        shortcut_row(b, above + row_stride, group, one, one_bias, d, target)


@njit(cache=True, nogil=True)
def _last_stage(d, rows, columns, group, stop, spans, weights, bias, zeros, scratch, out):  # type: ignore[no-untyped-def]
    """Strided convolution of d into out (columns, rows / 8 * 32)."""
    row_stride = columns * CHANNELS
    width = rows // 8 * CHANNELS
    for row in range(rows // 8):
        above = 2 * row * row_stride
        strided_row(
            d, above, above + row_stride, above + 2 * row_stride, group, stop, spans, weights, bias, zeros, scratch,
            out, row * CHANNELS, width,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def head(mel, rows, columns, groups, spans, stem, strided, strided_bias, square, square_bias, one, one_bias, zeros, ring, a, b, c, d, scratch, out):  # fmt: skip  # type: ignore[no-untyped-def]  # noqa: E501
    """The whole head: mel (rows + 2, columns) flat to out (columns, rows / 8 * 32).

    strided (3, ...), square (6, ...), one (2, ...) hold the packed weights in the order in which they are used; ring
    holds three rows of the first convolution, a and b the activations of the first two blocks, c and d of the others.

    Each convolution works one group behind the one before it, so that activations are used again before they leave the
    cache. It finds the column that it needs on its right already made, and the one on its left not yet overwritten:
    the blocks' second convolutions add to b and d in place, after everything that reads the old values.
    """
    half, quarter = rows // 2, rows // 4
    for step in range(groups + 8):
        for behind in range(max(0, step - groups + 1), min(9, step + 1)):
            group = step - behind
            stop = FIRST_COLUMN + (group + 1) * GROUP
            if group == groups - 1:
                stop += TILE
            if behind == 0:
                _first_stage(
                    mel, rows, columns, group, stop, spans, stem, strided[0], strided_bias[0], one[0], one_bias[0],
                    zeros, ring, scratch, a, b,
                )  # fmt: skip
            elif behind == 4:
                _second_stage(
                    b, rows, columns, group, stop, spans, strided[1], strided_bias[1], one[1], one_bias[1],
                    zeros, scratch, c, d,
                )  # fmt: skip
            elif behind == 8:
                _last_stage(
                    d, rows, columns, group, stop, spans, strided[2], strided_bias[2], zeros, scratch, out
                )  # fmt: skip
            else:
                number = behind - 1 if behind < 4 else behind - 2
                source, target, height = (a, b, half) if behind < 4 else (c, d, quarter)
                residual = number % 3 != 1
                if not residual:
                    source, target = target, source
                square_conv(
                    source, height, columns, group, stop, spans, square[number], square_bias[number], zeros, residual,
                    scratch, target,
                )  # fmt: skip
