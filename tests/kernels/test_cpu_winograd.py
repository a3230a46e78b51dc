"""Winograd's weights and tables: each axis must reproduce its convolution exactly when carried out in float64."""

from __future__ import annotations

import numpy as np
import pytest

from diarize.cpu.gemm import PANEL
from diarize.cpu.memory import ALIGNMENT_BYTES, aligned_empty, workspace
from diarize.cpu.winograd import transform_weight
from diarize.cpu.winograd_tiles import INPUTS, OUTPUTS, evaluate_taps, factor_of_position


def products_to_outputs(points: tuple[float, ...]) -> np.ndarray:
    """Float64 (5, len(points) + 1): powers of the points, and infinity for the last output only."""
    matrix = np.zeros((OUTPUTS, len(points) + 1))
    matrix[:, :-1] = np.array(points) ** np.arange(OUTPUTS)[:, None]
    matrix[-1, -1] = 1.0
    return matrix


def samples_to_products(points: tuple[float, ...]) -> np.ndarray:
    """Float64 matrix of Toom-Cook interpolation: row i is the product of (x - q) over the other points q."""
    rows = [np.poly([q for q in points if q != point])[::-1] for point in points]
    rows = [np.append(row, 0.0) for row in rows]
    return np.array([*rows, np.poly(points)[::-1]])


def test_stride_one_axis() -> None:
    points = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5)
    random = np.random.default_rng(0)
    taps, line = random.standard_normal(3), random.standard_normal(INPUTS[1])
    products = (samples_to_products(points) @ line) * (evaluate_taps(1) @ taps)
    assert np.allclose(products_to_outputs(points) @ products, np.correlate(line, taps, "valid"), atol=1e-12)


def test_stride_two_axis() -> None:
    points = (0.0, 1.0, -1.0, 2.0, -2.0)
    random = np.random.default_rng(1)
    taps, line = random.standard_normal(3), random.standard_normal(INPUTS[2])
    factors = evaluate_taps(2) @ taps
    odd = products_to_outputs(points) @ ((samples_to_products(points) @ line[0::2]) * factors[:6])
    assert np.allclose(odd + line[1::2] * factors[6], np.correlate(line, taps, "valid")[::2], atol=1e-12)


@pytest.mark.parametrize(("stride", "used"), [(1, 1), (2, 25)])
def test_every_position_has_its_factor(stride: int, used: int) -> None:
    factors = factor_of_position(stride)
    assert factors.shape == (INPUTS[stride] ** 2,)
    assert np.bincount(factors, minlength=49).min() == 1
    assert np.bincount(factors)[-1] == used


def test_packed_weight_is_aligned_and_padded_with_zeros() -> None:
    weight = np.random.default_rng(2).standard_normal((PANEL + 16, 16, 3, 3)).astype(np.float32)
    packed = transform_weight(weight, 1)
    assert packed.shape == (49, 2, 16, PANEL)
    assert packed.ctypes.data % ALIGNMENT_BYTES == 0
    assert not packed[:, 1, :, 16:].any()
    taps = evaluate_taps(1)
    expected = np.einsum("ia,jb,ocab->ijco", taps, taps, weight.astype(np.float64)).reshape(49, 16, -1)
    assert np.allclose(packed[:, 0], expected[:, :, :PANEL], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [1, (3, 5), (7, 1, 33)])
def test_aligned_memory(shape: int | tuple[int, ...]) -> None:
    array = aligned_empty(shape)
    assert array.ctypes.data % ALIGNMENT_BYTES == 0
    assert array.shape == ((shape,) if isinstance(shape, int) else shape)
    assert array.dtype == np.float32
    assert array.flags.c_contiguous


def test_workspace_is_kept_and_grows() -> None:
    small = workspace(10)
    assert workspace(10) is small
    large = workspace(small.size + 1)
    assert large.size > small.size
    assert workspace(10) is large
