# ruff: noqa: E402 (the imports need numba-cuda or a path that is set first)
"""What compute capability 7.5 gets, run on any newer GPU: kernels compiled and rewritten for 7.5, assembled for it.

The instructions that replace those of 8.0 exist on newer GPUs too, so that only the assembler's target differs.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.cuda
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'diarize-cuda[cuda]'")

from kernels.cuda_cases import Case, error, run_on_gpu
from kernels.test_cuda_device import convolutions, embed, random_layers

from diarize import registry
from diarize.backend.cuda_campplus import CampPlusKernels, columns_for, portable_kernels
from diarize.backend.cuda_compile import Image, KernelCache, assemble, cache_key, compile_ptx, read_image, write_image
from diarize.backend.cuda_driver import Gpu, MemoryPool
from diarize.backend.cuda_fbank import FilterbankKernels
from diarize.backend.cuda_pyannet import PyanNetChoice, PyanNetKernels, portable_choice
from diarize.backend.cuda_resnet34 import ResNet34Kernels, TrunkChoice, float32_choice
from diarize.errors import BackendError
from diarize.framing import WINDOW_SAMPLES
from diarize.layers import Layer, Op
from diarize.model.campplus import campplus_layers
from diarize.model.fbank import analysis_window, mel_filters
from diarize.model.segmentation import segmentation_layers
from diarize.model.weights import load_campplus, load_segmentation

TURING = (7, 5)
SELECTION = registry.portable(TURING)
SIZES = [(1, 1), (3, 61), (9, 64), (11, 127)]


class LoweredCache(KernelCache):
    """Compiled kernels for 7.5, assembled for the GPU at hand."""

    def get(self, kernel: Any, capability: tuple[int, int]) -> Image:
        """The kernel, from disk if it is there."""
        target = f"sm_{capability[0]}{capability[1]}"
        path = self.folder / "lowered" / f"{kernel.name}-{cache_key(kernel, target)}.kernel"
        image = read_image(path)
        if image is None:
            ptx, count = re.subn(r"(?m)^\.target sm_75$", f".target {target}", compile_ptx(kernel, TURING))
            assert count == 1
            assert not re.search(r"m16n8k16|cp\.async|f16x2\.f32|NaN", ptx)
            image = assemble(kernel.name, ptx, target)
            write_image(path, image)
        return image


@pytest.fixture(scope="module")
def device() -> tuple[Gpu, MemoryPool, LoweredCache]:
    try:
        gpu = Gpu()
    except BackendError as problem:
        pytest.skip(str(problem))
    return gpu, MemoryPool(gpu), LoweredCache()


@pytest.mark.parametrize(
    "request_", convolutions(TrunkChoice.of(SELECTION.at(1))), ids=lambda request: request.make().kernel.name
)
def test_convolution_on_odd_sizes(request_: Any, device: Any) -> None:
    gpu, memory, cache = device
    for height, width in SIZES:
        errors, flag = run_on_gpu(Case(f"{height}x{width}", request_, 2, height, width), gpu, memory, cache)
        # Rounding of a float16 result: 2^-11 / sqrt(3) = 2.8e-4.
        assert all(value < 6e-4 for value in errors), (height, width, errors)
        assert flag == 0
    case = Case("overflow", request_, 2, 6, 40, overflow=True)
    assert run_on_gpu(case, gpu, memory, cache)[1] == 1


def test_embeddings_agree_with_float32(device: Any) -> None:
    gpu, memory, cache = device
    features = (4.0 * np.random.default_rng(4).standard_normal((3, 998, 80)) - 8.0).astype(np.float32)
    layers, slots = random_layers(), np.array([0, 1, 1, 2])
    exact, _ = embed(device, ResNet34Kernels(gpu, memory, layers, float32_choice()), features, slots)
    choice = TrunkChoice.of(SELECTION.at(1))
    got, flag = embed(device, ResNet34Kernels(gpu, memory, layers, choice, cache), features, slots)
    assert flag == 0
    assert error(got, exact) < 1.5e-3


@pytest.mark.parametrize(("windows", "step"), [(1, 16000), (9, 8000)])
def test_segmentation_agrees_with_the_ordinary_kernels(device: Any, windows: int, step: int) -> None:
    gpu, memory, cache = device
    rng = np.random.default_rng(windows)
    count = (windows - 1) * step + WINDOW_SAMPLES
    loud = np.repeat(rng.random(count // 8000 + 1) < 0.7, 8000)[:count]
    tone = sum(np.sin(0.05 * k * np.arange(count)) / k for k in range(1, 20))
    samples = (0.05 * tone * loud + 0.001 * rng.standard_normal(count)).astype(np.float32)
    layers, stream = segmentation_layers(load_segmentation()), gpu.stream()
    choices = {"ordinary": (portable_choice(), None), "lowered": (PyanNetChoice.of(SELECTION.at(1)), cache)}
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, (choice, own) in choices.items():
        plan = PyanNetKernels(gpu, memory, layers, choice, own).plan(windows, step)
        gpu.driver.cuMemcpyHtoD(plan.samples.address, samples.ctypes.data, samples.nbytes)
        plan.run(stream)
        stream.synchronize()
        assert int(memory.get(plan.flag)[0]) == 0
        # Not what lies between LSTM layers: a pair's halves may differ where their sum does not.
        found[name] = {key: memory.get(plan.outputs[key]) for key in ("sinc", "sinc_pool", "conv1", "conv2")}
        found[name]["classes"] = memory.get(plan.classes)
        hidden = memory.get(plan.outputs["lstm"])[: 589 * plan.padded].reshape(589, plan.padded, 2, 256)
        found[name]["lstm"] = hidden[:, :windows].astype(np.float64).sum(2)
        plan.close()
    ordinary, lowered = found["ordinary"], found["lowered"]
    assert (ordinary.pop("classes") == lowered.pop("classes")).all()
    errors = {key: error(lowered[key], ordinary[key]) for key in ordinary}
    # Pairs of float16 hold 22 bits; sums are made in another order.
    assert max(errors.values()) < 1e-5, errors


def test_filterbank_equals_the_ordinary_kernels(device: Any) -> None:
    gpu, memory, cache = device
    samples = np.random.default_rng(1).standard_normal(13 * 16000).astype(np.float32)
    tables = {"window": (analysis_window("povey") * 32768).astype(np.float32), "mel": mel_filters().astype(np.float32)}
    layer, stream = Layer("fbank", Op.LOG_MEL, tables, {"floor": 1.1920929e-07}), gpu.stream()
    features = []
    for own in (None, cache):
        plan = FilterbankKernels(gpu, memory, layer, own).plan(memory.put(samples), 4, 16000)
        plan.run(stream)
        stream.synchronize()
        features.append(memory.get(plan.features))
        plan.close()
    assert error(features[1], features[0]) < 1e-6


def test_campplus_agrees_with_the_ordinary_kernels(device: Any) -> None:
    gpu, memory, cache = device
    lengths = (20, 21, 99, 200, 401, 998)
    rng = np.random.default_rng(4)
    features = (5 + 1.2 * rng.standard_normal((1200, 80))).astype(np.float32)
    frames = [np.sort(rng.choice(1200, n, replace=False)).astype(np.int32) for n in lengths]
    layers, stream = campplus_layers(load_campplus()), gpu.stream()
    found = []
    for kernels, own in ((portable_kernels(), None), (portable_kernels(TURING), cache)):
        made = CampPlusKernels(gpu, memory, layers, own, kernels)
        plan = made.plan(memory.put(features), columns_for(lengths), len(lengths))
        plan.load(frames)
        plan.run(stream)
        stream.synchronize()
        assert int(memory.get(plan.flag)[0]) == 0
        found.append(memory.get(plan.embeddings)[: len(lengths)])
        plan.close()
    assert np.isfinite(found[0]).all()
    # Bottlenecks are rounded to float16: a sum that differs in its last bit may round the other way.
    assert error(found[1], found[0]) < 1e-3
