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
    SINC = "sinc"  # (num_samples,) -> (positions, C); weight (C, taps): half even, half odd; stride; less centre sample
    SINC_POOL = "sinc_pool"  # (window samples,), (positions, C) -> (T, C); filters, wav_*, weight, bias; stride, norm
    CONV_POOL = "conv_pool"  # (T_in, C_in) -> (T, C_out); weight (C_out, C_in, taps), bias, norm_*; max 3, norm, leaky
    BILSTM = "bilstm"  # (T, B, C_in) -> (T, B, 2 hidden); weight_ih, weight_hh, bias_ih, bias_hh, same with _reverse
    LOG_MEL = "log_mel"  # (num_samples,) -> (frames, mels); window (400), mel (mels, 256); floor; frames step by 160
    # (B, H, W, C_in) [, residual like the output] -> (B, H', W', C_out), zero padding (kernel - 1) / 2 and
    # H' = (H - 1) // stride_h + 1; weight (C_out, C_in, kernel_h, kernel_w), bias (C_out); stride_h, stride_w,
    # activation "none" or "relu" applied last, residual (bool).
    CONV2D = "conv2d"
    # (B, T, C), masks (B, S, T) -> (B, S, 2 C): mean and deviation over the steps of each mask, zeros for an empty one.
    MASKED_STATISTICS = "masked_statistics"
    # CAM++: several sequences share one axis of columns (10 ms) or rows (20 ms). Spans (N, 2) int64 are the first place
    # and length of each; starts are multiples of 4 columns or 2 rows, with as many free places before each and after
    # the last. A sequence's results do not depend on the others. Free places may hold anything in outputs.
    CAM_HEAD = "cam_head"  # (columns, 80) zero where free, spans -> (columns, 320) zero where free; see campplus.py
    CAM_TDNN = "cam_tdnn"  # (columns, 320), spans in rows -> (rows, 128 of 512) ReLU; weight (128, 320, 5), bias
    CAM_BLOCK = "cam_block"  # spans -> (rows, C) in place: adds 32 columns a layer; weights per layer; layers, dilation
    CAM_TRANSIT = "cam_transit"  # (rows, C_in), spans -> (rows, >= C_out); scale, shift, ReLU, weight, bias; activation
    STATISTICS = "statistics"  # (rows, C), spans -> (N, 2 C): mean, then unbiased standard deviation


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
