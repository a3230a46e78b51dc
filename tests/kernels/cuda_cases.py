"""Cases of the GPU kernels for the simulator and a GPU alike: random input, float64 expectation, relative error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diarize.candidates import Request

PARITIES = ((1, 1), (1, 0), (0, 1), (0, 0))


@dataclass(frozen=True)
class Case:
    """A kernel, by its factory, on images of one size; `blocks` limits the blocks of a persistent kernel."""

    name: str
    request: Request
    windows: int
    height: int
    width: int
    blocks: int = 2
    overflow: bool = False


@dataclass
class Problem:
    """Arguments of one launch and what must come out.

    Arguments are arrays, integers, `("map", array, box, parity)` for a tensor map, or `("out", number)` for an output.
    """

    grid: tuple[int, int, int]
    arguments: list[Any]
    outputs: list[np.ndarray]
    expected: list[np.ndarray]
    flag: np.ndarray


def conv2d(x: np.ndarray, weight: np.ndarray, stride: int = 1) -> np.ndarray:
    """Float64 convolution of NHWC x with (C_out, C_in, k, k), padding (k - 1) / 2."""
    k = weight.shape[2]
    pad = (k - 1) // 2
    rows, columns = -(-x.shape[1] // stride), -(-x.shape[2] // stride)
    padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    y = np.zeros((x.shape[0], rows, columns, weight.shape[0]))
    for i in range(k):
        for j in range(k):
            part = padded[:, i : i + stride * (rows - 1) + 1 : stride, j : j + stride * (columns - 1) + 1 : stride]
            y += part @ weight[:, :, i, j].T.astype(np.float64)
    return y


def _weight(rng: np.random.Generator, c_out: int, c_in: int, k: int, half: bool = True) -> np.ndarray:
    weight = rng.standard_normal((c_out, c_in, k, k)) / (k * c_in**0.5)
    return weight.astype(np.float16 if half else np.float32).astype(np.float32)


def problem(case: Case, multiprocessors: int) -> Problem:
    """The case's launch on fresh random data that its name seeds."""
    rng = np.random.default_rng(sum(case.name.encode()))
    made = case.request.make()
    kind = case.request.factory.split(":")[1]
    if kind == "make_block32":
        return _block(case, made, rng)
    if kind == "make_stem":
        return _stem(case, made, rng)
    if kind == "make_pool":
        return _pool(case, made, rng)
    return _conv(case, made, rng, multiprocessors)


