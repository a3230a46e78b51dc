"""Direct candidates of the registry for warpgroup tensor cores, by role: channels, and inner, outer, down or block."""

from __future__ import annotations

from diarize import registry
from diarize.candidates import Request

_STAGES = {32: 1, 64: 2, 128: 3, 256: 4}


def _of(layer: str) -> list[Request]:
    """Requests of the layer's candidates that read tensor maps."""
    found = registry.candidates(f"resnet34.{layer}")
    return [c.requests[0] for c in found if c.exactly and not c.name.startswith("winograd")]


SAME = {
    f"{channels} {role}": _of(f"layer{stage}.{part}")
    for channels, stage in _STAGES.items()
    for role, part in (("inner", "conv1"), ("outer", "conv2"))
}

DOWN = {f"{channels} down": _of(f"layer{stage + 1}.entry") for channels, stage in _STAGES.items() if channels < 256}

BLOCK = {"32 block": _of("layer1.block")}
