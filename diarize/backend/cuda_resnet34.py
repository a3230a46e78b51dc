"""ResNet34 on a GPU: which kernel runs each layer, packed weights, activations, and the launches of one batch.

Activations are NHWC float16 with rows = mel and columns = time, so that tiles of 64 columns fit the long axis. The
trunk runs once a window; pooling and `seg_1` run for the active slots only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..candidates import Request
from ..errors import BackendError
from .cuda_compile import KernelCache
from .cuda_driver import DeviceArray, Gpu, Launch, LoadedKernel, MemoryPool, Stream

if TYPE_CHECKING:
    from ..layers import Layer

MELS = 80
FRAMES = 998
DIMENSION = 256
PART = 64
PARITIES = ((1, 1), (1, 0), (0, 1), (0, 0))


@dataclass(frozen=True)
class TrunkChoice:
    """The kernel of every role in the trunk; a role is the channel count, with or without residual, or the way down.

    `inner` computes the first convolution of a block, `outer` the second, which adds the residual; `down` the strided
    convolution with its shortcut, by input channels. `block` computes both convolutions of a block without shortcut in
    one kernel; where it has an entry, `inner` and `outer` serve only the blocks that change the shape. `shortcut` is
    needed where the kernels of `down` do not compute the shortcut themselves. `precision` is the activations': fp16,
    tf32 or fp32.
    """

    inner: Mapping[int, Request]
    outer: Mapping[int, Request]
    down: Mapping[int, Request]
    block: Mapping[int, Request] = field(default_factory=dict)
    shortcut: Mapping[int, Request] = field(default_factory=dict)
    precision: str = "fp16"
    stem: Request = field(default_factory=lambda: Request("stem:make_stem", {}))
    pool: Request = field(default_factory=lambda: Request("pool:make_pool", {}))

    def requests(self) -> list[Request]:
        """Every kernel that the trunk needs."""
        shared = [self.stem, self.pool, *LINEAR]
        roles = (self.inner, self.outer, self.down, self.block, self.shortcut)
        return [*(request for role in roles for request in role.values()), *shared]


LINEAR = (Request("linear:make_linear_partial", {"part": PART}), Request("linear:make_linear_total", {}))


def _roll(channels: int, **parameters: Any) -> Request:
    return Request("conv_roll:make_conv_roll", {"channels": channels, **parameters})


def _stream(channels: int, **parameters: Any) -> Request:
    return Request("conv_stream:make_conv_stream", {"c_in": channels, "c_out": channels, **parameters})


def _inline(channels: int, **parameters: Any) -> Request:
    return Request("conv_inline:make_conv_inline", {"c_in": channels, "c_out": channels, **parameters})


def _down(channels: int, **parameters: Any) -> Request:
    return Request("conv_down:make_conv_down", {"c_in": channels, **parameters})


def _mma(c_in: int, c_out: int, stride: int = 1, **parameters: Any) -> Request:
    from ..kernels.conv_mma import portable_tile

    tile = portable_tile(c_in, stride)
    return Request("conv_mma:make_conv_mma", {"c_in": c_in, "c_out": c_out, "stride": stride, **tile, **parameters})


def _f32(c_in: int, c_out: int, stride: int = 1, **parameters: Any) -> Request:
    return Request("conv_f32:make_conv_f32", {"c_in": c_in, "c_out": c_out, "stride": stride, **parameters})


def portable_choice() -> TrunkChoice:
    """Float16 kernels for compute capability 8.0 and newer; the tiles are chosen to fit, not measured on each GPU."""
    return _plain_choice(_mma, {})


def float32_choice(tf32: bool = False) -> TrunkChoice:
    """Float32 activations, with TF32 products from compute capability 8.0 on: the fallback, and the twin in tests."""
    stem, pool = Request("stem:make_stem_f32", {}), Request("pool:make_pool_f32", {})
    return replace(_plain_choice(_f32, {"tf32": tf32}), stem=stem, pool=pool, precision="tf32" if tf32 else "fp32")


def _plain_choice(make: Callable[..., Request], more: Mapping[str, Any]) -> TrunkChoice:
    return TrunkChoice(
        inner={c: make(c, c, **more) for c in (64, 128, 256)} | {32: make(32, 32, **more)},
        outer={c: make(c, c, residual=True, **more) for c in (32, 64, 128, 256)},
        down={c: make(c, 2 * c, 2, **more) for c in (32, 64, 128)},
        shortcut={c: make(c, 2 * c, 2, relu=False, **more) for c in (32, 64, 128)},
    )


def hopper_choice() -> TrunkChoice:
    """The choice measured on an H200 (compute capability 9.0)."""
    return TrunkChoice(
        inner={
            64: _roll(64),
            128: _stream(128, groups=4, stages=6),
            256: _inline(256),
        },
        outer={
            64: _roll(64, residual=True),
            128: _stream(128, groups=4, stages=6, residual=True, early=True),
            256: _inline(256, residual=True),
        },
        down={
            32: _down(32, groups=4, tile_n=64, stages=0, buffers=8),
            64: _down(64, groups=2, tile_n=128, stages=6, buffers=4),
            128: _down(128, groups=2, tile_n=128, stages=6, buffers=4),
        },
        block={32: Request("block32:make_block32", {"groups": 3})},
    )


def layers_beyond_half(layers: Sequence[Layer]) -> list[str]:
    """Ids of the layers whose weights do not fit float16: with any, the trunk must run in float32 or TF32."""
    from ..kernels.conv_pack import fits_half

    return [
        layer.id
        for layer in layers
        if layer.id != "seg_1" and "weight" in layer.weights and not fits_half(layer.weights["weight"])
    ]


@dataclass
class _Conv:
    """A loaded convolution with its weights on the device."""

    spec: Any
    loaded: LoadedKernel
    weight: DeviceArray
    bias: DeviceArray
    bias_shortcut: DeviceArray | None = None
    beside: _Conv | None = None


class ResNet34Kernels:
    """Compiled kernels and packed weights of ResNet34 on one GPU; `plan` makes the launches of a batch size.

    `layers` is what `diarize.model.resnet34.resnet34_layers` returns.

    Raises
    ------
    BackendError
        A kernel does not run on this GPU.
    """

    def __init__(
        self,
        gpu: Gpu,
        pool: MemoryPool,
        layers: Sequence[Layer],
        choice: TrunkChoice,
        cache: KernelCache | None = None,
        early_start: bool = True,
    ) -> None:
        self.gpu = gpu
        self.memory = pool
        self.choice = choice
        self._cache = cache or KernelCache()
        self.early_start = early_start
        self._loaded: dict[str, tuple[Any, LoadedKernel]] = {}
        by_id = {layer.id: layer for layer in layers}
        self.convs: list[tuple[str, _Conv]] = []
        _, self.stem = self.load(choice.stem)
        _, self.pool = self.load(choice.pool)
        (_, self.partial), (_, self.total) = (self.load(request) for request in LINEAR)
        from ..kernels.linear import pack_linear
        from ..kernels.stem import pack_stem, pack_stem_f32

        first = by_id["conv1"].weights
        pack_first = pack_stem if choice.precision == "fp16" else pack_stem_f32
        self.stem_weight = pool.put(pack_first(first["weight"].transpose(0, 1, 3, 2)))
        self.stem_bias = pool.put(first["bias"])
        self.final_weight = pool.put(pack_linear(by_id["seg_1"].weights["weight"]))
        self.final_bias = pool.put(by_id["seg_1"].weights["bias"])
        for layer in layers:
            name = layer.id
            if not name.endswith(("conv1", "conv2")) or name == "conv1":
                continue
            channels = layer.weights["weight"].shape[1]
            stride = int(layer.params["stride_h"])
            if stride == 1 and channels in choice.block and name[:-1] + "1" not in dict(self.convs):
                if name.endswith("conv2"):
                    inner = by_id[name[:-1] + "1"]
                    self.convs.append((name, self._block(choice.block[channels], inner, layer)))
                continue
            role = choice.down if stride == 2 else choice.outer if name.endswith("conv2") else choice.inner
            shortcut = by_id.get(name.replace("conv1", "shortcut")) if stride == 2 else None
            self.convs.append((name, self._conv(role[channels], layer, shortcut)))

    def load(self, request: Request) -> tuple[Any, LoadedKernel]:
        """The description and the loaded kernel of a request; equal requests share one."""
        key = repr((request.factory, sorted(request.parameters.items())))
        if key not in self._loaded:
            made = request.make()
            kernel = getattr(made, "kernel", made)
            image = self._cache.get(kernel, self.gpu.capability)
            loaded = self.gpu.load(image, kernel, self.early_start)
            self._loaded[key] = (made, loaded)
        return self._loaded[key]

    def _conv(self, request: Request, layer: Layer, shortcut: Layer | None) -> _Conv:
        spec, loaded = self.load(request)
        weight = layer.weights["weight"].transpose(0, 1, 3, 2)
        bias = self.memory.put(layer.weights["bias"])
        if shortcut is None:
            return _Conv(spec, loaded, self.memory.put(spec.pack(weight)), bias)
        if not spec.shortcut:
            return self._with_plain_shortcut(spec, loaded, weight, bias, shortcut)
        packed = spec.pack(weight, shortcut.weights["weight"].transpose(0, 1, 3, 2))
        return _Conv(spec, loaded, self.memory.put(packed), bias, self.memory.put(shortcut.weights["bias"]))

    def _with_plain_shortcut(
        self, spec: Any, loaded: LoadedKernel, weight: np.ndarray, bias: DeviceArray, shortcut: Layer
    ) -> _Conv:
        """The strided 1x1 convolution as a 3x3 one whose only tap is the centre: a launch of its own."""
        centre = np.zeros_like(weight)
        centre[:, :, 1, 1] = shortcut.weights["weight"][:, :, 0, 0]
        own, own_loaded = self.load(self.choice.shortcut[weight.shape[1]])
        beside = _Conv(own, own_loaded, self.memory.put(own.pack(centre)), self.memory.put(shortcut.weights["bias"]))
        return _Conv(spec, loaded, self.memory.put(spec.pack(weight)), bias, beside=beside)

    def _block(self, request: Request, first: Layer, second: Layer) -> _Conv:
        from ..kernels.block32 import pack_block

        spec, loaded = self.load(request)
        weights = [layer.weights["weight"].transpose(0, 1, 3, 2) for layer in (first, second)]
        bias = np.concatenate([first.weights["bias"], second.weights["bias"]])
        return _Conv(spec, loaded, self.memory.put(pack_block(*weights)), self.memory.put(bias))

    def plan(self, windows: int, slots: int) -> ResNet34Plan:
        """Buffers and launches for exactly `windows` windows and up to `slots` active slots."""
        return ResNet34Plan(self, windows, slots)


class ResNet34Plan:
    """Buffers and bound launches of one batch size.

    Inputs: `features` (windows, 998, 80) float32, `mean` (windows, 80), `masks` (slots, 125), `slot_window` (slots,).
    Output: `embeddings` (slots, 256) float32. `flag` is not zero after a run whose activations left float16's range.
    `steps` holds every launch with the layer's name and output, in order.
    """

    def __init__(self, kernels: ResNet34Kernels, windows: int, slots: int) -> None:
        from ..kernels.linear import partial_grid
        from ..kernels.stem import stem_f32_grid, stem_grid

        if windows < 1 or slots < 1:
            raise BackendError(f"a batch of {windows} windows and {slots} slots is empty; give at least one of each")
        self.windows = windows
        self.slots = slots
        memory = kernels.memory
        self.memory = memory
        self.features = memory.empty((windows, FRAMES, MELS), np.float32)
        self.mean = memory.empty((windows, MELS), np.float32)
        self.masks = memory.empty((slots, 125), np.float32)
        self.slot_window = memory.empty((slots,), np.int32)
        self.flag = memory.put(np.zeros(1, np.int32))
        self.steps: list[tuple[str, Launch, DeviceArray]] = []
        self._multiprocessors = kernels.gpu.multiprocessors
        self._maps: dict[tuple[Any, ...], DeviceArray] = {}
        height, width = MELS, FRAMES
        # Three images of each stage's size: the running sum, the inside of a block, the next sum.
        half = kernels.choice.precision == "fp16"
        dtype = np.float16 if half else np.float32
        images = [memory.empty((windows, height, width, 32), dtype) for _ in range(3)]
        self._images = list(images)
        x = images[0]
        launch = kernels.stem.bind(
            (stem_grid if half else stem_f32_grid)(windows, height, width),
            *(self.features, self.mean, kernels.stem_weight, kernels.stem_bias, x, self.flag),
            *(FRAMES * MELS, 1, MELS, height, width),
        )
        self.steps.append(("conv1", launch, x))
        residual = x
        for name, conv in kernels.convs:
            spec = conv.spec
            if not hasattr(spec, "stride"):
                y = next(image for image in images if image is not x)
                self._bind_block(name, conv, x, y, height, width)
                x = residual = y
                continue
            if spec.stride == 2:
                rows, columns = spec.output_size(height, width)
                images = [memory.empty((windows, rows, columns, spec.c_out), dtype) for _ in range(3)]
                self._images += images
                inside, residual = images[0], images[1]
                self._bind_down(name, conv, x, inside, residual, height, width)
                height, width, x = rows, columns, inside
                continue
            y = next(image for image in images if image is not x and image is not residual)
            self._bind_same(name, conv, x, residual if spec.residual else x, y, height, width)
            x = y
            if spec.residual:
                residual = y
        self.output = x
        parts = 2 * height * 256 // PART
        self.statistics = memory.empty((slots, 2, height, 256), np.float32)
        self.partial = memory.empty((parts, slots, DIMENSION), np.float32)
        self.embeddings = memory.empty((slots, DIMENSION), np.float32)
        values = (x, self.masks, self.slot_window, self.statistics, height, width)
        self.steps.append(("pool", kernels.pool.bind((slots, height, 2 if half else 1), *values), self.statistics))
        inputs = 2 * height * 256
        grid = partial_grid(slots, inputs, DIMENSION, PART)
        launch = kernels.partial.bind(
            grid, self.statistics, kernels.final_weight, self.partial, slots, inputs, DIMENSION
        )
        self.steps.append(("seg_1", launch, self.partial))
        launch = kernels.total.bind(
            (slots, 1, 1), self.partial, kernels.final_bias, self.embeddings, parts, slots, DIMENSION
        )
        self.steps.append(("seg_1.total", launch, self.embeddings))

    def _map(
        self, source: DeviceArray, box: tuple[int, int, int], parity: tuple[int, int] | None = None
    ) -> DeviceArray:
        key = (source.address, box, parity)
        if key not in self._maps:
            self._maps[key] = self.memory.tensor_map(source, box, parity)
        return self._maps[key]

    def _bind_same(
        self, name: str, conv: _Conv, x: DeviceArray, residual: DeviceArray, y: DeviceArray, height: int, width: int
    ) -> None:
        spec = conv.spec
        if spec.box is None:
            self._bind_plain(name, conv, x, residual, y, height, width)
            return
        across, down, count = spec.tiles(self.windows, height, width)
        grid = spec.grid(self.windows, height, width, self._multiprocessors)
        launch = conv.loaded.bind(
            grid,
            *(self._map(x, spec.box), self._map(residual, spec.residual_box), conv.weight, conv.bias, residual, y),
            *(self.flag, height, width, across, down, count),
        )
        self.steps.append((name, launch, y))

    def _bind_plain(
        self, name: str, conv: _Conv, x: DeviceArray, residual: DeviceArray, y: DeviceArray, height: int, width: int
    ) -> None:
        grid = conv.spec.grid(self.windows, height, width, self._multiprocessors)
        sizes = (height, width, *conv.spec.output_size(height, width))
        launch = conv.loaded.bind(grid, x, conv.weight, conv.bias, residual, y, self.flag, *sizes)
        self.steps.append((name, launch, y))

    def _bind_block(self, name: str, conv: _Conv, x: DeviceArray, y: DeviceArray, height: int, width: int) -> None:
        spec = conv.spec
        rows = spec.rows(self.windows, height, width, self._multiprocessors)
        across, down, count = spec.tasks(self.windows, height, width, rows)
        values = (self._map(x, spec.box), conv.weight, conv.bias, y, self.flag)
        grid = spec.grid(count, self._multiprocessors)
        launch = conv.loaded.bind(grid, *values, height, width, across, down, count, rows)
        self.steps.append((name, launch, y))

    def _bind_down(
        self, name: str, conv: _Conv, x: DeviceArray, y: DeviceArray, shortcut: DeviceArray, height: int, width: int
    ) -> None:
        spec = conv.spec
        if conv.beside is not None:
            self._bind_plain(name, conv, x, x, y, height, width)
            self._bind_plain(name.replace("conv1", "shortcut"), conv.beside, x, x, shortcut, height, width)
            return
        rows, columns = spec.output_size(height, width)
        across, down, count = spec.tiles(self.windows, height, width)
        grid = spec.grid(self.windows, height, width, self._multiprocessors)
        maps = [self._map(x, spec.box, parity) for parity in PARITIES]
        values = (*maps, conv.weight, conv.bias, conv.bias_shortcut, y, shortcut, self.flag)
        self.steps.append((name, conv.loaded.bind(grid, *values, rows, columns, across, down, count), y))

    def run(self, stream: Stream) -> None:
        """Launch every kernel of the batch."""
        for _, launch, _ in self.steps:
            launch(stream)

    def close(self) -> None:
        """Return the buffers to the pool; tensor maps stay, the hardware caches them by address."""
        held = (self.features, self.mean, self.masks, self.slot_window, self.flag, self.statistics, self.partial)
        for array in (*held, self.embeddings, *self._images):
            self.memory.free(array)
