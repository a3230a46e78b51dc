"""CAM++ on a GPU: ragged batches of gathered frames to speaker embeddings.

A plan has room for so many columns (10 ms frames with the gaps between sequences) and sequences; `load` fills it with
any batch that fits, so that its launches can be captured once. A sequence's embedding does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import registry
from ..candidates import Request
from ..errors import BackendError
from .cuda_compile import KernelCache
from .cuda_driver import DeviceArray, Gpu, Launch, LoadedKernel, MemoryPool, Stream, check

if TYPE_CHECKING:
    from ..layers import Layer

DIMENSION = 192
MELS = 80
_CONTEXT_ROWS = 100
# Sequences start at multiples of this, with at least as many free columns before each.
_ALIGNMENT = 4
_WIDTHS = {1: 512, 2: 1024, 3: 1024}


def portable_kernels(capability: tuple[int, int] = (8, 0)) -> dict[str, Request]:
    """The kernel of every layer for GPUs of a compute capability, by the layer's name."""
    chosen = registry.portable(capability, ["campplus"]).at(1)
    return {layer.partition(".")[2]: candidate.requests[0] for layer, candidate in chosen.items()}


KERNELS = portable_kernels()
"""Every kernel of the network, from compute capability 8.0 on."""


@dataclass(frozen=True)
class Layout:
    """Where sequences lie: int32 arrays as the kernels read them.

    `source` (columns,) frame of each column, `item` (columns,) its sequence, `part` (rows,) the context part of each
    row, all -1 where free; `columns` (sequences, 2) first column and length; `rows` (sequences, 3) first row, length
    and first part.
    """

    source: np.ndarray
    item: np.ndarray
    part: np.ndarray
    columns: np.ndarray
    rows: np.ndarray


