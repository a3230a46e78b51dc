"""Convolutional front of the segmentation network against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from diarize.backend.cpu import CpuBackend
from diarize.cpu.gemm import PANEL, TILE_ROWS
from diarize.cpu.norm import STRETCH, normalise_leaky
from diarize.cpu.simd import LANES
from diarize.cpu.sincnet import moments
from diarize.errors import BackendError
from diarize.layers import Layer, Op

EPSILON = 1e-5


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def symmetric_filters(count, taps, seed=1):
    half = random(2 * count, taps, seed=seed)
    half[:count] += half[:count, ::-1]
    half[count:] -= half[count:, ::-1]
    return half / np.float32(taps)


def leaky(x):
    return np.where(x > 0, x, 0.01 * x)


def instance_norm(x, weight, bias):
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + EPSILON) * weight + bias


def filter_samples(filters, samples, stride):
    positions = (samples.size - filters.shape[1]) // stride + 1
    out = np.full((positions, len(filters)), np.nan, np.float32)
    CpuBackend().prepare(Layer("test", Op.SINC, {"weight": filters}, {"stride": stride}))([samples], [out])
    return out


@pytest.mark.parametrize("positions", [1, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 53])
@pytest.mark.parametrize(("count", "taps", "stride"), [(40, 251, 10), (1, 3, 1), (PANEL + 1, 31, 7)])
def test_sinc_filters_equal_float64(positions, count, taps, stride):
    filters = symmetric_filters(count, taps)
    samples = random((positions - 1) * stride + taps, seed=2)
    windows = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), taps)[::stride]
    expected = (windows - windows[:, taps // 2, None]) @ filters.T
    np.testing.assert_allclose(filter_samples(filters, samples, stride), expected, rtol=0, atol=2e-6)


def test_sinc_position_gives_the_same_bytes_wherever_the_stretch_starts():
    filters, samples = symmetric_filters(40, 251), random(4001, seed=3)
    whole = filter_samples(filters, samples, 10)
    for first in (1, 2, TILE_ROWS, 101):
        part = filter_samples(filters, samples[10 * first :].copy(), 10)
        assert part.tobytes() == whole[first : first + len(part)].tobytes()


def test_filters_without_symmetry_are_refused():
    with pytest.raises(BackendError, match="filters 0 to 3 must be even and the other 4 odd"):
        CpuBackend().prepare(Layer("test", Op.SINC, {"weight": random(8, 31)}, {"stride": 10}))


@pytest.mark.parametrize("size", [1, 2, 7, 1001, 160_000])
def test_moments_equal_float64(size):
    samples = random(size) * 0.1 + np.float32(0.7)
    mean, variance = moments(samples)
    wide = samples.astype(np.float64)
    assert mean == pytest.approx(wide.mean(), rel=1e-13)
    # E[x^2] - mean^2 loses the ratio of the two, here 50, of 1e-16 per addition.
    assert variance == pytest.approx(wide.var(), rel=1e-11, abs=1e-15)


@pytest.mark.parametrize("times", [1, STRETCH - 1, STRETCH + 1, 331])
@pytest.mark.parametrize("channels", [LANES, LANES + 1, 5 * LANES, 60, 80])
def test_instance_norm_equals_float64(times, channels):
    width = -(-channels // LANES) * LANES
    x = random(times, width) * 2 + np.float32(3)
    weight, bias = random(channels, seed=1), random(channels, seed=2)
    out = np.full((times, channels), np.nan, np.float32)
    normalise_leaky(x, weight, bias, EPSILON, out)
    expected = leaky(instance_norm(x[:, :channels].astype(np.float64), weight, bias))
    if times == 1:
        # A single row is its own mean: what is left is the bias.
        np.testing.assert_array_equal(out[0], leaky(bias[None].astype(np.float32))[0].astype(np.float32))
        return
    np.testing.assert_allclose(out, expected, rtol=0, atol=5e-6)


def test_instance_norm_in_place():
    x, weight, bias = random(70, 5 * LANES), random(5 * LANES, seed=1), random(5 * LANES, seed=2)
    out = np.empty_like(x)
    normalise_leaky(x, weight, bias, EPSILON, out)
    normalise_leaky(x, weight, bias, EPSILON, x)
    assert x.tobytes() == out.tobytes()


@pytest.mark.parametrize(("gain", "offset"), [(1.0, 0.0), (1e-3, 0.0), (1e-4, 0.9), (0.0, 0.0), (0.0, 0.5)])
def test_pooled_sinc_outputs_of_a_window(gain, offset):
    # Quiet signals on a large constant: the constant must not drown them (filters run on differences).
    taps, stride, channels = 251, 10, 80
    filters = symmetric_filters(channels // 2, taps)
    samples = (random(16_000, seed=5) * np.float32(gain) + np.float32(offset)).astype(np.float32)
    weights = {"filters": filters, "weight": random(channels, seed=6), "bias": random(channels, seed=7)}
    weights |= {"wav_weight": np.array([0.01], np.float32), "wav_bias": np.array([0.05], np.float32)}
    layer = Layer("test", Op.SINC_POOL, weights, {"stride": stride, "epsilon": EPSILON})
    positions = (samples.size - taps) // stride + 1
    out = np.full((positions // 3, channels), np.nan, np.float32)
    CpuBackend().prepare(layer)([samples, filter_samples(filters, samples, stride)], [out])

    wide = samples.astype(np.float64)
    normal = (wide - wide.mean()) / np.sqrt(wide.var() + EPSILON) * weights["wav_weight"][0] + weights["wav_bias"][0]
    windows = np.lib.stride_tricks.sliding_window_view(normal, taps)[::stride]
    rectified = np.abs(windows @ filters.T.astype(np.float64))[: positions // 3 * 3]
    pooled = rectified.reshape(-1, 3, channels).max(axis=1)
    expected = leaky(instance_norm(pooled, weights["weight"], weights["bias"]))
    # Float32 roundings of outputs near 0.05, magnified by at most 1 / sqrt(epsilon) = 316 in the second norm.
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("times", [1, 2, 3, 4, 5, 47])
@pytest.mark.parametrize("rest", [0, 1, 2])
@pytest.mark.parametrize(("c_in", "c_out"), [(80, 60), (3, LANES), (60, PANEL + 1)])
def test_convolution_with_pooling(times, rest, c_in, c_out):
    x = random(3 * times + 4 + rest, c_in)
    weights = {"weight": random(c_out, c_in, 5, seed=1) / np.float32(np.sqrt(5 * c_in)), "bias": random(c_out, seed=2)}
    weights |= {"norm_weight": random(c_out, seed=3), "norm_bias": random(c_out, seed=4)}
    out = np.full((times, c_out), np.nan, np.float32)
    CpuBackend().prepare(Layer("test", Op.CONV_POOL, weights, {"epsilon": EPSILON}))([x], [out])
    rows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), 5, axis=0)[: 3 * times]
    convolved = np.einsum("tck,ock->to", rows, weights["weight"].astype(np.float64)) + weights["bias"]
    pooled = convolved.reshape(times, 3, c_out).max(axis=1)
    expected = leaky(instance_norm(pooled, weights["norm_weight"], weights["norm_bias"]))
    # Two or three times give tiny variances, so the norm magnifies roundings of 1e-6 by up to 316.
    np.testing.assert_allclose(out, expected, rtol=0, atol=4e-4 if times < 5 else 2e-5)
