"""Weights as pairs of float16 in tensor-core fragments: plain numpy, no GPU."""

from __future__ import annotations

import numpy as np

from .lstm_pack import split_half


def pack_split(weight: np.ndarray, columns: int | None = None) -> np.ndarray:
    """Weights (outputs, inputs) as 16-byte words, one a lane: two high pairs, two low pairs.

    Parameters
    ----------
    weight : (outputs, inputs), inputs a multiple of 16
    columns : outputs are padded with zeros to this multiple of 8; by default to the next

    Returns
    -------
    flat float16 [inputs / 16][outputs / 8][32 lanes][8]
    """
    outputs, inputs = weight.shape
    columns = columns or -(-outputs // 8) * 8
    padded = np.zeros((columns, inputs), np.float32 if weight.dtype == np.float32 else np.float64)
    padded[:outputs] = weight
    lane = np.arange(32)
    packed = np.empty((inputs // 16, columns // 8, 32, 8), np.float16)
    for part, values in enumerate(split_half(padded)):
        tiles = values.reshape(columns // 8, 8, inputs // 16, 16)
        for i, k in enumerate((0, 1, 8, 9)):
            picked = tiles[:, lane // 4, :, 2 * (lane % 4) + k]
            packed[..., 4 * part + i] = picked.transpose(2, 1, 0)
    return packed.reshape(-1)


def fits_split(weight: np.ndarray) -> bool:
    """Whether every weight is finite in float16 with a margin, so that pairs of float16 can hold it."""
    return bool(np.isfinite(weight).all() and np.abs(weight).max(initial=0.0) < 32752.0)
