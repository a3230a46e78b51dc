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

from ..cache import njit
from .campplus_strassen import HALF_DISTANCE, PRODUCTS, TILE_PAIRS, TILE_SIZE, make_pair_tile, normalise_pair
from .campplus_tile import make_fixed_tile, make_row_sum
from .gemm import PANEL, TILE_ROWS

BOTTLENECK = 128
GROWTH = 32
CONTEXT = 64
CONTEXT_ROWS = 100
TAPS = 3
HEAD_COLUMNS = 320
FIRST_ROW = 2
# Tiles of row pairs that are normalised together and then meet every panel of the weights: 350 KB, which leaves room
# for a panel in a second-level cache.
BLOCK_TILES = 2

_pair_none = make_pair_tile("none")
_pair_relu = make_pair_tile("relu")
_tile_head = make_fixed_tile(2 * HEAD_COLUMNS, "relu")
_tile_taps = make_fixed_tile(BOTTLENECK, "none", TAPS)
_tile_context1 = make_fixed_tile(BOTTLENECK, "relu")
_tile_context2 = make_fixed_tile(CONTEXT, "none")
_row_sum = make_row_sum(BOTTLENECK)


@njit(cache=True, nogil=True)
def _normalise(x, row, tiles, channels, scale, shift, at, scratch):  # type: ignore[no-untyped-def]
    """Factors of relu(scale * x + shift) for `tiles` tiles of row pairs, first `channels` columns of x."""
    width = x.shape[1]
    for tile in range(tiles):
        for pair in range(TILE_PAIRS):
            source = (row + 2 * (tile * TILE_PAIRS + pair)) * width
            target = tile * TILE_SIZE + pair * HALF_DISTANCE
            normalise_pair(x, source, width, scale, at, shift, channels // 2, scratch, target)


@njit(cache=True, nogil=True)
def _num_tiles(spans, rows):  # type: ignore[no-untyped-def]
    """Tiles of `rows` rows from FIRST_ROW to the end of the last span."""
    last = spans.shape[0] - 1
    return -(-(spans[last, 0] + spans[last, 1] - FIRST_ROW) // rows)


@njit(cache=True, nogil=True)
def head_conv(x, spans, packed, bias, out):  # type: ignore[no-untyped-def]
    """Convolution over time with five taps and stride 2, then ReLU.

    x (columns, HEAD_COLUMNS) flat; packed (num_panels, 5 * HEAD_COLUMNS, PANEL); out (rows, >= num_panels * PANEL), of
    which the rows from FIRST_ROW to the last sequence's end are written.
    """
    width, inner = out.shape[1], packed.shape[1]
    num_tiles = _num_tiles(spans, TILE_ROWS)
    for panel in range(packed.shape[0]):
        for tile in range(num_tiles):
            row = FIRST_ROW + tile * TILE_ROWS
            # Output row r looks at columns 2 r - 2 .. 2 r + 2.
            _tile_head(
                x, 2 * (row - 1) * HEAD_COLUMNS, 0, packed, panel * inner * PANEL, inner,
                bias, panel * PANEL, out, row * width + panel * PANEL, width,
            )  # fmt: skip


@njit(cache=True, nogil=True)
def transit(x, channels, scale, shift, spans, packed, bias, rectify, scratch, out):  # type: ignore[no-untyped-def]
    """Batch norm, ReLU and a 1x1 convolution; with `rectify` a ReLU on its output too.

    packed as from `pack_products`; scratch BLOCK_TILES * TILE_SIZE floats; out (rows, >= C_out).
    """
    width, half, side = out.shape[1], channels // 2, packed.shape[0] * PANEL
    num_tiles = _num_tiles(spans, 2 * TILE_PAIRS)
    _clear_partners(x, 0, channels, spans)
    for block in range(0, num_tiles, BLOCK_TILES):
        tiles = min(BLOCK_TILES, num_tiles - block)
        row = FIRST_ROW + block * 2 * TILE_PAIRS
        _normalise(x, row, tiles, channels, scale, shift, 0, scratch)
        for panel in range(packed.shape[0]):
            start, column = panel * PRODUCTS * half * PANEL, panel * PANEL
            for tile in range(tiles):
                source, at = tile * TILE_SIZE, (row + tile * 2 * TILE_PAIRS) * width + column
                if rectify:
                    _pair_relu(scratch, source, packed, start, half, bias, column, side, out, at, width)
                else:
                    _pair_none(scratch, source, packed, start, half, bias, column, side, out, at, width)


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
def dense_block(x, channels, dilation, layers, spans, scale, shift, weights, scratch, hidden, means, middle, gates):  # type: ignore[no-untyped-def]
    """Every layer of a dense block, in place: layer l reads the first channels + 32 l columns of x and adds 32.

    x (rows, width); spans (N, 2) int64 first row and length; scale, shift: those of all layers in a row; weights: as
    `pack_dense_layer` in campplus.py makes them, in a row; scratch BLOCK_TILES * TILE_SIZE floats; hidden
    (rows, BOTTLENECK); means, middle, gates (>= parts in whole tiles; BOTTLENECK, CONTEXT, GROWTH).
    """
    width = x.shape[1]
    zeros = np.zeros(PANEL, np.float32)
    num_tiles, pair_tiles = _num_tiles(spans, TILE_ROWS), _num_tiles(spans, 2 * TILE_PAIRS)
    norm_at, at = 0, 0
    _clear_partners(x, 0, channels, spans)
    for _ in range(layers):
        half = channels // 2
        bias1 = at + PRODUCTS * half * BOTTLENECK // 2
        local = bias1 + BOTTLENECK
        context = local + TAPS * BOTTLENECK * GROWTH
        for block in range(0, pair_tiles, BLOCK_TILES):
            tiles = min(BLOCK_TILES, pair_tiles - block)
            row = FIRST_ROW + block * 2 * TILE_PAIRS
            _normalise(x, row, tiles, channels, scale, shift, norm_at, scratch)
            for column in range(0, BOTTLENECK // 2, PANEL):
                for tile in range(tiles):
                    _pair_relu(
                        scratch, tile * TILE_SIZE, weights, at + column * PRODUCTS * half, half,
                        weights, bias1 + column, BOTTLENECK // 2,
                        hidden, (row + tile * 2 * TILE_PAIRS) * BOTTLENECK + column, BOTTLENECK,
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
        _clear_partners(x, channels, GROWTH, spans)
        norm_at += channels
        at = context + BOTTLENECK * CONTEXT + CONTEXT + CONTEXT * GROWTH + GROWTH
        channels += GROWTH


@njit(cache=True, nogil=True)
def _clear_partners(x, column, count, spans):  # type: ignore[no-untyped-def]
    """Zero `count` columns of the free row that makes a pair with the last row of a sequence of odd length."""
    for item in range(spans.shape[0]):
        if spans[item, 1] % 2:
            x[spans[item, 0] + spans[item, 1], column : column + count] = 0.0


@njit(cache=True, nogil=True)
def _clear_free_rows(hidden, spans):  # type: ignore[no-untyped-def]
    """Zero what the taps reach beyond the sequences: FIRST_ROW rows before the first, between and after the last."""
    free = 0
    for item in range(spans.shape[0]):
        hidden[free : spans[item, 0]] = 0.0
        free = spans[item, 0] + spans[item, 1]
    hidden[free : free + FIRST_ROW] = 0.0


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
