"""Layers of the segmentation network as sites: whole plans, in which one layer at a time is computed by a candidate.

A candidate is compared with the CPU at the next checkpoint behind its layer: the inputs of the LSTM stack, the hidden
states after its first or second layer, or the classes. Plans whose arrays lie alike share one block of memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import registry
from ..backend.cuda_compile import KernelCache
from ..backend.cuda_memory import Arena, ArenaFullError
from ..backend.cuda_networks import with_memory
from ..backend.cuda_pyannet import PyanNetChoice, PyanNetKernels, PyanNetPlan
from ..candidates import Candidate, TunedLayer
from ..framing import FRAMES_PER_WINDOW
from ..layers import Layer
from ..recipe_parse import LSTM_STACK
from ..registry.pyannet import PRECISIONS
from .activations import STEP_SAMPLES
from .site import Failure, Launch, Verified
from .stack_twin import StackTwin
from .verify import compare, compare_classes, digest_of
from .workspace import Workspace, read_windows

STEPS: Mapping[str, str] = {
    "merge": "sinc_pool.merge",
    "lstm_input0": "lstm0.input",
    "lstm_input": "lstm1.input",
    "lstm": "lstm1.recurrence",
}
"""The launch of a plan that stands for a layer, where the names differ."""
_CHECKPOINTS: Mapping[str, tuple[str, str]] = {
    # Layer: the last launch before the outputs are read, and the outputs.
    "lstm_input0": ("lstm0.recurrence", "lstm0"),
    "lstm_input": ("lstm1.recurrence", "lstm1"),
    "lstm": ("lstm1.recurrence", "lstm1"),
    "dense": ("dense", "dense"),
}
_WINDOW_BYTES, _FIXED_BYTES = 8 << 20, 64 << 20


@dataclass(frozen=True)
class _Made:
    """A plan, and how many of its launches lead to the checkpoint."""

    plan: PyanNetPlan
    launches: int
    checkpoint: str
    pitch: int


class StackSites:
    """Makes sites; `layers` are the network's, `samples` (num_samples,) float32 those of `twin`."""

    def __init__(
        self, space: Workspace, layers: Sequence[Layer], samples: np.ndarray, twin: StackTwin, cache: KernelCache
    ) -> None:
        self._space = space
        self._layers = layers
        self._samples = samples
        self._cache = cache
        self.twin = twin
        self._kernels: dict[str, PyanNetKernels] = {}
        self._arenas: dict[tuple[str, int], Arena] = {}
        self._batch = 0

    def open(self, layer: TunedLayer, batch: int) -> StackSite:
        """See `Bench.open`."""
        if batch != self._batch:
            self.release()
            self._batch = batch
        return StackSite(self, self._space, layer, batch)

    def release(self) -> None:
        """Give back the memory of the plans."""
        self._space.stream.synchronize()
        for arena in self._arenas.values():
            arena.release()
        self._arenas.clear()

    def plan(self, candidate: Candidate, batch: int) -> PyanNetPlan:
        """A plan with this candidate in its place and portable ones elsewhere, with samples in it."""
        precision = candidate.precision if candidate.layer in LSTM_STACK else "split"
        chosen = base(self._space.gpu.capability, precision) | {candidate.layer: candidate}
        choice = PyanNetChoice.of(chosen)
        kernels = self._kernels_of(choice)
        count = kernels.block_windows(batch)
        padded = -(-batch // count) * count
        arena = self._arenas.setdefault((precision, padded), Arena(self._space.memory))
        bound = with_memory(kernels, arena)
        wanted = arena.held_bytes or padded * _WINDOW_BYTES + _FIXED_BYTES
        while True:
            arena.reserve(wanted)
            arena.rewind()
            try:
                plan = bound.plan(batch, STEP_SAMPLES, count)
                break
            except ArenaFullError as full:
                # Plans that share a block are of one size: only the first can find it too small.
                wanted = full.needed + full.needed // 2
        self._space.fill(plan.samples, self._samples[: plan.samples.shape[0]])
        return plan

    def _kernels_of(self, choice: PyanNetChoice) -> PyanNetKernels:
        """Kernels with packed weights; choices that differ in the recurrence alone share them."""
        others = (*choice.front.values(), choice.first, choice.other, choice.dense)
        key = choice.precision + "".join(request.key for request in others)
        if key not in self._kernels:
            self._kernels[key] = PyanNetKernels(self._space.gpu, self._space.memory, self._layers, choice, self._cache)
        kernels = copy.copy(self._kernels[key])
        kernels.choice = choice
        return kernels


class StackSite:
    """See `Site`."""

    def __init__(self, owner: StackSites, space: Workspace, layer: TunedLayer, batch: int) -> None:
        self._owner = owner
        self._space = space
        self._name = layer.id.removeprefix("pyannet.")
        self._batch = batch
        self._made: dict[str, _Made] = {}

    def _plan(self, candidate: Candidate) -> _Made:
        if candidate.name not in self._made:
            plan = self._owner.plan(candidate, self._batch)
            last, checkpoint = _CHECKPOINTS.get(self._name, ("norm", "norm"))
            names = [name for name, _ in plan.steps]
            inputs = PRECISIONS[candidate.precision].inputs
            pitch = 64 if checkpoint == "norm" else 256
            made = _Made(plan, names.index(last) + 1, checkpoint, pitch if inputs else 0)
            self._made[candidate.name] = made
        return self._made[candidate.name]

    def launches(self, candidate: Candidate) -> Sequence[Launch]:
        """See `Site`."""
        step = STEPS.get(self._name, self._name)
        return [launch for name, launch in self._plan(candidate).plan.steps if name == step]

    def verify(self, candidate: Candidate) -> Verified | Failure:
        """See `Site`."""
        made, space = self._plan(candidate), self._space
        plan = made.plan
        for array in (*plan.outputs.values(), plan.classes):
            space.poison(array)
        space.clear(plan.flag)
        for _, launch in plan.steps[: made.launches]:
            launch(space.stream)
        if made.checkpoint == "dense":
            return self._verify_classes(candidate, plan)
        windows = read_windows(self._batch, True)
        found = self._windows(plan.outputs[made.checkpoint], plan.padded, windows)
        width = 60 if made.checkpoint == "norm" else 256
        got, expected = [], []
        for window, values in zip(windows, found, strict=True):
            value = values[:, :width].astype(np.float32)
            got.append(value + values[:, made.pitch : made.pitch + width] if made.pitch else value)
            expected.append(self._owner.twin.window(window)[made.checkpoint])
        precision = candidate.precision
        error = compare(got, expected, "stack fp16" if precision == "fp16" else precision)
        if isinstance(error, Failure):
            return error
        gates = self._name in ("lstm_input0", "lstm_input")
        return Verified(error, digest_of(self._gates(plan) if gates else found[0]))

    def _verify_classes(self, candidate: Candidate, plan: PyanNetPlan) -> Verified | Failure:
        windows = read_windows(self._batch, True)
        got = [self._space.rows(plan.classes, window, 1)[0] for window in windows]
        expected = [self._owner.twin.window(window)["dense"] for window in windows]
        error = compare_classes(np.stack(got), np.stack(expected), exact=candidate.precision == "split")
        return error if isinstance(error, Failure) else Verified(error, digest_of(got[0]))

    def _windows(self, array: object, padded: int, windows: Sequence[int]) -> list[np.ndarray]:
        """(589, pitch) of each window, from rows time * padded + window."""
        first = [window for window in windows if window < len(windows)]
        read = self._space.strided_rows
        rows = read(array, 0, padded, FRAMES_PER_WINDOW, len(first))  # type: ignore[arg-type]
        found = [rows[:, window] for window in first]
        found += [
            read(array, window, padded, FRAMES_PER_WINDOW)[:, 0]  # type: ignore[arg-type]
            for window in windows[len(first) :]
        ]
        return found

    def _gates(self, plan: PyanNetPlan) -> np.ndarray:
        """The first window's gates of the LSTM layer that ran last, in the order in which the kernels write them."""
        # Eight rows at a time, [direction][warp][word][lane][4]; a group's first row lies in every fourth lane.
        rows = self._space.strided_rows(plan.outputs["gates"], 0, plan.padded, FRAMES_PER_WINDOW, 8)
        return rows.reshape(FRAMES_PER_WINDOW, 2, 8, 4, 32, 4)[..., 0::4, 0::2]

    def close(self) -> None:
        """See `Site`; the memory is that of every plan of this batch size."""
        self._space.stream.synchronize()
        for made in self._made.values():
            made.plan.close()
        self._made.clear()


def base(capability: tuple[int, int], precision: str) -> dict[str, Candidate]:
    """Portable candidates with the LSTM stack in one precision."""
    chosen = registry.portable(capability, ["pyannet"]).at(1)
    for layer in LSTM_STACK:
        chosen[layer] = next(
            c
            for c in registry.candidates(layer)
            if c.layer == layer and c.precision == precision and not c.exactly and c.runs_on(capability)
        )
    return chosen
