"""The networks of one model on one GPU: which kernels they take, and their weights, shared by all workers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..candidates import Request, Selection
from ..recipe import Key
from ..recipe_lookup import look_up
from ..registry.filterbank import KERNELS as FILTERBANK_KERNELS
from .cuda_build import build
from .cuda_campplus import CampPlusKernels
from .cuda_compile import KernelCache
from .cuda_driver import Gpu, MemoryPool
from .cuda_fbank import KERNELS as FILTERBANK
from .cuda_fbank import FilterbankKernels
from .cuda_memory import free_with
from .cuda_pyannet import PyanNetChoice, PyanNetKernels
from .cuda_resnet34 import ResNet34Kernels, TrunkChoice, float32_choice, portable_choice

if TYPE_CHECKING:
    from ..layers import Layer

GATHER = FILTERBANK_KERNELS["gather"]
MAIN_SEGMENTATION, MAIN_EMBEDDING = 320, 64
"""Windows of the batches that most of a long recording comes in."""
STEM = "conv1"
"""The first convolution; it has no kernel that reads float32 weights and writes float16 activations."""
FIRST_TF32 = (8, 0)
_HALF_MAX = float(np.finfo(np.float16).max)

Kernels = TypeVar("Kernels", PyanNetKernels, FilterbankKernels, ResNet34Kernels, CampPlusKernels)


@dataclass(frozen=True)
class ModelLayers:
    """The layers of a model: segmentation, and where the GPU embeds, the filterbank and ResNet34's trunk or CAM++."""

    segmentation: Sequence[Layer]
    filterbank: Layer | None = None
    trunk: Sequence[Layer] = ()
    campplus: Sequence[Layer] = ()

    @cached_property
    def beyond_half(self) -> tuple[str, ...]:
        """Layers of the trunk whose weights do not fit float16: looked for once, it takes milliseconds."""
        return overflowing(self.trunk)


def overflowing(layers: Sequence[Layer]) -> tuple[str, ...]:
    """Names of the convolutions with a weight beyond float16's range or not finite."""
    names = []
    for layer in layers:
        weight = layer.weights.get("weight")
        # Not above is not the same: comparisons with NaN are false.
        if weight is not None and weight.ndim == 4 and not bool((np.abs(weight) <= _HALF_MAX).all()):
            names.append(layer.id)
    return tuple(names)


def default_selection(capability: tuple[int, int]) -> Selection:
    """What is chosen for a GPU of which no more than the compute capability is known."""
    return look_up(Key(capability=capability)).selection


def trunk_choice(selection: Selection, windows: int, layers: ModelLayers, capability: tuple[int, int]) -> TrunkChoice:
    """The kernels of the trunk for a batch; layers whose weights do not fit float16 get kernels of their own."""
    if STEM in layers.beyond_half:
        return exact_choice(capability)
    own = exact_kernels(layers.beyond_half, layers.trunk, capability)
    choice = TrunkChoice.of(selection.at(windows), own)
    return replace(choice, own={**beyond_winograd(choice, layers.trunk, capability), **own})


def beyond_winograd(choice: TrunkChoice, layers: Sequence[Layer], capability: tuple[int, int]) -> dict[str, Request]:
    """Direct kernels, by layer, for those whose weights fit float16 but not as Winograd's factors."""
    from ..kernels.winograd_pack import fits_winograd

    found: dict[str, Request] = {}
    direct = portable_choice(capability)
    for layer in layers:
        unit, _, name = layer.id.rpartition(".")
        if not unit or name not in ("conv1", "conv2") or int(layer.params["stride_h"]) != 1:
            continue
        roles, instead = (choice.inner, direct.inner) if name == "conv1" else (choice.outer, direct.outer)
        weight = layer.weights["weight"]
        request = roles[weight.shape[1]]
        square = bool(request.parameters.get("square", request.factory == "conv_winograd:make_conv_winograd"))
        half = request.factory.startswith(("conv_winograd:", "conv_winograd_hopper:"))
        if half and not fits_winograd(weight, square):
            found[layer.id] = instead[weight.shape[1]]
    return found


def exact_kernels(names: Sequence[str], layers: Sequence[Layer], capability: tuple[int, int]) -> dict[str, Request]:
    """Kernels in TF32 or float32 for single layers of a trunk whose activations are stored in float16, by layer."""
    wanted = set(names)
    for name in names:
        unit, _, own = name.rpartition(".")
        # One kernel may compute a strided convolution and its shortcut: then both leave it.
        if own == "shortcut" or any(layer.id == f"{unit}.shortcut" for layer in layers if own == "conv1"):
            wanted |= {f"{unit}.conv1", f"{unit}.shortcut"}
    found = {}
    for layer in layers:
        if layer.id not in wanted:
            continue
        c_out, c_in, size, _ = layer.weights["weight"].shape
        parameters = {
            "c_in": c_in,
            "c_out": c_out,
            "stride": int(layer.params["stride_h"]),
            "tf32": capability >= FIRST_TF32,
            "residual": layer.id.endswith(".conv2"),
            "relu": not layer.id.endswith(".shortcut"),
            "storage": "half",
            "kernel_size": size,
        }
        found[layer.id] = Request("conv_f32:make_conv_f32", parameters)
    return found


