"""The filterbank, whose layers have one candidate each, and CAM++ as sites.

They run as the pipeline runs them. The filterbank is compared with the CPU's features; every layer of CAM++ with the
CPU's embeddings, since a kernel that is wrong shows there.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence

import numpy as np

from ..backend.cpu import CpuBackend
from ..backend.cuda_campplus import CampPlusKernels, CampPlusPlan, columns_for
from ..backend.cuda_compile import KernelCache
from ..backend.cuda_driver import DeviceArray, LoadedKernel
from ..backend.cuda_fbank import FRAME_STEP, MELS, FilterbankKernels, FilterbankPlan
from ..backend.cuda_networks import GATHER
from ..candidates import Candidate, TunedLayer
from ..framing import WINDOW_SAMPLES
from ..layers import Layer
from ..model.campplus import CampPlusEmbedder
from ..model.fbank import Filterbank
from ..model.resnet34 import WINDOW_FRAMES
from .activations import STEP_SAMPLES
from .site import Failure, Launch, Verified
from .verify import compare, digest_of
from .workspace import Workspace, read_windows

_STEP = STEP_SAMPLES // FRAME_STEP
_STEPS = {"fbank.log_mel": "fbank", "fbank.mean": "mean"}


class FilterbankSites:
    """Makes sites; `bank` computes on the CPU, `samples` (num_samples,) float32 are enough for the largest batch."""

    def __init__(
        self, space: Workspace, layer: Layer, bank: Filterbank, samples: np.ndarray, cache: KernelCache
    ) -> None:
        self.space = space
        self.samples = samples
        self.kernels = FilterbankKernels(space.gpu, space.memory, layer, cache)
        kernel = GATHER.make()
        self.gather = space.gpu.load(cache.get(kernel, space.gpu.capability), kernel)
        self._bank = bank
        self._features: dict[int, np.ndarray] = {}

    def features(self, window: int) -> np.ndarray:
        """(998, 80) float32 features of a window on the CPU."""
        if window not in self._features:
            own = self.samples[window * STEP_SAMPLES :][:WINDOW_SAMPLES]
            self._features[window] = self._bank.features(own)
        return self._features[window]

    def open(self, layer: TunedLayer, batch: int) -> FilterbankSite:
        """See `Bench.open`."""
        return FilterbankSite(self, layer, batch)


class FilterbankSite:
    """See `Site`."""

    def __init__(self, owner: FilterbankSites, layer: TunedLayer, batch: int) -> None:
        self._owner = owner
        self._space = space = owner.space
        self._layer = layer.id
        self._batch = batch
        self._held: list[DeviceArray] = []
        self._gathered: list[DeviceArray] = []
        try:
            self._allocate()
        except BaseException:
            space.give_back(self._held)
            raise

    def _allocate(self) -> None:
        owner, space, batch = self._owner, self._space, self._batch
        length = (batch - 1) * STEP_SAMPLES + WINDOW_SAMPLES
        samples = space.empty((length,), np.float32, self._held)
        space.fill(samples, owner.samples[:length])
        self._plan: FilterbankPlan = owner.kernels.plan(samples, batch, STEP_SAMPLES)
        self._held += [self._plan.features, self._plan.mean]
        if self._layer == "fbank.gather":
            chosen = space.memory.put(np.arange(batch, dtype=np.int32))
            self._held.append(chosen)
            windows = space.empty((batch, WINDOW_FRAMES, MELS), np.float32, self._held)
            means = space.empty((batch, MELS), np.float32, self._held)
            values = (self._plan.features, self._plan.mean, chosen, windows, means)
            self._gathered = [windows, means]
            self._gather = owner.gather.bind((8, batch, 1), *values, _STEP * MELS, WINDOW_FRAMES * MELS)

    def launches(self, candidate: Candidate) -> Sequence[Launch]:
        """See `Site`."""
        if self._gathered:
            return [self._gather]
        return [launch for name, launch in self._plan.steps if name == _STEPS[self._layer]]

    def verify(self, candidate: Candidate) -> Verified | Failure:
        """See `Site`."""
        space, plan = self._space, self._plan
        for array in (plan.features, plan.mean, *self._gathered):
            space.poison(array)
        plan.run(space.stream)
        if self._gathered:
            self._gather(space.stream)
        got: list[np.ndarray] = []
        expected: list[np.ndarray] = []
        windows = read_windows(self._batch, True)
        for window in windows:
            features = self._owner.features(window)
            if self._gathered:
                own = space.rows(self._gathered[0], window, 1)[0], space.rows(self._gathered[1], window, 1)[0]
                got += own
                expected += [space.rows(plan.features, window * _STEP, WINDOW_FRAMES)]
                expected += [space.rows(plan.mean, window, 1)[0]]
            elif self._layer == "fbank.mean":
                got.append(space.rows(plan.mean, window, 1)[0])
                expected.append(features.mean(0, dtype=np.float64).astype(np.float32))
            else:
                got.append(space.rows(plan.features, window * _STEP, WINDOW_FRAMES))
                expected.append(features)
        error = compare(got, expected, "exact" if self._gathered else "filterbank")
        return error if isinstance(error, Failure) else Verified(error, digest_of(got[0]))

    def close(self) -> None:
        """See `Site`."""
        self._space.give_back(self._held)


class CampPlusSites:
    """Makes sites; the features are those of `bank`, one sequence a window, of all its frames or every second."""

    def __init__(
        self, space: Workspace, layers: Sequence[Layer], weights: object, bank: FilterbankSites, cache: KernelCache
    ) -> None:
        self.space = space
        self.bank = bank
        self._cache = cache
        self._kernels = CampPlusKernels(space.gpu, space.memory, layers, cache)
        self._loaded: dict[str, LoadedKernel] = {}
        self._embedder = CampPlusEmbedder(weights, CpuBackend())  # type: ignore[arg-type]
        self._embeddings: dict[int, np.ndarray] = {}

    def kernels(self, candidate: Candidate) -> CampPlusKernels:
        """The network with the candidate's kernel in its place and portable ones elsewhere; weights are shared."""
        (request,) = candidate.requests
        if request.key not in self._loaded:
            kernel = request.make()
            image = self._cache.get(kernel, self.space.gpu.capability)
            self._loaded[request.key] = self.space.gpu.load(image, kernel)
        kernels = copy.copy(self._kernels)
        kernels.loaded = {**kernels.loaded, candidate.layer.partition(".")[2]: self._loaded[request.key]}
        return kernels

    def embedding(self, window: int) -> np.ndarray:
        """(192,) float32 embedding of a window's sequence on the CPU."""
        if window not in self._embeddings:
            features = self.bank.features(window)[frames_of(window)]
            self._embeddings[window] = self._embedder.embed_features(np.ascontiguousarray(features))
        return self._embeddings[window]

    def open(self, layer: TunedLayer, batch: int) -> CampPlusSite:
        """See `Bench.open`."""
        return CampPlusSite(self, layer, batch)


