"""The networks of one model on one GPU: which kernels they take, and their weights, shared by all workers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..candidates import Request
from .cuda_build import build
from .cuda_campplus import KERNELS as CAMPPLUS
from .cuda_campplus import CampPlusKernels
from .cuda_compile import KernelCache
from .cuda_devices import HOPPER
from .cuda_driver import Gpu, MemoryPool
from .cuda_fbank import KERNELS as FILTERBANK
from .cuda_fbank import FilterbankKernels
from .cuda_memory import free_with
from .cuda_pyannet import PyanNetKernels, best_choice
from .cuda_resnet34 import ResNet34Kernels, TrunkChoice, float32_choice, hopper_choice, portable_choice

if TYPE_CHECKING:
    from ..layers import Layer

GATHER = Request("gather:make_gather", {})
_HALF_MAX = float(np.finfo(np.float16).max)

Kernels = TypeVar("Kernels", PyanNetKernels, FilterbankKernels, ResNet34Kernels, CampPlusKernels)


@dataclass(frozen=True)
class ModelLayers:
    """The layers of a model: segmentation, and where the GPU embeds, the filterbank and ResNet34's trunk or CAM++."""

    segmentation: Sequence[Layer]
    filterbank: Layer | None = None
    trunk: Sequence[Layer] = ()
    campplus: Sequence[Layer] = ()


def overflowing(layers: Sequence[Layer]) -> tuple[str, ...]:
    """Names of the convolutions with a weight beyond float16's range or not finite."""
    names = []
    for layer in layers:
        weight = layer.weights.get("weight")
        # Not above is not the same: comparisons with NaN are false.
        if weight is not None and weight.ndim == 4 and not bool((np.abs(weight) <= _HALF_MAX).all()):
            names.append(layer.id)
    return tuple(names)


def trunk_choice(capability: tuple[int, int], layers: Sequence[Layer]) -> TrunkChoice:
    """The kernels of the trunk: float16 activations unless some layer's weights do not fit."""
    if overflowing(layers):
        return exact_choice()
    return hopper_choice() if capability == HOPPER else portable_choice()


def exact_choice() -> TrunkChoice:
    """The kernels for batches that leave float16's range."""
    return float32_choice(tf32=True)


def requests(gpu: Gpu, layers: ModelLayers) -> list[Request]:
    """Every kernel that a model needs before its first batch, each once."""
    wanted = best_choice(gpu).requests()
    if layers.trunk:
        wanted += [*FILTERBANK.values(), GATHER, *trunk_choice(gpu.capability, layers.trunk).requests()]
    if layers.campplus:
        wanted += [*FILTERBANK.values(), *CAMPPLUS.values()]
    unique = {repr((r.factory, sorted(r.parameters.items()))): r for r in wanted}
    return list(unique.values())


class CudaNetworks:
    """Loaded kernels and packed weights.

    Raises
    ------
    BackendError
        A kernel does not run on this GPU, or weights do not fit.
    """

    def __init__(self, gpu: Gpu, layers: ModelLayers, cache: KernelCache | None = None) -> None:
        self.gpu = gpu
        self.pool = MemoryPool(gpu)
        self._layers = layers
        self._cache = cache or KernelCache()
        self.pyannet = PyanNetKernels(gpu, self.pool, layers.segmentation, best_choice(gpu), self._cache)
        # Loaded now, since plans are made by several threads.
        for windows in self.pyannet.choice.block_windows:
            self.pyannet.load(self.pyannet.choice.recurrence(windows))
        self.filterbank: FilterbankKernels | None = None
        self.resnet34: ResNet34Kernels | None = None
        self.campplus: CampPlusKernels | None = None
        if layers.filterbank is not None:
            self.filterbank = FilterbankKernels(gpu, self.pool, layers.filterbank, self._cache)
        if layers.campplus:
            self.campplus = CampPlusKernels(gpu, self.pool, layers.campplus, self._cache)
        if layers.trunk:
            choice = trunk_choice(gpu.capability, layers.trunk)
            self.resnet34 = ResNet34Kernels(gpu, self.pool, layers.trunk, choice, self._cache)
            kernel = GATHER.make()
            self.gather = gpu.load(self._cache.get(kernel, gpu.capability), kernel)
        self._memory = free_with(self, gpu, [self.pool])
        self._exact: ResNet34Kernels | None = None
        self._lock = threading.Lock()

    def abandon(self) -> None:
        """Leave the memory alone from now on: its context has ended."""
        self._memory.detach()

    def exact(self) -> ResNet34Kernels:
        """ResNet34 with float32 activations and TF32 products, compiled and loaded when it is first needed."""
        with self._lock:
            if self._exact is None:
                assert self.resnet34 is not None
                if self.resnet34.choice.precision == "tf32":
                    self._exact = self.resnet34
                else:
                    build(exact_choice().requests(), self.gpu.capability, self._cache.folder)
                    layers = self._layers.trunk
                    self._exact = ResNet34Kernels(self.gpu, self.pool, layers, exact_choice(), self._cache)
            return self._exact


def with_memory(kernels: Kernels, memory: MemoryPool) -> Kernels:
    """The same kernels and weights, whose plans take their arrays from `memory`."""
    bound = copy.copy(kernels)
    bound.memory = memory
    return bound
