"""3x3 convolution of stride 1 or 2 by Winograd's method on tiles of 5 x 5 outputs.

An image is cut into tiles; a block of tiles small enough for the second-level cache goes through all three steps before
the next: transform every tile's inputs, multiply the block's rows by the transformed weights for each of the 49
(stride 2: 121) positions, transform back with bias, residual and activation. Products are 4.6 (1.9) times fewer.

All heights and most widths here (80, 40, 20, 10; 1000, 500, 250, 125) are multiples of 5, so that no work is wasted.
The error of a layer is about 3e-6 of its output's size.
"""

from __future__ import annotations

import numpy as np

from ..cache import njit
from .lines import LINE, clear_vector, copy_vector, make_prefetch
from .memory import aligned_empty
from .rows import PANEL, rows_none
from .simd import LANES
from .winograd_tiles import INPUTS, OUTPUTS, evaluate_taps, factor_of_position, make_inverse, make_transform

# Rows of equal position are this much further apart than their data, so that the streams of a tile fall in different
# sets of the first-level cache.
_SKEW = 16
_INPUTS_ONE, _INPUTS_TWO = INPUTS[1], INPUTS[2]

_prefetch_read, _prefetch_write = make_prefetch(False), make_prefetch(True)
_transform_one, _transform_two = make_transform(1), make_transform(2)
_inverse_one, _inverse_one_add = make_inverse(1, residual=False), make_inverse(1, residual=True)
_inverse_two = make_inverse(2, residual=False)


def block_size(stride: int) -> int:
    """Tiles in a block, a multiple of the product's ten rows; at half and twice this the time hardly changes."""
    return 40 if stride == 1 else 20


