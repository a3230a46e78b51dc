"""3x3 convolution of stride 1 by Winograd's F(5x5, 3x3): 49 products for 25 outputs instead of 225.

An image is cut into tiles of 5 x 5 outputs, each seeing 7 x 7 inputs. A block of tiles small enough for the
second-level cache goes through all three steps before the next: transform every 7 x 7 x C tile, multiply the block's
rows by the transformed weights for each of the 49 positions, transform back with bias, residual and activation.

All heights and most widths here (80, 40, 20, 10; 1000, 500, 250, 125) are multiples of 5, so that no work is wasted.
Evaluation points 0, 1, -1, 2, -2, 1/2 and infinity; the error of a layer is about 3e-6 of its output's size.

References
----------
Lavin and Gray 2016, Fast algorithms for convolutional neural networks, section 4. The matrices follow from
Toom-Cook interpolation at these points.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .memory import aligned_empty
from .rows import PANEL, rows_none
from .simd import I64, LANES, CountedLoop, Emitter, data_pointer

OUTPUTS = 5
INPUTS = 7
POSITIONS = INPUTS * INPUTS
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5)
# Tiles in a block: a multiple of the product's ten rows; from 20 to 80 the time hardly changes (Zen 4, 1 MB cache).
BLOCK = 40
# Rows of equal position are this much further apart than their data, so that the 49 streams fall in different
# sets of the first-level cache.
_SKEW = 16
_LINE = 16


def transform_weight(weight: np.ndarray) -> np.ndarray:
    """Panels (49, num_panels, C_in, PANEL) float32 of a weight (C_out, C_in, 3, 3), transformed in float64."""
    kernel = np.zeros((INPUTS, 3))
    for i, point in enumerate(POINTS):
        scale = np.prod([point - other for j, other in enumerate(POINTS) if j != i])
        kernel[i] = np.array([1.0, point, point * point]) / scale
    kernel[-1, 2] = 1.0
    c_out, c_in = weight.shape[:2]
    num_panels = -(-c_out // PANEL)
    spread = np.zeros((POSITIONS, c_in, num_panels * PANEL), np.float32)
    # One matrix does both axes: (49, 9) times (9, C_out C_in).
    both = np.kron(kernel, kernel)
    moved = both @ weight.reshape(c_out * c_in, 9).T.astype(np.float64)
    spread[:, :, :c_out] = moved.reshape(POSITIONS, c_out, c_in).transpose(0, 2, 1)
    packed = aligned_empty((POSITIONS, num_panels, c_in, PANEL))
    packed[...] = spread.reshape(POSITIONS, c_in, num_panels, PANEL).transpose(0, 2, 1, 3)
    return packed


def _forward(emit: Emitter, d: list[ir.Value]) -> list[ir.Value]:
    """Seven samples to their seven evaluations.

    Every polynomial but the one of point 1/2 has the factor (x - 1/2), which is applied once.
    """

    def scaled(factor: float, a: ir.Value, b: ir.Value) -> ir.Value:
        return emit.fma(emit.constant(factor), a, b)

    t = [scaled(-0.5, d[k], d[k + 1]) for k in range(6)]
    odd, even = scaled(-4.0, t[1], t[3]), scaled(-4.0, t[2], t[4])
    wide_odd, wide_even = emit.sub(t[3], t[1]), emit.sub(t[4], t[2])
    twice = emit.add(wide_odd, wide_odd)
    # 4a - 5b + c is formed as 4(a - b) + (c - b): additions run beside multiplications on units of their own.
    return [
        scaled(4.0, emit.sub(t[0], t[2]), wide_even),
        emit.add(even, odd),
        emit.sub(even, odd),
        emit.add(wide_even, twice),
        emit.sub(wide_even, twice),
        scaled(4.0, emit.sub(d[1], d[3]), emit.sub(d[5], d[3])),
        scaled(-4.0, wide_odd, emit.sub(t[5], t[3])),
    ]


def _backward(emit: Emitter, m: list[ir.Value]) -> list[ir.Value]:
    """Seven products to five outputs: output k sums point^k times each product, and the last adds infinity's."""

    def scaled(factor: float, a: ir.Value, b: ir.Value) -> ir.Value:
        return emit.fma(emit.constant(factor), a, b)

    sum_one, difference_one = emit.add(m[1], m[2]), emit.sub(m[1], m[2])
    sum_two, difference_two = emit.add(m[3], m[4]), emit.sub(m[3], m[4])
    return [
        emit.add(emit.add(m[0], sum_one), emit.add(sum_two, m[5])),
        scaled(0.5, m[5], scaled(2.0, difference_two, difference_one)),
        scaled(0.25, m[5], scaled(4.0, sum_two, sum_one)),
        scaled(0.125, m[5], scaled(8.0, difference_two, difference_one)),
        emit.add(scaled(0.0625, m[5], scaled(16.0, sum_two, sum_one)), m[6]),
    ]