def exact_choice(capability: tuple[int, int]) -> TrunkChoice:
    """The kernels for batches that leave float16's range: float32 activations, products in TF32 where there is TF32."""
    return float32_choice(tf32=capability >= FIRST_TF32)


def requests(selection: Selection, layers: ModelLayers, capability: tuple[int, int]) -> list[Request]:
    """Every kernel that a model may need before its first batch, each once."""
    wanted: list[Request] = []
    for windows in _batches(selection, "pyannet"):
        wanted += PyanNetChoice.of(selection.at(windows)).requests()
    if layers.trunk:
        wanted += [*FILTERBANK.values(), GATHER]
        for windows in _batches(selection, "resnet34"):
            wanted += trunk_choice(selection, windows, layers, capability).requests()
    if layers.campplus:
        wanted += [*FILTERBANK.values(), *campplus_kernels(selection).values()]
    return list({request.key: request for request in wanted}.values())


def _batches(selection: Selection, network: str) -> list[int]:
    """The batch sizes that a network has choices for."""
    own = (by_batch for layer, by_batch in selection.choices.items() if layer.partition(".")[0] == network)
    return sorted({batch for by_batch in own for batch in by_batch})


def campplus_kernels(selection: Selection) -> dict[str, Request]:
    """The kernel of every layer of CAM++, by the layer's name without the network's."""
    chosen = selection.at(MAIN_EMBEDDING)
    return {c.layer.partition(".")[2]: c.requests[0] for c in chosen.values() if c.layer.startswith("campplus.")}


class CudaNetworks:
    """Loaded kernels and packed weights; kernels for rare batch sizes are loaded when such a batch comes.

    Raises
    ------
    BackendError
        A kernel does not run on this GPU, or weights do not fit.
    """

    def __init__(
        self, gpu: Gpu, layers: ModelLayers, selection: Selection | None = None, cache: KernelCache | None = None
    ) -> None:
        self.gpu = gpu
        self.pool = MemoryPool(gpu)
        self.selection = selection or default_selection(gpu.capability)
        self._layers = layers
        self._cache = cache or KernelCache()
        self._lock = threading.Lock()
        self._pyannets: dict[int, PyanNetKernels] = {}
        self._trunks: dict[int, ResNet34Kernels] = {}
        self._memory = free_with(self, gpu, [self.pool])
        self._exact: ResNet34Kernels | None = None
        self.pyannet(MAIN_SEGMENTATION)
        self.filterbank: FilterbankKernels | None = None
        self.campplus: CampPlusKernels | None = None
        if layers.filterbank is not None:
            self.filterbank = FilterbankKernels(gpu, self.pool, layers.filterbank, self._cache)
        if layers.campplus:
            own = campplus_kernels(self.selection)
            self.campplus = CampPlusKernels(gpu, self.pool, layers.campplus, self._cache, own)
        if layers.trunk:
            # Packed when the first batch has come: a short recording has batches of another size.
            self.half_trunk = self._trunk_choice(MAIN_EMBEDDING).storage == "half"
            kernel = GATHER.make()
            self.gather = gpu.load(self._cache.get(kernel, gpu.capability), kernel)

    def abandon(self) -> None:
        """Leave the memory alone from now on: its context has ended."""
        self._memory.detach()

    def pyannet(self, windows: int) -> PyanNetKernels:
        """The segmentation network for batches of this size."""
        with self._lock:
            if windows not in self._pyannets:
                self._pyannets[windows] = self._make_pyannet(PyanNetChoice.of(self.selection.at(windows)))
            return self._pyannets[windows]

    def trunk(self, windows: int) -> ResNet34Kernels:
        """ResNet34 for batches of this size."""
        with self._lock:
            if windows not in self._trunks:
                self._trunks[windows] = self._make_trunk(self._trunk_choice(windows))
            return self._trunks[windows]

    def _trunk_choice(self, windows: int) -> TrunkChoice:
        return trunk_choice(self.selection, windows, self._layers, self.gpu.capability)

    def _make_pyannet(self, choice: PyanNetChoice) -> PyanNetKernels:
        for known in self._pyannets.values():
            if known.choice == choice:
                return known
        made = PyanNetKernels(self.gpu, self.pool, self._layers.segmentation, choice, self._cache)
        # Loaded now, since plans are made by several threads.
        for request in choice.recurrences.values():
            made.load(request)
        return made

    def _make_trunk(self, choice: TrunkChoice) -> ResNet34Kernels:
        for known in self._trunks.values():
            if known.choice == choice:
                return known
        return ResNet34Kernels(self.gpu, self.pool, self._layers.trunk, choice, self._cache)

    def exact(self) -> ResNet34Kernels:
        """ResNet34 with float32 activations, compiled and loaded when it is first needed."""
        if not self.half_trunk:
            return self.trunk(MAIN_EMBEDDING)
        with self._lock:
            if self._exact is None:
                choice, layers = exact_choice(self.gpu.capability), self._layers.trunk
                build(choice.requests(), self.gpu.capability, self._cache.folder)
                self._exact = ResNet34Kernels(self.gpu, self.pool, layers, choice, self._cache)
            return self._exact


def with_memory(kernels: Kernels, memory: MemoryPool) -> Kernels:
    """The same kernels and weights, whose plans take their arrays from `memory`."""
    bound = copy.copy(kernels)
    bound.memory = memory
    return bound
