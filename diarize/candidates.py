"""What a candidate is: one way to compute a layer on a GPU. Readable without a GPU; nothing is imported or compiled."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Value = int | float | bool | str | tuple[int, ...]

SEPARATE = "separate"
"""Name of the candidate that computes a layer of several parts by the choices for the parts."""


@dataclass(frozen=True)
class Request:
    """A kernel by its factory: `factory` is "module:function" below `diarize.kernels`, `parameters` its arguments."""

    factory: str
    parameters: Mapping[str, Any]

    def make(self) -> Any:
        """Call the factory: a `Kernel`, or a description that holds one as `.kernel`."""
        module, function = self.factory.split(":")
        return getattr(importlib.import_module(f"diarize.kernels.{module}"), function)(**self.parameters)

    @property
    def key(self) -> str:
        """What tells the kernel from every other."""
        return repr((self.factory, sorted(self.parameters.items())))


@dataclass(frozen=True)
class Candidate:
    """One way to compute a layer.

    `name` is unique within the layer; `version` counts the changes of what the name stands for. `precision` is that of
    the arithmetic, `storage` that of ResNet34's activations in memory, "half" or "float". `tuning` are the parameters
    that may differ without changing the layer. `requests` are its kernels, none for `SEPARATE`. `capability` is the
    lowest compute capability, or with `exactly` the only one. `evidence` says where whole recordings showed that the
    precision is enough; without any the candidate wins only in a tuning that validates recordings.
    """

    layer: str
    name: str
    version: int
    precision: str
    requests: tuple[Request, ...]
    tuning: Mapping[str, Value] = field(default_factory=dict)
    storage: str = ""
    capability: tuple[int, int] = (8, 0)
    exactly: bool = False
    evidence: str = ""

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a device of this compute capability can run it."""
        return capability == self.capability if self.exactly else capability >= self.capability

    @property
    def needs(self) -> str:
        """The compute capability that it runs on, in words."""
        number = ".".join(map(str, self.capability))
        return number if self.exactly else f"{number}+"


@dataclass(frozen=True)
class TunedLayer:
    """A layer that has candidates: `parts` are the layers that `SEPARATE` takes instead.

    `operation` is its kind, such as conv3x3; `what` says what it computes; `count` is how often a network runs it;
    `flops` are the floating-point operations of one window each time, 0 where windows share them or hardly any occur.
    """

    id: str
    operation: str
    what: str
    count: int = 1
    flops: float = 0.0
    parts: tuple[str, ...] = ()

    @property
    def network(self) -> str:
        """The network that it belongs to."""
        return self.id.partition(".")[0]


@dataclass(frozen=True)
class Selection:
    """The chosen candidate of every layer, by batch size (windows); and in words where each layer's choice came from.

    A batch size takes the choice of the nearest one that is there, in the logarithm; the smaller one of two.
    """

    choices: Mapping[str, Mapping[int, Candidate]]
    origins: Mapping[str, str] = field(default_factory=dict)

    def at(self, windows: int) -> dict[str, Candidate]:
        """The candidate of every layer for batches of this size."""
        return {layer: by_batch[nearest(by_batch, windows)] for layer, by_batch in self.choices.items()}

    def candidates(self) -> list[Candidate]:
        """Every candidate in it, each once, in order of layers and batches."""
        found = {
            (layer, by_batch[batch].name): by_batch[batch]
            for layer, by_batch in self.choices.items()
            for batch in sorted(by_batch)
        }
        return list(found.values())


def nearest(batches: Mapping[int, Any], windows: int) -> int:
    """The batch size among `batches` that is nearest to `windows` by ratio; the smaller one of two.

    >>> nearest({1: "a", 8: "b", 64: "c"}, 20)
    8
    """
    return min(sorted(batches), key=lambda batch: max(batch / windows, windows / batch))
