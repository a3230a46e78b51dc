# ruff: noqa: N815 (the names are those of the driver)
"""A lane of the GPU engine on a driver that is host memory, with networks that are arithmetic.

What reaches the networks and where their results go is the same as on a GPU; the kernels have tests of their own.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

from diarize.backend.cuda_campplus import lay_out
from diarize.backend.cuda_driver import DeviceArray, Gpu, MemoryPool
from diarize.backend.cuda_lane import CudaLane, Limits

STEP = 16_000


class Code(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2


class HostDriver:
    """The driver's memory and streams; `capacity` bytes."""

    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self, capacity: int = 1 << 32) -> None:
        self.blocks: dict[int, np.ndarray] = {}
        self.capacity = capacity

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:
        if nbytes + sum(block.nbytes for block in self.blocks.values()) > self.capacity:
            return (Code.CUDA_ERROR_OUT_OF_MEMORY, 0)
        # Not zero, and as a float not a number.
        block = np.full(nbytes, 0xFF, np.uint8)
        self.blocks[block.ctypes.data] = block
        return (Code.CUDA_SUCCESS, block.ctypes.data)

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        del self.blocks[address]
        return (Code.CUDA_SUCCESS,)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, ...]:
        self.host = np.full(nbytes, 0xFF, np.uint8)
        return (Code.CUDA_SUCCESS, self.host.ctypes.data)

    def cuMemFreeHost(self, address: int) -> tuple[Any, ...]:
        return (Code.CUDA_SUCCESS,)

    def _copy(self, target: int, source: int, nbytes: int, stream: Any = None) -> tuple[Any, ...]:
        ctypes.memmove(target, source, nbytes)
        return (Code.CUDA_SUCCESS,)

    cuMemcpyHtoD = cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = _copy

    def cuMemsetD32Async(self, target: int, value: int, count: int, stream: Any) -> tuple[Any, ...]:
        ctypes.memset(target, value, 4 * count)
        return (Code.CUDA_SUCCESS,)

    def cuStreamCreate(self, flags: int) -> tuple[Any, ...]:
        return (Code.CUDA_SUCCESS, 1)

    def _nothing(self, *_: Any) -> tuple[Any, ...]:
        return (Code.CUDA_SUCCESS,)

    cuStreamSynchronize = cuCtxSetCurrent = cuCtxSynchronize = _nothing


def view(array: DeviceArray) -> np.ndarray:
    buffer = (ctypes.c_char * array.nbytes).from_address(array.address)
    return np.frombuffer(buffer, array.dtype).reshape(array.shape)


class Kernels:
    """Makes plans of `kind`, whose arrays come from `memory`."""

    def __init__(self, pool: MemoryPool, kind: type, storage: str = "") -> None:
        self.memory, self.kind = pool, kind
        self.choice = SimpleNamespace(storage=storage)
        self.sizes: list[tuple[Any, ...]] = []

    def plan(self, *arguments: Any) -> Any:
        self.sizes.append(arguments)
        return self.kind(self, *arguments)


class Segmentation:
    """The class of a frame is read off one sample; samples above 100 raise the flag."""

    def __init__(self, kernels: Kernels, windows: int, step: int) -> None:
        memory = kernels.memory
        self.windows, self.step = windows, step
        self.samples = memory.empty(((windows - 1) * step + 160_000,), np.float32)
        self.flag = memory.put(np.zeros(1, np.int32))
        self.classes = memory.empty((windows, 589), np.uint8)

    def run(self, stream: Any) -> None:
        samples = view(self.samples)
        view(self.classes)[:] = np.stack([classes_of(samples[w * self.step :]) for w in range(self.windows)])
        view(self.flag)[0] |= int(np.abs(samples).max() > 100)


