"""The engine of a GPU without one: lanes made of Python that run out of memory, overflow and fail on demand."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

import numpy as np
import pytest

from diarize import engine, engine_cuda
from diarize.analysis import StretchResult
from diarize.backend.cuda_driver import OutOfMemoryError
from diarize.backend.cuda_lane import Limits, even_parts
from diarize.backend.select import Choice
from diarize.cuda_embeddings import embed_slots
from diarize.engine_cuda import CudaEngine, Session
from diarize.errors import BackendError
from diarize.hardware import Device
from diarize.model.weights import load_model
from diarize.stretches import Stretch

GPU = Device("cuda", "fake", 0, (9, 0))
STRETCH = Stretch(0, 3, np.zeros(160_000 + 2 * 16_000, np.float32))


class FakeLane:
    """Says class 1 everywhere, and embeddings of ones; windows from `too_large` on do not fit."""

    def __init__(self, windows: int = 8, too_large: int = 99, fault: Callable[[], None] = lambda: None):
        self.limits = Limits(windows, windows)
        self.too_large, self.fault = too_large, fault
        self.flagged, self.beyond = np.zeros(3, bool), np.zeros(3, bool)
        self.segmented = 0
        self.held = False

    def segment(self, samples: np.ndarray, num_windows: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        self.fault()
        if self.limits.segmentation >= self.too_large:
            raise OutOfMemoryError("out of memory")
        self.segmented += 1
        self.held = True
        return np.ones((num_windows, 589), np.uint8), self.flagged[:num_windows]

    def embed(self, active: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.limits.embedding >= self.too_large:
            raise OutOfMemoryError("out of memory")
        assert self.held
        found = np.where(active[:, :, None], np.ones(256), np.nan).astype(np.float32)
        return found, self.beyond[: len(active)]

    def shrink(self) -> bool:
        smaller = self.limits.halved()
        self.held = False
        if smaller == self.limits:
            return False
        self.limits = smaller
        return True

    def abandon(self) -> None:
        self.abandoned = True

    peak_bytes = 10


class CpuSegmenter:
    """Says class 2."""

    def classes(self, samples: np.ndarray, num_windows: int, step_samples: int) -> np.ndarray:
        assert len(samples) >= 160_000
        return np.full((num_windows, 589), 2, np.uint8)


class CpuEmbedder:
    """Says embeddings of fives."""

    def embed(self, samples: np.ndarray, num_windows: int, step_samples: int, masks: np.ndarray) -> np.ndarray:
        assert masks.shape == (num_windows, 3, 589)
        return np.full((num_windows, 3, 256), 5.0, np.float32)


class CpuEngine:
    """Says class 3."""

    def analyse(self, stretch: Stretch, step_samples: int) -> StretchResult:
        count = stretch.num_windows
        return StretchResult(0, np.full((count, 589), 3, np.uint8), np.ones((count, 3, 256), np.float32), 0.0, 0.0)


def engine_of(*lanes: FakeLane, later: FakeLane | None = None, restarts: bool = True) -> CudaEngine:
    sessions = iter([lanes, (later or FakeLane(),)] if restarts else [lanes])

    def start() -> Session:
        own = next(sessions, None)
        if own is None:
            raise BackendError("CUDA driver error CUDA_ERROR_ILLEGAL_ADDRESS (700)")
        waiting: queue.LifoQueue = queue.LifoQueue()
        for lane in own:
            waiting.put(lane)
        return Session(waiting, list(own), lambda: 5)

    return CudaEngine(GPU, start, CpuSegmenter, CpuEmbedder, CpuEngine, embed_slots, 256)  # type: ignore[arg-type]


def broken() -> None:
    raise BackendError("CUDA driver error CUDA_ERROR_ILLEGAL_ADDRESS (700)")


def test_a_stretch() -> None:
    engine = engine_of(FakeLane(), FakeLane())
    result = engine.analyse(STRETCH, 16_000)
    assert (result.classes == 1).all()
    assert np.isfinite(result.embeddings[:, 0]).all()
    assert np.isnan(result.embeddings[:, 1:]).all()
    assert engine.workers == 2
    assert engine.peak_device_bytes() == 25


def test_out_of_memory_goes_on_with_smaller_batches_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    lane = FakeLane(windows=8, too_large=3)
    with caplog.at_level(logging.WARNING, "diarize"):
        engine_of(lane).analyse(STRETCH, 16_000)
    assert lane.limits == Limits(2, 2)
    assert "out of memory: going on with batches of half the size" in caplog.text


def test_memory_for_not_even_one_window() -> None:
    engine = engine_of(FakeLane(too_large=1))
    with pytest.raises(OutOfMemoryError, match="cuda:0 has not enough free memory for one window"):
        engine.analyse(STRETCH, 16_000)


def test_embedding_out_of_memory_uploads_the_stretch_again() -> None:
    lane = FakeLane()
    lane.limits = Limits(1, 8)
    lane.too_large = 5
    engine_of(lane).analyse(STRETCH, 16_000)
    assert lane.limits == Limits(1, 4)
    assert lane.segmented == 2


def test_scores_that_are_not_finite_are_computed_on_the_cpu() -> None:
    lane = FakeLane()
    lane.flagged[1] = True
    result = engine_of(lane).analyse(STRETCH, 16_000)
    assert result.classes[:, 0].tolist() == [1, 2, 1]


def test_embeddings_beyond_every_range_are_computed_on_the_cpu() -> None:
    lane = FakeLane()
    lane.beyond[2] = True
    result = engine_of(lane).analyse(STRETCH, 16_000)
    assert result.embeddings[:, 0, 0].tolist() == [1, 1, 5]


def test_a_failed_gpu_is_started_again() -> None:
    lane = FakeLane(fault=broken)
    engine = engine_of(lane)
    assert (engine.analyse(STRETCH, 16_000).classes == 1).all()
    assert lane.abandoned
    # The new session stays.
    engine.analyse(STRETCH, 16_000)


def test_a_stretch_that_always_fails_is_computed_on_the_cpu() -> None:
    lane = FakeLane(fault=broken)
    engine = engine_of(FakeLane(fault=broken), later=lane)
    assert (engine.analyse(STRETCH, 16_000).classes == 3).all()
    assert not engine._lost


def test_a_gpu_that_cannot_be_started_again_leaves_the_rest_to_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    lane = FakeLane(fault=broken)
    engine = engine_of(lane, restarts=False)
    with caplog.at_level(logging.WARNING, "diarize"):
        results = [engine.analyse(STRETCH, 16_000) for _ in range(3)]
    assert all((result.classes == 3).all() for result in results)
    assert caplog.text.count("cannot be started again: the CPU computes the rest") == 1
    assert engine.peak_device_bytes() == 15


def test_lanes_take_turns() -> None:
    active = threading.Semaphore(1)

    def alone() -> None:
        assert active.acquire(blocking=False)
        threading.Event().wait(0.01)
        active.release()

    engine = engine_of(FakeLane(fault=alone))
    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(engine.analyse(STRETCH, 16_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4


@pytest.mark.parametrize(("count", "most"), [(1, 1), (1, 64), (64, 64), (65, 64), (291, 64), (7, 3)])
def test_parts_are_even_and_whole(count: int, most: int) -> None:
    parts = even_parts(count, most)
    sizes = [size for _, size in parts]
    assert sum(sizes) == count
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
    assert [first for first, _ in parts] == [sum(sizes[:i]) for i in range(len(sizes))]


def test_automatic_goes_on_with_the_cpu_where_the_gpu_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_cuda(*arguments: object) -> None:
        raise OutOfMemoryError("CUDA driver error CUDA_ERROR_OUT_OF_MEMORY (2)")

    monkeypatch.setattr(engine, "choose_device", lambda name: Choice(GPU, ("device cuda:0, fake (automatic)",)))
    monkeypatch.setattr(engine_cuda, "open_cuda", open_cuda)
    weights = load_model("campplus")
    opened = engine.open_engine("auto", weights)
    assert str(opened.device) == "cpu"
    assert opened.notes == (
        "device cpu (automatic: cuda:0 cannot be used: CUDA driver error CUDA_ERROR_OUT_OF_MEMORY (2))",
    )
    with pytest.raises(OutOfMemoryError):
        engine.open_engine("cuda", weights)
