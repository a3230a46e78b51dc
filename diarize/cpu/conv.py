"""Two-dimensional convolution of one image, channels last: the choice between Winograd and the direct kernel.

The direct kernel lays a few padded input rows out so that each output pixel's window is contiguous, then multiplies
these overlapping windows by the packed weight. It takes any kernel size, stride and channel count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..backend.base import BoundLayer
from ..cache import njit
from ..errors import BackendError
from ..layers import Layer
from .gemm import PANEL, pack_weight, pad_bias
from .memory import aligned, aligned_empty, workspace
from .rows import rows_none, rows_relu
from .simd import LANES
from .winograd import block_size, factor_of_position, transform_weight, winograd, workspace_size

Convolution = Callable[..., np.ndarray]
Kernel = Callable[[np.ndarray, np.ndarray, np.ndarray], None]

# Output pixels that share one pass over the weights: enough to hide reading them from the third-level cache.
_PIXELS = 120


def output_size(size: int, stride: int) -> int:
    """Output rows or columns of a convolution with padding (kernel - 1) / 2.

    >>> [output_size(n, 2) for n in (1, 2, 3, 998)]
    [1, 1, 2, 499]
    """
    return (size - 1) // stride + 1


@njit(cache=True, nogil=True)
def _unfold(
    x: np.ndarray, row: int, kernel_h: int, kernel_w: int, stride_h: int, out_width: int, stride_w: int, to: np.ndarray
) -> None:
    """Inputs of output row `row` as (padded column, kernel row, channel), zero outside the image."""
    height, width, channels = x.shape
    at = 0
    for padded in range((out_width - 1) * stride_w + kernel_w):
        column = padded - (kernel_w - 1) // 2
        for k in range(kernel_h):
            line = row * stride_h + k - (kernel_h - 1) // 2
            if 0 <= line < height and 0 <= column < width:
                for c in range(channels):
                    to[at + c] = x[line, column, c]
            else:
                for c in range(channels):
                    to[at + c] = 0.0
            at += channels


@njit(cache=True, nogil=True)
def direct(
    x: np.ndarray,
    packed: np.ndarray,
    bias: np.ndarray,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    relu: bool,
    rows_at_once: int,
    scratch: np.ndarray,
    out: np.ndarray,
) -> None:
    """`out = activate(conv(x) + bias)` with zero padding (kernel - 1) / 2.

    x (H, W, C_in); packed (num_panels, kernel_w * kernel_h * C_in, PANEL); out (H', W', num_panels * PANEL), all
    float32 C-contiguous; scratch holds `rows_at_once` unfolded rows.
    """
    width, channels = x.shape[1:]
    out_height, out_width, c_out = out.shape
    inner = packed.shape[1]
    x_flat, out_flat, panels = x.reshape(-1), out.reshape(-1), packed.reshape(-1)
    # A single tap needs no unfolding: its inputs lie in the image as they are wanted.
    single = kernel_h == 1 and kernel_w == 1
    source, apart, step = x_flat, stride_h * width * channels, stride_w * channels
    if not single:
        apart = ((out_width - 1) * stride_w + kernel_w) * kernel_h * channels
        source, step = scratch, stride_w * kernel_h * channels
    for first in range(0, out_height, rows_at_once):
        count = min(rows_at_once, out_height - first)
        if not single:
            for r in range(count):
                _unfold(x, first + r, kernel_h, kernel_w, stride_h, out_width, stride_w, scratch[r * apart :])
        for panel in range(packed.shape[0]):
            column, b = panel * PANEL, panel * inner * PANEL
            for r in range(count):
                to = (first + r) * out_width * c_out + column
                a = (first + r) * apart if single else r * apart
                if relu:
                    rows_relu(source, a, step, out_width, panels, b, inner, bias, column, out_flat, to, c_out)
                else:
                    rows_none(source, a, step, out_width, panels, b, inner, bias, column, out_flat, to, c_out)


def prepare_conv2d(
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    stride: tuple[int, int] = (1, 1),
    activation: str = "none",
    residual: bool = False,
) -> Convolution:
    """Callable `conv(x, out, residual=None) -> out` for single images of any height and width, channels last.

    `out = activate(conv(x) + bias [+ residual])`, zero padding (kernel - 1) / 2 on every side.

    Parameters
    ----------
    weight
        (C_out, C_in, kernel_h, kernel_w) float32, odd kernel sizes; batch norm already folded in.
    bias
        (C_out,) float32, or None for zeros.
    stride
        Row and column stride.
    activation
        "none" or "relu", applied last.
    residual
        Whether calls bring an array like `out` to be added before the activation; it may be `out` itself.

    Notes
    -----
    At a call, x is (H, W, C_in) and out (H', W', C_out), float32 C-contiguous, H' = (H - 1) // stride_h + 1; they must
    not overlap. A scratch array is kept by each thread; the direct kernel allocates besides where C_out is no multiple
    of PANEL or a residual is added. The fastest arrays start on a 64-byte boundary (`memory.aligned_empty`). Safe to
    call from several threads.

    Raises
    ------
    BackendError
        An activation that has no kernel here; at a call, arrays whose shapes do not fit.
    """
    if activation not in ("none", "relu"):
        raise BackendError(f"unknown activation {activation!r} for a convolution: choose none or relu")
    c_out, c_in = weight.shape[:2]
    whole_vectors = c_in % LANES == 0 and c_out % LANES == 0
    fast_stride = stride == (1, 1) or (stride == (2, 2) and not residual)
    if weight.shape[2:] == (3, 3) and whole_vectors and fast_stride:
        run = _prepare_winograd(weight, bias, stride[0], activation, residual)
    else:
        run = _prepare_direct(weight, bias, stride, activation, residual)

    def convolve(x: np.ndarray, out: np.ndarray, shortcut: np.ndarray | None = None) -> np.ndarray:
        # The kernels address memory without looking at bounds.
        height, width = output_size(x.shape[0], stride[0]), output_size(x.shape[1], stride[1])
        fits = x.shape[2] == c_in and out.shape == (height, width, c_out)
        added = out if shortcut is None else shortcut
        if not fits or added.shape != out.shape or residual != (shortcut is not None):
            raise BackendError(
                f"convolution of {x.shape} into {out.shape} with residual "
                f"{None if shortcut is None else shortcut.shape}: it takes (H, W, {c_in}), gives "
                f"{(height, width, c_out)} and {'needs a' if residual else 'takes no'} residual of that shape"
            )
        run(x, out, added)
        return out

    return convolve


def _prepare_winograd(
    weight: np.ndarray, bias: np.ndarray | None, stride: int, activation: str, residual: bool
) -> Kernel:
    c_out, c_in = weight.shape[:2]
    packed = transform_weight(weight, stride)
    factors = factor_of_position(stride)
    padded_bias = aligned(pad_bias(bias, c_out))
    zeros = np.zeros(PANEL, np.float32)
    block = block_size(stride)
    size = workspace_size(stride, c_in, c_out, block)
    floor: Any = np.float32(0.0 if activation == "relu" else -np.inf)

    def run(x: np.ndarray, out: np.ndarray, shortcut: np.ndarray) -> None:
        scratch = workspace(size)
        winograd(x, packed, factors, zeros, padded_bias, floor, residual, shortcut, stride, block, scratch, out)

    return run


def _prepare_direct(
    weight: np.ndarray, bias: np.ndarray | None, stride: tuple[int, int], activation: str, residual: bool
) -> Kernel:
    c_out, c_in, kernel_h, kernel_w = weight.shape
    packed = aligned(pack_weight(weight.transpose(0, 3, 2, 1).reshape(c_out, -1)))
    padded_bias = aligned(pad_bias(bias, c_out))
    relu = activation == "relu"

    def run(x: np.ndarray, out: np.ndarray, shortcut: np.ndarray) -> None:
        height, width = out.shape[:2]
        rows = min(height, -(-_PIXELS // width))
        scratch = workspace(rows * ((width - 1) * stride[1] + kernel_w) * kernel_h * c_in)
        separate = residual or c_out % PANEL != 0
        target = aligned_empty((height, width, padded_bias.size)) if separate else out
        direct(x, packed, padded_bias, kernel_h, kernel_w, *stride, relu and not residual, rows, scratch, target)
        if separate:
            if residual:
                target[..., :c_out] += shortcut
            np.maximum(target[..., :c_out], 0.0 if relu else -np.inf, out=out)

    return run


def bind_conv2d(layer: Layer) -> BoundLayer:
    """Bind `Op.CONV2D`: the images of a batch one after the other."""
    residual = bool(layer.params.get("residual", False))
    stride = int(layer.params.get("stride_h", 1)), int(layer.params.get("stride_w", 1))
    activation = str(layer.params.get("activation", "none"))
    convolve = prepare_conv2d(layer.weights["weight"], layer.weights.get("bias"), stride, activation, residual)

    def run(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        shortcut = inputs[1] if residual else None
        for b, image in enumerate(inputs[0]):
            convolve(image, outputs[0][b], None if shortcut is None else shortcut[b])

    return run
