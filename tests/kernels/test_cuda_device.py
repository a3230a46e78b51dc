# ruff: noqa: E402 (the imports need numba-cuda or a path that is set first)
"""GPU kernels on a GPU: odd sizes against float64, overflow flags, and the whole ResNet34 against its float32 twin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.cuda
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'diarize-cuda[cuda]'")

from kernels.cuda_cases import Case, run_on_gpu

from diarize.backend.cuda_build import build
from diarize.backend.cuda_compile import KernelCache
from diarize.backend.cuda_driver import Gpu, MemoryPool, check
from diarize.backend.cuda_resnet34 import (
    ResNet34Kernels,
    TrunkChoice,
    float32_choice,
    hopper_choice,
    portable_choice,
)
from diarize.candidates import Request
from diarize.errors import BackendError
from diarize.layers import Layer, Op

# (height, width) of the input: one pixel, tile - 1, tile, tile + 1 columns, primes.
SIZES = [(1, 1), (2, 2), (3, 61), (4, 62), (5, 63), (9, 64), (7, 65), (11, 127), (13, 131)]


@pytest.fixture(scope="module")
def device() -> tuple[Gpu, MemoryPool, KernelCache]:
    try:
        gpu = Gpu()
    except BackendError as error:
        pytest.skip(str(error))
    choices = [default_choice(gpu), portable_choice(), float32_choice(), float32_choice(True)]
    build([*{r.key: r for c in choices for r in c.requests()}.values()], gpu.capability)
    return gpu, MemoryPool(gpu), KernelCache()


def default_choice(gpu: Gpu) -> TrunkChoice:
    return hopper_choice() if gpu.capability == (9, 0) else portable_choice()


def convolutions(choice: TrunkChoice) -> list[Request]:
    roles = (choice.block, choice.inner, choice.outer, choice.down, choice.shortcut)
    return [request for role in roles for request in role.values()]


CONVOLUTIONS = [
    *convolutions(hopper_choice()),
    *convolutions(portable_choice()),
    *convolutions(float32_choice()),
    *convolutions(float32_choice(True)),
]


def label(request: Request) -> str:
    made = request.make()
    return getattr(made, "kernel", made).name


def supported(request: Request, gpu: Gpu) -> None:
    made = request.make()
    if not getattr(made, "kernel", made).runs_on(gpu.capability):
        pytest.skip("the kernel does not claim this GPU")


@pytest.mark.parametrize("request_", CONVOLUTIONS, ids=label)
def test_convolution_on_odd_sizes(request_: Request, device: Any) -> None:
    gpu, memory, cache = device
    supported(request_, gpu)
    for height, width in SIZES:
        case = Case(f"{height}x{width}", request_, 3, height, width, blocks=gpu.multiprocessors)
        errors, flag = run_on_gpu(case, gpu, memory, cache)
        # Rounding of a float16 result: 2^-11 / sqrt(3) = 2.8e-4; TF32 products: about 3e-4.
        assert all(value < 6e-4 for value in errors), (height, width, errors)
        assert flag == 0


@pytest.mark.parametrize("request_", convolutions(hopper_choice()) + convolutions(portable_choice()), ids=label)
def test_planted_overflow_raises_the_flag(request_: Request, device: Any) -> None:
    gpu, memory, cache = device
    supported(request_, gpu)
    case = Case("overflow", request_, 2, 6, 40, blocks=gpu.multiprocessors, overflow=True)
    assert run_on_gpu(case, gpu, memory, cache)[1] == 1
    assert run_on_gpu(replace(case, overflow=False), gpu, memory, cache)[1] == 0


@pytest.mark.parametrize(("height", "width"), [(1, 1), (79, 31), (80, 33), (81, 64), (80, 998)])
def test_stem(height: int, width: int, device: Any) -> None:
    errors, flag = run_on_gpu(Case("stem", Request("stem:make_stem", {}), 2, height, width), *device)
    assert errors[0] < 6e-4
    assert flag == 0


@pytest.mark.parametrize("width", [1, 7, 125, 128])
def test_pooling(width: int, device: Any) -> None:
    errors, _ = run_on_gpu(Case("pool", Request("pool:make_pool", {}), 3, 10, width), *device)
    # Of a single column float32 gives no deviation, float64 one of 6e-5 of the value, from the 1e-8 in the formula.
    assert errors[0] < (1e-4 if width == 1 else 1e-5)


def random_layers(gain: float = 1.0) -> list[Layer]:
    """A seeded ResNet34 with folded weights, (C_out, C_in, time, mel), and activations below about 60."""
    rng = np.random.default_rng(3)

    def conv(name: str, c_in: int, c_out: int, k: int, stride: int, scale: float) -> Layer:
        weight = rng.standard_normal((c_out, c_in, k, k)) * scale * (2.0 / (c_in * k * k)) ** 0.5
        weights = {"weight": weight.astype(np.float32), "bias": (rng.standard_normal(c_out) * 0.1).astype(np.float32)}
        return Layer(name, Op.CONV2D, weights, {"stride_h": stride, "stride_w": stride})

    layers, channels = [conv("conv1", 1, 32, 3, 1, 0.3 * gain)], 32
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            name, out = f"layer{stage}.{block}", 32 << (stage - 1)
            stride = 2 if block == 0 and stage > 1 else 1
            layers.append(conv(f"{name}.conv1", channels, out, 3, stride, 1.0))
            if stride == 2:
                layers.append(conv(f"{name}.shortcut", channels, out, 1, stride, 0.7))
            layers.append(conv(f"{name}.conv2", out, out, 3, 1, 0.4))
            channels = out
    final = {"weight": rng.standard_normal((256, 5120)) / 5120**0.5, "bias": rng.standard_normal(256) * 0.2}
    layers.append(Layer("seg_1", Op.LINEAR, {k: v.astype(np.float32) for k, v in final.items()}))
    return layers


def fill(gpu: Gpu, array: Any, values: np.ndarray) -> None:
    source = np.ascontiguousarray(values, array.dtype)
    assert source.shape == array.shape
    check(gpu.driver.cuMemcpyHtoD(array.address, source.ctypes.data, source.nbytes))


def embed(device: Any, kernels: ResNet34Kernels, features: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, int]:
    """Embeddings of slots (window numbers) with every step active but the first three, and the flag."""
    gpu, memory, _ = device
    plan = kernels.plan(len(features), len(slots))
    masks = np.ones((len(slots), 125), np.float32)
    masks[:, :3] = 0
    fill(gpu, plan.features, features)
    fill(gpu, plan.mean, features.mean(1))
    fill(gpu, plan.masks, masks)
    fill(gpu, plan.slot_window, slots.astype(np.int32))
    stream = gpu.stream()
    plan.run(stream)
    stream.synchronize()
    result = memory.get(plan.embeddings), int(memory.get(plan.flag)[0])
    plan.close()
    return result


@pytest.fixture(scope="module")
def features() -> np.ndarray:
    rng = np.random.default_rng(4)
    return (4.0 * rng.standard_normal((3, 998, 80)) - 8.0).astype(np.float32)


def test_embeddings_agree_with_float32(device: Any, features: np.ndarray) -> None:
    gpu, memory, cache = device
    layers, slots = random_layers(), np.array([0, 1, 1, 2])
    exact, flag = embed(device, ResNet34Kernels(gpu, memory, layers, float32_choice(), cache), features, slots)
    assert flag == 0
    for choice in (default_choice(gpu), portable_choice(), float32_choice(True)):
        got, flag = embed(device, ResNet34Kernels(gpu, memory, layers, choice, cache), features, slots)
        assert flag == 0
        # The clustering tolerates 3e-3; measured: 4e-4 on random weights.
        assert np.linalg.norm(got - exact) / np.linalg.norm(exact) < 1.5e-3


def test_a_window_alone_gives_the_same_bytes(device: Any, features: np.ndarray) -> None:
    gpu, memory, cache = device
    kernels = ResNet34Kernels(gpu, memory, random_layers(), default_choice(gpu), cache)
    together, _ = embed(device, kernels, features, np.array([0, 1, 2, 2]))
    for window in range(3):
        alone, _ = embed(device, kernels, features[window : window + 1], np.array([0]))
        assert np.array_equal(alone[0], together[window])
    assert np.array_equal(together[2], together[3])


def test_overflow_is_seen_and_float32_survives_it(device: Any, features: np.ndarray) -> None:
    gpu, memory, cache = device
    # The first layer's outputs reach 2e5, beyond 65504; its weights still fit.
    layers, slots = random_layers(gain=3e4), np.array([0, 1, 2])
    _, flag = embed(device, ResNet34Kernels(gpu, memory, layers, default_choice(gpu), cache), features, slots)
    assert flag == 1
    got, flag = embed(device, ResNet34Kernels(gpu, memory, layers, float32_choice(True), cache), features, slots)
    assert flag == 0
    assert np.isfinite(got).all()
