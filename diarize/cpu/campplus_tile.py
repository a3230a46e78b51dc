"""Innermost loops of CAM++'s matrix products, each a machine-code function of its own.

A tile that LLVM inlines into a larger loop nest shares its registers with it and may lose half its speed to spills, so
every tile is marked never to be inlined, and its row distance is a constant: twelve row pointers would not fit either.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .gemm import PANEL, TILE_ROWS, VECTORS
from .simd import F32, I64, LANES, CountedLoop, Emitter, data_pointer


def make_fixed_tile(row_distance: int, activation: str, taps: int = 1) -> Any:
    """Intrinsic (a, a_offset, tap_distance, b, b_offset, inner, bias, bias_offset, out, out_offset, out_stride).

    Computes TILE_ROWS x PANEL outputs: for each of `taps`, row i reads `inner` floats at
    a_offset + i * row_distance + tap * tap_distance; the panel (taps * inner, PANEL) lies at b_offset. Each output is
    one chain of fused multiply-adds from the bias on, in the order of taps and inner index. Bind it at module level.
    """
    name = f"diarize_tile_{row_distance}_{activation}_{taps}"

    @intrinsic
    def tile(typingctx, a, a_offset, tap_distance, b, b_offset, inner, bias, bias_offset, out, out_offset, out_stride):  # type: ignore[no-untyped-def]
        long = types.int64
        signature = types.void(a, long, long, b, long, long, bias, long, out, long, long)

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)
            a_start, b_start, bias_start, out_start = (
                emit.address(data_pointer(context, builder, signature.args[i], args[i]), args[i + 1])
                for i in (0, 3, 6, 8)
            )
            function = _tile_function(builder.module, name, row_distance, activation, taps)
            builder.call(function, [a_start, args[2], b_start, args[5], bias_start, out_start, args[10]])
            return context.get_dummy_value()

        return signature, codegen

    return tile


def _tile_function(module: ir.Module, name: str, row_distance: int, activation: str, taps: int) -> ir.Function:
    pointer = F32.as_pointer()
    function = own_function(module, name, [pointer, I64, pointer, I64, pointer, pointer, I64])
    if function.blocks:
        return function
    builder = ir.IRBuilder(function.append_basic_block())
    emit = Emitter(builder)
    a, tap_distance, b, inner, bias, out, out_stride = function.args
    sums = [emit.load(bias, j * LANES) for j in range(VECTORS)] * TILE_ROWS
    for tap in range(taps):
        tap_start = emit.address(a, builder.mul(tap_distance, ir.Constant(I64, tap)))
        panel = emit.address(b, builder.mul(inner, ir.Constant(I64, tap * PANEL)))
        loop = CountedLoop(builder, inner, sums)
        panel_row = emit.address(panel, builder.mul(loop.index, ir.Constant(I64, PANEL)))
        columns = [emit.load(panel_row, j * LANES) for j in range(VECTORS)]
        first = emit.address(tap_start, loop.index)
        sums = []
        for i in range(TILE_ROWS):
            value = emit.broadcast(first, i * row_distance)
            sums += [emit.fma(value, columns[j], loop.values[i * VECTORS + j]) for j in range(VECTORS)]
        loop.end(sums)
        sums = loop.values
    for i in range(TILE_ROWS):
        row = emit.address(out, builder.mul(out_stride, ir.Constant(I64, i)))
        for j in range(VECTORS):
            emit.store(emit.activate(sums[i * VECTORS + j], activation), row, j * LANES)
    builder.ret_void()
    return function


def make_row_sum(channels: int) -> Any:
    """Intrinsic (x, x_offset, count, out, out_offset): sum of `count` adjacent rows, first to last.

    A row is `channels` floats. Bind it at module level.
    """
    name = f"diarize_row_sum_{channels}"

    @intrinsic
    def row_sum(typingctx, x, x_offset, count, out, out_offset):  # type: ignore[no-untyped-def]
        long = types.int64
        signature = types.void(x, long, long, out, long)

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)
            x_start, out_start = (
                emit.address(data_pointer(context, builder, signature.args[i], args[i]), args[i + 1]) for i in (0, 3)
            )
            builder.call(_row_sum_function(builder.module, name, channels), [x_start, args[2], out_start])
            return context.get_dummy_value()

        return signature, codegen

    return row_sum


def _row_sum_function(module: ir.Module, name: str, channels: int) -> ir.Function:
    pointer = F32.as_pointer()
    function = own_function(module, name, [pointer, I64, pointer])
    if function.blocks:
        return function
    builder = ir.IRBuilder(function.append_basic_block())
    emit = Emitter(builder)
    x, count, out = function.args
    # Eight sums hide the latency of an addition and fit the registers everywhere.
    for first in range(0, channels, 8 * LANES):
        places = range(first, min(first + 8 * LANES, channels), LANES)
        loop = CountedLoop(builder, count, [emit.constant(0.0)] * len(places))
        row = emit.address(x, builder.mul(loop.index, ir.Constant(I64, channels)))
        loop.end([emit.add(total, emit.load(row, place)) for total, place in zip(loop.values, places, strict=True)])
        for total, place in zip(loop.values, places, strict=True):
            emit.store(total, out, place)
    builder.ret_void()
    return function


def own_function(module: ir.Module, name: str, arguments: list[ir.Type]) -> ir.Function:
    """The module's function of that name, never inlined; it has no blocks yet when it is new."""
    function = cgutils.get_or_insert_function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function