class CampPlusSite:
    """See `Site`."""

    def __init__(self, owner: CampPlusSites, layer: TunedLayer, batch: int) -> None:
        self._owner = owner
        self._space = space = owner.space
        self._name = layer.id.removeprefix("campplus.")
        self._batch = batch
        self._plans: dict[str, CampPlusPlan] = {}
        self._held: list[DeviceArray] = []
        try:
            self._allocate()
        except BaseException:
            space.give_back(self._held)
            raise

    def _allocate(self) -> None:
        owner, space, batch = self._owner, self._space, self._batch
        length = (batch - 1) * STEP_SAMPLES + WINDOW_SAMPLES
        samples = space.empty((length,), np.float32, self._held)
        space.fill(samples, owner.bank.samples[:length])
        bank = owner.bank.kernels.plan(samples, batch, STEP_SAMPLES)
        self._held += [bank.features, bank.mean]
        bank.run(space.stream)
        self._features = bank.features
        self._frames = [(_STEP * window + frames_of(window)).astype(np.int32) for window in range(batch)]
        space.stream.synchronize()

    def _plan(self, candidate: Candidate) -> CampPlusPlan:
        if candidate.name not in self._plans:
            columns = columns_for([len(f) for f in self._frames])
            plan = self._owner.kernels(candidate).plan(self._features, columns, self._batch)
            self._plans[candidate.name] = plan
            plan.load(self._frames)
        return self._plans[candidate.name]

    def launches(self, candidate: Candidate) -> Sequence[Launch]:
        """See `Site`: every launch of the layer's kernel in one pass of the network."""
        return [launch for name, launch in self._plan(candidate).steps if kernel_of(name) == self._name]

    def verify(self, candidate: Candidate) -> Verified | Failure:
        """See `Site`."""
        space, plan = self._space, self._plan(candidate)
        space.poison(plan.embeddings)
        plan.run(space.stream)
        windows = read_windows(self._batch, True)
        got = [space.rows(plan.embeddings, window, 1)[0] for window in windows]
        error = compare(got, [self._owner.embedding(window) for window in windows], "campplus")
        return error if isinstance(error, Failure) else Verified(error, digest_of(got[0]))

    def close(self) -> None:
        """See `Site`."""
        self._space.stream.synchronize()
        for plan in self._plans.values():
            plan.close()
        self._space.give_back(self._held)


def frames_of(window: int) -> np.ndarray:
    """Frames of a window's sequence: all, or of every other window the second half."""
    return np.arange(window % 2 * (WINDOW_FRAMES // 2), WINDOW_FRAMES)


_KERNELS = (
    # Launches of a plan, and the layer that they belong to.
    (r"head\.strided\..*", "strided"),
    (r"head\.one\..*", "shortcut"),
    (r"head\.square\.[14]", "inner"),
    (r"head\.square\.[0235]", "outer"),
    (r"block.*\.linear", "product"),
    (r"block.*\.context", "context"),
    (r"block.*\.local", "taps"),
    (r"transit.*", "transit"),
)


def kernel_of(step: str) -> str:
    """The layer of the registry that a launch of CAM++ belongs to.

    >>> kernel_of("head.square.3"), kernel_of("block2.7.local"), kernel_of("dense")
    ('outer', 'taps', 'dense')
    """
    return next((layer for pattern, layer in _KERNELS if re.fullmatch(pattern, step)), step)
