"""Dense layer: one matrix product with bias and activation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backend.base import BoundLayer, Buffer
from ..layers import Layer
from .gemm import make_gemm, pack_weight, pad_bias


def prepare_linear(layer: Layer) -> BoundLayer:
    """Rows (M, C_in) float32 to (M, C_out) float32; weights `weight` (C_out, C_in), optional `bias` (C_out).

    The parameter `activation` is "none" (default), "relu" or "leaky".
    """
    weight = layer.weights["weight"]
    c_out = weight.shape[0]
    packed = pack_weight(weight)
    bias = pad_bias(layer.weights.get("bias"), c_out)
    gemm = make_gemm(str(layer.params.get("activation", "none")))

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        rows, out = inputs[0], outputs[0]
        if bias.size == c_out:
            gemm(rows, packed, bias, out)
            return
        # The kernel writes whole panels: narrow outputs go through a buffer of the padded width.
        padded = np.empty((rows.shape[0], bias.size), np.float32)
        gemm(rows, packed, bias, padded)
        out[:] = padded[:, :c_out]

    return run
