"""How LSTM weights are laid out for the kernels: plain numpy, no GPU.

The hidden size is 128. Gate rows are scaled so that a gate's accumulator is an exponent of two: by -log2(e), the cell
gate's by -2 log2(e). Rows are permuted so that one lane of a tensor-core accumulator holds all four gates of a cell.
"""

from __future__ import annotations

import numpy as np

HIDDEN = 128
STATE_PITCH = 136
"""Halves between the hidden states of two windows in shared memory: eight rows fall on different banks."""

_SMALLEST_NORMAL = float(np.finfo(np.float16).smallest_normal)
_LOG2_E = 1.4426950408889634
CELL_SCALE = -2.0 * _LOG2_E
"""The kernels keep the cell times this: the exponent of two of its tanh."""


def gate_rows() -> np.ndarray:
    """(512,) PyTorch row (gate * 128 + unit) of each packed row.

    Warp w has 16 units and four blocks of 16 rows, block 2 p + q: rows below eight are gate 2 q of units
    16 w + 2 r + p, the others gate 2 q + 1 of the same units.
    """
    packed = np.arange(4 * HIDDEN)
    warp, block, row = packed // 64, packed // 16 % 4, packed % 16
    gate = 2 * (block & 1) + (row >= 8)
    return gate * HIDDEN + 16 * warp + 2 * (row & 7) + (block >> 1)


def gate_scale() -> np.ndarray:
    """(512,) float64 factor of each PyTorch row."""
    scale = np.full(4 * HIDDEN, -_LOG2_E)
    scale[2 * HIDDEN : 3 * HIDDEN] = -2.0 * _LOG2_E
    return scale


def split_half(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two float16 arrays whose sum is `values` to about 22 bits."""
    if values.dtype != np.float32:
        values = np.asarray(values, np.float64)
    high = to_half(values)
    # Exact in float32 too: what float16 cut off has few enough digits.
    return high, to_half(values - high.astype(values.dtype))


def to_half(values: np.ndarray) -> np.ndarray:
    """`values` rounded to float16, as `astype` does; fast also where many are below 6.1e-5, as low parts are."""
    size = np.abs(values)
    small = size < _SMALLEST_NORMAL
    out: np.ndarray = np.where(small, values.dtype.type(0.0), values).astype(np.float16)
    # numpy takes twenty times as long for a subnormal number, which is a multiple of 2 ** -24.
    units = np.rint(size[small] * values.dtype.type(2.0**24)).astype(np.uint16)
    units |= np.signbit(values[small]).astype(np.uint16) << np.uint16(15)
    out[small] = units.view(np.float16)
    return out


def scaled_gates(weights: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Both directions' rows, scaled and permuted, float64 (1024, ...)."""
    rows, scale = gate_rows(), gate_scale()
    parts = [np.asarray(w, np.float64) for w in weights]
    return np.concatenate([(w * scale.reshape(-1, *[1] * (w.ndim - 1)))[rows] for w in parts])


def pack_input(
    weights: tuple[np.ndarray, np.ndarray],
    biases: tuple[np.ndarray, np.ndarray],
    chunks: int,
    exact_weights: bool,
    exact_input: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Input weights as `lstm_input` streams them, and the bias in packed row order.

    Parameters
    ----------
    weights, biases : forward and backward, (512, inputs) and (512,); biases are sums of both of PyTorch's
    chunks : inputs are padded to 64 times this
    exact_weights, exact_input : whether the low parts of weights or inputs are multiplied too

    Returns
    -------
    flat float16 [8 row blocks][terms][128 rows][64 inputs], 16-byte units swizzled; (1024,) float32
    """
    scaled = scaled_gates(weights)
    scaled = np.pad(scaled, ((0, 0), (0, chunks * 64 - scaled.shape[1])))
    high, low = split_half(scaled)
    parts = []
    for chunk in range(chunks):
        columns = slice(64 * chunk, 64 * chunk + 64)
        parts.append(high[:, columns])
        if exact_weights:
            parts.append(low[:, columns])
        if exact_input:
            parts.append(high[:, columns])
    stacked = np.stack(parts).reshape(len(parts), 8, 128, 8, 8).transpose(1, 0, 2, 3, 4)
    out = np.empty_like(stacked)
    row, unit = np.arange(128)[:, None], np.arange(8)[None]
    out[:, :, row, unit ^ (row & 7)] = stacked[:, :, row, unit]
    return np.ascontiguousarray(out).reshape(-1), scaled_gates(biases).astype(np.float32)


def pack_recurrent(weights: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """High and low parts of the recurrent weights as tensor-core fragments.

    `weights` forward and backward (512, 128); each result is flat float16 [2][8 warps][4 blocks][8 steps][32 lanes][8].
    """
    lane = np.arange(32)
    row, column = lane // 4, 2 * (lane % 4)
    packed = []
    for part in split_half(scaled_gates(weights)):
        tiles = part.reshape(2, 8, 4, 16, 8, 16)
        out = np.empty((2, 8, 4, 8, 32, 8), np.float16)
        for i, (down, right) in enumerate(((0, 0), (8, 0), (0, 8), (8, 8))):
            for j in range(2):
                picked = tiles[:, :, :, row + down, :, column + right + j]
                out[..., 2 * i + j] = picked.transpose(1, 2, 3, 4, 0)
        packed.append(np.ascontiguousarray(out).reshape(-1))
    return packed[0], packed[1]
