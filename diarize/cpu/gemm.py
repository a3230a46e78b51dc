"""Matrix product with packed weights, bias and activation: the work-horse of the CPU engine.

`out = activate(rows @ weight.T + bias)`. The weight is packed once into panels of PANEL columns, so that one row of a
panel is a few vectors; a tile of TILE_ROWS rows x PANEL columns stays in registers over the whole inner dimension.
Each output element is one chain of fused multiply-adds over the inner index from 0 up, whatever tile it falls in; so
the last tile may overlap the one before it and write the same values again, which is faster than single rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..cache import njit
from .simd import I64, LANES, REGISTERS, CountedLoop, Emitter, data_pointer

# 24 of 32 registers, or 12 of 16, hold sums. Two vectors a row let each broadcast feed two products: with one, loading
# is the limit (AVX2: 79 GFLOP/s with tiles of 10 x 1 vectors, 110 with 6 x 2).
VECTORS = 2
PANEL = VECTORS * LANES
TILE_ROWS = 12 if REGISTERS == 32 else 6


def pack_weight(weight: np.ndarray) -> np.ndarray:
    """Panels (num_panels, C_in, PANEL) float32 of a weight (C_out, C_in); missing columns are zero."""
    c_out, c_in = weight.shape
    num_panels = -(-c_out // PANEL)
    packed = np.zeros((num_panels * PANEL, c_in), np.float32)
    packed[:c_out] = weight
    return np.ascontiguousarray(packed.reshape(num_panels, PANEL, c_in).transpose(0, 2, 1))


def pad_bias(bias: np.ndarray | None, c_out: int) -> np.ndarray:
    """`bias` (C_out) float32 padded with zeros to whole panels; zeros where there is none."""
    padded = np.zeros(-(-c_out // PANEL) * PANEL, np.float32)
    if bias is not None:
        padded[:c_out] = bias
    return padded


def make_tile(tile_rows: int, activation: str, accumulate: bool = False, pool: int = 1, ahead: bool = False) -> Any:
    """Intrinsic (a, a_offset, a_stride, b, b_offset, inner, bias, bias_offset, out, out_offset, out_stride).

    Bind it at module level: numba keys its disk cache on closure cells, and an intrinsic in a cell has a new identity
    in every process, so a kernel that captures one is never found in the cache again.

    Computes tile_rows x PANEL outputs in registers: row i reads `inner` floats at a_offset + i * a_stride, the panel
    (inner, PANEL) lies at b_offset, and row i is written at out_offset + i * out_stride. With `accumulate` the tile
    starts from what `out` holds instead of the bias. With `pool` the largest of each `pool` adjacent rows is written,
    as row i // pool (`tile_rows` must be a multiple). With `ahead` the panel that follows in memory is prefetched
    meanwhile.
    """

    @intrinsic
    def tile(typingctx, a, a_offset, a_stride, b, b_offset, inner, bias, bias_offset, out, out_offset, out_stride):  # type: ignore[no-untyped-def]
        long = types.int64
        signature = types.void(a, long, long, b, long, long, bias, long, out, long, long)

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)
            a_type, b_type, bias_type, out_type = (signature.args[i] for i in (0, 3, 6, 8))
            a_start = emit.address(data_pointer(context, builder, a_type, args[0]), args[1])
            b_start = emit.address(data_pointer(context, builder, b_type, args[3]), args[4])
            bias_start = emit.address(data_pointer(context, builder, bias_type, args[6]), args[7])
            out_start = emit.address(data_pointer(context, builder, out_type, args[8]), args[9])
            a_stride, inner, out_stride = args[2], args[5], args[10]
            row_of = [emit.address(a_start, builder.mul(a_stride, ir.Constant(I64, i))) for i in range(tile_rows)]
            out_of = [emit.address(out_start, builder.mul(out_stride, ir.Constant(I64, i))) for i in range(tile_rows)]
            if accumulate:
                start = [emit.load(out_of[i], j * LANES) for i in range(tile_rows) for j in range(VECTORS)]
            else:
                start = [emit.load(bias_start, j * LANES) for j in range(VECTORS)] * tile_rows
            loop = CountedLoop(builder, inner, start)
            panel_row = emit.address(b_start, builder.mul(loop.index, ir.Constant(I64, PANEL)))
            columns = [emit.load(panel_row, j * LANES) for j in range(VECTORS)]
            if ahead:
                following = emit.address(panel_row, builder.mul(inner, ir.Constant(I64, PANEL)))
                for j in range(VECTORS):
                    emit.prefetch(emit.address(following, j * LANES), write=False)
            sums = []
            index = loop.index
            for i in range(tile_rows):
                value = emit.broadcast(row_of[i], index)
                row = [emit.fma(value, columns[j], loop.values[i * VECTORS + j]) for j in range(VECTORS)]
                index, *row = emit.pin(index, *row)
                sums += row
            loop.end(sums)
            for i in range(tile_rows // pool):
                for j in range(VECTORS):
                    value = loop.values[i * pool * VECTORS + j]
                    for other in range(1, pool):
                        value = emit.maximum(value, loop.values[(i * pool + other) * VECTORS + j])
                    emit.store(emit.activate(value, activation), out_of[i], j * LANES)
            return context.get_dummy_value()

        return signature, codegen

    return tile


_full_none, _single_none = make_tile(TILE_ROWS, "none"), make_tile(1, "none")
_full_relu, _single_relu = make_tile(TILE_ROWS, "relu"), make_tile(1, "relu")
_full_leaky, _single_leaky = make_tile(TILE_ROWS, "leaky"), make_tile(1, "leaky")


@njit(cache=True, nogil=True)
def row_block(inner: int) -> int:
    """Rows, whole tiles, that meet all panels before the next do: 256 KB, which a second-level cache holds."""
    return max(65536 // inner // TILE_ROWS, 1) * TILE_ROWS


@njit(cache=True, nogil=True)
def gemm_none(rows: np.ndarray, packed: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
    """`out = rows @ weight.T + bias`; arguments as in `make_gemm`."""
    count, inner = rows.shape
    width = out.shape[1]
    block = row_block(inner)
    step = TILE_ROWS if count >= TILE_ROWS else 1
    for first in range(0, count, block):
        end = min(first + block, count)
        for panel in range(packed.shape[0]):
            start, column = panel * inner * PANEL, panel * PANEL
            for row in range(first, end, step):
                if step == 1:
                    at = row * width + column
                    _single_none(rows, row * inner, inner, packed, start, inner, bias, column, out, at, width)
                else:
                    row = min(row, count - TILE_ROWS)
                    at = row * width + column
                    _full_none(rows, row * inner, inner, packed, start, inner, bias, column, out, at, width)


@njit(cache=True, nogil=True)
def gemm_relu(rows: np.ndarray, packed: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
    """`out = relu(rows @ weight.T + bias)`; arguments as in `make_gemm`."""
    count, inner = rows.shape
    width = out.shape[1]
    block = row_block(inner)
    step = TILE_ROWS if count >= TILE_ROWS else 1
    for first in range(0, count, block):
        end = min(first + block, count)
        for panel in range(packed.shape[0]):
            start, column = panel * inner * PANEL, panel * PANEL
            for row in range(first, end, step):
                if step == 1:
                    at = row * width + column
                    _single_relu(rows, row * inner, inner, packed, start, inner, bias, column, out, at, width)
                else:
                    row = min(row, count - TILE_ROWS)
                    at = row * width + column
                    _full_relu(rows, row * inner, inner, packed, start, inner, bias, column, out, at, width)


@njit(cache=True, nogil=True)
def gemm_leaky(rows: np.ndarray, packed: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
    """`out = leaky(rows @ weight.T + bias)`; arguments as in `make_gemm`."""
    count, inner = rows.shape
    width = out.shape[1]
    block = row_block(inner)
    step = TILE_ROWS if count >= TILE_ROWS else 1
    for first in range(0, count, block):
        end = min(first + block, count)
        for panel in range(packed.shape[0]):
            start, column = panel * inner * PANEL, panel * PANEL
            for row in range(first, end, step):
                if step == 1:
                    at = row * width + column
                    _single_leaky(rows, row * inner, inner, packed, start, inner, bias, column, out, at, width)
                else:
                    row = min(row, count - TILE_ROWS)
                    at = row * width + column
                    _full_leaky(rows, row * inner, inner, packed, start, inner, bias, column, out, at, width)


_GEMMS = {"none": gemm_none, "relu": gemm_relu, "leaky": gemm_leaky}


def make_gemm(activation: str) -> Any:
    """The compiled `gemm(rows, packed, bias, out)` with a fixed activation: "none", "relu" or "leaky" (slope 0.01).

    rows (M, C_in) float32 C-contiguous; packed as from `pack_weight`; bias as from `pad_bias`;
    out (M, num_panels * PANEL) float32 C-contiguous, every element written.
    """
    return _GEMMS[activation]
