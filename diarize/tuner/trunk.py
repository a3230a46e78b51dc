"""Convolutions of ResNet34 as sites: the user's weights, on activations of the recording that ships with the package.

A network layer stands for every layer of the registry: that of the second block of its stage, or the first where
shapes change. Its inputs come from a run of the float32 kernels, rounded to float16; its twin is the float32 kernel on
the same inputs. A layer of several parts is run by the choices for the parts, and compared like any other candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..backend.cuda_conv import Arrays, Binder, Convolution, ConvolutionLoader
from ..backend.cuda_driver import DeviceArray
from ..candidates import SEPARATE, Candidate, TunedLayer
from ..layers import Layer
from ..registry import candidates
from ..registry.resnet34 import SIZES
from .periodic import Form, Memory, PeriodicSite
from .site import Launch, Parts
from .workspace import CONTENTS, Workspace

DTYPES = {"half": np.float16, "float": np.float32}


@dataclass(frozen=True)
class Place:
    """Where a layer of the registry stands in the network.

    `first` and `second` are network layers, `source` and `residual` those whose outputs it reads, "" for none.
    """

    kind: str
    stage: int
    first: str
    source: str
    second: str = ""
    residual: str = ""

    @property
    def outputs(self) -> int:
        """How many images it writes."""
        return 2 if self.kind == "entry" else 1


def place(layer: str) -> Place:
    """The place of a layer such as "resnet34.layer3.conv2".

    >>> place("resnet34.layer3.conv2").first, place("resnet34.layer2.entry").source
    ('layer3.1.conv2', 'layer1.2.conv2')
    """
    name, kind = layer.removeprefix("resnet34.").split(".")
    stage = int(name.removeprefix("layer"))
    before = f"layer{stage}.0.conv2"
    if kind in ("entry", "down", "shortcut"):
        last = {2: "layer1.2.conv2", 3: "layer2.3.conv2", 4: "layer3.5.conv2"}[stage]
        own = {"entry": "conv1", "down": "conv1", "shortcut": "shortcut"}[kind]
        return Place(kind, stage, f"layer{stage}.0.{own}", last, f"layer{stage}.0.shortcut" if kind == "entry" else "")
    if kind == "conv2":
        return Place(kind, stage, f"layer{stage}.1.conv2", f"layer{stage}.1.conv1", residual=before)
    second = f"layer{stage}.1.conv2" if kind == "block" else ""
    return Place(kind, stage, f"layer{stage}.1.conv1", before, second)


def needed_activations(layers: Sequence[str]) -> set[str]:
    """Network layers whose outputs the sites of these layers read."""
    places = [place(layer) for layer in layers]
    return {name for p in places for name in (p.source, p.residual) if name}


def twin_candidate(layer: str) -> Candidate:
    """The float32 candidate that the others of a layer are compared with."""
    return next(c for c in candidates(layer) if c.precision == "fp32" and c.storage == "float")


class TrunkSites:
    """Makes sites; `layers` are the network's, `activations` (CONTENTS, rows, columns, channels) float16 by name."""

    def __init__(
        self,
        space: Workspace,
        loader: ConvolutionLoader,
        layers: Sequence[Layer],
        activations: Mapping[str, np.ndarray],
    ) -> None:
        self._space = space
        self._loader = loader
        self._layers = {layer.id: layer for layer in layers}
        self._activations = activations
        self._binder = Binder(space.memory, space.gpu.multiprocessors)
        self._loaded: dict[tuple[str, str], Convolution] = {}
        self._twins: dict[str, list[np.ndarray]] = {}
        self._memory: Memory = {}

    def open(self, layer: TunedLayer, batch: int, parts: Parts) -> PeriodicSite:
        """See `Bench.open`."""
        where = place(layer.id)

        def make(storage: str, held: list[DeviceArray]) -> Form:
            return self._form(layer, where, batch, storage, parts.get(storage, {}), held)

        return PeriodicSite(
            self._space, layer, batch, self._twin(layer, where), make, lambda c: kind_of(c, parts), self._memory
        )

    def _form(
        self,
        layer: TunedLayer,
        where: Place,
        batch: int,
        storage: str,
        parts: Mapping[str, Candidate],
        held: list[DeviceArray],
    ) -> Form:
        space, dtype = self._space, DTYPES[storage]

        def image(name: str) -> DeviceArray:
            return space.repeated(self._activations[name].astype(dtype), batch, held)

        x = image(where.source)
        residual = image(where.residual) if where.residual else None
        channels, rows, columns = SIZES[where.stage]
        shape = (batch, rows, columns, channels)
        outputs = [space.empty(shape, dtype, held) for _ in range(where.outputs)]
        flag = space.zeros()
        held.append(flag)
        # Only a block by its parts has an image in the middle.
        middle = space.empty(shape, dtype, held) if where.kind == "block" and parts else outputs[0]

        def bind(candidate: Candidate) -> Sequence[Launch]:
            shortcut = outputs[1] if where.outputs == 2 else None
            if candidate.name != SEPARATE:
                conv = self._convolution(layer.id, candidate)
                return self._binder.bind(conv, Arrays(x, outputs[0], flag, residual, shortcut))
            one, two = (self._convolution(part, parts[part]) for part in layer.parts)
            if where.kind == "entry":
                assert shortcut is not None
                both = [(one, Arrays(x, outputs[0], flag)), (two, Arrays(x, shortcut, flag))]
            else:
                both = [(one, Arrays(x, middle, flag)), (two, Arrays(middle, outputs[0], flag, x))]
            return [launch for conv, arrays in both for launch in self._binder.bind(conv, arrays)]

        return Form(outputs, bind, flag)

    def _convolution(self, layer: str, candidate: Candidate) -> Convolution:
        """A candidate's kernel with the weights of the network layer that stands for the registry's."""
        key = (layer, candidate.name)
        if key not in self._loaded:
            where, layers, request = place(layer), self._layers, candidate.requests[0]
            first = layers[where.first]
            if where.kind == "block":
                made = self._loader.block(request, first, layers[where.second])
            elif where.kind == "entry":
                made = self._loader.convolution(request, first, layers[where.second])
            elif where.kind == "shortcut":
                made = self._loader.strided_shortcut(request, first)
            else:
                made = self._loader.convolution(request, first)
            self._loaded[key] = made
        return self._loaded[key]

    def _twin(self, layer: TunedLayer, where: Place) -> list[np.ndarray]:
        """Outputs of the float32 kernels for each content."""
        if layer.id not in self._twins:
            parts = {part: twin_candidate(part) for part in layer.parts or (layer.id,)}
            held: list[DeviceArray] = []
            try:
                form = self._form(layer, where, CONTENTS, "float", parts, held)
                alone = Candidate(layer.id, SEPARATE, 1, "", (), storage="float")
                for launch in form.bind(alone if layer.parts else parts[layer.id]):
                    launch(self._space.stream)
                self._twins[layer.id] = [self._space.rows(output, 0, CONTENTS) for output in form.outputs]
            finally:
                self._space.give_back(held)
        return self._twins[layer.id]


def kind_of(candidate: Candidate, parts: Parts) -> str:
    """The tolerance of a candidate: that of its precision and storage, or of the least exact of its parts."""
    exactness = ("fp32", "fp32 half", "tf32", "fp16")
    if candidate.name == SEPARATE:
        return max((kind_of(part, parts) for part in parts[candidate.storage].values()), key=exactness.index)
    return "fp32 half" if (candidate.precision, candidate.storage) == ("fp32", "half") else candidate.precision
