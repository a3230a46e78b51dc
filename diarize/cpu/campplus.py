"""Prepares the operations of CAM++ for the CPU: packs weights once, finds scratch memory, calls the kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from ..backend.base import BoundLayer, Buffer
from ..layers import Layer
from . import campplus_head, tdnn
from .campplus_strassen import TILE_SIZE, pack_products
from .gemm import PANEL, TILE_ROWS, pack_weight, pad_bias

_CONTEXT_ARRAYS = (("means", tdnn.BOTTLENECK), ("middle", tdnn.CONTEXT), ("gates", tdnn.GROWTH))


class _Scratch(threading.local):
    """Arrays of the calling thread, zeroed when they are made and kept from call to call."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._largest = 0

    def largest(self, size: int) -> int:
        """The largest size that this thread has asked for: arrays made for it serve every smaller one."""
        self._largest = max(self._largest, size)
        return self._largest

    def get(self, name: str, *shape: int) -> np.ndarray:
        array = self._arrays.get(name)
        if array is None or array.shape != shape:
            array = self._arrays[name] = np.zeros(shape, np.float32)
        return array


def prepare_head(layer: Layer) -> BoundLayer:
    """The convolutional head; see `Op.CAM_HEAD`."""
    weights = layer.weights
    stem = np.concatenate([weights["stem"].reshape(32, 9).T, weights["stem_bias"][None]]).astype(np.float32)
    strided, strided_bias = _points(layer, "strided", 3, campplus_head.transform_rows)
    square, square_bias = _points(layer, "square", 6, campplus_head.transform_square)
    one = np.stack([pack_weight(weights[f"one.{i}"][:, :, 0, 0]).ravel() for i in range(2)])
    one_bias = np.stack([weights[f"one.{i}_bias"] for i in range(2)])
    zeros = np.zeros(PANEL, np.float32)
    scratch = _Scratch()

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        features, spans = inputs
        count, mels = features.shape
        columns = scratch.largest(count)
        groups = -(-(int(spans[-1].sum()) - campplus_head.FIRST_COLUMN) // campplus_head.GROUP)
        mel = scratch.get("mel", mels + 2, columns)
        mel[1:-1, :count] = features.T
        first = [scratch.get(name, (mels // 2 + 2) * columns * 32) for name in "ab"]
        second = [scratch.get(name, (mels // 4 + 2) * columns * 32) for name in "cd"]
        campplus_head.head(
            mel.ravel(), mels, columns, groups, spans, stem.ravel(), strided, strided_bias, square, square_bias,
            one, one_bias, zeros, scratch.get("ring", 3 * columns * 32), *first, *second,
            scratch.get("tiles", 2 * 36 * TILE_ROWS * 32), outputs[0].ravel(),
        )  # fmt: skip

    return run


def _points(
    layer: Layer, name: str, count: int, transform: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    packed = []
    for i in range(count):
        points = transform(layer.weights[f"{name}.{i}"]).astype(np.float32)
        packed.append(np.concatenate([pack_weight(point).ravel() for point in points]))
    return np.stack(packed), np.stack([layer.weights[f"{name}.{i}_bias"] for i in range(count)])


def prepare_tdnn(layer: Layer) -> BoundLayer:
    """The strided convolution over time behind the head; see `Op.CAM_TDNN`."""
    weight = layer.weights["weight"]
    # Head columns are (row, channel), the checkpoint's inputs (channel, row).
    ordered = weight.reshape(weight.shape[0], 32, -1, weight.shape[2]).transpose(0, 3, 2, 1)
    packed = pack_weight(ordered.reshape(weight.shape[0], -1))
    bias = pad_bias(layer.weights["bias"], weight.shape[0])

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        x, spans = inputs
        tdnn.head_conv(x.ravel(), spans, packed, bias, outputs[0])

    return run


def prepare_block(layer: Layer) -> BoundLayer:
    """A dense block; see `Op.CAM_BLOCK`."""
    weights = layer.weights
    layers, dilation = int(layer.params["layers"]), int(layer.params["dilation"])
    channels = weights["0.scale"].size
    scale = np.concatenate([weights[f"{i}.scale"] for i in range(layers)])
    shift = np.concatenate([weights[f"{i}.shift"] for i in range(layers)])
    packed = np.concatenate([pack_dense_layer(layer, f"{i}.") for i in range(layers)])
    scratch = _Scratch()

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        spans, x = inputs[0], outputs[0]
        # A sequence has at least one part; with free rows around it takes three rows or more.
        parts = (x.shape[0] // 3 // TILE_ROWS + 1) * TILE_ROWS
        tdnn.dense_block(
            x, channels, dilation, layers, spans, scale, shift, packed,
            scratch.get("pairs", tdnn.BLOCK_TILES * TILE_SIZE),
            scratch.get("hidden", x.shape[0], tdnn.BOTTLENECK),
            *(scratch.get(name, parts, width) for name, width in _CONTEXT_ARRAYS),
        )  # fmt: skip

    return run


def pack_dense_layer(layer: Layer, prefix: str) -> np.ndarray:
    part = {name.removeprefix(prefix): array for name, array in layer.weights.items() if name.startswith(prefix)}
    taps = part["local"].transpose(0, 2, 1).reshape(tdnn.GROWTH, -1)
    arrays = (
        pack_products(part["linear"]), part["linear_bias"], pack_weight(taps),
        pack_weight(part["context1"]), part["context1_bias"], pack_weight(part["context2"]), part["context2_bias"],
    )  # fmt: skip
    return np.concatenate([array.ravel() for array in arrays])


def prepare_transit(layer: Layer) -> BoundLayer:
    """Batch norm, ReLU and a 1x1 convolution between blocks; see `Op.CAM_TRANSIT`."""
    weight, scale, shift = layer.weights["weight"], layer.weights["scale"], layer.weights["shift"]
    channels = weight.shape[1]
    packed = pack_products(weight)
    bias = pad_bias(layer.weights.get("bias"), weight.shape[0])
    rectify = layer.params["activation"] == "relu"
    scratch = _Scratch()

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        x, spans = inputs
        rows = scratch.get("pairs", tdnn.BLOCK_TILES * TILE_SIZE)
        tdnn.transit(x, channels, scale, shift, spans, packed, bias, rectify, rows, outputs[0])

    return run


def prepare_statistics(layer: Layer) -> BoundLayer:
    """Mean and standard deviation over time; see `Op.STATISTICS`."""

    def run(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        tdnn.statistics(inputs[0], inputs[1], outputs[0])

    return run