@intrinsic
def _transform(typingctx, x, start, row_stride, pixel_stride, v, v_start, v_stride):  # type: ignore[no-untyped-def]
    """LANES channels of a 7 x 7 tile at x[start] to 49 vectors at v[v_start + position * v_stride]."""
    long = types.int64
    signature = types.void(x, long, long, long, v, long, long)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        source = emit.address(data_pointer(context, builder, signature.args[0], args[0]), args[1])
        target = emit.address(data_pointer(context, builder, signature.args[4], args[4]), args[5])
        columns = []
        rows = [emit.address(source, builder.mul(args[2], ir.Constant(I64, i))) for i in range(INPUTS)]
        for j in range(INPUTS):
            offset = builder.mul(args[3], ir.Constant(I64, j))
            columns.append(_forward(emit, [emit.load(row, offset) for row in rows]))
        for i in range(INPUTS):
            for j, value in enumerate(_forward(emit, [columns[j][i] for j in range(INPUTS)])):
                emit.store(value, target, builder.mul(args[6], ir.Constant(I64, i * INPUTS + j)))
        return context.get_dummy_value()

    return signature, codegen


def _make_inverse(residual: bool) -> Any:
    """Intrinsic that turns 49 products into a 5 x 5 tile of outputs, with bias, floor and, if asked, a residual.

    Bind it at module level: see `gemm.make_tile`.
    """

    @intrinsic
    def inverse(
        typingctx, m, m_start, m_stride, bias, bias_start, floor, shortcut, out, start, row_stride, pixel_stride
    ):  # type: ignore[no-untyped-def]
        long = types.int64
        signature = types.void(m, long, long, bias, long, types.float32, shortcut, out, long, long, long)

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)
            m, bias, shortcut, out = (data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 3, 6, 7))
            source = emit.address(m, args[1])
            bias_vector = emit.load(bias, args[4])
            floor = emit.splat(args[5])
            columns = []
            for j in range(INPUTS):
                positions = [builder.mul(args[2], ir.Constant(I64, i * INPUTS + j)) for i in range(INPUTS)]
                columns.append(_backward(emit, [emit.load(source, position) for position in positions]))
            for i in range(OUTPUTS):
                row = builder.add(args[8], builder.mul(args[9], ir.Constant(I64, i)))
                for j, value in enumerate(_backward(emit, [columns[j][i] for j in range(INPUTS)])):
                    offset = builder.add(row, builder.mul(args[10], ir.Constant(I64, j)))
                    value = emit.add(value, bias_vector)
                    if residual:
                        value = emit.add(value, emit.load(shortcut, offset))
                    # In this order a NaN stays one.
                    emit.store(emit.maximum(floor, value), out, offset)
            return context.get_dummy_value()

        return signature, codegen

    return inverse


@intrinsic
def _copy(typingctx, source, start, target, to):  # type: ignore[no-untyped-def]
    """target[to : to + LANES] = source[start : start + LANES]."""
    signature = types.void(source, types.int64, target, types.int64)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        source, target = (data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 2))
        emit.store(emit.load(source, args[1]), target, args[3])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _clear(typingctx, target, to):  # type: ignore[no-untyped-def]
    """target[to : to + LANES] = 0."""
    signature = types.void(target, types.int64)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        emit.store(emit.constant(0.0), data_pointer(context, builder, signature.args[0], args[0]), args[1])
        return context.get_dummy_value()

    return signature, codegen


def _make_prefetch(write: bool) -> Any:
    """Intrinsic that asks for `lines` cache lines of 64 bytes from array[start] on, to be read or written soon.

    Bind it at module level: see `gemm.make_tile`. Harmless past the array's end.
    """

    @intrinsic
    def prefetch(typingctx, array, start, lines):  # type: ignore[no-untyped-def]
        signature = types.void(array, types.int64, types.int64)

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)
            first = emit.address(data_pointer(context, builder, signature.args[0], args[0]), args[1])
            loop = CountedLoop(builder, args[2], [])
            line = emit.address(first, builder.mul(loop.index, ir.Constant(I64, _LINE)))
            emit.prefetch(line, write)
            loop.end([])
            return context.get_dummy_value()

        return signature, codegen

    return prefetch


_prefetch_read, _prefetch_write = _make_prefetch(False), _make_prefetch(True)
_inverse, _inverse_add = _make_inverse(False), _make_inverse(True)


