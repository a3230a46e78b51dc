"""The CPU's values inside the segmentation network for single windows: the twin of PyanNet's layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backend.cpu import CpuBackend
from ..framing import FRAMES_PER_WINDOW, WINDOW_SAMPLES
from ..layers import Layer
from .activations import STEP_SAMPLES

_POSITIONS, _POOLED, _MIDDLE = 15975, 5325, 1773
_FILTERS, _CHANNELS, _HIDDEN = 80, 60, 256
_DENSE = (128, 128, 7)


class StackTwin:
    """Computes windows of a stretch of samples on the CPU; each is kept.

    Values of a window by checkpoint: "norm" (589, 60) inputs of the LSTM stack, "lstm0" and "lstm1" (589, 256) hidden
    states of its first two layers, "dense" (589,) uint8 classes.
    """

    def __init__(self, layers: Sequence[Layer], samples: np.ndarray) -> None:
        self._backend = CpuBackend()
        self._bound = {layer.id.removeprefix("segmentation."): self._backend.prepare(layer) for layer in layers}
        self._samples = samples
        self._known: dict[int, dict[str, np.ndarray]] = {}

    def window(self, number: int) -> dict[str, np.ndarray]:
        """The values of one window."""
        if number not in self._known:
            self._known[number] = self._compute(number * STEP_SAMPLES)
        return self._known[number]

    def _compute(self, start: int) -> dict[str, np.ndarray]:
        put, run = self._backend.put, self._bound

        def space(*shape: int) -> np.ndarray:
            return put(np.empty(shape, np.float32))

        own = put(self._samples[start : start + WINDOW_SAMPLES])
        filtered, pooled, middle = space(_POSITIONS, _FILTERS), space(_POOLED, _FILTERS), space(_MIDDLE, _CHANNELS)
        features = space(FRAMES_PER_WINDOW, _CHANNELS)
        run["sinc"]([own], [filtered])
        run["sinc_pool"]([own, filtered], [pooled])
        run["conv1"]([pooled], [middle])
        run["conv2"]([middle], [features])
        found = {"norm": features}
        x = features[:, None]
        for index in range(4):
            out = space(FRAMES_PER_WINDOW, 1, _HIDDEN)
            run[f"lstm{index}"]([x], [out])
            found[f"lstm{index}"] = out[:, 0]
            x = out
        rows = x[:, 0]
        for name, size in zip(("lin0", "lin1", "cls"), _DENSE, strict=True):
            out = space(FRAMES_PER_WINDOW, size)
            run[name]([rows], [out])
            rows = out
        found["dense"] = rows.argmax(1).astype(np.uint8)
        return {name: np.array(values) for name, values in found.items()}
