"""ResNet34 on a GPU: which kernel runs each layer, packed weights, activations, and the launches of one batch.

Activations are NHWC float16 with rows = mel and columns = time, so that tiles of 64 columns fit the long axis. The
trunk runs once a window; pooling and `seg_1` run for the active slots only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from .. import registry
from ..candidates import SEPARATE, Candidate, Request
from ..errors import BackendError
from ..recipe import Key
from ..recipe_lookup import look_up
from ..registry.resnet34 import PART, SIZES
from .cuda_compile import KernelCache
from .cuda_conv import Arrays, Binder, Convolution, ConvolutionLoader
from .cuda_driver import DeviceArray, Gpu, Launch, MemoryPool, Stream

if TYPE_CHECKING:
    from ..layers import Layer

MELS = 80
FRAMES = 998
DIMENSION = 256


@dataclass(frozen=True)
class TrunkChoice:
    """The kernel of every role in the trunk; a role is the channel count, with or without residual, or the way down.

    `inner` computes the first convolution of a block, `outer` the second, which adds the residual; `down` the strided
    convolution, by input channels. `block` computes both convolutions of a block without shortcut in one kernel; where
    it has an entry, `inner` and `outer` serve only the blocks that change the shape, and those with a kernel in `own`.
    `shortcut` is needed where the kernels of `down` do not compute the shortcut themselves. `own` names kernels of
    single layers, such as "layer3.0.conv2". `storage` is the activations': "half" or "float".
    """

    inner: Mapping[int, Request]
    outer: Mapping[int, Request]
    down: Mapping[int, Request]
    stem: Request
    pool: Request
    linear: tuple[Request, Request]
    block: Mapping[int, Request] = field(default_factory=dict)
    shortcut: Mapping[int, Request] = field(default_factory=dict)
    own: Mapping[str, Request] = field(default_factory=dict)
    storage: str = "half"

    @classmethod
    def of(cls, chosen: Mapping[str, Candidate], own: Mapping[str, Request] | None = None) -> TrunkChoice:
        """The choice from candidates by layer of the registry.

        Raises
        ------
        BackendError
            A layer has no candidate, or the candidates store activations in different ways.
        """

        def one(layer: str) -> Request:
            found = chosen.get(f"resnet34.{layer}")
            if found is None:
                raise BackendError(f"no kernel is chosen for resnet34.{layer}; see diarize cuda candidates")
            return found.requests[0]

        inner, outer, down, block, shortcut = ({} for _ in range(5))  # type: ignore[var-annotated]
        for stage, (channels, _, _) in SIZES.items():
            name = f"layer{stage}"
            inner[channels], outer[channels] = one(f"{name}.conv1"), one(f"{name}.conv2")
            whole = chosen.get(f"resnet34.{name}.block" if stage == 1 else f"resnet34.{name}.entry")
            together = whole is not None and whole.name != SEPARATE
            if stage == 1 and together:
                block[channels] = one(f"{name}.block")
            elif stage > 1 and together:
                down[channels // 2] = one(f"{name}.entry")
            elif stage > 1:
                down[channels // 2], shortcut[channels // 2] = one(f"{name}.down"), one(f"{name}.shortcut")
        storages = {c.storage for c in chosen.values() if c.layer.startswith("resnet34.") and c.storage}
        if len(storages) != 1:
            raise BackendError(f"layers of resnet34 store activations as {sorted(storages)}; choose one for all")
        partial, total = chosen["resnet34.seg_1"].requests
        return cls(
            inner, outer, down, one("conv1"), one("pool"), (partial, total), block, shortcut, own or {}, storages.pop()
        )

    @property
    def precision(self) -> str:
        """Precision of most layers: fp16, tf32 or fp32."""
        if self.storage == "half":
            return "fp16"
        return "tf32" if self.outer[256].parameters.get("tf32") else "fp32"

    def requests(self) -> list[Request]:
        """Every kernel that the trunk needs."""
        # A block in one kernel leaves the kernels of its parts unused, unless some block's part has its own.
        unused = set() if self.own else set(self.block)
        same = [role[c] for role in (self.inner, self.outer) for c in role if c not in unused]
        roles = (self.down, self.block, self.shortcut, self.own)
        return [*same, *(r for role in roles for r in role.values()), self.stem, self.pool, *self.linear]


@cache
def named_choice(capability: tuple[int, int], precision: str) -> TrunkChoice:
    """The first candidate of every layer in one precision, fp16, tf32 or fp32, without those of one GPU kind alone."""
    storage = "half" if precision == "fp16" else "float"
    chosen = {}
    for layer in registry.LAYERS.values():
        if layer.network != "resnet34":
            continue
        fitting = [
            c
            for c in registry.candidates(layer.id)
            if not c.exactly and c.runs_on(capability) and c.storage in ("", storage)
        ]
        # Stem, pooling and the embedding layer have one precision for each storage.
        chosen[layer.id] = next((c for c in fitting if c.precision == precision), fitting[0])
    return TrunkChoice.of(chosen)


def portable_choice(capability: tuple[int, int] = (8, 0)) -> TrunkChoice:
    """Float16 kernels that fit every GPU of a compute capability; the tiles are not measured on each."""
    return named_choice(capability, "fp16")


def float32_choice(tf32: bool = False) -> TrunkChoice:
    """Float32 activations, with TF32 products from compute capability 8.0 on: the fallback, and the twin in tests."""
    return named_choice((8, 0) if tf32 else (7, 5), "tf32" if tf32 else "fp32")


def hopper_choice() -> TrunkChoice:
    """The default of compute capability 9.0."""
    return TrunkChoice.of(look_up(Key(capability=(9, 0)), ["resnet34"]).selection.at(1))


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
        self.loader = ConvolutionLoader(gpu, pool, cache, early_start)
        by_id = {layer.id: layer for layer in layers}
        _, self.stem = self.loader.kernel(choice.stem)
        _, self.pool = self.loader.kernel(choice.pool)
        self.partial, self.total = (self.loader.kernel(request)[1] for request in choice.linear)
        from ..kernels.linear import pack_linear
        from ..kernels.stem import pack_stem, pack_stem_f32

        first = by_id["conv1"].weights
        pack_first = pack_stem if choice.storage == "half" else pack_stem_f32
        self.stem_weight = pool.put(pack_first(first["weight"].transpose(0, 1, 3, 2)))
        self.stem_bias = pool.put(first["bias"])
        self.final_weight = pool.put(pack_linear(by_id["seg_1"].weights["weight"]))
        self.final_bias = pool.put(by_id["seg_1"].weights["bias"])
        self.convs: list[tuple[str, Convolution]] = []
        for name in by_id:
            if name.endswith(".conv1"):
                self.convs += self._unit(name.removesuffix(".conv1"), by_id)

    def _unit(self, unit: str, layers: Mapping[str, Layer]) -> list[tuple[str, Convolution]]:
        """The convolutions of one residual block, by the name of the last layer that each computes."""
        choice, loader = self.choice, self.loader
        names = [f"{unit}.conv{number}" for number in (1, 2)]
        first, second = (layers[name] for name in names)
        channels = second.weights["weight"].shape[1]
        if int(first.params["stride_h"]) == 2:
            shortcut, name = layers[f"{unit}.shortcut"], f"{unit}.shortcut"
            request = choice.own.get(names[0], choice.down[channels // 2])
            beside = choice.own.get(name, choice.shortcut.get(channels // 2))
            head = loader.convolution(request, first, shortcut, beside)
        elif channels in choice.block and not set(names) & set(choice.own):
            return [(names[1], loader.block(choice.block[channels], first, second))]
        else:
            head = loader.convolution(choice.own.get(names[0], choice.inner[channels]), first)
        tail = loader.convolution(choice.own.get(names[1], choice.outer[channels]), second)
        return [(names[0], head), (names[1], tail)]

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
        self.flag = memory.put(np.zeros(1, np.int32))
        self.steps: list[tuple[str, Launch, DeviceArray]] = []
        height, width = MELS, FRAMES
        half = kernels.choice.storage == "half"
        dtype = np.float16 if half else np.float32
        # Three images of each stage's size: the running sum, the inside of a block, the next sum.
        images = [memory.empty((windows, height, width, 32), dtype) for _ in range(3)]
        self._images = list(images)
        x = images[0]
        launch = kernels.stem.bind(
            (stem_grid if half else stem_f32_grid)(windows, height, width),
            *(self.features, self.mean, kernels.stem_weight, kernels.stem_bias, x, self.flag),
            *(FRAMES * MELS, 1, MELS, height, width),
        )
        self.steps.append(("conv1", launch, x))
        binder = Binder(memory, kernels.gpu.multiprocessors)
        residual = x
        for name, conv in kernels.convs:
            if not conv.is_block and conv.spec.stride == 2:
                height, width = conv.spec.output_size(height, width)
                images = [memory.empty((windows, height, width, conv.spec.c_out), dtype) for _ in range(3)]
                self._images += images
                y, residual = images[0], images[1]
                arrays = Arrays(x, y, self.flag, shortcut=residual)
            else:
                y = next(image for image in images if image is not x and image is not residual)
                arrays = Arrays(x, y, self.flag, residual if not conv.is_block and conv.spec.residual else None)
                if conv.is_block or conv.spec.residual:
                    residual = y
            launches = binder.bind(conv, arrays)
            self.steps.append((name, launches[0], y))
            self.steps += [(name.replace("conv1", "shortcut"), launch, residual) for launch in launches[1:]]
            x = y
        self.output = x
        parts = 2 * height * 256 // PART
        # Behind the images, whose tensor maps then serve plans for any number of slots.
        self.masks = memory.empty((slots, 125), np.float32)
        self.slot_window = memory.empty((slots,), np.int32)
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

    def run(self, stream: Stream) -> None:
        """Launch every kernel of the batch."""
        for _, launch, _ in self.steps:
            launch(stream)

    def close(self) -> None:
        """Return the buffers to the pool; tensor maps stay, the hardware caches them by address."""
        held = (self.features, self.mean, self.masks, self.slot_window, self.flag, self.statistics, self.partial)
        for array in (*held, self.embeddings, *self._images):
            self.memory.free(array)
