"""What stands around ResNet34's convolutions as sites: the first convolution, pooling and the embedding layer.

Their twins: the float32 kernels' run, and for pooling and the embedding layer the CPU's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..backend.cpu import CpuBackend
from ..backend.cuda_conv import ConvolutionLoader
from ..backend.cuda_driver import DeviceArray
from ..backend.cuda_resnet34 import DIMENSION, FRAMES, MELS
from ..candidates import Candidate, TunedLayer
from ..layers import Layer, Op
from ..registry.resnet34 import PART, SIZES
from .activations import SLOTS, example_masks
from .periodic import Form, Memory, PeriodicSite
from .site import Launch
from .trunk import DTYPES
from .workspace import CONTENTS, Workspace

_CHANNELS, _ROWS, _STEPS = SIZES[4]
_STATISTICS = 2 * _ROWS * _CHANNELS


class TrunkEnds:
    """Makes sites; `features` (CONTENTS, 998, 80) with the mean still in them, `activations` as for `TrunkSites`.

    `activations` needs "conv1" and "layer4.2.conv2", the first in float32.
    """

    def __init__(
        self,
        space: Workspace,
        loader: ConvolutionLoader,
        layers: Sequence[Layer],
        features: np.ndarray,
        activations: Mapping[str, np.ndarray],
    ) -> None:
        self._space = space
        self._loader = loader
        self._layers = {layer.id: layer for layer in layers}
        self._features = features
        self._activations = activations
        self._weights: dict[tuple[str, str], tuple[DeviceArray, DeviceArray]] = {}
        self._memory: Memory = {}
        self._statistics: np.ndarray | None = None

    def open(self, layer: TunedLayer, batch: int) -> PeriodicSite:
        """See `Bench.open`."""
        name = layer.id.removeprefix("resnet34.")
        make = {"conv1": self._stem, "pool": self._pool, "seg_1": self._linear}[name]
        expected = {"conv1": self._first, "pool": self._pooled, "seg_1": self._embedded}[name]()
        return PeriodicSite(
            self._space,
            layer,
            batch,
            [expected],
            lambda storage, held: make(batch, storage, held),
            lambda c: c.precision,
            self._memory,
        )

    def _first(self) -> np.ndarray:
        return np.asarray(self._activations["conv1"], np.float32)

    def _pooled(self) -> np.ndarray:
        """(CONTENTS * SLOTS, 2, 10, 256) mean and deviation from the CPU."""
        if self._statistics is None:
            x = self._activations["layer4.2.conv2"].astype(np.float32)
            # The CPU's images are (time, mel, channel).
            rows = np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(CONTENTS, _STEPS, _ROWS * _CHANNELS)
            backend = CpuBackend()
            bound = backend.prepare(Layer("pool", Op.MASKED_STATISTICS))
            out = backend.put(np.empty((CONTENTS, SLOTS, _STATISTICS), np.float32))
            masks = example_masks().reshape(CONTENTS, SLOTS, _STEPS)
            bound([backend.put(rows), backend.put(masks)], [out])
            self._statistics = backend.get(out).reshape(CONTENTS * SLOTS, 2, _ROWS, _CHANNELS)
        return self._statistics

    def _embedded(self) -> np.ndarray:
        """(CONTENTS * SLOTS, 256) embeddings of the statistics, in float64."""
        final = self._layers["seg_1"].weights
        rows = self._pooled().reshape(CONTENTS * SLOTS, -1).astype(np.float64)
        return (rows @ final["weight"].T.astype(np.float64) + final["bias"]).astype(np.float32)

    def _stem(self, batch: int, storage: str, held: list[DeviceArray]) -> Form:
        from ..kernels.stem import pack_stem, pack_stem_f32, stem_f32_grid, stem_grid

        space = self._space
        half = storage == "half"
        features = space.repeated(self._features, batch, held)
        mean = space.repeated(self._features.mean(1), batch, held)
        y = space.empty((batch, MELS, FRAMES, SIZES[1][0]), DTYPES[storage], held)
        flag = space.zeros()
        held.append(flag)
        if ("conv1", storage) not in self._weights:
            first = self._layers["conv1"].weights
            pack = pack_stem if half else pack_stem_f32
            packed = space.memory.put(pack(first["weight"].transpose(0, 1, 3, 2)))
            self._weights["conv1", storage] = packed, space.memory.put(first["bias"])

        def bind(candidate: Candidate) -> Sequence[Launch]:
            _, loaded = self._loader.kernel(candidate.requests[0])
            grid = (stem_grid if half else stem_f32_grid)(batch, MELS, FRAMES)
            values = (features, mean, *self._weights["conv1", storage], y, flag)
            return [loaded.bind(grid, *values, FRAMES * MELS, 1, MELS, MELS, FRAMES)]

        return Form([y], bind, flag)

    def _pool(self, batch: int, storage: str, held: list[DeviceArray]) -> Form:
        space = self._space
        x = space.repeated(self._activations["layer4.2.conv2"].astype(DTYPES[storage]), batch, held)
        masks = space.repeated(example_masks().reshape(CONTENTS, SLOTS, _STEPS), batch, held)
        window = space.memory.put(np.repeat(np.arange(batch, dtype=np.int32), SLOTS))
        held.append(window)
        out = space.empty((batch * SLOTS, 2, _ROWS, _CHANNELS), np.float32, held)

        def bind(candidate: Candidate) -> Sequence[Launch]:
            _, loaded = self._loader.kernel(candidate.requests[0])
            grid = (batch * SLOTS, _ROWS, 2 if storage == "half" else 1)
            return [loaded.bind(grid, x, masks, window, out, _ROWS, _STEPS)]

        return Form([out], bind, None, SLOTS)

    def _linear(self, batch: int, storage: str, held: list[DeviceArray]) -> Form:
        from ..kernels.linear import pack_linear, partial_grid

        space, slots = self._space, batch * SLOTS
        contents = self._pooled().reshape(CONTENTS, SLOTS, 2, _ROWS, _CHANNELS)
        statistics = space.repeated(contents, batch, held)
        parts = _STATISTICS // PART
        partial = space.empty((parts, slots, DIMENSION), np.float32, held)
        out = space.empty((slots, DIMENSION), np.float32, held)
        if ("seg_1", "") not in self._weights:
            final = self._layers["seg_1"].weights
            packed = space.memory.put(pack_linear(final["weight"]))
            self._weights["seg_1", ""] = packed, space.memory.put(final["bias"])
        weight, bias = self._weights["seg_1", ""]

        def bind(candidate: Candidate) -> Sequence[Launch]:
            (_, first), (_, second) = (self._loader.kernel(request) for request in candidate.requests)
            grid = partial_grid(slots, _STATISTICS, DIMENSION, PART)
            return [
                first.bind(grid, statistics, weight, partial, slots, _STATISTICS, DIMENSION),
                second.bind((slots, 1, 1), partial, bias, out, parts, slots, DIMENSION),
            ]

        return Form([out], bind, None, SLOTS)
