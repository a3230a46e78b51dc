"""The segmentation network, the filterbank and CAM++ on a real GPU against the CPU backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diarize.backend.cpu import CpuBackend
from diarize.errors import BackendError
from diarize.framing import WINDOW_SAMPLES
from diarize.layers import Layer, Op
from diarize.model.campplus import CampPlusEmbedder, campplus_layers
from diarize.model.fbank import Filterbank, analysis_window, mel_filters
from diarize.model.segmentation import SegmentationNetwork, segmentation_layers
from diarize.model.weights import load_campplus, load_segmentation

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def device() -> tuple[Any, Any, Any]:
    """GPU, memory and stream; skipped without them."""
    from diarize.backend.cuda_driver import Gpu, MemoryPool

    try:
        gpu = Gpu()
    except BackendError as error:
        pytest.skip(f"no GPU: {error}")
    return gpu, MemoryPool(gpu), gpu.stream()


def speech(seconds: float, seed: int = 0) -> np.ndarray:
    """Noise in bursts, shaped like voices: some harmonics, some silence."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * 16000)) / 16000
    pitch = 120 + 60 * np.repeat(rng.random(int(seconds * 2) + 2), 8000)[: t.size]
    voice = sum(np.sin(2 * np.pi * k * np.cumsum(pitch) / 16000) / k for k in range(1, 20))
    loud = np.repeat(rng.random(int(seconds * 2) + 2) < 0.7, 8000)[: t.size]
    return (0.05 * voice * loud + 0.001 * rng.standard_normal(t.size)).astype(np.float32)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize(("windows", "step"), [(1, 16000), (7, 16000), (9, 8000), (17, 32000)])
def test_classes_equal_the_cpu(device: tuple[Any, Any, Any], windows: int, step: int, portable: bool) -> None:
    from diarize.backend.cuda_pyannet import PyanNetKernels, hopper_choice, portable_choice

    gpu, memory, stream = device
    samples = speech(((windows - 1) * step + WINDOW_SAMPLES) / 16000)
    weights = load_segmentation()
    expected = SegmentationNetwork(weights, CpuBackend()).classes(samples, windows, step)
    choice = portable_choice() if portable or gpu.capability != (9, 0) else hopper_choice()
    plan = PyanNetKernels(gpu, memory, segmentation_layers(weights), choice).plan(windows, step)
    memory.gpu.driver.cuMemcpyHtoD(plan.samples.address, samples.ctypes.data, samples.nbytes)
    plan.run(stream)
    stream.synchronize()
    assert int(memory.get(plan.flag)[0]) == 0
    # At most one frame in 50,000, so none in these.
    assert int((memory.get(plan.classes) != expected).sum()) == 0
    plan.close()


@pytest.mark.parametrize("name", ["hamming", "povey"])
def test_filterbank_equals_the_cpu(device: tuple[Any, Any, Any], name: str) -> None:
    from diarize.backend.cuda_fbank import FilterbankKernels

    gpu, memory, stream = device
    samples = speech(13)
    tables = {"window": (analysis_window(name) * 32768).astype(np.float32), "mel": mel_filters().astype(np.float32)}
    layer = Layer("fbank", Op.LOG_MEL, tables, {"floor": 1.1920929e-07})
    plan = FilterbankKernels(gpu, memory, layer).plan(memory.put(samples), 4, 16000)
    plan.run(stream)
    stream.synchronize()
    expected = Filterbank(name).features(samples)
    features = memory.get(plan.features)
    assert np.abs(features - expected[: len(features)]).max() < 1e-3
    means = np.stack([expected[100 * i : 100 * i + 998].mean(0, dtype=np.float64) for i in range(4)])
    assert np.abs(memory.get(plan.mean) - means).max() < 1e-4
    plan.close()


def test_embeddings_of_a_ragged_batch_equal_the_cpu(device: tuple[Any, Any, Any]) -> None:
    from diarize.backend.cuda_campplus import CampPlusKernels, columns_for

    gpu, memory, stream = device
    lengths = (20, 21, 99, 200, 201, 401, 998)
    rng = np.random.default_rng(4)
    smooth = rng.standard_normal((1204, 80))
    features = (5 + 1.2 * sum(smooth[i : 1200 + i] for i in range(5))).astype(np.float32)
    frames = [np.sort(rng.choice(1200, n, replace=False)).astype(np.int32) for n in lengths]
    weights = load_campplus()
    plan = CampPlusKernels(gpu, memory, campplus_layers(weights)).plan(
        memory.put(features), columns_for(lengths), len(lengths)
    )
    plan.load(frames)
    plan.run(stream)
    stream.synchronize()
    assert int(memory.get(plan.flag)[0]) == 0
    embedder = CampPlusEmbedder(weights, CpuBackend())
    expected = np.stack([embedder.embed_features(features[f]) for f in frames])
    got = memory.get(plan.embeddings)
    error = np.linalg.norm(got - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < 3e-3
    # A sequence alone gives the same bytes.
    plan.load(frames[3:4])
    plan.run(stream)
    stream.synchronize()
    assert (memory.get(plan.embeddings)[0] == got[3]).all()
    plan.close()
