"""The contract between networks, backends and the tuner: which operation, which layer, which weights.

A network is an ordered list of `Layer`; a backend turns each into a callable. What an operation reads and writes is
stated beside its name in `Op`, and holds for every backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np


class Op(Enum):
    """Every operation that a backend implements.

    Arrays are float32 and channels come last. B windows or items, H and W rows and columns, C channels, T time steps.
    """

    # One line per operation: value, then (inputs) -> (outputs); weights; parameters.
    LINEAR = "linear"  # (rows, C_in) -> (rows, C_out); weight (C_out, C_in), bias (C_out); activation
    LOG_MEL = "log_mel"  # (num_samples,) -> (frames, mels); window (400), mel (mels, 256); floor; frames step by 160


@dataclass(frozen=True)
class Layer:
    """One layer of a network: a stable `id`, its operation, its weights and its fixed parameters.

    Weights are float32 arrays in the checkpoint's own layout with batch norm already folded; packing is a backend's
    business. Parameters are whatever does not change between calls: strides, activations, epsilon.
    """

    id: str
    op: Op
    weights: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    params: Mapping[str, int | float | str | bool] = field(default_factory=dict)
