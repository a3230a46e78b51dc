"""The CPU backend: a table from operation to the function that prepares it.

Buffers are plain numpy arrays, float32 and C-contiguous unless an operation says otherwise. Nothing here starts a
thread: callers split the work, and every prepared layer may run on several threads at once.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from importlib import import_module

import numpy as np

from ..cpu.memory import aligned
from ..errors import BackendError
from ..hardware import Device
from ..layers import Layer, Op
from .base import BoundLayer, Buffer

PREPARERS: Mapping[Op, str] = {
    # One line per operation: the module of diarize.cpu and its function (Layer) -> BoundLayer.
    # Names, not functions, so that a network loads and compiles only what it uses.
    Op.LINEAR: "linear:prepare_linear",
    Op.CAM_HEAD: "campplus:prepare_head",
    Op.CAM_TDNN: "campplus:prepare_tdnn",
    Op.CAM_BLOCK: "campplus:prepare_block",
    Op.CAM_TRANSIT: "campplus:prepare_transit",
    Op.STATISTICS: "campplus:prepare_statistics",
    Op.SINC: "sincnet:prepare_sinc",
    Op.SINC_POOL: "sincnet:prepare_sinc_pool",
    Op.CONV_POOL: "sincnet:prepare_conv_pool",
    Op.BILSTM: "lstm:prepare_bilstm",
    Op.LOG_MEL: "fbank:prepare_log_mel",
    Op.CONV2D: "conv:bind_conv2d",
    Op.MASKED_STATISTICS: "pooling:prepare_masked_statistics",
}


class CpuBackend:
    """Runs layers with the compiled kernels of `diarize.cpu`."""

    def __init__(self) -> None:
        self._device = Device(kind="cpu", name=_processor_name())

    @property
    def device(self) -> Device:
        """The processor."""
        return self._device

    def put(self, array: np.ndarray) -> Buffer:
        """A C-contiguous copy of `array`; float32 ones start on a cache line."""
        return aligned(array) if array.dtype == np.float32 else np.array(array, order="C")

    def get(self, buffer: Buffer) -> np.ndarray:
        """A copy of `buffer`."""
        return np.array(buffer)

    def prepare(self, layer: Layer, choice: object | None = None) -> BoundLayer:
        """Pack the weights of `layer` and return its callable; there is one way to run each operation here.

        Raises
        ------
        BackendError
            The operation has no CPU kernel, or `choice` is not None.
        """
        if choice is not None:
            raise BackendError(f"layer {layer.id}: the CPU has no candidates to choose from, got {choice!r}; give None")
        return preparer(layer.op)(layer)

    def sync(self) -> None:
        """Return at once: work is done when a layer returns."""

    def clock(self) -> Callable[[], float]:
        """Start a wall clock; the returned function gives the seconds since then."""
        start = time.perf_counter()
        return lambda: time.perf_counter() - start


def preparer(op: Op) -> Callable[[Layer], BoundLayer]:
    """The function that prepares layers of `op`.

    Raises
    ------
    BackendError
        The operation has no CPU kernel.
    """
    if op not in PREPARERS:
        raise BackendError(f"the CPU cannot run {op.value}; it runs {', '.join(sorted(o.value for o in PREPARERS))}")
    module, function = PREPARERS[op].split(":")
    prepare: Callable[[Layer], BoundLayer] = getattr(import_module(f"diarize.cpu.{module}"), function)
    return prepare


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "cpu"
