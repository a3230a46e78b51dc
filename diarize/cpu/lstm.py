"""Bidirectional LSTM over a batch: input product by blocks of time steps, recurrence in registers.

All four gates of LANES hidden units for TILE_ROWS items of the batch are one register tile: it starts from the input
product, adds the recurrent product over the hidden size, and ends with the cell update, so gates are never written
back. Each hidden value is the same chain of operations whatever the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..backend.base import BoundLayer, Buffer
from ..cache import njit
from ..errors import BackendError
from ..layers import Layer
from .activations import GATE_SCALES, emit_cell
from .gemm import gemm_none, pack_weight, pad_bias
from .simd import I64, LANES, REGISTERS, CountedLoop, Emitter, data_pointer

GATES = 4
TILE_ROWS = 6 if REGISTERS == 32 else 2
HALF_ROWS = TILE_ROWS // 2
# Rows of the input product at a time: its gates, 512 floats a row, should stay in the second-level cache.
BLOCK_ROWS = 96


def make_step(tile_rows: int) -> Any:
    """Intrinsic for one time step of tile_rows items and LANES hidden units.

    Arguments (gates, gates_offset, gates_stride, state, state_offset, state_stride, weights, weights_offset, hidden,
    cell, cell_offset, new_cell, out, out_offset, out_stride): item i starts from the GATES vectors at
    gates_offset + i * gates_stride, reads `hidden` floats of the last state at state_offset + i * state_stride and the
    weights (hidden, GATES, LANES) at weights_offset, takes its cell at cell_offset + i * hidden, writes it to the same
    place of new_cell and LANES floats at out_offset + i * out_stride. Nothing that is read is written, so an item may
    be computed twice.
    """

    @intrinsic
    def step(  # type: ignore[no-untyped-def]
        typingctx,
        gates,
        gates_offset,
        gates_stride,
        state,
        state_offset,
        state_stride,
        weights,
        weights_offset,
        hidden,
        cell,
        cell_offset,
        new_cell,
        out,
        out_offset,
        out_stride,
    ):
        long = types.int64
        signature = types.void(
            gates, long, long, state, long, long, weights, long, long, cell, long, new_cell, out, long, long
        )

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)

            def rows(array: int, offset: int, stride: ir.Value) -> list[ir.Value]:
                start = emit.address(data_pointer(context, builder, signature.args[array], args[array]), args[offset])
                return [emit.address(start, builder.mul(stride, ir.Constant(I64, i))) for i in range(tile_rows)]

            hidden = args[8]
            gates_of, state_of = rows(0, 1, args[2]), rows(3, 4, args[5])
            cell_of, new_cell_of, out_of = rows(9, 10, hidden), rows(11, 10, hidden), rows(12, 13, args[14])
            weights_start = emit.address(data_pointer(context, builder, signature.args[6], args[6]), args[7])
            loop = CountedLoop(
                builder, hidden, [emit.load(gates_of[i], j * LANES) for i in range(tile_rows) for j in range(GATES)]
            )
            line = emit.address(weights_start, builder.mul(loop.index, ir.Constant(I64, GATES * LANES)))
            columns = [emit.load(line, j * LANES) for j in range(GATES)]
            sums = []
            for i in range(tile_rows):
                value = emit.broadcast(state_of[i], loop.index)
                sums += [emit.fma(value, columns[j], loop.values[i * GATES + j]) for j in range(GATES)]
            loop.end(sums)
            for i in range(tile_rows):
                i_gate, f_gate, g_gate, o_gate = loop.values[i * GATES : (i + 1) * GATES]
                cell, state = emit_cell(emit, i_gate, f_gate, g_gate, o_gate, emit.load(cell_of[i]))
                emit.store(cell, new_cell_of[i])
                emit.store(state, out_of[i])
            return context.get_dummy_value()

        return signature, codegen

    return step


_full_step, _half_step, _single_step = make_step(TILE_ROWS), make_step(HALF_ROWS), make_step(1)


@njit(cache=True, nogil=True)
def lstm_direction(
    x: np.ndarray,
    batch: int,
    input_weights: np.ndarray,
    bias: np.ndarray,
    weights: np.ndarray,
    out: np.ndarray,
    column: int,
    backward: bool,
) -> None:
    """One direction of one layer.

    x (T * batch, C_in) float32, time first; input_weights and bias as from `pack_weight` and `pad_bias` with the
    columns in the order of `gate_order`; weights from `pack_recurrent`; out (T * batch, C_out) float32, of which
    `hidden` columns from `column` on are written.
    """
    units, hidden = weights.shape[0], weights.shape[1]
    wide, out_stride = GATES * hidden, out.shape[1]
    steps = x.shape[0] // batch
    block = max(1, BLOCK_ROWS // batch)
    gates = np.empty((block * batch, wide), np.float32)
    cell, new_cell = np.zeros((batch, hidden), np.float32), np.empty((batch, hidden), np.float32)
    state, state_at, state_stride = np.zeros((batch, hidden), np.float32), 0, hidden
    for done in range(0, steps, block):
        count = min(block, steps - done)
        first = steps - done - count if backward else done
        gemm_none(x[first * batch : (first + count) * batch], input_weights, bias, gates[: count * batch])
        for position in range(count):
            slot = count - 1 - position if backward else position
            gates_at = slot * batch * wide
            out_at = (first + slot) * batch * out_stride + column
            for unit in range(units):
                gate = gates_at + unit * GATES * LANES
                weight = unit * hidden * GATES * LANES
                item = 0
                while item < batch:
                    left = batch - item
                    if left > HALF_ROWS and batch >= TILE_ROWS:
                        rows = TILE_ROWS
                    else:
                        rows = HALF_ROWS if batch >= HALF_ROWS else 1
                    item = min(item, batch - rows)
                    tile = (
                        gates, gate + item * wide, wide,
                        state, state_at + item * state_stride, state_stride,
                        weights, weight, hidden,
                        cell, item * hidden + unit * LANES, new_cell,
                        out, out_at + item * out_stride + unit * LANES, out_stride,
                    )  # fmt: skip
                    if rows == TILE_ROWS:
                        _full_step(*tile)
                    elif rows == HALF_ROWS:
                        _half_step(*tile)
                    else:
                        _single_step(*tile)
                    item += rows
            cell, new_cell = new_cell, cell
            # From the second step on, the last state is what the last step wrote.
            state, state_at, state_stride = out, out_at, out_stride


def gate_order(hidden: int) -> np.ndarray:
    """Rows of a weight (4 * hidden, C) in the order of the register tiles: unit block, gate, unit in the block."""
    return np.arange(GATES * hidden).reshape(GATES, hidden // LANES, LANES).transpose(1, 0, 2).ravel()


def pack_recurrent(weight: np.ndarray) -> np.ndarray:
    """Tiles (hidden / LANES, hidden, GATES, LANES) float32 of a recurrent weight (4 * hidden, hidden)."""
    hidden = weight.shape[1]
    tiles = weight.reshape(GATES, hidden // LANES, LANES, hidden).transpose(1, 3, 0, 2)
    return np.ascontiguousarray(tiles, np.float32)


def prepare_bilstm(layer: Layer) -> BoundLayer:
    """Time steps (T, B, C_in) float32 to (T, B, 2 * hidden) float32, forward half first; gate order i, f, g, o.

    Weights `weight_ih` (4 * hidden, C_in), `weight_hh` (4 * hidden, hidden), `bias_ih`, `bias_hh` (4 * hidden) and the
    same four with the suffix `_reverse`.

    Raises
    ------
    BackendError
        The hidden size is not a multiple of the vector width.
    """
    hidden = layer.weights["weight_hh"].shape[1]
    if hidden % LANES or GATES * hidden != pad_bias(None, GATES * hidden).size:
        raise BackendError(f"layer {layer.id}: hidden size is {hidden}; it must be a multiple of {LANES}")
    order = gate_order(hidden)
    directions = []
    for suffix in ("", "_reverse"):
        w = {name: layer.weights[name + suffix] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        scale = np.repeat(GATE_SCALES, hidden)
        bias = ((w["bias_ih"].astype(np.float64) + w["bias_hh"]) * scale)[order].astype(np.float32)
        from_input = (w["weight_ih"] * scale[:, None])[order]
        directions.append((pack_weight(from_input), bias, pack_recurrent(w["weight_hh"] * scale[:, None])))

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        x, out = inputs[0], outputs[0]
        steps, batch, _ = x.shape
        x, out = x.reshape(steps * batch, -1), out.reshape(steps * batch, 2 * hidden)
        for index, (input_weights, bias, weights) in enumerate(directions):
            lstm_direction(x, batch, input_weights, bias, weights, out, index * hidden, index == 1)

    return run
