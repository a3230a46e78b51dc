"""A GPU whose driver does nothing: what is left of the engine is the host's work, and the checks of its arguments.

Needs the CUDA bindings for their types, no driver. Copies to the host bring zeros. Kernels are not compiled; loading
one checks that the GPU could run it.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from diarize.backend.cuda_compile import Image, KernelCache
from diarize.backend.cuda_driver import Gpu
from diarize.backend.select import Choice
from diarize.hardware import Device
from diarize.recipe_lookup import shared_memory_limit

_FREE, _ALL = 120 << 30, 140 << 30


class NullDriver:
    """Types of the bindings, functions that succeed; `calls` counts them by name."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._real = driver
        self._success = driver.CUresult.CUDA_SUCCESS
        self._next = 1 << 40
        self._blocks: dict[int, np.ndarray] = {}
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        # Functions are cuSomething, types CUsomething or cuuint64_t.
        if not (name.startswith("cu") and name[2].isupper()):
            return found
        made = self._function(name)
        setattr(self, name, made)
        return made

    def _function(self, name: str) -> Callable[..., tuple[Any, ...]]:
        gives = (self._success,) if name.startswith(_SILENT) else (self._success, 0)

        def call(*_: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            return gives

        return call

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:
        address = self._next
        self._next += -(-nbytes // 512) * 512
        return self._success, address

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, ...]:
        block = np.zeros(nbytes, np.uint8)
        self._blocks[block.ctypes.data] = block
        return self._success, block.ctypes.data

    def cuMemGetInfo(self) -> tuple[Any, ...]:
        return self._success, _FREE, _ALL

    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: Any) -> tuple[Any, ...]:
        ctypes.memset(target, 0, nbytes)
        return (self._success,)

    def cuTensorMapEncodeTiled(self, *_: Any) -> tuple[Any, ...]:
        self.calls["cuTensorMapEncodeTiled"] += 1
        return self._success, self._real.CUtensorMap()

    @property
    def launches(self) -> int:
        """Kernels launched so far."""
        return self.calls["cuLaunchKernel"] + self.calls["cuLaunchKernelEx"]


# Functions that return nothing but their code.
_SILENT = ("cuLaunchKernel", "cuMemcpy", "cuMemset", "cuMemFree", "cuCtxSet", "cuCtxSync", "cuStreamSync", "cuFuncSet")


@contextmanager
def null_gpu(capability: tuple[int, int], multiprocessors: int, name: str = "NVIDIA Null") -> Iterator[NullDriver]:
    """The only GPU of this machine, for as long as the context is open; "cuda" means it."""
    driver = NullDriver()
    device = Device("cuda", name, 0, capability, multiprocessors, _ALL, "580.0", "13.0")

    class NullGpu(Gpu):
        def __init__(self, index: int = 0) -> None:
            self.driver, self.index = driver, index
            self.handle = self.context = 0
            self.capability, self.multiprocessors, self.memory_bytes = capability, multiprocessors, _ALL

    def image(cache: KernelCache, kernel: Any, wanted: tuple[int, int]) -> Image:
        assert kernel.runs_on(wanted), f"{kernel.name} does not run on {wanted}"
        assert kernel.shared_bytes <= shared_memory_limit(wanted), f"{kernel.name} takes too much shared memory"
        return Image(kernel.name, "", "kernel", True, b"")

    def chosen(name: str) -> Choice:
        return Choice(None if name == "cpu" else device)

    def nothing(*_: Any, **__: Any) -> int:
        return 0

    with ExitStack() as stack:
        for target, attribute, value in (
            ("diarize.backend.cuda_driver", "Gpu", NullGpu),
            ("diarize.backend.cuda_build", "build", nothing),
            ("diarize.backend.cuda_networks", "build", nothing),
            ("diarize.backend.cuda_compile.KernelCache", "get", image),
            ("diarize.engine", "choose_device", chosen),
            ("diarize.pipeline", "choose_device", chosen),
            ("diarize.pipeline", "wake", nothing),
        ):
            stack.enter_context(patch(f"{target}.{attribute}", value))
        yield driver
