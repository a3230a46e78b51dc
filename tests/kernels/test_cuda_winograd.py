"""Winograd convolutions: weights against float64, simulator, offline compilation, and a GPU (`-m cuda`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda_support import assert_clean, needs_numba_cuda, simulate, slow
from kernels.cuda_cases import Case, conv2d, error, run_on_gpu
from kernels.winograd_cases import HOPPER, QUICK, SLOW, hopper_problem, winograd, winograd_f32

from diarize.candidates import Request
from diarize.errors import BackendError
from diarize.kernels.winograd_pack import (
    WarpTile,
    fits_winograd,
    pack_winograd,
    pack_winograd_f32,
    transform_weight,
)
from diarize.registry import candidates

B = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
A = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
# Rounding of a float16 result is 2.8e-4 at most; rounded inputs and weights of sixteen products add about as much.
TOLERANCE = {"fp16": 8e-4, "fp32": 2e-6}


def hopper(channels: int, **parameters: Any) -> Request:
    """A float16 kernel of compute capability 9.0."""
    values = {"c_in": channels, "c_out": channels, **parameters}
    return Request("conv_winograd_hopper:make_conv_winograd_hopper", values)


# Every kernel that may be chosen for a layer with a residual; those of one architecture are launched in another way.
REGISTERED = [
    candidate.requests[0]
    for candidate in candidates("resnet34")
    if candidate.layer.endswith(".conv2") and candidate.name.startswith("winograd")
]
PORTABLE = [request for request in REGISTERED if not request.factory.startswith("conv_winograd_hopper:")]


def registered(channels: int, square: bool) -> Request:
    """The first registered float16 kernel of a form."""
    return next(
        r
        for r in REGISTERED
        if r.factory.startswith("conv_winograd:")
        and r.parameters["c_in"] == channels
        and r.parameters.get("square", True) == square
    )


def label(value: Any) -> str:
    return value.make().kernel.name if isinstance(value, Request) else str(value).replace(" ", "")


class TestWeights:
    def test_transforms_reproduce_a_convolution(self) -> None:
        rng = np.random.default_rng(0)
        weight, tile = rng.standard_normal((5, 3, 3, 3)), rng.standard_normal((1, 4, 4, 3))
        wanted = conv2d(tile, weight)[0, 1:3, 1:3]
        inputs = np.einsum("ia,jb,abc->cij", B, B, tile[0])
        sums = np.einsum("cij,ocij->oij", inputs, transform_weight(weight))
        assert np.allclose(np.einsum("ia,jb,oab->ijo", A, A, sums), wanted, atol=1e-12)
        lines = np.einsum("jb,abc->caj", B, tile[0])
        rows = [np.einsum("caj,ocaj->oj", lines[:, i : i + 3], transform_weight(weight, False)) for i in range(2)]
        assert np.allclose(np.einsum("jb,iob->ijo", A, np.stack(rows)), wanted, atol=1e-12)

    @pytest.mark.parametrize(("square", "warp_n"), [(True, 16), (True, 32), (False, 32)])
    def test_packed_weights_lie_where_the_lanes_read(self, square: bool, warp_n: int) -> None:
        rng = np.random.default_rng(1)
        weight = rng.standard_normal((128, 64, 3, 3)).astype(np.float32)
        factors = transform_weight(weight, square).reshape(128, 64, -1)
        count = factors.shape[2]
        packed = pack_winograd(weight, square, 64, 32, warp_n).reshape(2, 2, 2, count, 4, 32, 2, 4)
        for part, group, step, f, n16, lane, block, i in rng.integers(0, packed.shape, (300, 8)):
            q, g = lane % 4, lane // 4
            row = 32 * part + 16 * step + 2 * q + (0, 1, 8, 9)[i]
            number = (n16 * 2 + block) % (warp_n // 8)
            # The thread that holds column g after the product, and which of its adjacent channels this is.
            first = 64 * group + n16 * 16 // warp_n * warp_n
            column = first + (g // 2) * (warp_n // 4) + 2 * number + g % 2
            assert packed[part, group, step, f, n16, lane, block, i] == np.float16(factors[column, row, f])

    def test_float32_weights(self) -> None:
        weight = np.random.default_rng(2).standard_normal((64, 8, 3, 3)).astype(np.float32)
        packed = pack_winograd_f32(weight, 32).reshape(2, 8, 16, 32)
        expected = transform_weight(weight).reshape(2, 32, 8, 16).astype(np.float32)
        assert np.array_equal(packed, expected.transpose(0, 2, 3, 1))

    def test_factors_beyond_half_are_refused(self) -> None:
        weight = np.full((32, 16, 3, 3), 14000.0, np.float32)
        # 9 / 4 of the weight: 31,500 fits, but 33,750 does not; along one axis the factor is 3 / 2.
        assert fits_winograd(weight)
        assert not fits_winograd(weight * (15 / 14))
        assert fits_winograd(weight * (15 / 14), square=False)
        with pytest.raises(ValueError, match="float16's range"):
            pack_winograd(weight * (15 / 14), True, 32, 16, 16)
        weight[3, 2, 1, 1] = np.nan
        assert not fits_winograd(weight)

    def test_every_sum_has_a_place_of_its_own(self) -> None:
        for tile in (WarpTile(True, 2, 1, 2), WarpTile(True, 1, 2, 4), WarpTile(False, 4, 1, 4)):
            shape = (tile.rows, tile.columns, tile.positions, tile.blocks)
            places = {tile.sum_index(*index) + e for index in np.ndindex(shape) for e in range(2)}
            assert places == set(range(tile.accumulators))


def check(name: str, speed: str, tolerance: float, overflow: bool = False) -> None:
    row = simulate("winograd_cases.py", speed)[name]
    assert row["flag"] == int(overflow)
    assert overflow or row["error"] < tolerance


def with_speed(quick: list[Any], others: list[Any]) -> list[Any]:
    """Parameters of a test with the run that they are in."""
    return [*((one, "quick") for one in quick), *(pytest.param(one, "slow", marks=slow) for one in others)]


@needs_numba_cuda
@pytest.mark.parametrize(("case", "speed"), with_speed(QUICK, SLOW), ids=lambda v: getattr(v, "name", v))
def test_kernel_agrees_with_numpy(case: Case, speed: str) -> None:
    check(case.name, speed, TOLERANCE[case.request.make().precision], case.overflow)


@needs_numba_cuda
@pytest.mark.parametrize(("name", "speed"), with_speed([HOPPER[0][0]], [row[0] for row in HOPPER[1:]]))
def test_hopper_kernel_agrees_with_numpy(name: str, speed: str) -> None:
    check(name, speed, TOLERANCE["fp16"])


@needs_numba_cuda
def test_a_transform_beyond_half_raises_the_flag() -> None:
    row = simulate("winograd_cases.py")["beyond half"]
    assert row["largest"] < 1000.0
    assert row["flag"] == 1


@needs_numba_cuda
@pytest.mark.parametrize(
    ("request_", "capability"),
    [
        (registered(64, True), (8, 0)),
        (registered(64, False), (9, 0)),
        pytest.param(winograd_f32(32, 32, residual=True), (7, 5), marks=slow),
        (hopper(128, residual=True), (9, 0)),
    ],
    ids=label,
)
def test_default_kernels_do_not_spill(request_: Request, capability: tuple[int, int]) -> None:
    assert_clean(request_, capability)


@needs_numba_cuda
@slow
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)], ids=label)
@pytest.mark.parametrize("request_", REGISTERED, ids=label)
def test_every_candidate_compiles(request_: Request, capability: tuple[int, int]) -> None:
    if not request_.make().kernel.runs_on(capability):
        pytest.skip("the kernel does not claim this capability")
    assert_clean(request_, capability)


def test_candidates_fit_the_smallest_shared_memory() -> None:
    # 99 KB is what compute capability 8.6, 8.9 and 12.0 give a block, 48 KB what every GPU gives without asking.
    for request in PORTABLE:
        made = request.make()
        assert made.kernel.shared_bytes <= (99 if made.precision == "fp16" else 48) * 1024


def test_names_of_configurations_differ() -> None:
    names = [request.make().kernel.name for request in REGISTERED]
    names += [winograd(64, 64, **changed).make().kernel.name for changed in ({}, {"stages": 2}, {"relu": False})]
    assert len(set(names)) == len(names)


@pytest.fixture(scope="module")
def device() -> Any:
    from diarize.backend.cuda_build import build
    from diarize.backend.cuda_compile import KernelCache
    from diarize.backend.cuda_driver import Gpu, MemoryPool

    try:
        gpu = Gpu()
    except BackendError as error:
        pytest.skip(str(error))
    build([r for r in PORTABLE if r.make().kernel.runs_on(gpu.capability)], gpu.capability)
    return gpu, MemoryPool(gpu), KernelCache()


@pytest.mark.cuda
@pytest.mark.parametrize("request_", PORTABLE, ids=label)
def test_on_odd_sizes(request_: Request, device: Any) -> None:
    made = request_.make()
    if not made.kernel.runs_on(device[0].capability):
        pytest.skip("the kernel does not claim this GPU")
    for height, width in [(1, 1), (2, 2), (3, 61), (5, 63), (9, 64), (7, 65), (11, 127), (13, 131)]:
        errors, flag = run_on_gpu(Case(f"{height}x{width}", request_, 3, height, width), *device)
        assert errors[0] < TOLERANCE[made.precision], (height, width)
        assert flag == 0


@pytest.mark.cuda
@pytest.mark.parametrize("square", [True, False])
def test_planted_overflow_raises_the_flag(square: bool, device: Any) -> None:
    case = Case("overflow", registered(64, square), 2, 6, 40, overflow=True)
    assert run_on_gpu(case, *device)[1] == 1
    assert run_on_gpu(replace(case, overflow=False), *device)[1] == 0


@pytest.mark.cuda
@pytest.mark.parametrize("request_", [hopper(64, residual=True, stages=4), hopper(128)], ids=label)
def test_hopper_kernel_on_odd_sizes(request_: Request, device: Any) -> None:
    gpu, memory, cache = device
    conv = request_.make()
    if not conv.kernel.runs_on(gpu.capability):
        pytest.skip("the kernel does not claim this GPU")
    loaded = gpu.load(cache.get(conv.kernel, gpu.capability), conv.kernel)
    for size in [(3, 1, 1), (3, 3, 61), (2, 9, 64), (5, 13, 131)]:
        arguments, expected = hopper_problem(conv, *size)
        values = [memory.put(a) if isinstance(a, np.ndarray) else a for a in arguments]
        stream = gpu.stream()
        loaded.bind(conv.grid(*size, gpu.multiprocessors), *values)(stream)
        stream.synchronize()
        assert error(memory.get(values[4]), expected) < TOLERANCE["fp16"], size
        assert int(memory.get(values[5])[0]) == 0