def workspace_size(c_in: int, c_out: int, block: int) -> int:
    """Number of float32 that `winograd` needs as scratch for blocks of `block` tiles."""
    padded = -(-c_out // PANEL) * PANEL
    return (POSITIONS + 1) * (block * max(c_in, padded) + _SKEW) + POSITIONS * c_in + 2 * OUTPUTS**2 * c_out


@njit(cache=True, nogil=True)
def _cut(x: np.ndarray, height: int, width: int, channels: int, top: int, left: int, tile: np.ndarray) -> None:
    """Copy the 7 x 7 tile at (top, left), zero outside the image."""
    for i in range(INPUTS):
        for j in range(INPUTS):
            to = (i * INPUTS + j) * channels
            if 0 <= top + i < height and 0 <= left + j < width:
                at = ((top + i) * width + left + j) * channels
                for c in range(0, channels, LANES):
                    _copy(x, at + c, tile, to + c)
            else:
                for c in range(0, channels, LANES):
                    _clear(tile, to + c)


@njit(cache=True, nogil=True)
def _move(
    image: np.ndarray,
    top: int,
    left: int,
    width: int,
    tile: np.ndarray,
    rows: int,
    columns: int,
    channels: int,
    back: bool,
) -> None:
    """Copy the part of a 5 x 5 tile that lies inside the image, from image to tile or `back`."""
    for i in range(rows):
        for j in range(columns):
            inside = ((top + i) * width + left + j) * channels
            at = (i * OUTPUTS + j) * channels
            for c in range(0, channels, LANES):
                if back:
                    _copy(tile, at + c, image, inside + c)
                else:
                    _copy(image, inside + c, tile, at + c)


@njit(cache=True, nogil=True)
def winograd(
    x: np.ndarray,
    packed: np.ndarray,
    zeros: np.ndarray,
    bias: np.ndarray,
    floor: float,
    add: bool,
    shortcut: np.ndarray,
    block: int,
    scratch: np.ndarray,
    out: np.ndarray,
) -> None:
    """`out = max(conv3x3(x) + bias [+ shortcut], floor)`, zero padding 1.

    x (H, W, C_in) and out (H, W, C_out) float32 C-contiguous, channels multiples of LANES; packed as from
    `transform_weight`; zeros (PANEL) zeros; shortcut like out, read only if `add`, may be out itself; `block` tiles go
    through together; scratch as large as `workspace_size` says. A tile's outputs depend on the image alone, not on the
    block it falls in.
    """
    height, width, c_in = x.shape
    c_out = out.shape[2]
    num_panels = packed.shape[1]
    padded = num_panels * PANEL
    # The products of a position take the place of the position before, whose inputs are no longer needed.
    stride = block * max(c_in, padded) + _SKEW
    slots, edge = scratch[: (POSITIONS + 1) * stride], scratch[(POSITIONS + 1) * stride :]
    x_flat, out_flat, shortcut_flat, panels = x.reshape(-1), out.reshape(-1), shortcut.reshape(-1), packed.reshape(-1)
    # An edge tile is computed in scratch: its inputs, later its outputs, and beside them its residual.
    edge_shortcut = edge[OUTPUTS * OUTPUTS * c_out :]
    across = (width + OUTPUTS - 1) // OUTPUTS
    tiles = (height + OUTPUTS - 1) // OUTPUTS * across
    for first in range(0, tiles, block):
        count = min(block, tiles - first)
        for index in range(count):
            top = (first + index) // across * OUTPUTS - 1
            left = (first + index) % across * OUTPUTS - 1
            source, start, row_stride = x_flat, (top * width + left) * c_in, width * c_in
            if top < 0 or left < 0 or top + INPUTS > height or left + INPUTS > width:
                _cut(x_flat, height, width, c_in, top, left, edge)
                source, start, row_stride = edge, 0, INPUTS * c_in
            for c in range(0, c_in, LANES):
                _transform(source, start + c, row_stride, c_in, slots, stride + index * c_in + c, stride)
        for position in range(POSITIONS):
            # Memory works while the products are computed: the outputs' lines, and the next block's inputs.
            for index in range(position * count // POSITIONS, (position + 1) * count // POSITIONS):
                here, there = first + index, first + count + index
                pixel = here // across * OUTPUTS * width + here % across * OUTPUTS
                after = (there // across * OUTPUTS + 1) * width + there % across * OUTPUTS
                for i in range(OUTPUTS):
                    _prefetch_write(out_flat, (pixel + i * width) * c_out, OUTPUTS * c_out // _LINE)
                    _prefetch_read(x_flat, (after + i * width) * c_in, OUTPUTS * c_in // _LINE)
            for panel in range(num_panels):
                a, b = (position + 1) * stride, (position * num_panels + panel) * c_in * PANEL
                to = position * stride + panel * PANEL
                rows_none(slots, a, c_in, count, panels, b, c_in, zeros, 0, slots, to, padded)
        for index in range(count):
            top = (first + index) // across * OUTPUTS
            left = (first + index) % across * OUTPUTS
            rows, columns = min(OUTPUTS, height - top), min(OUTPUTS, width - left)
            target, residual, start, row_stride = out_flat, shortcut_flat, (top * width + left) * c_out, width * c_out
            whole = rows == OUTPUTS and columns == OUTPUTS
            if not whole:
                target, residual, start, row_stride = edge, edge_shortcut, 0, OUTPUTS * c_out
                if add:
                    _move(shortcut_flat, top, left, width, edge_shortcut, rows, columns, c_out, False)
            at = index * padded
            for c in range(0, c_out, LANES):
                to = start + c
                if add:
                    _inverse_add(slots, at + c, stride, bias, c, floor, residual, target, to, row_stride, c_out)
                else:
                    _inverse(slots, at + c, stride, bias, c, floor, residual, target, to, row_stride, c_out)
            if not whole:
                _move(out_flat, top, left, width, edge, rows, columns, c_out, True)