class Filterbank:
    """A frame's features are 80 samples."""

    def __init__(self, kernels: Kernels, samples: DeviceArray, windows: int, step: int) -> None:
        self.samples, self.windows, self.step = samples, windows, step
        self.features = kernels.memory.empty(((windows - 1) * step // 160 + 998, 80), np.float32)
        self.mean = kernels.memory.empty((windows, 80), np.float32)

    def run(self, stream: Any) -> None:
        features = features_of(view(self.samples), len(view(self.features)))
        view(self.features)[:] = features
        view(self.mean)[:] = [features[w * self.step // 160 :][:998].mean(0) for w in range(self.windows)]


class Trunk:
    """A slot's embedding is a weighted sum of features; in float16 features above 10 raise the flag."""

    def __init__(self, kernels: Kernels, windows: int, slots: int) -> None:
        memory = kernels.memory
        self.half = kernels.choice.storage == "half"
        self.features = memory.empty((windows, 998, 80), np.float32)
        self.mean = memory.empty((windows, 80), np.float32)
        self.masks = memory.empty((slots, 125), np.float32)
        self.slot_window = memory.empty((slots,), np.int32)
        self.flag = memory.put(np.zeros(1, np.int32))
        self.embeddings = memory.empty((slots, 256), np.float32)

    def run(self, stream: Any) -> None:
        features, mean = view(self.features), view(self.mean)
        out = view(self.embeddings)
        for slot, window in enumerate(view(self.slot_window)):
            out[slot] = trunk_of(features[window], mean[window], view(self.masks)[slot])
        if self.half and np.abs(features).max() > 10:
            out[:] = np.inf
            view(self.flag)[0] |= 1


class CampPlus:
    """A sequence's embedding is the mean of its frames; NaN in the plan's own memory shows in it."""

    def __init__(self, kernels: Kernels, features: DeviceArray, columns: int, sequences: int) -> None:
        memory = kernels.memory
        self.features, self.columns, self.sequences = features, columns, sequences
        self.space = memory.empty((columns, 16), np.float32)
        self.flag = memory.put(np.zeros(1, np.int32))
        self.embeddings = memory.empty((sequences, 192), np.float32)

    def load(self, frames: list[np.ndarray], stream: Any) -> None:
        lay_out(frames, self.columns, self.sequences)
        self.frames = frames

    def run(self, stream: Any) -> None:
        features = view(self.features)
        for index, numbers in enumerate(self.frames):
            view(self.embeddings)[index] = sequence_of(features[numbers]) + view(self.space).sum()
        view(self.flag)[0] |= int(max(np.abs(features[n]).max() for n in self.frames) > 10)


def classes_of(samples: np.ndarray) -> np.ndarray:
    return (np.abs(samples[: 589 * 270 : 270]) * 1000).astype(np.int64) % 7


def features_of(samples: np.ndarray, count: int) -> np.ndarray:
    return np.stack([samples[160 * t : 160 * t + 80] for t in range(count)])


def trunk_of(features: np.ndarray, mean: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.resize(mask @ (features[::8][:125] - mean), 256)


def sequence_of(frames: np.ndarray) -> np.ndarray:
    return np.resize(frames.mean(0), 192)


def gather(features: DeviceArray, mean: DeviceArray, chosen: DeviceArray, y: DeviceArray, y_mean: DeviceArray) -> None:
    for place, window in enumerate(view(chosen)):
        view(y)[place] = view(features)[window * STEP // 160 :][:998]
        view(y_mean)[place] = view(mean)[window]


def lane_of(limits: Limits, campplus: bool = False, capacity: int = 1 << 32) -> CudaLane:
    gpu = object.__new__(Gpu)
    gpu.driver, gpu.context = HostDriver(capacity), None
    pool = MemoryPool(gpu)
    exact, segmentation = Kernels(pool, Trunk, "float"), Kernels(pool, Segmentation)
    trunk = None if campplus else Kernels(pool, Trunk, "half")
    networks = SimpleNamespace(
        gpu=gpu,
        pool=pool,
        pyannet=lambda windows: segmentation,
        filterbank=Kernels(pool, Filterbank),
        trunk=lambda windows: trunk,
        campplus=Kernels(pool, CampPlus) if campplus else None,
        half_trunk=True,
        gather=SimpleNamespace(bind=lambda grid, *values: lambda stream: gather(*values[:5])),
        exact=lambda: exact,
    )
    return CudaLane(networks, limits)  # type: ignore[arg-type]


def stretch(windows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((windows - 1) * STEP + 160_000).astype(np.float32)