def columns_for(lengths: Sequence[int]) -> int:
    """Columns that sequences of these lengths take, free ones included."""
    return sum(-(-length // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT for length in lengths) + _ALIGNMENT


def lay_out(frames: Sequence[np.ndarray], capacity: int, sequences: int) -> Layout:
    """Places sequences, each an array of frame numbers, on `capacity` columns.

    Raises
    ------
    BackendError
        They do not fit.
    """
    needed = columns_for([len(f) for f in frames])
    if needed > capacity or len(frames) > sequences:
        raise BackendError(
            f"{len(frames)} sequences need {needed} columns; this plan holds {sequences} sequences on {capacity} "
            "columns; make a larger one"
        )
    source, item = np.full(capacity, -1, np.int32), np.full(capacity, -1, np.int32)
    part = np.full(capacity // 2, -1, np.int32)
    columns, rows = np.zeros((sequences, 2), np.int32), np.zeros((sequences, 3), np.int32)
    start, parts = _ALIGNMENT, 0
    for index, numbers in enumerate(frames):
        length = len(numbers)
        source[start : start + length] = numbers
        item[start : start + length] = index
        columns[index] = start, length
        row, count = start // 2, -(-length // 2)
        rows[index] = row, count, parts
        part[row : row + count] = parts + np.arange(count) // _CONTEXT_ROWS
        parts += -(-count // _CONTEXT_ROWS)
        start += -(-length // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
    return Layout(source, item, part, columns, rows)


class CampPlusKernels:
    """Compiled kernels and packed weights of CAM++ on one GPU.

    `layers` is what `diarize.model.campplus.campplus_layers` returns; `kernels` the kernel of every layer by name, as
    `portable_kernels` returns them for the GPU, which is the default.

    Raises
    ------
    BackendError
        A kernel does not run on this GPU, or a weight does not fit the kernels' numbers.
    """

    def __init__(
        self,
        gpu: Gpu,
        pool: MemoryPool,
        layers: Sequence[Layer],
        cache: KernelCache | None = None,
        kernels: Mapping[str, Request] | None = None,
    ) -> None:
        from ..kernels.campplus_head import pack_conv, pack_stem
        from ..kernels.campplus_tdnn import pack_context, pack_product
        from ..kernels.split_pack import fits_split

        cache = cache or KernelCache()
        self.gpu = gpu
        self.memory = pool
        chosen = kernels or portable_kernels(gpu.capability)
        made = {name: request.make() for name, request in chosen.items()}
        self.loaded: dict[str, LoadedKernel] = {
            name: gpu.load(cache.get(kernel, gpu.capability), kernel) for name, kernel in made.items()
        }
        for layer in layers:
            for name, tensor in layer.weights.items():
                if not fits_split(tensor):
                    raise BackendError(
                        f"layer {layer.id}: {name} has a value of size {np.abs(tensor).max():g}, above float16's "
                        "range; use --device cpu"
                    )
        by_id = {layer.id: layer for layer in layers}

        def put(array: np.ndarray) -> DeviceArray:
            return pool.put(np.asarray(array, array.dtype if array.dtype == np.float16 else np.float32))

        head = by_id["head"].weights
        self.stem = put(pack_stem(head["stem"], head["stem_bias"]))
        self.convs = {
            name: (put(pack_conv(weight)), put(head[f"{name}_bias"]))
            for name, weight in head.items()
            if name.startswith(("strided.", "square.", "one.")) and not name.endswith("_bias")
        }
        weight = by_id["tdnn"].weights["weight"]
        # Frequency rows, then taps, then channels; the checkpoint's inputs are (channel, row).
        ordered = weight.reshape(weight.shape[0], 32, 10, 5).transpose(0, 2, 3, 1).reshape(weight.shape[0], -1)
        self.tdnn = (put(pack_product(ordered)), put(by_id["tdnn"].weights["bias"]))
        self.blocks: dict[int, list[tuple[Any, ...]]] = {}
        self.dilations: dict[int, int] = {}
        self.transits: dict[int, tuple[Any, ...]] = {}
        for number in _WIDTHS:
            layer = by_id[f"block{number}"]
            self.dilations[number] = int(layer.params["dilation"])
            self.blocks[number] = []
            for index in range(int(layer.params["layers"])):
                part = {n.removeprefix(f"{index}."): a for n, a in layer.weights.items() if n.startswith(f"{index}.")}
                taps = part["local"].transpose(0, 2, 1).reshape(part["local"].shape[0], -1)
                names = ("context1", "context1_bias", "context2", "context2_bias")
                context = pack_context(*[part[name] for name in names])
                arrays = (part["scale"], part["shift"], pack_product(part["linear"]), part["linear_bias"])
                self.blocks[number].append((part["scale"].size, *map(put, (*arrays, pack_product(taps), context))))
            w = by_id[f"transit{number}"].weights
            outputs, channels = w["weight"].shape
            bias = w.get("bias", np.zeros(outputs, np.float32))
            relu = int(by_id[f"transit{number}"].params["activation"] == "relu")
            packed = (put(w["scale"]), put(w["shift"]), put(pack_product(w["weight"])), put(bias))
            self.transits[number] = (channels, outputs, relu, *packed)
        w = by_id["dense"].weights
        self.dense = (put(np.ascontiguousarray(w["weight"].T)), put(w["bias"]))

    def plan(self, features: DeviceArray, columns: int, sequences: int) -> CampPlusPlan:
        """Buffers and launches for up to `columns` columns and `sequences` sequences of log-mel `features`."""
        return CampPlusPlan(self, features, columns, sequences)


class CampPlusPlan:
    """Buffers and bound launches of one capacity.

    Output: `embeddings` (sequences, 192) float32; rows behind the loaded sequences are undefined. `flag` is not zero
    after a run whose activations left float16's range. `steps` holds every launch with its name, in order.
    """

    def __init__(self, kernels: CampPlusKernels, features: DeviceArray, columns: int, sequences: int) -> None:
        columns = -(-columns // 128) * 128
        self.columns, self.sequences = columns, sequences
        self.memory = kernels.memory
        self._kernels = kernels
        self._held: list[DeviceArray] = []
        self.steps: list[tuple[str, Launch]] = []
        rows, parts = columns // 2, columns // 2 // _CONTEXT_ROWS + sequences + 1
        self._source, self._item = self._empty((columns,), np.int32), self._empty((columns,), np.int32)
        self._part = self._empty((rows,), np.int32)
        self._column_spans = self._empty((sequences, 2), np.int32)
        self._row_spans = self._empty((sequences, 3), np.int32)
        self.flag = kernels.memory.put(np.zeros(1, np.int32))
        self._held.append(self.flag)
        self._gates = self._empty((parts, 32), np.float32)
        self._sums = self._empty((parts, 128), np.float32)
        self._hidden = self._empty((rows, 128), np.float16)
        self.head = self._head(features)
        blocks = {number: self._empty((rows, width), np.float32) for number, width in _WIDTHS.items()}
        last = self._empty((rows, 512), np.float32)
        weight, bias = kernels.tdnn
        self._product("tdnn", "tdnn", self.head, columns, 1600, 128, (weight, weight, weight, bias), blocks[1], 0, 1, 0)
        for number, x in blocks.items():
            self._block(number, x)
            channels, outputs, relu, *arrays = kernels.transits[number]
            target = blocks.get(number + 1, last)
            width = x.shape[1]
            self._product(f"transit{number}", "transit", x, width, channels, outputs, arrays, target, 0, relu, 0)
        statistics = self._empty((sequences, 1024), np.float32)
        self._bind("statistics", (sequences, 4, 1), last, self._row_spans, statistics)
        self.embeddings = self._empty((sequences, DIMENSION), np.float32)
        self._bind("dense", (sequences, 1, 1), statistics, *kernels.dense, self.embeddings)

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        array = self.memory.empty(shape, dtype)
        self._held.append(array)
        return array

    def _bind(self, kernel: str, grid: tuple[int, int, int], *values: Any, name: str = "") -> None:
        self.steps.append((name or kernel, self._kernels.loaded[kernel].bind(grid, *values)))

    def _head(self, features: DeviceArray) -> DeviceArray:
        """From features to ten rows of 32 channels, bound."""
        columns, kernels = self.columns, self._kernels
        mean = self._empty((self.sequences, MELS), np.float32)
        self._bind("mean", (self.sequences, 1, 1), features, self._source, self._column_spans, mean)
        stem = self._empty((2, 80, columns, 32), np.float16)
        values = (features, self._source, self._item, mean, kernels.stem, stem, columns)
        self._bind("stem", (-(-columns // 32), 1, 1), *values)

        def conv(
            kernel: str, weights: str, x: DeviceArray, y: DeviceArray, residual: DeviceArray | None = None
        ) -> None:
            grid = (-(-columns // 64), -(-y.shape[1] // 4), 1)
            values = (x, *kernels.convs[weights], residual or x, y, self._item, self.flag)
            self._bind(kernel, grid, *values, x.shape[1], y.shape[1], columns, name=f"head.{weights}")

        x = stem
        for stage, height in enumerate((40, 20)):
            a, b, c = (self._empty((2, height, columns, 32), np.float16) for _ in range(3))
            conv("strided", f"strided.{stage}", x, a)
            conv("shortcut", f"one.{stage}", x, b)
            conv("outer", f"square.{3 * stage}", a, c, b)
            conv("inner", f"square.{3 * stage + 1}", c, a)
            conv("outer", f"square.{3 * stage + 2}", a, b, c)
            x = b
        out = self._empty((2, 10, columns, 32), np.float16)
        conv("strided", "strided.2", x, out)
        return out

    def _product(
        self,
        name: str,
        kernel: str,
        x: DeviceArray,
        pitch: int,
        inputs: int,
        outputs: int,
        arrays: Sequence[DeviceArray],
        out: DeviceArray,
        column: int,
        relu: int,
        extra: int,
    ) -> None:
        """Bind a product; arrays are scale, shift, weights and bias."""
        rows, pitch_out = self.columns // 2, out.shape[1]
        grid = (-(-rows // 64), -(-outputs // 128), 1)
        self._bind(
            kernel, grid, x, *arrays, self._gates, self._part, out, self.flag,
            pitch, inputs // 32, rows, outputs // 8, pitch_out, column, relu, extra, name=name,
        )  # fmt: skip

    def _block(self, number: int, x: DeviceArray) -> None:
        """Bind the layers of a dense block, in place."""
        for index, (channels, *arrays, taps, context) in enumerate(self._kernels.blocks[number]):
            name = f"block{number}.{index}"
            width = x.shape[1]
            self._product(f"{name}.linear", "product", x, width, channels, 128, arrays, self._hidden, 0, 1, 0)
            values = (self._hidden, self._row_spans, context, self._sums, self._gates)
            self._bind("context", (self.sequences, 1, 1), *values, name=f"{name}.context")
            unused = (taps, taps, taps, taps)
            dilation = self._kernels.dilations[number]
            self._product(f"{name}.local", "taps", self._hidden, 128, 384, 32, unused, x, channels, 0, dilation)

    def load(self, frames: Sequence[np.ndarray], stream: Stream | None = None) -> None:
        """Fill the plan with sequences, each the numbers of its frames in `features`.

        With a stream the copies wait for the work given to it before. Without one they are made at once, and the last
        run of this plan must have ended.

        Raises
        ------
        BackendError
            They do not fit.
        """
        layout = lay_out(frames, self.columns, self.sequences)
        arrays = (self._source, self._item, self._part, self._column_spans, self._row_spans)
        values = (layout.source, layout.item, layout.part, layout.columns, layout.rows)
        for array, value in zip(arrays, values, strict=True):
            driver = self._kernels.gpu.driver
            if stream is None:
                check(driver.cuMemcpyHtoD(array.address, value.ctypes.data, value.nbytes))
            else:
                check(driver.cuMemcpyHtoDAsync(array.address, value.ctypes.data, value.nbytes, stream.handle))

    def run(self, stream: Stream) -> None:
        """Launch every kernel of the batch."""
        for _, launch in self.steps:
            launch(stream)

    def close(self) -> None:
        """Return the buffers to the pool."""
        for array in self._held:
            self.memory.free(array)