def _conv(case: Case, conv: Any, rng: np.random.Generator, multiprocessors: int) -> Problem:
    dtype = np.float16 if conv.kernel.arguments[0] in "hm" else np.float32
    n, h, w = case.windows, case.height, case.width
    rows, columns = conv.output_size(h, w)
    x = rng.standard_normal((n, h, w, conv.c_in)).astype(dtype)
    residual = rng.standard_normal((n, rows, columns, conv.c_out)).astype(dtype)
    weight = _weight(rng, conv.c_out, conv.c_in, conv.kernel_size, conv.precision == "fp16")
    bias = rng.standard_normal(conv.c_out).astype(np.float32)
    if case.overflow:
        bias[conv.c_out // 2] = 70000.0
    flag = np.zeros(1, np.int32)
    y = np.full((n, rows, columns, conv.c_out), np.nan, dtype)
    expected = conv2d(x, weight, conv.stride) + bias + (residual.astype(np.float64) if conv.residual else 0)
    expected = np.maximum(expected, 0) if conv.relu else expected
    grid = conv.grid(n, h, w, multiprocessors)
    across, down, count = conv.tiles(n, h, w)
    if conv.shortcut:
        s, beside = np.full_like(y, np.nan), _weight(rng, conv.c_out, conv.c_in, 1)
        maps = [("map", x, conv.box, parity) for parity in PARITIES]
        values = [*maps, conv.pack(weight, beside), bias, bias, ("out", 0), ("out", 1), flag]
        expected_s = conv2d(x, beside, 2) + bias
        arguments = [*values, rows, columns, across, down, count]
        return Problem((min(grid[0], case.blocks), 1, 1), arguments, [y, s], [expected, expected_s], flag)
    if conv.box is None:
        values = [x, conv.pack(weight), bias, residual, ("out", 0), flag, h, w, rows, columns]
        return Problem(grid, values, [y], [expected], flag)
    maps = [("map", x, conv.box, None), ("map", residual, conv.residual_box, None)]
    values = [*maps, conv.pack(weight), bias, residual, ("out", 0), flag, h, w, across, down, count]
    return Problem((min(grid[0], case.blocks), 1, 1), values, [y], [expected], flag)


def _block(case: Case, block: Any, rng: np.random.Generator) -> Problem:
    from diarize.kernels.block32 import pack_block

    n, h, w = case.windows, case.height, case.width
    x = np.maximum(rng.standard_normal((n, h, w, 32)), 0).astype(np.float16)
    first, second = _weight(rng, 32, 32, 3), _weight(rng, 32, 32, 3)
    bias = rng.standard_normal(64).astype(np.float32)
    if case.overflow:
        bias[7] = 70000.0
    with np.errstate(over="ignore", invalid="ignore"):
        hidden = np.maximum(conv2d(x, first) + bias[:32], 0).astype(np.float16)
        expected = np.maximum(conv2d(hidden, second) + bias[32:] + x.astype(np.float64), 0)
    flag, y = np.zeros(1, np.int32), np.full((n, h, w, 32), np.nan, np.float16)
    rows = max(1, h // 2)
    across, down, count = block.tasks(n, h, w, rows)
    values = [("map", x, block.box, None), pack_block(first, second), bias, ("out", 0), flag, h, w, across, down]
    grid = (min(case.blocks, block.grid(count, 132)[0]), 1, 1)
    return Problem(grid, [*values, count, rows], [y], [expected], flag)


def _stem(case: Case, kernel: Any, rng: np.random.Generator) -> Problem:
    from diarize.kernels.stem import pack_stem, stem_grid

    n, h, w = case.windows, case.height, case.width
    features = (4 * rng.standard_normal((n, w, h))).astype(np.float32)
    mean, bias = features.mean(1), rng.standard_normal(32).astype(np.float32)
    weight = _weight(rng, 32, 1, 3)
    image = (features - mean[:, None]).transpose(0, 2, 1)[..., None]
    expected = np.maximum(conv2d(image, weight) + bias, 0)
    flag, y = np.zeros(1, np.int32), np.full((n, h, w, 32), np.nan, np.float16)
    values = [features, mean, pack_stem(weight), bias, ("out", 0), flag, h * w, 1, h, h, w]
    return Problem(stem_grid(n, h, w), values, [y], [expected], flag)


def _pool(case: Case, kernel: Any, rng: np.random.Generator) -> Problem:
    n, h, w = case.windows, case.height, case.width
    x = np.maximum(rng.standard_normal((n, h, w, 256)), 0).astype(np.float16)
    window = np.array([n - 1, 0, n - 1], np.int32)
    weights = (rng.random((3, w)) < 0.6).astype(np.float32)
    weights[2] = 0
    f, values = weights[:, None, :, None].astype(np.float64), x[window].astype(np.float64)
    v1, v2 = f.sum(2) + 1e-8, (f**2).sum(2)
    mean = (f * values).sum(2) / v1
    variance = (f * (values - mean[:, :, None]) ** 2).sum(2) / (v1 - v2 / v1 + 1e-8)
    expected = np.stack([mean, np.sqrt(variance)], axis=1)
    out = np.full((3, 2, h, 256), np.nan, np.float32)
    return Problem((3, h, 2), [x, weights, window, ("out", 0), h, w], [out], [expected], np.zeros(1, np.int32))


def tolerance(request: Request) -> float:
    """Largest relative L2 distance to float64 that a kernel's arithmetic and storage explain."""
    made = request.make()
    if getattr(made, "precision", "fp16") == "fp16" or made.kernel.arguments[0] == "h":
        # 2^-11 / sqrt(3) = 2.8e-4 is the rounding of a float16 result, as much again that of TF32 products.
        return 6e-4
    # TF32 products: about 3e-4 of the convolution. Float32: sums of up to 2,304 products in a row.
    return 4e-4 if made.precision == "tf32" else 1e-6


def error(got: np.ndarray, expected: np.ndarray) -> float:
    """Relative L2 distance; NaN where a value was not written."""
    norm = np.linalg.norm(expected)
    with np.errstate(invalid="ignore"):
        return float(np.linalg.norm(got.astype(np.float64) - expected) / (norm if norm else 1.0))


def run_on_gpu(case: Case, gpu: Any, memory: Any, cache: Any) -> tuple[list[float], int]:
    """Errors of the outputs and the flag, on a GPU."""
    made = case.request.make()
    kernel = getattr(made, "kernel", made)
    task = problem(case, gpu.multiprocessors)
    outputs = [memory.put(output) for output in task.outputs]
    flag = memory.put(task.flag)
    values: list[Any] = []
    for argument in task.arguments:
        if argument is task.flag:
            values.append(flag)
        elif isinstance(argument, np.ndarray):
            values.append(memory.put(argument))
        elif isinstance(argument, tuple) and argument[0] == "out":
            values.append(outputs[argument[1]])
        elif isinstance(argument, tuple):
            values.append(memory.tensor_map(memory.put(argument[1]), argument[2], argument[3]))
        else:
            values.append(argument)
    stream = gpu.stream()
    gpu.load(cache.get(kernel, gpu.capability), kernel).bind(task.grid, *values)(stream)
    stream.synchronize()
    results = [memory.get(output) for output in outputs]
    errors = [error(got, wanted) for got, wanted in zip(results, task.expected, strict=True)]
    return errors, int(memory.get(flag)[0])


def run_in_simulator(case: Case) -> tuple[list[float], int]:
    """Errors of the outputs and the flag, in numba's simulator."""
    from numba import cuda

    from diarize.kernels.ptx_sim_hopper import TENSOR_MAPS

    made = case.request.make()
    kernel = getattr(made, "kernel", made)
    task = problem(case, case.blocks)
    values: list[Any] = []
    for argument in task.arguments:
        if isinstance(argument, np.ndarray):
            values.append(argument.reshape(-1))
        elif isinstance(argument, tuple) and argument[0] == "out":
            values.append(task.outputs[argument[1]].reshape(-1))
        elif isinstance(argument, tuple):
            _, array, box, parity = argument
            TENSOR_MAPS[len(TENSOR_MAPS) + 1] = (
                array if parity is None else array[:, parity[0] :: 2, parity[1] :: 2],
                box,
            )
            values.append(np.array([len(TENSOR_MAPS)], np.float16))
        else:
            values.append(argument)
    cuda.jit(kernel.function)[task.grid, kernel.threads, 0, kernel.shared_bytes](*values)
    errors = [error(got, wanted) for got, wanted in zip(task.outputs, task.expected, strict=True)]
    return errors, int(task.flag[0])


def _request(factory: str, **parameters: Any) -> Request:
    return Request(factory, parameters)


SIMULATED = [
    Case("block of 32", _request("block32:make_block32", groups=1), 1, 4, 63, 1),
    Case("block of 32, overflow", _request("block32:make_block32", groups=1), 1, 2, 5, 1, overflow=True),
    Case(
        "rolling 64, residual",
        _request("conv_roll:make_conv_roll", groups=1, rows=3, buffers=2, residual=True),
        1,
        4,
        3,
    ),
    Case("resident 32", _request("conv_resident:make_conv_resident", channels=32, groups=2, buffers=3), 1, 3, 66, 1),
    Case(
        "down from 32",
        _request("conv_down:make_conv_down", c_in=32, groups=1, tile_n=64, stages=0, buffers=3),
        1,
        5,
        21,
    ),
    Case(
        "mma 32",
        _request(
            "conv_mma:make_conv_mma",
            c_in=32,
            c_out=32,
            tile_rows=2,
            tile_columns=16,
            tile_n=32,
            tile_k=32,
            warps_m=2,
            residual=True,
        ),
        1,
        3,
        17,
    ),
    Case(
        "mma 32, overflow",
        _request(
            "conv_mma:make_conv_mma", c_in=32, c_out=32, tile_rows=1, tile_columns=16, tile_n=32, tile_k=32, warps_m=1
        ),
        1,
        1,
        3,
        overflow=True,
    ),
    Case(
        "mma stride 2",
        _request(
            "conv_mma:make_conv_mma", c_in=32, c_out=64, stride=2, tile_rows=1, tile_columns=16, tile_k=32, warps_m=1
        ),
        1,
        3,
        9,
    ),
    Case("pooling", _request("pool:make_pool"), 2, 2, 13),
]
"""Small cases for the simulator, a few seconds each."""

SIMULATED_SLOW = [
    Case("stem", _request("stem:make_stem"), 1, 5, 33),
    Case(
        "streaming 128 to 64",
        _request(
            "conv_stream:make_conv_stream",
            c_in=128,
            c_out=64,
            groups=1,
            rows=2,
            tile_n=64,
            stages=4,
            residual=True,
            early=True,
        ),
        1,
        3,
        65,
    ),
    Case(
        "down from 64",
        _request("conv_down:make_conv_down", c_in=64, groups=2, tile_n=64, stages=3, buffers=2),
        1,
        5,
        21,
    ),
    Case(
        "streaming two abreast",
        _request("conv_stream:make_conv_stream", c_in=64, c_out=64, groups=2, tile_n=64, stages=3, columns=2),
        *(1, 3, 70),
    ),
    Case(
        "inline 128 to 64",
        _request("conv_inline:make_conv_inline", c_in=128, c_out=64, groups=1, tile_n=32, stages=4, residual=True),
        *(1, 3, 9),
    ),
    Case("rolling 32", _request("conv_roll:make_conv_roll", channels=32, groups=2, rows=3), 1, 5, 65, 1),
    Case("float32", _request("conv_f32:make_conv_f32", c_in=32, c_out=32, residual=True), 1, 3, 17),
    Case(
        "TF32 stride 2", _request("conv_f32:make_conv_f32", c_in=16, c_out=32, stride=2, tf32=True, relu=False), 1, 3, 5
    ),
]


def _full(name: str, windows: int, height: int, width: int, overflow: bool = False, **parameters: Any) -> Case:
    return Case(name, _request("conv_f32:make_conv_f32", **parameters), windows, height, width, overflow=overflow)


_SMALL: dict[str, Any] = {"c_out": 32, "tile_rows": 4, "tile_columns": 16, "tile_n": 32}
_SMALL_TF32: dict[str, Any] = {
    "c_out": 32,
    "tile_rows": 1,
    "tile_columns": 16,
    "tile_n": 32,
    "warps_m": 1,
    "tf32": True,
}

FULL_PRECISION = [
    _full("float32 small tile", 1, 5, 17, c_in=16, residual=True, **(_SMALL | {"c_out": 64})),
    _full("float32 two buffers", 1, 1, 9, c_in=24, residual=True, stages=2, inner=2, **_SMALL),
    _full("float32 stride 2, two buffers", 1, 2, 7, c_in=16, stride=2, stages=2, **_SMALL),
    _full("float32 in float16, two buffers", 1, 4, 5, c_in=16, stride=2, storage="half", stages=2, **_SMALL),
    _full("float32 in float16, 1x1", 1, 3, 6, c_in=32, kernel_size=1, storage="half", **_SMALL),
    _full("float32 in float16, overflow", 1, 1, 3, overflow=True, c_in=16, storage="half", **_SMALL),
    _full("TF32 small tile", 1, 1, 17, c_in=16, residual=True, tile_k=16, **(_SMALL_TF32 | {"c_out": 64})),
    _full("TF32 1x1 stride 2", 2, 1, 19, c_in=64, stride=2, kernel_size=1, relu=False, **_SMALL_TF32),
    _full("TF32 in float16, stride 2", 1, 3, 9, c_in=32, stride=2, storage="half", **_SMALL_TF32),
    _full("TF32 in float16, 1x1", 1, 2, 5, c_in=32, kernel_size=1, storage="half", **_SMALL_TF32),
    _full("TF32 in float16, overflow", 1, 1, 3, overflow=True, c_in=32, storage="half", **_SMALL_TF32),
]
"""Convolutions outside float16 arithmetic, small tiles for the simulator."""

FULL_PRECISION_SLOW = [
    _full("float32 stride 2", 1, 9, 35, c_in=8, stride=2, relu=False, inner=4, **_SMALL),
    _full("float32 1x1 stride 2", 2, 9, 19, c_in=32, stride=2, kernel_size=1, relu=False, **(_SMALL | {"c_out": 64})),
    _full("float32 twelve pixels", 1, 5, 26, c_in=16, pixels=12, **(_SMALL | {"tile_columns": 24})),
    _full("float32 in float16", 1, 3, 19, c_in=16, residual=True, storage="half", **_SMALL),
    _full("TF32 two rows", 1, 3, 9, c_in=16, relu=False, **(_SMALL_TF32 | {"tile_rows": 2})),
    _full("TF32 part of 32", 1, 1, 3, c_in=32, tile_k=32, **_SMALL_TF32),
    _full("TF32 two parts, stride 2", 1, 3, 9, c_in=32, stride=2, tile_k=16, **_SMALL_TF32),
    _full("TF32 in float16", 1, 2, 9, c_in=64, residual=True, storage="half", **_SMALL_TF32),
]
"""More of them, other tiles and strides."""
