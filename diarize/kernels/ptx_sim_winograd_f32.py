# mypy: disallow-untyped-defs=False
"""Python twins of `ptx_winograd_f32` for the CUDA simulator."""

from __future__ import annotations

import numpy as np

from .ptx_sim import byte_range, ndarray
from .ptx_sim_winograd import _A, _B


def _floats(array, index, count=4):
    return byte_range(array, index, 4 * count).view(np.float32)


def make_load_tile(channels):
    def load_tile(raw, x, at, across, mask):
        for i, j in np.ndindex(4, 4):
            inside = int(mask) >> (4 * i + j) & 1
            ndarray(raw)[4 * i + j] = _floats(x, at + i * across + j * channels, 1)[0] if inside else 0

    return load_tile


def make_store_tile(pitch):
    def store_tile(raw, sm, at):
        tile = ndarray(raw)[:16].reshape(4, 4)
        for position, value in enumerate((_B @ tile @ _B.T).astype(np.float32).reshape(-1)):
            _floats(sm, at + pitch * position, 1)[0] = value

    return store_tile


def make_load_eight(apart):
    def load_eight(held, k, w, at):
        for part in range(2):
            ndarray(held)[k + 4 * part : k + 4 * part + 4] = _floats(w, at + part * apart)

    return load_eight


def make_outer_product(apart):
    def outer_product(acc, k, sm, at, held, kh):
        inputs = np.concatenate([_floats(sm, at), _floats(sm, at + apart)])
        ndarray(acc)[k : k + 64] += np.outer(inputs, ndarray(held)[kh : kh + 8]).reshape(-1)

    return outer_product


def make_put_sums(pitch):
    def put_sums(acc, k, sm, at):
        for i in range(4):
            _floats(sm, at + pitch * i)[:] = ndarray(acc)[k + 8 * i : k + 8 * i + 4]

    return put_sums


def make_take_outputs(pitch):
    def take_outputs(out, sm, at):
        sums = np.stack([_floats(sm, at + pitch * position, 2) for position in range(16)]).reshape(4, 4, 2)
        ndarray(out)[:8] = np.einsum("ia,jb,abe->ije", _A, _A, sums).reshape(-1)

    return take_outputs


__all__ = [
    "make_load_eight",
    "make_load_tile",
    "make_outer_product",
    "make_put_sums",
    "make_store_tile",
    "make_take_outputs",
]
