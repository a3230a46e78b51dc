"""The convolutional front of the segmentation network: sinc filters, pooling, instance norm, convolutions.

The filters run once over a stretch of samples; what differs between windows (the instance norm of the waveform) is an
affine map, conv(a x + b) = a conv(x) + b sum(filter), applied while pooling. To keep it accurate for a quiet signal on
a large constant, the filters run on the samples less the one under the filter's centre, c:
conv(a x + b) = a conv(x - c) + (a c + b) sum(filter), where no two large terms cancel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backend.base import BoundLayer, Buffer
from ..cache import njit
from ..errors import BackendError
from ..layers import Layer
from .gemm import PANEL, TILE_ROWS, make_tile, pack_weight, pad_bias
from .norm import normalise_leaky

POOL = 3
_POOL_ROWS = TILE_ROWS - TILE_ROWS % POOL

_full_filter, _single_filter = make_tile(TILE_ROWS, "none"), make_tile(1, "none")
_full_pool, _single_pool = make_tile(_POOL_ROWS, "none", pool=POOL), make_tile(POOL, "none", pool=POOL)


@njit(cache=True, nogil=True)
def sinc_filter(
    samples: np.ndarray, stride: int, even: np.ndarray, odd: np.ndarray, zeros: np.ndarray, out: np.ndarray
) -> None:
    """Even and odd filters of 2 * half + 1 taps on the samples less the centre sample.

    samples (N) float32; even and odd (num_panels, half, PANEL), packed weights of the taps after the centre;
    zeros (num_panels * PANEL); out (positions, 2 * num_filters) float32, position p is centred on sample
    p * stride + half. Symmetry halves the products: x[c + k] + x[c - k] meets the even taps, the difference the odd.
    """
    positions, num_filters = out.shape[0], out.shape[1] // 2
    panels, half = even.shape[0], even.shape[1]
    width = panels * PANEL
    sums = np.empty((TILE_ROWS, half), np.float32)
    differences = np.empty((TILE_ROWS, half), np.float32)
    tile = np.empty((2 * TILE_ROWS, width), np.float32)
    # Samples in reverse, so that those before the centre are read forwards, as vectors.
    mirrored, last = samples[::-1].copy(), samples.size - 1
    rows = TILE_ROWS if positions >= TILE_ROWS else 1
    for start in range(0, positions, rows):
        # The last tile may overlap the one before it: it writes the same values again.
        first = min(start, positions - rows)
        for row in range(rows):
            centre = (first + row) * stride + half
            middle = samples[centre]
            after = samples[centre + 1 : centre + 1 + half]
            before = mirrored[last - centre + 1 : last - centre + 1 + half]
            for k in range(half):
                sums[row, k] = (after[k] - middle) + (before[k] - middle)
                differences[row, k] = after[k] - before[k]
        for panel in range(panels):
            weight, at = panel * half * PANEL, panel * PANEL
            odd_at = rows * width + at
            if rows == TILE_ROWS:
                _full_filter(sums, 0, half, even, weight, half, zeros, at, tile, at, width)
                _full_filter(differences, 0, half, odd, weight, half, zeros, at, tile, odd_at, width)
            else:
                _single_filter(sums, 0, half, even, weight, half, zeros, at, tile, at, width)
                _single_filter(differences, 0, half, odd, weight, half, zeros, at, tile, odd_at, width)
        for row in range(rows):
            for c in range(num_filters):
                out[first + row, c] = tile[row, c]
            for c in range(num_filters):
                out[first + row, num_filters + c] = tile[rows + row, c]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def moments(samples: np.ndarray) -> tuple[float, float]:
    """Mean and population variance of float32 samples, in float64."""
    total, squares = 0.0, 0.0
    for index in range(samples.size):
        value = np.float64(samples[index])
        total += value
        squares += value * value
    mean = total / samples.size
    return mean, max(squares / samples.size - mean * mean, 0.0)


@njit(cache=True, nogil=True)
def rectify_pool(
    filtered: np.ndarray,
    samples: np.ndarray,
    first: int,
    stride: int,
    scale: float,
    shift: float,
    sums: np.ndarray,
    out: np.ndarray,
) -> None:
    """Largest of POOL adjacent |scale * filtered + (scale * centre + shift) * sums|, the absolute filter outputs.

    filtered (POOL * T or more, C) float32; centre is samples[first + stride * position]; sums (C) float32, the sum of
    each filter's taps; out (T, C) float32.
    """
    times, channels = out.shape
    gain = np.float32(scale)
    for t in range(times):
        base = POOL * t
        z0 = np.float32(scale * samples[first + stride * base] + shift)
        z1 = np.float32(scale * samples[first + stride * (base + 1)] + shift)
        z2 = np.float32(scale * samples[first + stride * (base + 2)] + shift)
        for c in range(channels):
            v0 = abs(gain * filtered[base, c] + z0 * sums[c])
            v1 = abs(gain * filtered[base + 1, c] + z1 * sums[c])
            v2 = abs(gain * filtered[base + 2, c] + z2 * sums[c])
            larger = v0 if v0 > v1 else v1
            out[t, c] = larger if larger > v2 else v2


@njit(cache=True, nogil=True)
def convolve_pool(x: np.ndarray, packed: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
    """Convolution over time and the largest of POOL adjacent outputs.

    x (T_in, C_in) float32; packed (num_panels, taps * C_in, PANEL), the taps of one output in the order of x's memory;
    out (T, num_panels * PANEL) float32 with POOL * T + taps - 1 <= T_in. The rows under the taps lie next to each
    other, so the convolution is a matrix product whose rows overlap: nothing is copied.
    """
    c_in, inner = x.shape[1], packed.shape[1]
    times, width = out.shape
    # The last tile may overlap the one before it: it writes the same values again.
    tile = _POOL_ROWS // POOL if times * POOL >= _POOL_ROWS else 1
    for panel in range(packed.shape[0]):
        weight, column = panel * inner * PANEL, panel * PANEL
        for start in range(0, times, tile):
            t = min(start, times - tile)
            source, target = POOL * t * c_in, t * width + column
            if tile == 1:
                _single_pool(x, source, c_in, packed, weight, inner, bias, column, out, target, width)
            else:
                _full_pool(x, source, c_in, packed, weight, inner, bias, column, out, target, width)


def prepare_sinc(layer: Layer) -> BoundLayer:
    """Samples (N) to (positions, C) float32: symmetric filters on the samples less the centre sample.

    Weight `weight` (C, taps), the first half of the filters even, the second half odd; parameter `stride`.

    Raises
    ------
    BackendError
        The filters do not have these symmetries.
    """
    weight, stride = layer.weights["weight"], int(layer.params["stride"])
    count, half = weight.shape[0] // 2, weight.shape[1] // 2
    mirrored = weight[:, ::-1]
    if not (np.array_equal(weight[:count], mirrored[:count]) and np.array_equal(weight[count:], -mirrored[count:])):
        raise BackendError(f"layer {layer.id}: filters 0 to {count - 1} must be even and the other {count} odd")
    even, odd = pack_weight(weight[:count, half + 1 :]), pack_weight(weight[count:, half + 1 :])
    zeros = pad_bias(None, count)

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        sinc_filter(inputs[0], stride, even, odd, zeros, outputs[0])

    return run


def prepare_sinc_pool(layer: Layer) -> BoundLayer:
    """Samples of one window (N) and their filter outputs (positions, C) to (T, C) float32.

    Applies the instance norm of the waveform, the absolute value, max-pooling by 3, instance norm and leaky ReLU.
    Weights `filters` (C, taps), `wav_weight` (1), `wav_bias` (1), `weight` (C), `bias` (C); parameters `stride`,
    `epsilon`.
    """
    w, stride = layer.weights, int(layer.params["stride"])
    epsilon = float(layer.params["epsilon"])
    half = w["filters"].shape[1] // 2
    sums = w["filters"].astype(np.float64).sum(axis=1).astype(np.float32)
    gain, offset = float(w["wav_weight"][0]), float(w["wav_bias"][0])

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        (samples, filtered), out = inputs, outputs[0]
        mean, variance = moments(samples)
        scale = gain / np.sqrt(variance + epsilon)
        rectify_pool(filtered, samples, half, stride, scale, offset - scale * mean, sums, out)
        normalise_leaky(out, w["weight"], w["bias"], epsilon, out)

    return run


def prepare_conv_pool(layer: Layer) -> BoundLayer:
    """Rows (T_in, C_in) to (T, C_out) float32: convolution over time, max-pooling by 3, instance norm, leaky ReLU.

    Weights `weight` (C_out, C_in, taps), `bias` (C_out), `norm_weight` (C_out), `norm_bias` (C_out); parameter
    `epsilon`.
    """
    w = layer.weights
    epsilon = float(layer.params["epsilon"])
    c_out = w["weight"].shape[0]
    packed = pack_weight(w["weight"].transpose(0, 2, 1).reshape(c_out, -1))
    bias = pad_bias(w["bias"], c_out)

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        x, out = inputs[0], outputs[0]
        pooled = np.empty((out.shape[0], bias.size), np.float32)
        convolve_pool(x, packed, bias, pooled)
        normalise_leaky(pooled, w["norm_weight"], w["norm_bias"], epsilon, out)

    return run
