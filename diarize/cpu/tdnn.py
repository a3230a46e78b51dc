"""Dense time-delay blocks of CAM++: context-aware masking, densely connected layers and their transitions.

Several sequences lie one after another on one row axis, in the spans of `Op.CAM_BLOCK`, with at least two free rows
around each, so that a product never stops at the end of a sequence. Free rows hold rubbish except where said.

References
----------
Wang et al. 2023, CAM++: A Fast and Efficient Network for Speaker Verification Using Context-Aware Masking.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .campplus_tile import NORMALISED_ROWS, make_fixed_tile, make_row_sum, normalise_rows
from .gemm import PANEL, TILE_ROWS
from .simd import LANES

BOTTLENECK = 128
GROWTH = 32
CONTEXT = 64
CONTEXT_ROWS = 100
TAPS = 3
HEAD_COLUMNS = 320
# Normalised rows lie this far apart: 1024 channels and a little, as rows 4 KB apart would share a few cache sets.
ROW_DISTANCE = 1040
FIRST_ROW = 2
# Rows that are normalised together and then meet every panel of the weights: 390 KB, within a second-level cache.
BLOCK_TILES = 8

_tile_none = make_fixed_tile(ROW_DISTANCE, "none")
_tile_relu = make_fixed_tile(ROW_DISTANCE, "relu")
_tile_head = make_fixed_tile(2 * HEAD_COLUMNS, "relu")
_tile_taps = make_fixed_tile(BOTTLENECK, "none", TAPS)
_tile_context1 = make_fixed_tile(BOTTLENECK, "relu")
_tile_context2 = make_fixed_tile(CONTEXT, "none")
_row_sum = make_row_sum(BOTTLENECK)


@njit(cache=True, nogil=True)
def _normalise_rows(x, row, count, channels, scale, shift, at, scratch):  # type: ignore[no-untyped-def]
    """relu(scale * x + shift) of `count` rows, first `channels` columns, into scratch (>= count, ROW_DISTANCE)."""
    width = x.shape[1]
    for i in range(0, count, NORMALISED_ROWS):
        normalise_rows(
            x, (row + i) * width, width, scale, at, shift, channels // LANES, scratch, i * ROW_DISTANCE, ROW_DISTANCE
        )


@njit(cache=True, nogil=True)
def head_conv(x, num_tiles, packed, bias, out):  # type: ignore[no-untyped-def]
    """Convolution over time with five taps and stride 2, then ReLU.

    x (columns, HEAD_COLUMNS) flat; packed (num_panels, 5 * HEAD_COLUMNS, PANEL); out (rows, >= num_panels * PANEL), of
    which the rows FIRST_ROW .. FIRST_ROW + num_tiles * TILE_ROWS - 1 are written.
    """
    width, inner = out.shape[1], packed.shape[1]
    for panel in range(packed.shape[0]):
        for tile in range(num_tiles):
            row = FIRST_ROW + tile * TILE_ROWS
            # Output row r looks at columns 2 r - 2 .. 2 r + 2.
            _tile_head(
                x, 2 * (row - 1) * HEAD_COLUMNS, 0, packed, panel * inner * PANEL, inner,
                bias, panel * PANEL, out, row * width + panel * PANEL, width,
            )  # fmt: skip


@njit(cache=True, nogil=True)
def transit(x, channels, scale, shift, num_tiles, packed, bias, rectify, scratch, out):  # type: ignore[no-untyped-def]
    """Batch norm, ReLU and a 1x1 convolution; with `rectify` a ReLU on its output too."""
    width = out.shape[1]
    for block in range(0, num_tiles, BLOCK_TILES):
        tiles = min(BLOCK_TILES, num_tiles - block)
        row = FIRST_ROW + block * TILE_ROWS
        _normalise_rows(x, row, tiles * TILE_ROWS, channels, scale, shift, 0, scratch)
        for panel in range(packed.shape[0]):
            start, column = panel * channels * PANEL, panel * PANEL
            for tile in range(tiles):
                source, at = tile * TILE_ROWS * ROW_DISTANCE, (row + tile * TILE_ROWS) * width + column
                if rectify:
                    _tile_relu(scratch, source, 0, packed, start, channels, bias, column, out, at, width)
                else:
                    _tile_none(scratch, source, 0, packed, start, channels, bias, column, out, at, width)


@njit(cache=True, nogil=True)
def _context_means(hidden, spans, out):  # type: ignore[no-untyped-def]
    """Number of parts; row p of `out` becomes the mean of part p plus the mean of its sequence."""
    whole = np.empty(BOTTLENECK, np.float32)
    count = 0
    for item in range(spans.shape[0]):
        first, length = spans[item, 0], spans[item, 1]
        num_parts = -(-length // CONTEXT_ROWS)
        whole[:] = 0.0
        for part in range(num_parts):
            start = part * CONTEXT_ROWS
            rows = min(CONTEXT_ROWS, length - start)
            _row_sum(hidden, (first + start) * BOTTLENECK, rows, out, (count + part) * BOTTLENECK)
            for k in range(BOTTLENECK):
                whole[k] += out[count + part, k]
                out[count + part, k] /= np.float32(rows)
        for part in range(num_parts):
            for k in range(BOTTLENECK):
                out[count + part, k] += whole[k] / np.float32(length)
        count += num_parts
    return count


@njit(cache=True, nogil=True)
def _context_gates(means, count, weights, at, middle, gates):  # type: ignore[no-untyped-def]
    """Masks (>= count, GROWTH) of `count` parts from their means; all arrays hold whole tiles of rows.

    weights from `at` on: packed (CONTEXT, BOTTLENECK), its bias, packed (GROWTH, CONTEXT), its bias.
    """
    bias1 = at + BOTTLENECK * CONTEXT
    weight2 = bias1 + CONTEXT
    bias2 = weight2 + CONTEXT * GROWTH
    for row in range(0, count, TILE_ROWS):
        for column in range(0, CONTEXT, PANEL):
            _tile_context1(
                means, row * BOTTLENECK, 0, weights, at + column * BOTTLENECK, BOTTLENECK,
                weights, bias1 + column, middle, row * CONTEXT + column, CONTEXT,
            )  # fmt: skip
        for column in range(0, GROWTH, PANEL):
            _tile_context2(
                middle, row * CONTEXT, 0, weights, weight2 + column * CONTEXT, CONTEXT,
                weights, bias2 + column, gates, row * GROWTH + column, GROWTH,
            )  # fmt: skip
    for row in range(count):
        for o in range(GROWTH):
            gates[row, o] = np.float32(1.0 / (1.0 + math.exp(-float(gates[row, o]))))


@njit(cache=True, nogil=True)
def dense_block(
    x, channels, dilation, layers, spans, num_tiles, scale, shift, weights, scratch, hidden, means, middle, gates
):  # type: ignore[no-untyped-def]
    """Every layer of a dense block, in place: layer l reads the first channels + 32 l columns of x and adds 32.

    x (rows, width); spans (N, 2) int64 first row and length; scale, shift: those of all layers in a row; weights: as
    `pack_dense_layer` in campplus.py makes them, in a row; scratch (BLOCK_TILES * TILE_ROWS, ROW_DISTANCE); hidden
    (rows, BOTTLENECK); means, middle, gates (>= parts in whole tiles; BOTTLENECK, CONTEXT, GROWTH).
    Rows FIRST_ROW .. FIRST_ROW + num_tiles * TILE_ROWS - 1 are worked on.
    """
    width = x.shape[1]
    zeros = np.zeros(PANEL, np.float32)
    norm_at, at = 0, 0
    for _ in range(layers):
        bias1 = at + BOTTLENECK * channels
        local = bias1 + BOTTLENECK
        context = local + TAPS * BOTTLENECK * GROWTH
        for block in range(0, num_tiles, BLOCK_TILES):
            tiles = min(BLOCK_TILES, num_tiles - block)
            row = FIRST_ROW + block * TILE_ROWS
            _normalise_rows(x, row, tiles * TILE_ROWS, channels, scale, shift, norm_at, scratch)
            for column in range(0, BOTTLENECK, PANEL):
                for tile in range(tiles):
                    _tile_relu(
                        scratch, tile * TILE_ROWS * ROW_DISTANCE, 0, weights, at + column * channels, channels,
                        weights, bias1 + column, hidden, (row + tile * TILE_ROWS) * BOTTLENECK + column, BOTTLENECK,
                    )  # fmt: skip
        _clear_free_rows(hidden, spans)
        for tile in range(num_tiles):
            row = FIRST_ROW + tile * TILE_ROWS
            for column in range(0, GROWTH, PANEL):
                _tile_taps(
                    hidden, (row - dilation) * BOTTLENECK, dilation * BOTTLENECK,
                    weights, local + column * TAPS * BOTTLENECK, BOTTLENECK,
                    zeros, 0, x, row * width + channels + column, width,
                )  # fmt: skip
        count = _context_means(hidden, spans, means)
        _context_gates(means, count, weights, context, middle, gates)
        part = 0
        for item in range(spans.shape[0]):
            first, length = spans[item, 0], spans[item, 1]
            for row in range(length):
                for o in range(GROWTH):
                    x[first + row, channels + o] *= gates[part + row // CONTEXT_ROWS, o]
            part += -(-length // CONTEXT_ROWS)
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
