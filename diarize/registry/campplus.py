"""Candidates of CAM++ for ragged batches of gathered frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..candidates import Candidate, Request, TunedLayer, Value

EVIDENCE = "pairs of float16: 3e-4 of float32 over 49 sequences, RECORD-cuda.md"

KERNELS: Mapping[str, tuple[str, str, str, Mapping[str, Any]]] = {
    # Layer: operation, what it computes, factory, parameters.
    "mean": ("mean", "mean of a sequence's features", "campplus_head:make_cam_mean", {}),
    "stem": ("conv3x3", "2-D head, first convolution", "campplus_head:make_cam_stem", {}),
    "strided": (
        "conv3x3",
        "2-D head, convolution that halves the bands",
        "campplus_head:make_cam_conv",
        {"stride": 2, "size": 3, "residual": False, "relu": True},
    ),
    "shortcut": (
        "conv1x1",
        "2-D head, shortcut that halves the bands",
        "campplus_head:make_cam_conv",
        {"stride": 2, "size": 1, "residual": False, "relu": False},
    ),
    "inner": (
        "conv3x3",
        "2-D head, first convolution of a block",
        "campplus_head:make_cam_conv",
        {"stride": 1, "size": 3, "residual": False, "relu": True},
    ),
    "outer": (
        "conv3x3",
        "2-D head, second convolution of a block with its residual",
        "campplus_head:make_cam_conv",
        {"stride": 1, "size": 3, "residual": True, "relu": True},
    ),
    "tdnn": ("tdnn", "first TDNN layer", "campplus_tdnn:make_cam_product", {"mode": "head"}),
    "product": ("linear", "dense block, linear layer", "campplus_tdnn:make_cam_product", {"mode": "norm"}),
    "context": ("context", "dense block, gates from means", "campplus_tdnn:make_cam_context", {}),
    "taps": ("tdnn", "dense block, local convolution", "campplus_tdnn:make_cam_product", {"mode": "taps"}),
    "transit": ("linear", "layer between dense blocks", "campplus_tdnn:make_cam_product", {"mode": "transit"}),
    "statistics": ("pooling", "mean and deviation of a sequence", "campplus_tdnn:make_cam_statistics", {}),
    "dense": ("linear", "embedding layer", "campplus_tdnn:make_cam_dense", {}),
}

# What differs where a multiprocessor has 64 KB of shared memory, or loads are not asynchronous and take registers.
_TURING: Mapping[str, Mapping[str, Value]] = {
    "strided": {"passes": 2},
    "product": {"min_blocks": 2},
    "transit": {"min_blocks": 2},
}

LAYERS = tuple(TunedLayer(f"campplus.{name}", row[0], row[1]) for name, row in KERNELS.items())


def candidates() -> list[Candidate]:
    """Every candidate."""
    found = []
    for name, (operation, _, factory, parameters) in KERNELS.items():
        title = "plain" if operation in ("mean", "context", "pooling") else "split"
        variants: list[tuple[str, Mapping[str, Value], tuple[int, int]]] = [(title, {}, (7, 5))]
        if name in _TURING:
            (key, value), *_ = _TURING[name].items()
            variants = [(title, {}, (8, 0)), (f"{title}_{key}{value}", _TURING[name], (7, 5))]
        for label, tuning, lowest in variants:
            request = Request(factory, {**parameters, **tuning})
            layer = f"campplus.{name}"
            found.append(Candidate(layer, label, 1, "split", (request,), tuning, capability=lowest, evidence=EVIDENCE))
    return found
