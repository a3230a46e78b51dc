"""Matrix products with seven eighths of the multiplications: one step of Strassen's method, Winograd's form.

Rows are taken in pairs, inputs and outputs in halves: [a11 a12; a21 a22] times the weight [b11 b12; b21 b22] is seven
products of half the size instead of eight. Sums of weights are made when they are packed, sums of activations while
they are normalised, and sums of products stay in registers. Both rows of a pair must belong to one sequence, as they
leave rounding errors in each other.

References
----------
Strassen 1969, Gaussian elimination is not optimal; Winograd's form with 15 additions as in Knuth, The Art of Computer
Programming, volume 2, section 4.6.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .campplus_tile import own_function
from .gemm import PANEL, TILE_ROWS, VECTORS, pack_weight
from .simd import F32, I64, LANES, CountedLoop, Emitter, data_pointer

PRODUCTS = 7
# Halves of up to 512 channels lie this far apart: rows a multiple of 2 KB apart would share a few cache sets.
HALF_DISTANCE = 528
PLANE = TILE_ROWS * HALF_DISTANCE
TILE_SIZE = PRODUCTS * PLANE
TILE_PAIRS = TILE_ROWS


def pack_products(weight: np.ndarray) -> np.ndarray:
    """The seven weights of each half-width panel, (C_out / 2 / PANEL, 7, C_in / 2, PANEL) float32, of (C_out, C_in)."""
    c_out, c_in = weight.shape
    exact = weight.astype(np.float64)
    (b11, b21), (b12, b22) = (
        (exact[rows, : c_in // 2], exact[rows, c_in // 2 :]) for rows in (slice(c_out // 2), slice(c_out // 2, None))
    )
    t1 = b12 - b11
    t2 = b22 - t1
    panels = [pack_weight(part.astype(np.float32)) for part in (b11, b21, t2, b22 - b12, b21 - t2, t1, b22)]
    return np.ascontiguousarray(np.stack(panels, axis=1))


@intrinsic
def normalise_pair(typingctx, x, x_offset, x_stride, scale, scale_offset, shift, half, out, out_offset):  # type: ignore[no-untyped-def]
    """relu(scale * x + shift) of two rows of 2 * half channels, as the seven factors that the products take.

    Factor p is written at out_offset + p * PLANE; shift lies at scale's offset; half is a multiple of LANES.
    """
    long = types.int64
    signature = types.void(x, long, long, scale, long, shift, long, out, long)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        x_start, scale_start, shift_start, out_start = (
            emit.address(data_pointer(context, builder, signature.args[i], args[i]), args[j])
            for i, j in ((0, 1), (3, 4), (5, 4), (7, 8))
        )
        function = _normalise_function(builder.module)
        builder.call(function, [x_start, args[2], scale_start, shift_start, args[6], out_start])
        return context.get_dummy_value()

    return signature, codegen


def _normalise_function(module: ir.Module) -> ir.Function:
    pointer = F32.as_pointer()
    function = own_function(module, "diarize_normalise_pair", [pointer, I64, pointer, pointer, I64, pointer])
    if function.blocks:
        return function
    builder = ir.IRBuilder(function.append_basic_block())
    emit = Emitter(builder)
    x, x_stride, scale, shift, half, out = function.args
    loop = CountedLoop(builder, builder.sdiv(half, ir.Constant(I64, LANES)), [])
    near = builder.mul(loop.index, ir.Constant(I64, LANES))
    far = builder.add(near, half)
    factors = [(emit.load(scale, at), emit.load(shift, at)) for at in (near, far)]

    def value(row: ir.Value, side: int) -> ir.Value:
        factor, summand = factors[side]
        return emit.activate(emit.fma(emit.load(row, (near, far)[side]), factor, summand), "relu")

    lower = emit.address(x, x_stride)
    a11, a12, a21, a22 = value(x, 0), value(x, 1), value(lower, 0), value(lower, 1)
    s1 = emit.add(a21, a22)
    s2 = emit.sub(s1, a11)
    target = emit.address(out, near)
    for plane, factor in enumerate((a11, a12, s2, emit.sub(a11, a21), a22, s1, emit.sub(a12, s2))):
        emit.store(factor, target, plane * PLANE)
    loop.end([])
    builder.ret_void()
    return function


def make_pair_tile(activation: str) -> Any:
    """Intrinsic (a, a_offset, b, b_offset, half, bias, bias_offset, width, out, out_offset, out_stride).

    2 * TILE_PAIRS rows x 2 * PANEL outputs, the second PANEL lying `width` columns after the first, in `out` and in
    `bias`. The factors of the row pairs start at a_offset, those of the weight at b_offset; `half` inputs each. Bind it
    at module level.
    """
    name = f"diarize_pair_tile_{activation}"

    @intrinsic
    def tile(typingctx, a, a_offset, b, b_offset, half, bias, bias_offset, width, out, out_offset, out_stride):  # type: ignore[no-untyped-def]
        long = types.int64
        signature = types.void(a, long, b, long, long, bias, long, long, out, long, long)

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)
            a_start, b_start, bias_start, out_start = (
                emit.address(data_pointer(context, builder, signature.args[i], args[i]), args[i + 1])
                for i in (0, 2, 5, 8)
            )
            function = _tile_function(builder.module, name, activation)
            builder.call(function, [a_start, b_start, args[4], bias_start, args[7], out_start, args[10]])
            return context.get_dummy_value()

        return signature, codegen

    return tile


def _tile_function(module: ir.Module, name: str, activation: str) -> ir.Function:
    pointer = F32.as_pointer()
    function = own_function(module, name, [pointer, pointer, I64, pointer, I64, pointer, I64])
    if function.blocks:
        return function
    builder = ir.IRBuilder(function.append_basic_block())
    emit = Emitter(builder)
    a, b, half, bias, width, out, out_stride = function.args
    count = TILE_PAIRS * VECTORS
    kept = builder.alloca(F32, size=2 * count * LANES)

    def keep(slot: int, sums: list[ir.Value]) -> None:
        for i, value in enumerate(sums):
            emit.store(value, kept, (slot * count + i) * LANES)

    def recall(slot: int) -> list[ir.Value]:
        return [emit.load(kept, (slot * count + i) * LANES) for i in range(count)]

    def finish(sums: list[ir.Value], lower: int, right: int) -> None:
        shift = builder.mul(width, ir.Constant(I64, right))
        biases = [emit.load(emit.address(bias, shift), j * LANES) for j in range(VECTORS)]
        for i in range(TILE_PAIRS):
            row = builder.mul(out_stride, ir.Constant(I64, 2 * i + lower))
            place = emit.address(emit.address(out, row), shift)
            for j in range(VECTORS):
                value = emit.add(sums[i * VECTORS + j], biases[j])
                emit.store(emit.activate(value, activation), place, j * LANES)

    def product(index: int, sums: list[ir.Value]) -> list[ir.Value]:
        panel = emit.address(b, builder.mul(half, ir.Constant(I64, index * PANEL)))
        return _multiply(emit, emit.address(a, index * PLANE), panel, half, sums)

    zeros = [emit.constant(0.0)] * count
    first = product(0, zeros)
    keep(0, first)
    finish(product(1, first), lower=0, right=0)
    second = product(2, recall(0))
    keep(0, second)
    third = product(3, second)
    keep(1, third)
    finish(product(4, third), lower=1, right=0)
    fifth = product(5, zeros)
    finish([emit.add(u, v) for u, v in zip(recall(1), fifth, strict=True)], lower=1, right=1)
    fourth = [emit.add(u, v) for u, v in zip(recall(0), fifth, strict=True)]
    finish(product(6, fourth), lower=0, right=1)
    builder.ret_void()
    return function


def _multiply(emit: Emitter, a: ir.Value, panel: ir.Value, inner: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
    """`sums` plus TILE_PAIRS rows at `a` times the panel (inner, PANEL)."""
    builder = emit.builder
    loop = CountedLoop(builder, inner, sums)
    panel_row = emit.address(panel, builder.mul(loop.index, ir.Constant(I64, PANEL)))
    columns = [emit.load(panel_row, j * LANES) for j in range(VECTORS)]
    first = emit.address(a, loop.index)
    following = []
    for i in range(TILE_PAIRS):
        value = emit.broadcast(first, i * HALF_DISTANCE)
        following += [emit.fma(value, columns[j], loop.values[i * VECTORS + j]) for j in range(VECTORS)]
    loop.end(following)
    return loop.values
