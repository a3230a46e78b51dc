"""Convolutions of the trunk on one GPU: loaded kernels with packed weights, and their launches on given arrays.

The network, the tuner and the tests bind kernels here, so a kernel is timed exactly as it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..candidates import Request
from ..errors import BackendError
from .cuda_compile import KernelCache
from .cuda_driver import DeviceArray, Gpu, Launch, LoadedKernel, MemoryPool

if TYPE_CHECKING:
    from ..layers import Layer

PARITIES = ((1, 1), (1, 0), (0, 1), (0, 0))
"""Odd or even rows and columns of the tensor maps that a strided kernel reads, in the order of its arguments."""


@dataclass
class Convolution:
    """A loaded convolution, or a block of two, with its weights on the device.

    `beside` is a strided convolution's shortcut where a kernel of its own computes it.
    """

    spec: Any
    loaded: LoadedKernel
    weight: DeviceArray
    bias: DeviceArray
    bias_shortcut: DeviceArray | None = None
    beside: Convolution | None = None

    @property
    def is_block(self) -> bool:
        """Whether it computes both convolutions of a block."""
        return not hasattr(self.spec, "stride")


@dataclass(frozen=True)
class Arrays:
    """What a convolution reads and writes: NHWC arrays and the flag (1,) int32.

    `residual` is read by those with a residual, `shortcut` written by strided ones.
    """

    x: DeviceArray
    y: DeviceArray
    flag: DeviceArray
    residual: DeviceArray | None = None
    shortcut: DeviceArray | None = None


class ConvolutionLoader:
    """Loads kernels, each once, and packs weights for them.

    `layer`s are those of `diarize.model.resnet34.resnet34_layers`; rows and columns are swapped here, since the
    kernels' rows are mel bands.

    Raises
    ------
    BackendError
        A kernel does not run on this GPU, or weights do not fit its numbers.
    """

    def __init__(
        self, gpu: Gpu, memory: MemoryPool, cache: KernelCache | None = None, early_start: bool = True
    ) -> None:
        self.gpu = gpu
        self.memory = memory
        self.early_start = early_start
        self._cache = cache or KernelCache()
        self._loaded: dict[str, tuple[Any, LoadedKernel]] = {}

    def kernel(self, request: Request) -> tuple[Any, LoadedKernel]:
        """The description and the loaded kernel of a request; equal requests share one."""
        if request.key not in self._loaded:
            made = request.make()
            kernel = getattr(made, "kernel", made)
            image = self._cache.get(kernel, self.gpu.capability)
            self._loaded[request.key] = (made, self.gpu.load(image, kernel, self.early_start))
        return self._loaded[request.key]

    def convolution(
        self, request: Request, layer: Layer, shortcut: Layer | None = None, beside: Request | None = None
    ) -> Convolution:
        """A convolution; `shortcut` is the 1x1 layer that goes with a strided one, `beside` the kernel for it alone."""
        spec, loaded = self.kernel(request)
        weight = layer.weights["weight"].transpose(0, 1, 3, 2)
        bias = self.memory.put(layer.weights["bias"])
        if shortcut is None:
            try:
                packed = spec.pack(weight)
            except ValueError as error:
                raise BackendError(f"layer {layer.id}: {error}") from error
            return Convolution(spec, loaded, self.memory.put(packed), bias)
        if spec.shortcut:
            packed = spec.pack(weight, shortcut.weights["weight"].transpose(0, 1, 3, 2))
            return Convolution(spec, loaded, self.memory.put(packed), bias, self.memory.put(shortcut.weights["bias"]))
        assert beside is not None
        own = self.strided_shortcut(beside, shortcut)
        return Convolution(spec, loaded, self.memory.put(spec.pack(weight)), bias, beside=own)

    def strided_shortcut(self, request: Request, shortcut: Layer) -> Convolution:
        """The 1x1 shortcut by a kernel of its own; one for 3x3 filters gets the weights as the centre tap."""
        spec, loaded = self.kernel(request)
        weight = shortcut.weights["weight"]
        if spec.kernel_size != 1:
            centre = np.zeros((*weight.shape[:2], 3, 3), np.float32)
            centre[:, :, 1, 1] = weight[:, :, 0, 0]
            weight = centre
        return Convolution(spec, loaded, self.memory.put(spec.pack(weight)), self.memory.put(shortcut.weights["bias"]))

    def block(self, request: Request, first: Layer, second: Layer) -> Convolution:
        """Both convolutions of a block without shortcut in one kernel."""
        from ..kernels.block32 import pack_block

        spec, loaded = self.kernel(request)
        weights = [layer.weights["weight"].transpose(0, 1, 3, 2) for layer in (first, second)]
        bias = np.concatenate([first.weights["bias"], second.weights["bias"]])
        return Convolution(spec, loaded, self.memory.put(pack_block(*weights)), self.memory.put(bias))


class Binder:
    """Makes launches on arrays of one memory; tensor maps are made once an array and box."""

    def __init__(self, memory: MemoryPool, multiprocessors: int) -> None:
        self._memory = memory
        self._multiprocessors = multiprocessors
        self._maps: dict[tuple[Any, ...], DeviceArray] = {}

    def bind(self, conv: Convolution, arrays: Arrays) -> list[Launch]:
        """The launches of a convolution: one, or two where the shortcut has a kernel of its own."""
        if conv.is_block:
            return [self._block(conv, arrays)]
        if conv.beside is not None:
            assert arrays.shortcut is not None
            own = Arrays(arrays.x, arrays.shortcut, arrays.flag)
            return [self._plain(conv, arrays), self._plain(conv.beside, own)]
        if conv.spec.shortcut:
            return [self._down(conv, arrays)]
        return [self._plain(conv, arrays) if conv.spec.box is None else self._tiled(conv, arrays)]

    def _map(
        self, source: DeviceArray, box: tuple[int, int, int], parity: tuple[int, int] | None = None
    ) -> DeviceArray:
        key = (source.address, source.shape, box, parity)
        if key not in self._maps:
            self._maps[key] = self._memory.tensor_map(source, box, parity)
        return self._maps[key]

    def _tiled(self, conv: Convolution, arrays: Arrays) -> Launch:
        spec = conv.spec
        windows, height, width, _ = arrays.x.shape
        residual = arrays.residual or arrays.x
        across, down, count = spec.tiles(windows, height, width)
        maps = (self._map(arrays.x, spec.box), self._map(residual, spec.residual_box))
        return conv.loaded.bind(
            spec.grid(windows, height, width, self._multiprocessors),
            *(*maps, conv.weight, conv.bias, residual, arrays.y, arrays.flag, height, width, across, down, count),
        )

    def _plain(self, conv: Convolution, arrays: Arrays) -> Launch:
        spec = conv.spec
        windows, height, width, _ = arrays.x.shape
        # Persistent blocks go through the tiles of all windows.
        rest = (windows, 0) if spec.persistent else spec.output_size(height, width)
        return conv.loaded.bind(
            spec.grid(windows, height, width, self._multiprocessors),
            *(
                arrays.x,
                conv.weight,
                conv.bias,
                arrays.residual or arrays.x,
                arrays.y,
                arrays.flag,
                height,
                width,
                *rest,
            ),
        )

    def _block(self, conv: Convolution, arrays: Arrays) -> Launch:
        spec = conv.spec
        windows, height, width, _ = arrays.x.shape
        rows = spec.rows(windows, height, width, self._multiprocessors)
        across, down, count = spec.tasks(windows, height, width, rows)
        values = (self._map(arrays.x, spec.box), conv.weight, conv.bias, arrays.y, arrays.flag)
        grid = spec.grid(count, self._multiprocessors)
        return conv.loaded.bind(grid, *values, height, width, across, down, count, rows)

    def _down(self, conv: Convolution, arrays: Arrays) -> Launch:
        spec = conv.spec
        windows, height, width, _ = arrays.x.shape
        rows, columns = spec.output_size(height, width)
        across, down, count = spec.tiles(windows, height, width)
        maps = [self._map(arrays.x, spec.box, parity) for parity in PARITIES]
        return conv.loaded.bind(
            spec.grid(windows, height, width, self._multiprocessors),
            *(*maps, conv.weight, conv.bias, conv.bias_shortcut, arrays.y, arrays.shortcut, arrays.flag),
            *(rows, columns, across, down, count),
        )
