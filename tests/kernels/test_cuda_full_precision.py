"""Float32 and TF32 convolutions: weights against loops, simulator, offline compilation, and a GPU (`-m cuda`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda_support import assert_clean

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'diarize-cuda[cuda]'")

from kernels.cuda_cases import FULL_PRECISION, FULL_PRECISION_SLOW, Case, run_on_gpu, tolerance
from kernels.test_cuda_simulator import simulate

from diarize.backend.cuda_build import build
from diarize.backend.cuda_compile import KernelCache
from diarize.candidates import Request
from diarize.errors import BackendError
from diarize.kernels.conv_f32 import make_conv_f32, pack_f32
from diarize.kernels.conv_tf32 import pack_tf32, round_tf32

CAPABILITIES = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
# (height, width) of the input: one pixel, tile - 1, tile, tile + 1 columns, primes.
SIZES = [(1, 1), (2, 2), (3, 31), (4, 32), (5, 33), (9, 64), (7, 65), (13, 131)]


def layer_requests(storage: str, tf32: bool) -> list[Request]:
    """The default kernels of every layer of the trunk."""
    shapes: list[dict[str, Any]] = [{"c_in": c, "c_out": c, "residual": True} for c in (32, 64, 128, 256)]
    for c in (32, 64, 128):
        shapes.append({"c_in": c, "c_out": 2 * c, "stride": 2})
        shapes.append({"c_in": c, "c_out": 2 * c, "stride": 2, "kernel_size": 1, "relu": False})
    return [Request("conv_f32:make_conv_f32", {**shape, "storage": storage, "tf32": tf32}) for shape in shapes]


DEFAULTS = [
    request for storage in ("float", "half") for tf32 in (False, True) for request in layer_requests(storage, tf32)
]
OTHERS = [
    replace(request, parameters={**request.parameters, **tile})
    for tile in (
        {"stages": 2, "inner": 1, "min_blocks": 2},
        {"pixels": 12, "tile_columns": 36, "min_blocks": 2},
        {"pixels": 16, "min_blocks": 3},
    )
    for request in layer_requests("float", False)[:5]
]
QUICK = [
    (layer_requests("float", False)[1], (7, 5)),
    (OTHERS[1], (8, 0)),
    (layer_requests("float", True)[0], (8, 0)),
    (layer_requests("half", True)[5], (9, 0)),
]


def label(value: Any) -> str:
    return value.make().kernel.name if isinstance(value, Request) else str(value).replace(" ", "")


class TestWeights:
    def test_tf32_rounds_to_ten_bits_ties_away_from_zero(self) -> None:
        unit = np.float32(2.0**-10)
        values = np.float32(1) + unit * np.array([0.25, 0.5, 0.75, 1.5], np.float32)
        assert np.array_equal(round_tf32(values), 1 + unit * np.array([0, 1, 1, 2], np.float32))
        assert np.array_equal(round_tf32(-values), -round_tf32(values))

    def test_float32_weights_lie_where_the_threads_read(self) -> None:
        rng = np.random.default_rng(0)
        weight = rng.standard_normal((64, 32, 3, 3)).astype(np.float32)
        packed = pack_f32(weight, 32, 8).reshape(4, 2, 8, 9, 32)
        for part, group, k, tap, n in rng.integers(0, packed.shape, (200, 5)):
            assert packed[part, group, k, tap, n] == weight[group * 32 + n, part * 8 + k, tap // 3, tap % 3]

    @pytest.mark.parametrize("half", [False, True])
    @pytest.mark.parametrize("tile_k", [16, 32])
    def test_tf32_weights_lie_where_the_lanes_read(self, half: bool, tile_k: int) -> None:
        rng = np.random.default_rng(1)
        weight = round_tf32(rng.standard_normal((64, 64, 3, 3)))
        packed = pack_tf32(weight, 32, tile_k, half).reshape(64 // tile_k, 9, 2, 32, tile_k // 4, 4)
        for part, tap, group, row, unit, i in rng.integers(0, packed.shape, (200, 6)):
            turned = unit ^ ((row & 7) if tile_k == 32 else ((row >> 1) & 3))
            # Column 2q + e of block j of a pair holds channel 4q + 2j + e.
            channel = group * 32 + row // 16 * 16 + row % 8 // 2 * 4 + row % 16 // 8 * 2 + row % 2
            k = 4 * unit + i
            # Float16 channels 2t and 2t + 1 arrive as k = t and t + 4.
            source = part * tile_k + (k // 8 * 8 + k % 4 * 2 + k % 8 // 4 if half else k)
            assert packed[part, tap, group, row, turned, i] == weight[channel, source, tap // 3, tap % 3]


@pytest.fixture(scope="module")
def simulated() -> dict[str, dict]:
    return simulate(FULL_PRECISION)


def check(case: Case, row: dict) -> None:
    assert row["flag"] == int(case.overflow)
    if not case.overflow:
        assert all(value < tolerance(case.request) for value in row["errors"])


@pytest.mark.parametrize("case", FULL_PRECISION, ids=lambda case: case.name)
def test_kernel_agrees_with_numpy(case: Case, simulated: dict[str, dict]) -> None:
    check(case, simulated[case.name])


@pytest.mark.slow
@pytest.mark.parametrize("case", FULL_PRECISION_SLOW, ids=lambda case: case.name)
def test_other_kernel_agrees_with_numpy(case: Case) -> None:
    check(case, simulate([case])[case.name])


@pytest.mark.parametrize(("request_", "capability"), QUICK, ids=label)
def test_kernels_do_not_spill(request_: Request, capability: tuple[int, int]) -> None:
    assert_clean(request_, capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES, ids=label)
@pytest.mark.parametrize("request_", [*DEFAULTS, *OTHERS], ids=label)
def test_every_kernel_compiles_where_it_claims(request_: Request, capability: tuple[int, int]) -> None:
    if request_.make().kernel.runs_on(capability):
        assert_clean(request_, capability)


@pytest.mark.parametrize("request_", DEFAULTS, ids=label)
def test_kernels_fit_the_smallest_gpu_that_they_claim(request_: Request) -> None:
    kernel = request_.make().kernel
    assert kernel.capability == ((8, 0) if request_.parameters["tf32"] else (7, 5))
    # 64 KB a block on compute capability 7.5, 99 KB on 8.6, 8.9 and 12.0.
    assert kernel.shared_bytes <= (99 if request_.parameters["tf32"] else 64) * 1024


def test_a_tile_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AssertionError):
        make_conv_f32(32, 32, warps_m=2)


@pytest.fixture(scope="module")
def device() -> tuple[Any, Any, KernelCache]:
    from diarize.backend.cuda_driver import Gpu, MemoryPool

    try:
        gpu = Gpu()
    except BackendError as error:
        pytest.skip(str(error))
    runnable = [r for r in [*DEFAULTS, *OTHERS] if r.make().kernel.runs_on(gpu.capability)]
    build(runnable, gpu.capability)
    return gpu, MemoryPool(gpu), KernelCache()


@pytest.mark.cuda
@pytest.mark.parametrize("request_", [*DEFAULTS, *OTHERS], ids=label)
def test_convolution_on_odd_sizes(request_: Request, device: Any) -> None:
    gpu, memory, cache = device
    if not request_.make().kernel.runs_on(gpu.capability):
        pytest.skip("the kernel does not claim this GPU")
    for height, width in SIZES:
        case = Case(f"{height}x{width}", request_, 3, height, width)
        errors, flag = run_on_gpu(case, gpu, memory, cache)
        assert all(value < tolerance(request_) for value in errors), (height, width, errors)
        assert flag == 0


@pytest.mark.cuda
@pytest.mark.parametrize("request_", layer_requests("half", False) + layer_requests("half", True), ids=label)
def test_planted_overflow_raises_the_flag(request_: Request, device: Any) -> None:
    gpu, memory, cache = device
    if not request_.make().kernel.runs_on(gpu.capability):
        pytest.skip("the kernel does not claim this GPU")
    case = Case("overflow", request_, 2, 6, 40, overflow=True)
    assert run_on_gpu(case, gpu, memory, cache)[1] == 1
    assert run_on_gpu(replace(case, overflow=False), gpu, memory, cache)[1] == 0


@pytest.mark.cuda
@pytest.mark.parametrize("tf32", [False, True])
def test_a_float16_trunk_with_its_ordinary_stem_and_pooling(tf32: bool, device: Any) -> None:
    from kernels.test_cuda_device import embed, random_layers

    from diarize.backend.cuda_resnet34 import ResNet34Kernels, float32_choice, portable_choice

    gpu, memory, cache = device
    if tf32 and gpu.capability < (8, 0):
        pytest.skip("TF32 needs compute capability 8.0")
    inner: dict[int, Request] = {}
    outer: dict[int, Request] = {}
    down: dict[int, Request] = {}
    shortcut: dict[int, Request] = {}
    for request in layer_requests("half", tf32):
        parameters = request.parameters
        if parameters.get("stride") != 2:
            outer[parameters["c_in"]] = request
            inner[parameters["c_in"]] = replace(request, parameters={**parameters, "residual": False})
        else:
            (shortcut if "kernel_size" in parameters else down)[parameters["c_in"]] = request
    choice = replace(portable_choice(), block={}, inner=inner, outer=outer, down=down, shortcut=shortcut)
    layers, slots = random_layers(), np.array([0, 1, 1, 2])
    features = (4.0 * np.random.default_rng(4).standard_normal((3, 998, 80)) - 8.0).astype(np.float32)
    exact, _ = embed(device, ResNet34Kernels(gpu, memory, layers, float32_choice(), cache), features, slots)
    kernels = ResNet34Kernels(gpu, memory, layers, choice, cache)
    got, flag = embed(device, kernels, features, slots)
    assert flag == 0
    # As for the float16 kernels; measured: 1.6e-4 in float32, 3.5e-4 with TF32.
    assert np.linalg.norm(got - exact) / np.linalg.norm(exact) < 1.5e-3
    alone, _ = embed(device, kernels, features[2:], np.array([0]))
    assert np.array_equal(alone[0], got[3])
