"""Convolutions against float64 sums over shifted images, on sizes around the tiles' edges."""

from __future__ import annotations

import numpy as np
import pytest

from diarize.backend.cpu import CpuBackend
from diarize.cpu.conv import output_size, prepare_conv2d
from diarize.cpu.memory import aligned_empty
from diarize.errors import BackendError
from diarize.layers import Layer, Op


def reference(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    stride: tuple[int, int],
    residual: np.ndarray | None,
    relu: bool,
) -> np.ndarray:
    """Float64 convolution with zero padding, channels last."""
    c_out, _, kernel_h, kernel_w = weight.shape
    height, width = x.shape[:2]
    top, left = (kernel_h - 1) // 2, (kernel_w - 1) // 2
    padded = np.pad(x.astype(np.float64), ((top, top), (left, left), (0, 0)))
    full = np.zeros((height, width, c_out))
    for i in range(kernel_h):
        for j in range(kernel_w):
            full += padded[i : i + height, j : j + width] @ weight[:, :, i, j].T.astype(np.float64)
    out = full[:: stride[0], :: stride[1]] + bias
    if residual is not None:
        out = out + residual
    return np.maximum(out, 0) if relu else out


def check(
    height: int,
    width: int,
    c_in: int,
    c_out: int,
    kernel: tuple[int, int] = (3, 3),
    stride: tuple[int, int] = (1, 1),
    residual: bool = False,
    relu: bool = True,
) -> None:
    random = np.random.default_rng(height * 1000 + width + c_in)
    x = random.standard_normal((height, width, c_in)).astype(np.float32)
    weight = (random.standard_normal((c_out, c_in, *kernel)) / np.sqrt(c_in * 9)).astype(np.float32)
    bias = random.standard_normal(c_out).astype(np.float32)
    shape = (output_size(height, stride[0]), output_size(width, stride[1]), c_out)
    shortcut = random.standard_normal(shape).astype(np.float32) if residual else None
    convolve = prepare_conv2d(weight, bias, stride, "relu" if relu else "none", residual)
    out = aligned_empty(shape)
    out[...] = np.nan
    assert convolve(x, out, shortcut) is out
    expected = reference(x, weight, bias, stride, shortcut, relu)
    # Winograd's error on one layer is about 3e-6 of the output's size (1 here), its largest about ten times that.
    assert np.abs(out - expected).max() < 5e-5


@pytest.mark.parametrize("height", [1, 2, 4, 5, 6, 11])
@pytest.mark.parametrize("width", [1, 3, 5, 7, 13])
def test_winograd_sizes(height: int, width: int) -> None:
    check(height, width, 32, 32)


@pytest.mark.parametrize(("c_in", "c_out"), [(16, 16), (32, 64), (64, 48), (128, 128)])
@pytest.mark.parametrize("residual", [False, True])
def test_winograd_channels(c_in: int, c_out: int, residual: bool) -> None:
    check(12, 9, c_in, c_out, residual=residual, relu=c_in != 64)


@pytest.mark.parametrize("height", [1, 2, 9, 10, 11, 12, 23])
@pytest.mark.parametrize("width", [1, 10, 13, 21])
def test_winograd_stride_two_sizes(height: int, width: int) -> None:
    check(height, width, 32, 64, stride=(2, 2))


@pytest.mark.parametrize(("c_in", "c_out"), [(16, 48), (64, 32), (128, 256)])
def test_winograd_stride_two_channels(c_in: int, c_out: int) -> None:
    check(20, 9, c_in, c_out, stride=(2, 2), relu=c_in != 64)


def test_winograd_many_blocks() -> None:
    check(80, 37, 32, 32, residual=True)


@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (1, 2), (2, 2), (3, 2)])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 5), (7, 20), (5, 41)])
def test_direct_strides(stride: tuple[int, int], height: int, width: int) -> None:
    check(height, width, 5, 32, stride=stride)


@pytest.mark.parametrize("kernel", [(1, 1), (1, 5), (5, 1), (3, 5)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
def test_direct_kernels(kernel: tuple[int, int], stride: tuple[int, int]) -> None:
    check(9, 23, 16, 64, kernel, stride, relu=False)


@pytest.mark.parametrize("c_out", [1, 31, 33, 64])
@pytest.mark.parametrize("residual", [False, True])
def test_direct_channels(c_out: int, residual: bool) -> None:
    check(6, 11, 1, c_out, residual=residual)


def test_residual_may_be_the_output() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((13, 8, 32)).astype(np.float32)
    start = random.standard_normal((13, 8, 32)).astype(np.float32)
    weight = random.standard_normal((32, 32, 3, 3)).astype(np.float32)
    convolve = prepare_conv2d(weight, activation="relu", residual=True)
    apart = convolve(x, np.empty_like(start), start)
    inside = start.copy()
    convolve(x, inside, inside)
    assert apart.tobytes() == inside.tobytes()


@pytest.mark.parametrize("rows", [35, 40, 52])
def test_tiles_do_not_depend_on_their_block(rows: int) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((60, 20, 32)).astype(np.float32)
    convolve = prepare_conv2d(random.standard_normal((32, 32, 3, 3)).astype(np.float32))
    whole = convolve(x[60 - rows :], np.empty((rows, 20, 32), np.float32))
    shifted = convolve(x[55 - rows : 55], np.empty((rows, 20, 32), np.float32))
    # Tiles that see none of the rows in which the two images differ: the same tiles in another order.
    last = (rows - 6) // 5 * 5
    assert shifted[10:last].tobytes() == whole[5 : last - 5].tobytes()


def test_stride_two_with_residual() -> None:
    check(11, 9, 32, 32, stride=(2, 2), residual=True)


def test_batch_through_the_backend() -> None:
    random = np.random.default_rng(2)
    weight = (random.standard_normal((32, 16, 3, 3)) / 12).astype(np.float32)
    bias = random.standard_normal(32).astype(np.float32)
    x = random.standard_normal((3, 7, 6, 16)).astype(np.float32)
    residual = random.standard_normal((3, 7, 6, 32)).astype(np.float32)
    backend = CpuBackend()
    run = backend.prepare(
        Layer("c", Op.CONV2D, {"weight": weight, "bias": bias}, {"residual": True, "activation": "relu"})
    )
    out = backend.put(np.full_like(residual, np.nan))
    run([backend.put(x), backend.put(residual)], [out])
    for b in range(3):
        expected = reference(x[b], weight, bias, (1, 1), residual[b], True)
        assert np.abs(backend.get(out)[b] - expected).max() < 5e-5


@pytest.mark.parametrize(
    ("x", "out", "residual"),
    [
        ((4, 4, 8), (4, 4, 16), (4, 4, 16)),
        ((4, 4, 16), (4, 5, 16), (4, 5, 16)),
        ((4, 4, 16), (4, 4, 16), (4, 4, 8)),
        ((4, 4, 16), (4, 4, 16), None),
    ],
)
def test_shapes_that_do_not_fit(x: tuple[int, ...], out: tuple[int, ...], residual: tuple[int, ...] | None) -> None:
    convolve = prepare_conv2d(np.zeros((16, 16, 3, 3), np.float32), residual=True)
    with pytest.raises(BackendError, match=r"takes \(H, W, 16\)"):
        convolve(*(None if shape is None else np.zeros(shape, np.float32) for shape in (x, out, residual)))


def test_unknown_activation() -> None:
    with pytest.raises(BackendError, match="gelu"):
        prepare_conv2d(np.zeros((1, 1, 1, 1), np.float32), activation="gelu")
