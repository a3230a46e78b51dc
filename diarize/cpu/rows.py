"""Product of strided rows with packed panels: the register tiles under both kinds of convolution.

Rows may overlap in memory (a convolution's windows do). Each output element is one chain of fused multiply-adds over
the inner index from 0 up, whichever tile computes it.
"""

from __future__ import annotations

import numpy as np

from ..cache import njit
from .gemm import PANEL, make_tile

# Divides the widths of every stage of the networks (80, 40, 20, 10); 20 accumulators fill the 32 registers well.
ROWS = 10
_FEW = 4

# Panels lie in the order of use. Weights of the wide layers come from main memory: 6 % of the network's time (Zen 4).
_none_rows, _relu_rows = make_tile(ROWS, "none", ahead=True), make_tile(ROWS, "relu", ahead=True)
_none_few, _none_one = make_tile(_FEW, "none"), make_tile(1, "none")
_relu_few, _relu_one = make_tile(_FEW, "relu"), make_tile(1, "relu")


@njit(cache=True, nogil=True)
def rows_none(
    a: np.ndarray,
    a_start: int,
    a_stride: int,
    count: int,
    panels: np.ndarray,
    panel_start: int,
    inner: int,
    bias: np.ndarray,
    bias_start: int,
    out: np.ndarray,
    out_start: int,
    out_stride: int,
) -> None:
    """`out[i, :PANEL] = a[i] @ panel + bias` for `count` rows; starts and strides count float32 elements."""
    row = 0
    while row + ROWS <= count:
        at, to = a_start + row * a_stride, out_start + row * out_stride
        _none_rows(a, at, a_stride, panels, panel_start, inner, bias, bias_start, out, to, out_stride)
        row += ROWS
    while row + _FEW <= count:
        at, to = a_start + row * a_stride, out_start + row * out_stride
        _none_few(a, at, a_stride, panels, panel_start, inner, bias, bias_start, out, to, out_stride)
        row += _FEW
    while row < count:
        at, to = a_start + row * a_stride, out_start + row * out_stride
        _none_one(a, at, a_stride, panels, panel_start, inner, bias, bias_start, out, to, out_stride)
        row += 1


@njit(cache=True, nogil=True)
def rows_relu(
    a: np.ndarray,
    a_start: int,
    a_stride: int,
    count: int,
    panels: np.ndarray,
    panel_start: int,
    inner: int,
    bias: np.ndarray,
    bias_start: int,
    out: np.ndarray,
    out_start: int,
    out_stride: int,
) -> None:
    """`out[i, :PANEL] = relu(a[i] @ panel + bias)`; as `rows_none` otherwise."""
    row = 0
    while row + ROWS <= count:
        at, to = a_start + row * a_stride, out_start + row * out_stride
        _relu_rows(a, at, a_stride, panels, panel_start, inner, bias, bias_start, out, to, out_stride)
        row += ROWS
    while row + _FEW <= count:
        at, to = a_start + row * a_stride, out_start + row * out_stride
        _relu_few(a, at, a_stride, panels, panel_start, inner, bias, bias_start, out, to, out_stride)
        row += _FEW
    while row < count:
        at, to = a_start + row * a_stride, out_start + row * out_stride
        _relu_one(a, at, a_stride, panels, panel_start, inner, bias, bias_start, out, to, out_stride)
        row += 1


__all__ = ["PANEL", "ROWS", "rows_none", "rows_relu"]
