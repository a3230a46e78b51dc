"""Dense time-delay blocks of CAM++: context-aware masking, densely connected layers and their transitions.

Several sequences lie one after another on one row axis, in the spans of `Op.CAM_BLOCK`, with at least two free rows
around each, so that a product never stops at the end of a sequence. Free rows hold rubbish except where said.

References
----------
Wang et al. 2023, CAM++: A Fast and Efficient Network for Speaker Verification Using Context-Aware Masking.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .gemm import PANEL, TILE_ROWS, VECTORS, make_tile
from .simd import I64, LANES, CountedLoop, Emitter, data_pointer

BOTTLENECK = 128
GROWTH = 32
CONTEXT = 64
CONTEXT_ROWS = 100
TAPS = 3
# Scratch rows are this much longer than their content: rows a multiple of 4 KB apart would share a few cache sets.
ROW_PADDING = 16

_tile_none = make_tile(TILE_ROWS, "none")
_tile_relu = make_tile(TILE_ROWS, "relu")


@intrinsic
def _tile_taps(typingctx, a, a_offset, tap_stride, b, b_offset, out, out_offset, out_stride):  # type: ignore[no-untyped-def]
    """TILE_ROWS x PANEL outputs of a convolution over time with three taps.

    Row i and tap k read BOTTLENECK floats at a_offset + i * BOTTLENECK + k * tap_stride; the panel at b_offset is
    (TAPS * BOTTLENECK, PANEL).
    """
    long = types.int64
    signature = types.void(a, long, long, b, long, out, long, long)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        a_start = emit.address(data_pointer(context, builder, signature.args[0], args[0]), args[1])
        b_start = emit.address(data_pointer(context, builder, signature.args[3], args[3]), args[4])
        out_start = emit.address(data_pointer(context, builder, signature.args[5], args[5]), args[6])
        sums = [emit.constant(0.0)] * (TILE_ROWS * VECTORS)
        for tap in range(TAPS):
            tap_start = emit.address(a_start, builder.mul(args[2], ir.Constant(I64, tap)))
            panel = emit.address(b_start, tap * BOTTLENECK * PANEL)
            row_of = [emit.address(tap_start, i * BOTTLENECK) for i in range(TILE_ROWS)]
            loop = CountedLoop(builder, ir.Constant(I64, BOTTLENECK), sums)
            panel_row = emit.address(panel, builder.mul(loop.index, ir.Constant(I64, PANEL)))
            columns = [emit.load(panel_row, j * LANES) for j in range(VECTORS)]
            sums = []
            for i in range(TILE_ROWS):
                value = emit.broadcast(row_of[i], loop.index)
                sums += [emit.fma(value, columns[j], loop.values[i * VECTORS + j]) for j in range(VECTORS)]
            loop.end(sums)
            sums = loop.values
        for i in range(TILE_ROWS):
            row_out = emit.address(out_start, builder.mul(args[7], ir.Constant(I64, i)))
            for j in range(VECTORS):
                emit.store(sums[i * VECTORS + j], row_out, j * LANES)
        return context.get_dummy_value()

    return signature, codegen


@njit(cache=True, nogil=True)
def _normalise_rows(x, row, channels, scale, shift, at, scratch):  # type: ignore[no-untyped-def]
    """relu(scale * x + shift) of TILE_ROWS rows, first `channels` columns, into scratch (TILE_ROWS, wider)."""
    for i in range(TILE_ROWS):
        for k in range(channels):
            value = x[row + i, k] * scale[at + k] + shift[at + k]
            scratch[i, k] = value if value > np.float32(0.0) else np.float32(0.0)


@njit(cache=True, nogil=True)
def time_conv(x, column_step, inner, first_row, num_tiles, packed, bias, out):  # type: ignore[no-untyped-def]
    """Strided convolution over time, then ReLU: output row r reads `inner` floats at (r - 1) * column_step.

    x flat float32; packed (num_panels, inner, PANEL); out (rows, >= num_panels * PANEL), rows from `first_row` on.
    """
    width = out.shape[1]
    for panel in range(packed.shape[0]):
        for tile in range(num_tiles):
            row = first_row + tile * TILE_ROWS
            _tile_relu(
                x, (row - 1) * column_step, column_step, packed, panel * inner * PANEL, inner,
                bias, panel * PANEL, out, row * width + panel * PANEL, width,
            )  # fmt: skip


@njit(cache=True, nogil=True)
def transit(x, channels, scale, shift, first_row, num_tiles, packed, bias, rectify, scratch, out):  # type: ignore[no-untyped-def]
    """Batch norm, ReLU and a 1x1 convolution; with `rectify` a ReLU on its output too."""
    width, stride = out.shape[1], scratch.shape[1]
    for tile in range(num_tiles):
        row = first_row + tile * TILE_ROWS
        _normalise_rows(x, row, channels, scale, shift, 0, scratch)
        for panel in range(packed.shape[0]):
            at, start, column = row * width + panel * PANEL, panel * channels * PANEL, panel * PANEL
            if rectify:
                _tile_relu(scratch, 0, stride, packed, start, channels, bias, column, out, at, width)
            else:
                _tile_none(scratch, 0, stride, packed, start, channels, bias, column, out, at, width)


@njit(cache=True, nogil=True)
def _context_gates(hidden, first, length, weights, at, gates):  # type: ignore[no-untyped-def]
    """Mask of each CONTEXT_ROWS-row part of one sequence: gates (num_parts, GROWTH).

    weights from `at` on: (BOTTLENECK, CONTEXT), (CONTEXT), (CONTEXT, GROWTH), (GROWTH).
    """
    num_parts = -(-length // CONTEXT_ROWS)
    parts = np.zeros((num_parts, BOTTLENECK), np.float32)
    whole = np.zeros(BOTTLENECK, np.float32)
    for part in range(num_parts):
        start = part * CONTEXT_ROWS
        stop = min(length, start + CONTEXT_ROWS)
        for row in range(first + start, first + stop):
            for k in range(BOTTLENECK):
                parts[part, k] += hidden[row, k]
        for k in range(BOTTLENECK):
            whole[k] += parts[part, k]
            parts[part, k] /= np.float32(stop - start)
    bias1 = at + BOTTLENECK * CONTEXT
    weight2 = bias1 + CONTEXT
    bias2 = weight2 + CONTEXT * GROWTH
    middle = np.empty(CONTEXT, np.float32)
    last = np.empty(GROWTH, np.float32)
    for part in range(num_parts):
        for o in range(CONTEXT):
            middle[o] = weights[bias1 + o]
        for k in range(BOTTLENECK):
            value = parts[part, k] + whole[k] / np.float32(length)
            for o in range(CONTEXT):
                middle[o] += value * weights[at + k * CONTEXT + o]
        for o in range(GROWTH):
            last[o] = weights[bias2 + o]
        for k in range(CONTEXT):
            value = max(middle[k], np.float32(0.0))
            for o in range(GROWTH):
                last[o] += value * weights[weight2 + k * GROWTH + o]
        for o in range(GROWTH):
            gates[part, o] = np.float32(1.0 / (1.0 + math.exp(-float(last[o]))))


@njit(cache=True, nogil=True)
def dense_block(x, channels, dilation, layers, spans, num_tiles, scale, shift, weights, scratch, hidden, gates):  # type: ignore[no-untyped-def]
    """Every layer of a dense block, in place: layer l reads the first channels + 32 l columns of x and adds 32.

    x (rows, width); spans (N, 2) int64 first row and length; scale, shift: those of all layers in a row; weights: as
    `pack_dense_layer` makes them, in a row; hidden (rows, BOTTLENECK); gates (parts, GROWTH); scratch (TILE_ROWS, >= width).
    Rows 2 .. 2 + num_tiles * TILE_ROWS - 1 are worked on.
    """
    width, stride = x.shape[1], scratch.shape[1]
    norm_at, at = 0, 0
    first_row = 2
    for _ in range(layers):
        bias1 = at + BOTTLENECK * channels
        local = bias1 + BOTTLENECK
        context = local + TAPS * BOTTLENECK * GROWTH
        for tile in range(num_tiles):
            row = first_row + tile * TILE_ROWS
            _normalise_rows(x, row, channels, scale, shift, norm_at, scratch)
            for column in range(0, BOTTLENECK, PANEL):
                _tile_relu(
                    scratch, 0, stride, weights, at + column * channels, channels,
                    weights, bias1 + column, hidden, row * BOTTLENECK + column, BOTTLENECK,
                )  # fmt: skip
        _clear_free_rows(hidden, spans)
        for tile in range(num_tiles):
            row = first_row + tile * TILE_ROWS
            for column in range(0, GROWTH, PANEL):
                _tile_taps(
                    hidden, (row - dilation) * BOTTLENECK, dilation * BOTTLENECK,
                    weights, local + column * TAPS * BOTTLENECK, x, row * width + channels + column, width,
                )  # fmt: skip
        for item in range(spans.shape[0]):
            first, length = spans[item, 0], spans[item, 1]
            _context_gates(hidden, first, length, weights, context, gates)
            for row in range(length):
                part = row // CONTEXT_ROWS
                for o in range(GROWTH):
                    x[first + row, channels + o] *= gates[part, o]
        norm_at += channels
        at = context + BOTTLENECK * CONTEXT + CONTEXT + CONTEXT * GROWTH + GROWTH
        channels += GROWTH


@njit(cache=True, nogil=True)
def _clear_free_rows(hidden, spans):  # type: ignore[no-untyped-def]
    free = 0
    for item in range(spans.shape[0]):
        hidden[free : spans[item, 0]] = 0.0
        free = spans[item, 0] + spans[item, 1]
    hidden[free:] = 0.0


@njit(cache=True, nogil=True)
def statistics(x, spans, out):  # type: ignore[no-untyped-def]
    """Mean and unbiased standard deviation over each span's rows: x (rows, C) to out (N, 2 C), summed in float64."""
    channels = x.shape[1]
    total = np.empty(channels, np.float64)
    for item in range(spans.shape[0]):
        first, length = spans[item, 0], spans[item, 1]
        total[:] = 0.0
        for row in range(first, first + length):
            for k in range(channels):
                total[k] += x[row, k]
        mean = total / length
        total[:] = 0.0
        for row in range(first, first + length):
            for k in range(channels):
                total[k] += (x[row, k] - mean[k]) ** 2
        for k in range(channels):
            out[item, k] = mean[k]
            out[item, channels + k] = math.sqrt(total[k] / (length - 1))
