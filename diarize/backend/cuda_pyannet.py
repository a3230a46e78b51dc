"""PyanNet on a GPU: which kernels run the segmentation network, packed weights, buffers and the launches of one batch.

A batch is a stretch of samples with windows at a fixed distance; one byte a frame comes back. The LSTM stack runs in
one of several precisions; everything else multiplies pairs of float16, as accurate as float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import registry
from ..candidates import Candidate, Request
from ..errors import BackendError
from ..framing import FRAMES_PER_WINDOW, WINDOW_SAMPLES
from ..registry.pyannet import FRONT, LAYERS, PRECISIONS, LstmPrecision
from .cuda_compile import KernelCache
from .cuda_driver import DeviceArray, Gpu, Launch, LoadedKernel, MemoryPool, Stream

if TYPE_CHECKING:
    from ..layers import Layer

SINC_POSITIONS = 15975
"""Filter positions of a window; they are ten samples apart."""
# Rows after the pooling of the filters and of both convolutions.
_ROWS = (5325, 1773, FRAMES_PER_WINDOW)
_WAVE_PART = 16000
_POOL_TILE = 64
_LSTM_LAYERS = 4
_LSTM_SIZE = 256


@dataclass(frozen=True)
class PyanNetChoice:
    """The kernel of every part of the network.

    `front` are those in front of the LSTM stack; `first` and `other` compute the input products of the first and of
    the other LSTM layers; `recurrences` the recurrence, by the windows of a block, the smallest first. The precision
    of the LSTM stack is `precision`.
    """

    front: Mapping[str, Request]
    first: Request
    other: Request
    recurrences: Mapping[int, Request]
    dense: Request
    precision: str

    @classmethod
    def of(cls, chosen: Mapping[str, Candidate]) -> PyanNetChoice:
        """The choice from candidates by layer of the registry.

        Raises
        ------
        BackendError
            A layer has no candidate, or the LSTM layers differ in precision.
        """
        missing = [layer.id for layer in LAYERS if layer.id not in chosen]
        if missing:
            raise BackendError(f"no kernel is chosen for {', '.join(missing)}; see diarize cuda candidates")
        stack = ("lstm_input", "lstm", "dense")
        precisions = {chosen[f"pyannet.{layer}"].precision for layer in stack}
        if len(precisions) != 1:
            raise BackendError(f"LSTM layers have precisions {', '.join(sorted(precisions))}; choose one for all")
        recurrences = {int(r.parameters["windows"]): r for r in chosen["pyannet.lstm"].requests}
        return cls(
            {name: chosen[f"pyannet.{name}"].requests[0] for name in FRONT},
            chosen["pyannet.lstm_input0"].requests[0],
            chosen["pyannet.lstm_input"].requests[0],
            dict(sorted(recurrences.items())),
            chosen["pyannet.dense"].requests[0],
            precisions.pop(),
        )

    @property
    def parts(self) -> LstmPrecision:
        """The precision by operand."""
        return PRECISIONS[self.precision]

    @property
    def block_windows(self) -> tuple[int, ...]:
        """Windows a block of the recurrence, the smallest first."""
        return tuple(self.recurrences)

    def input_product(self, layer: int) -> Request:
        """Kernel of the input product of an LSTM layer."""
        return self.first if layer == 0 else self.other

    def requests(self) -> list[Request]:
        """Every kernel that the network needs."""
        return [*self.front.values(), self.first, self.other, *self.recurrences.values(), self.dense]


def named_choice(input_product: str, recurrence: str, precision: str = "split") -> PyanNetChoice:
    """The choice by names of the registry without the precision, such as "mma" and "streamed8".

    Raises
    ------
    BackendError
        The precision is unknown.
    """
    if precision not in PRECISIONS:
        raise BackendError(f"unknown LSTM precision {precision!r}: choose one of {', '.join(PRECISIONS)}")
    names = {"lstm_input0": input_product, "lstm_input": input_product, "lstm": recurrence, "dense": "pairs"}
    chosen = registry.portable((8, 0), ["pyannet"]).at(1)
    for layer, name in names.items():
        found = registry.find(f"pyannet.{layer}", f"{name}_{precision}")
        assert found is not None
        chosen[found.layer] = found
    return PyanNetChoice.of(chosen)


def portable_choice(precision: str = "split") -> PyanNetChoice:
    """The choice for every GPU from compute capability 8.0 on: no block takes more than 99 KB of shared memory."""
    return named_choice("mma", "streamed8", precision)


def hopper_choice(precision: str = "split") -> PyanNetChoice:
    """The choice measured on an H200: warpgroup tensor cores, and blocks of 8 or of 16 windows in two halves."""
    return named_choice("wgmma", "interleaved8or16", precision)


def on_warpgroups(request: Request) -> bool:
    """Whether an input product runs on warpgroup tensor cores, which read other packed weights and a tensor map."""
    return request.factory.startswith("lstm_hopper:")


def _pad(values: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros(size, np.float32)
    out[: values.size] = values
    return out


class PyanNetKernels:
    """Compiled kernels and packed weights of PyanNet on one GPU; `plan` makes the launches of a batch size.

    `layers` is what `diarize.model.segmentation.segmentation_layers` returns.

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
        choice: PyanNetChoice | None = None,
        cache: KernelCache | None = None,
    ) -> None:
        from ..kernels.dense import pack_dense, pack_dense_bias
        from ..kernels.lstm_hopper import pack_input_resident
        from ..kernels.lstm_pack import pack_input, pack_recurrent
        from ..kernels.sincnet import pack_conv, pack_sinc
        from ..kernels.split_pack import fits_split

        self.gpu = gpu
        self.memory = pool
        self.choice = choice or portable_choice()
        self._cache = cache or KernelCache()
        self._loaded: dict[str, LoadedKernel] = {}
        weights = {layer.id.removeprefix("segmentation."): layer.weights for layer in layers}
        for name, tensors in weights.items():
            for tensor in tensors.values():
                if not fits_split(tensor):
                    raise BackendError(
                        f"layer {name} has a weight of size {np.abs(tensor).max():g}, above float16's range; "
                        "use --device cpu"
                    )
        put = pool.put
        bank = weights["sinc"]["weight"]
        self.front = {name: self.load(request) for name, request in self.choice.front.items()}
        self.sinc_weight = put(pack_sinc(bank))
        pooling = weights["sinc_pool"]
        self.sinc_sums = put(bank.astype(np.float64).sum(1).astype(np.float32))
        self.wave_weight = put(np.asarray(pooling["wav_weight"], np.float32).reshape(1))
        self.wave_bias = float(np.asarray(pooling["wav_bias"]).reshape(-1)[0])
        self.norms = [(put(np.asarray(pooling[p], np.float32))) for p in ("weight", "bias")]
        self.convs = []
        for name, pitch in (("conv1", 80), ("conv2", 64)):
            w = weights[name]
            padded = [put(_pad(w[part], 64)) for part in ("bias", "norm_weight", "norm_bias")]
            self.convs.append((put(pack_conv(w["weight"], pitch)), *padded))
        self.lstm = []
        for index in range(_LSTM_LAYERS):
            w = weights[f"lstm{index}"]
            sides = ("", "_reverse")
            bias = tuple(w["bias_ih" + s].astype(np.float64) + w["bias_hh" + s] for s in sides)
            inputs = self.choice.input_product(index).parameters
            values = ((w["weight_ih"], w["weight_ih_reverse"]), (bias[0], bias[1]), inputs["chunks"])
            if on_warpgroups(self.choice.input_product(index)):
                packed, packed_bias = pack_input_resident(*values, inputs["exact_weights"])
            else:
                packed, packed_bias = pack_input(*values, inputs["exact_weights"], inputs["exact_input"])
            high, low = pack_recurrent((w["weight_hh"], w["weight_hh_reverse"]))
            self.lstm.append((put(packed), put(packed_bias), put(high), put(low)))
        dense = [weights[name] for name in ("lin0", "lin1", "cls")]
        self.dense_weight = put(pack_dense((dense[0]["weight"], dense[1]["weight"], dense[2]["weight"])))
        self.dense_bias = put(pack_dense_bias((dense[0]["bias"], dense[1]["bias"], dense[2]["bias"])))
        self.inputs = [self.load(self.choice.input_product(layer)) for layer in range(_LSTM_LAYERS)]
        self.dense = self.load(self.choice.dense)

    def load(self, request: Request) -> LoadedKernel:
        """The loaded kernel of a request; equal requests share one."""
        key = repr((request.factory, sorted(request.parameters.items())))
        if key not in self._loaded:
            kernel = request.make()
            image = self._cache.get(kernel, self.gpu.capability)
            self._loaded[key] = self.gpu.load(image, kernel)
        return self._loaded[key]

    def block_windows(self, windows: int) -> int:
        """Windows a block of the recurrence: the fewest whose blocks, two directions, all run at once."""
        for count in self.choice.block_windows:
            if 2 * -(-windows // count) <= self.gpu.multiprocessors:
                return count
        return self.choice.block_windows[-1]

    def plan(self, windows: int, step_samples: int, block_windows: int | None = None) -> PyanNetPlan:
        """Buffers and launches for exactly `windows` windows every `step_samples` samples, a multiple of ten."""
        return PyanNetPlan(self, windows, step_samples, block_windows or self.block_windows(windows))


class PyanNetPlan:
    """Buffers and bound launches of one batch size.

    Input: `samples` ((windows - 1) * step + 160000,) float32. Output: `classes` (windows, 589) uint8. `flag` is not
    zero after a run with a score that is not finite. `steps` holds every launch with its name, in order; `outputs` the
    arrays after the named launches.
    """

    def __init__(self, kernels: PyanNetKernels, windows: int, step_samples: int, block_windows: int) -> None:
        if windows < 1 or step_samples < 10 or step_samples % 10:
            raise BackendError(
                f"{windows} windows every {step_samples} samples; give at least one window and a step that is a "
                "positive multiple of 10"
            )
        self.windows = windows
        self.memory = kernels.memory
        self.steps: list[tuple[str, Launch]] = []
        self.outputs: dict[str, DeviceArray] = {}
        self._held: list[DeviceArray] = []
        self._kernels = kernels
        self.samples = self._empty(((windows - 1) * step_samples + WINDOW_SAMPLES,), np.float32)
        self.flag = kernels.memory.put(np.zeros(1, np.int32))
        self._held.append(self.flag)
        features = self._front(step_samples)
        hidden, padded = self._lstm(features, block_windows)
        self.classes = self._empty((windows, FRAMES_PER_WINDOW), np.uint8)
        frames = FRAMES_PER_WINDOW
        self._bind(
            "dense", kernels.dense, (-(-frames * padded // 64), 1, 1),
            hidden, kernels.dense_weight, kernels.dense_bias, self.classes, self.flag, frames, windows, padded,
        )  # fmt: skip

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        array = self.memory.empty(shape, dtype)
        self._held.append(array)
        return array

    def _bind(self, name: str, loaded: LoadedKernel, grid: tuple[int, int, int], *values: Any) -> None:
        self.steps.append((name, loaded.bind(grid, *values)))

    def _merge(self, name: str, partial: DeviceArray, weight: DeviceArray, part_rows: int, rows: int) -> DeviceArray:
        """Mean and scale from the moments of parts."""
        windows, parts, _, channels = partial.shape
        norm = self._empty((windows, 2, channels), np.float32)
        values = (partial, weight, norm, parts, channels, part_rows, rows)
        self._bind(name, self._kernels.front["merge"], (windows, 1, 1), *values)
        return norm

    def _front(self, step_samples: int) -> DeviceArray:
        """From samples to the pooled outputs of the second convolution, and their norm, bound; returns both."""
        kernels, windows = self._kernels, self.windows
        front = kernels.front
        step_positions = step_samples // 10
        positions = (windows - 1) * step_positions + SINC_POSITIONS
        filtered = self._empty((positions, 80), np.float32)
        values: tuple[Any, ...] = (self.samples, kernels.sinc_weight, filtered, positions, self.samples.shape[0])
        self._bind("sinc", front["sinc"], (-(-positions // 64), 1, 1), *values)
        parts = -(-WINDOW_SAMPLES // _WAVE_PART)
        moments = self._empty((windows, parts, 2, 1), np.float32)
        values = (self.samples, moments, step_samples, parts, WINDOW_SAMPLES)
        self._bind("moments", front["moments"], (parts, windows, 1), *values)
        wave = self._merge("moments.merge", moments, kernels.wave_weight, _WAVE_PART, WINDOW_SAMPLES)
        tiles = [-(-rows // _POOL_TILE) for rows in _ROWS]
        pooled = self._empty((windows, _ROWS[0], 80), np.float32)
        partial = self._empty((windows, tiles[0], 2, 80), np.float32)
        self._bind(
            "sinc_pool", front["sinc_pool"], (tiles[0], windows, 1),
            filtered, self.samples, wave, kernels.sinc_sums, pooled, partial, kernels.wave_bias,
            step_samples, step_positions, _ROWS[0], tiles[0],
        )  # fmt: skip
        weight, bias = kernels.norms
        norm = self._merge("sinc_pool.merge", partial, weight, _POOL_TILE, _ROWS[0])
        self.outputs |= {"sinc": filtered, "sinc_pool": pooled}
        for index, (packed, conv_bias, norm_weight, norm_bias) in enumerate(kernels.convs, start=1):
            name, rows = f"conv{index}", _ROWS[index]
            out = self._empty((windows, rows, 64), np.float32)
            partial = self._empty((windows, tiles[index], 2, 64), np.float32)
            self._bind(
                name, front[name], (tiles[index], windows, 1),
                pooled, norm, bias, packed, conv_bias, out, partial, _ROWS[index - 1], rows, tiles[index],
            )  # fmt: skip
            norm = self._merge(f"{name}.merge", partial, norm_weight, _POOL_TILE, rows)
            pooled, bias = out, norm_bias
            self.outputs[name] = out
        self._last_norm, self._last_bias = norm, bias
        return pooled

    def _lstm(self, features: DeviceArray, block_windows: int) -> tuple[DeviceArray, int]:
        """The LSTM stack, bound; returns the hidden states and the padded window count."""
        kernels, steps = self._kernels, FRAMES_PER_WINDOW
        parts = kernels.choice.parts
        padded = -(-self.windows // block_windows) * block_windows
        rows = -(-steps * padded // 128) * 128
        if rows * 1024 >= 1 << 33:
            raise BackendError(f"{self.windows} windows are too many for one batch; give at most 14000")
        inputs = self._empty((rows, 128), np.float16)
        self._bind(
            "norm", kernels.front["norm"], (-(-steps // 32), self.windows, 1),
            features, self._last_norm, self._last_bias, inputs, steps, padded,
        )  # fmt: skip
        self.outputs["norm"] = inputs
        pitch = _LSTM_SIZE * (2 if parts.inputs else 1)
        hidden = [self._empty((rows, pitch), np.float16) for _ in range(2)]
        gates = self._empty((rows, 1024), np.float32)
        recurrence = kernels.load(kernels.choice.recurrences[block_windows])
        for index, (packed, bias, high, low) in enumerate(kernels.lstm):
            out = hidden[index % 2]
            if on_warpgroups(kernels.choice.input_product(index)):
                source, tiles = self._map(inputs), rows // 128
                grid = (8 * max(1, min(tiles, kernels.gpu.multiprocessors // 8)), 1, 1)
                values: tuple[Any, ...] = (source, packed, bias, gates, tiles)
            else:
                grid, values = (8, rows // 128, 1), (inputs, packed, bias, gates)
            self._bind(f"lstm{index}.input", kernels.inputs[index], grid, *values)
            grid = (padded // block_windows, 2, 1)
            self._bind(f"lstm{index}.recurrence", recurrence, grid, gates, high, low, out, steps, padded)
            inputs = self.outputs[f"lstm{index}"] = out
        self.outputs |= {"lstm": inputs, "gates": gates}
        self.padded = padded
        return inputs, padded

    def _map(self, inputs: DeviceArray) -> DeviceArray:
        """Tensor map of LSTM inputs (rows, pitch) for the Hopper input product."""
        from ..kernels.lstm_hopper import BOX

        rows, pitch = inputs.shape
        return self.memory.tensor_map(DeviceArray(inputs.address, (1, rows // 128, 128, pitch), inputs.dtype), BOX)

    def run(self, stream: Stream) -> None:
        """Launch every kernel of the batch."""
        for _, launch in self.steps:
            launch(stream)

    def close(self) -> None:
        """Return the buffers to the pool."""
        for array in self._held:
            self.memory.free(array)