def transform_weight(weight: np.ndarray, stride: int) -> np.ndarray:
    """Panels (49, num_panels, C_in, PANEL) float32 of a weight (C_out, C_in, 3, 3), transformed in float64."""
    taps = evaluate_taps(stride)
    c_out, c_in = weight.shape[:2]
    num_panels = -(-c_out // PANEL)
    # One matrix does both axes: (49, 9) times (9, C_out C_in).
    moved = np.kron(taps, taps) @ weight.reshape(c_out * c_in, 9).T.astype(np.float64)
    spread = np.zeros((len(moved), c_in, num_panels * PANEL), np.float32)
    spread[:, :, :c_out] = moved.reshape(-1, c_out, c_in).transpose(0, 2, 1)
    packed = aligned_empty((len(moved), num_panels, c_in, PANEL))
    packed[...] = spread.reshape(-1, c_in, num_panels, PANEL).transpose(0, 2, 1, 3)
    return packed


def workspace_size(stride: int, c_in: int, c_out: int, block: int) -> int:
    """Number of float32 that `winograd` needs as scratch for blocks of `block` tiles."""
    positions = INPUTS[stride] ** 2
    padded = -(-c_out // PANEL) * PANEL
    return (positions + 1) * (block * max(c_in, padded) + _SKEW) + positions * c_in + 2 * OUTPUTS**2 * c_out


@njit(cache=True, nogil=True)
def _cut(
    x: np.ndarray, height: int, width: int, channels: int, top: int, left: int, inputs: int, tile: np.ndarray
) -> None:
    """Copy the `inputs` x `inputs` tile at (top, left), zero outside the image."""
    for i in range(inputs):
        for j in range(inputs):
            to = (i * inputs + j) * channels
            if 0 <= top + i < height and 0 <= left + j < width:
                at = ((top + i) * width + left + j) * channels
                for c in range(0, channels, LANES):
                    copy_vector(x, at + c, tile, to + c)
            else:
                for c in range(0, channels, LANES):
                    clear_vector(tile, to + c)


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
                    copy_vector(tile, at + c, image, inside + c)
                else:
                    copy_vector(image, inside + c, tile, at + c)


@njit(cache=True, nogil=True)
def winograd(
    x: np.ndarray,
    packed: np.ndarray,
    factors: np.ndarray,
    zeros: np.ndarray,
    bias: np.ndarray,
    floor: float,
    add: bool,
    shortcut: np.ndarray,
    stride: int,
    block: int,
    scratch: np.ndarray,
    out: np.ndarray,
) -> None:
    """`out = max(conv3x3(x) + bias [+ shortcut], floor)`, zero padding 1.

    x (H, W, C_in) and out (H', W', C_out) float32 C-contiguous, channels multiples of LANES; packed as from
    `transform_weight`; factors as from `factor_of_position`; zeros (PANEL) zeros; shortcut like out, read only if
    `add`, may be out itself (stride 1 only); `block` tiles go through together; scratch as large as `workspace_size`
    says. A tile's outputs depend on the image alone, not on the block it falls in.
    """
    height, width, c_in = x.shape
    out_height, out_width, c_out = out.shape
    num_panels = packed.shape[1]
    padded = num_panels * PANEL
    inputs = _INPUTS_ONE if stride == 1 else _INPUTS_TWO
    positions, step = inputs * inputs, OUTPUTS * stride
    # The products of a position take the place of the position before, whose inputs are no longer needed.
    apart = block * max(c_in, padded) + _SKEW
    slots, edge = scratch[: (positions + 1) * apart], scratch[(positions + 1) * apart :]
    x_flat, out_flat, shortcut_flat, panels = x.reshape(-1), out.reshape(-1), shortcut.reshape(-1), packed.reshape(-1)
    # An edge tile is computed in scratch: its inputs, later its outputs, and beside them its residual.
    edge_shortcut = edge[OUTPUTS * OUTPUTS * c_out :]
    across = (out_width + OUTPUTS - 1) // OUTPUTS
    tiles = (out_height + OUTPUTS - 1) // OUTPUTS * across
    for first in range(0, tiles, block):
        count = min(block, tiles - first)
        for index in range(count):
            top = (first + index) // across * step - 1
            left = (first + index) % across * step - 1
            source, start, row_stride = x_flat, (top * width + left) * c_in, width * c_in
            if top < 0 or left < 0 or top + inputs > height or left + inputs > width:
                _cut(x_flat, height, width, c_in, top, left, inputs, edge)
                source, start, row_stride = edge, 0, inputs * c_in
            for c in range(0, c_in, LANES):
                to = apart + index * c_in + c
                if stride == 1:
                    _transform_one(source, start + c, row_stride, c_in, slots, to, apart)
                else:
                    _transform_two(source, start + c, row_stride, c_in, slots, to, apart)
        for position in range(positions):
            # Memory works while the products are computed: the outputs' lines, and the next block's inputs.
            for index in range(position * count // positions, (position + 1) * count // positions):
                here, there = first + index, first + count + index
                pixel = here // across * OUTPUTS * out_width + here % across * OUTPUTS
                after = (there // across * step + 1) * width + there % across * step
                for i in range(OUTPUTS):
                    _prefetch_write(out_flat, (pixel + i * out_width) * c_out, OUTPUTS * c_out // LINE)
                for i in range(step):
                    _prefetch_read(x_flat, (after + i * width) * c_in, step * c_in // LINE)
            for panel in range(num_panels):
                a, b = (position + 1) * apart, (factors[position] * num_panels + panel) * c_in * PANEL
                to = position * apart + panel * PANEL
                rows_none(slots, a, c_in, count, panels, b, c_in, zeros, 0, slots, to, padded)
        for index in range(count):
            top = (first + index) // across * OUTPUTS
            left = (first + index) % across * OUTPUTS
            rows, columns = min(OUTPUTS, out_height - top), min(OUTPUTS, out_width - left)
            target, residual, start = out_flat, shortcut_flat, (top * out_width + left) * c_out
            row_stride = out_width * c_out
            whole = rows == OUTPUTS and columns == OUTPUTS
            if not whole:
                target, residual, start, row_stride = edge, edge_shortcut, 0, OUTPUTS * c_out
                if add:
                    _move(shortcut_flat, top, left, out_width, edge_shortcut, rows, columns, c_out, False)
            at = index * padded
            for c in range(0, c_out, LANES):
                to = start + c
                if stride == 2:
                    _inverse_two(slots, at + c, apart, bias, c, floor, residual, target, to, row_stride, c_out)
                elif add:
                    _inverse_one_add(slots, at + c, apart, bias, c, floor, residual, target, to, row_stride, c_out)
                else:
                    _inverse_one(slots, at + c, apart, bias, c, floor, residual, target, to, row_stride, c_out)
            if not whole:
                _move(out_flat, top, left, out_width, edge, rows, columns, c_out, True)


__all__ = ["block_size", "factor_of_position", "transform_weight", "winograd", "workspace_size"]
