"""The filterbank on a GPU: log-mel features of a stretch of samples and their means over windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..candidates import Request
from ..errors import BackendError
from ..framing import WINDOW_SAMPLES
from ..registry import filterbank as registry
from .cuda_compile import KernelCache
from .cuda_driver import DeviceArray, Gpu, Launch, MemoryPool, Stream

if TYPE_CHECKING:
    from ..layers import Layer

FRAME_STEP = 160
MELS = 80
KERNELS: Mapping[str, Request] = {
    "fbank": registry.KERNELS["log_mel"],
    "mean": registry.KERNELS["mean"],
}
"""The kernels of the filterbank."""


class FilterbankKernels:
    """Compiled kernels and the tables of one filterbank; `layer` is the one of `diarize.model.fbank.Filterbank`.

    Raises
    ------
    BackendError
        A kernel does not run on this GPU.
    """

    def __init__(self, gpu: Gpu, pool: MemoryPool, layer: Layer, cache: KernelCache | None = None) -> None:
        from ..kernels.fbank import pack_mel, pack_twiddles

        cache = cache or KernelCache()
        self.memory = pool
        made = {name: request.make() for name, request in KERNELS.items()}
        self.loaded = {name: gpu.load(cache.get(kernel, gpu.capability), kernel) for name, kernel in made.items()}
        first, weights = pack_mel(layer.weights["mel"])
        self.widest = weights.size // MELS
        self.floor = float(layer.params["floor"])
        self.tables = [pool.put(np.asarray(layer.weights["window"], np.float32)), pool.put(pack_twiddles())]
        self.tables += [pool.put(first), pool.put(weights)]

    def plan(self, samples: DeviceArray, windows: int, step_samples: int) -> FilterbankPlan:
        """Buffers and launches for `windows` windows every `step_samples` samples of a stretch on the device."""
        return FilterbankPlan(self, samples, windows, step_samples)


class FilterbankPlan:
    """Features (frames, 80) of a stretch and means (windows, 80), both float32.

    Raises
    ------
    BackendError
        The step is no positive multiple of 160 samples.
    """

    def __init__(self, kernels: FilterbankKernels, samples: DeviceArray, windows: int, step_samples: int) -> None:
        if windows < 1 or step_samples < FRAME_STEP or step_samples % FRAME_STEP:
            raise BackendError(
                f"{windows} windows every {step_samples} samples; give at least one window and a step that is a "
                f"positive multiple of {FRAME_STEP}"
            )
        memory = kernels.memory
        self.memory = memory
        per_window = (WINDOW_SAMPLES - 400) // FRAME_STEP + 1
        step_frames = step_samples // FRAME_STEP
        frames = (windows - 1) * step_frames + per_window
        self.features = memory.empty((frames, MELS), np.float32)
        self.mean = memory.empty((windows, MELS), np.float32)
        values = (samples, *kernels.tables, self.features, frames, kernels.widest, kernels.floor)
        grid = (-(-frames // 8), 1, 1)
        self.steps: list[tuple[str, Launch]] = [("fbank", kernels.loaded["fbank"].bind(grid, *values))]
        values = (self.features, self.mean, step_frames, per_window)
        self.steps.append(("mean", kernels.loaded["mean"].bind((windows, 1, 1), *values)))

    def run(self, stream: Stream) -> None:
        """Launch both kernels."""
        for _, launch in self.steps:
            launch(stream)

    def close(self) -> None:
        """Return the buffers to the pool."""
        self.memory.free(self.features)
        self.memory.free(self.mean)
