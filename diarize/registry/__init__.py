"""Every candidate of every layer: the one list that the tuner times and that recipes and tune files choose from.

A recipe names candidates by layer, name and version; what is not listed here cannot be chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from ..candidates import SEPARATE, Candidate, Selection, TunedLayer
from . import campplus, filterbank, pyannet, resnet34

POLICY = "turns-1"
"""Name of the accuracy policy: reduced precision only with evidence that whole recordings keep their turns."""

LAYERS: Mapping[str, TunedLayer] = {
    layer.id: layer for module in (filterbank, pyannet, resnet34, campplus) for layer in module.LAYERS
}
"""Every layer that has candidates, by id, in the order in which the networks run them."""


@cache
def candidates(layer: str = "") -> tuple[Candidate, ...]:
    """Candidates of a layer, of a network ("resnet34"), or all of them, in the registry's order."""
    if layer:
        return tuple(c for c in candidates() if layer in (c.layer, c.layer.partition(".")[0]))
    return tuple(c for module in (filterbank, pyannet, resnet34, campplus) for c in module.candidates())


def find(layer: str, name: str) -> Candidate | None:
    """The candidate of that name, None if there is none."""
    return next((c for c in candidates(layer) if c.layer == layer and c.name == name), None)


def portable(capability: tuple[int, int], networks: Iterable[str] = ()) -> Selection:
    """The first candidate of each layer that runs on the capability: tiles chosen to fit, measured nowhere.

    `networks` leaves out the layers of the others; all are taken where it is empty.
    """
    wanted = set(networks)
    choices = {}
    for layer in LAYERS.values():
        if wanted and layer.network not in wanted:
            continue
        fitting = [c for c in candidates(layer.id) if c.runs_on(capability) and not c.exactly and c.evidence]
        if fitting:
            choices[layer.id] = {1: fitting[0]}
    return Selection(choices, dict.fromkeys(choices, "portable"))


__all__ = ["LAYERS", "POLICY", "SEPARATE", "candidates", "find", "portable"]
