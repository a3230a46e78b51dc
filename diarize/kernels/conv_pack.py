"""How convolution weights are laid out for the kernels: plain numpy, no GPU."""

from __future__ import annotations

import numpy as np


def channel_order() -> np.ndarray:
    """(32,) packed row -> output channel within a group of 32.

    A thread of a tensor-core product holds columns 2q, 2q + 1 of every block of eight. With the rows of the weights in
    this order those columns are eight adjacent channels, so bias, residual and output move as 16-byte words.
    """
    row = np.arange(32)
    return ((row % 8) // 2) * 8 + (row // 8) * 2 + row % 2


def pack_taps(weight: np.ndarray, tile_n: int, tile_k: int) -> np.ndarray:
    """Weights as the tensor-core kernels stream them, one (channel part, tap, channel group) after the other.

    Parameters
    ----------
    weight : (C_out, C_in, kernel rows, kernel columns) float32
    tile_n : output channels a tile, a multiple of 32
    tile_k : input channels a part, 32 or 64

    Returns
    -------
    flat float16 [C_in / tile_k][taps][C_out / tile_n][tile_n][tile_k], rows in `channel_order`, 16-byte units swizzled
    as the tensor copy engine swizzles rows of 2 tile_k bytes
    """
    c_out, c_in, rows, columns = weight.shape
    order = (np.arange(c_out) // 32) * 32 + channel_order()[np.arange(c_out) % 32]
    units = tile_k // 8
    packed = weight[order].transpose(2, 3, 0, 1).astype(np.float16)
    packed = packed.reshape(rows * columns, c_out // tile_n, tile_n, c_in // tile_k, units, 8)
    packed = np.ascontiguousarray(packed.transpose(3, 0, 1, 2, 4, 5))
    return swizzle_rows(packed).reshape(-1)


def swizzle_rows(packed: np.ndarray) -> np.ndarray:
    """(..., rows, units, 8) float16 with unit u of row r moved to u ^ f(r), as rows of 128 or 64 bytes are swizzled."""
    rows, units = packed.shape[-3:-1]
    row = np.arange(rows)[:, None]
    unit = np.arange(units)[None, :]
    mask = (row & 7) if units == 8 else ((row >> 1) & 3)
    out = np.empty_like(packed)
    out[..., row, unit ^ mask, :] = packed[..., row, unit, :]
    return out


def fits_half(weight: np.ndarray) -> bool:
    """Whether every weight is finite in float16 with a margin of two for sums: layers that fail stay in float32."""
    return bool(np.isfinite(weight).all() and np.abs(weight).max(initial=0.0) < 32752.0)
