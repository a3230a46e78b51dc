"""A real GPU as the tuner's bench: kernels compiled, the user's weights loaded, sites of every network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..backend.cuda_build import build
from ..backend.cuda_compile import KernelCache
from ..backend.cuda_conv import ConvolutionLoader
from ..backend.cuda_driver import Gpu
from ..backend.cuda_networks import GATHER
from ..backend.cuda_resnet34 import float32_choice
from ..candidates import Candidate, Request, TunedLayer
from ..hardware import Device
from ..model.campplus import campplus_layers
from ..model.fbank import log_mel_layer
from ..model.resnet34 import resnet34_layers
from ..model.segmentation import segmentation_layers
from ..model.weights import ModelWeights
from ..registry import candidates
from .activations import trunk_activations
from .others import CampPlusSites, FilterbankSites
from .replay import Replays
from .site import Compiling, Failure, FailureKind, Parts, Site, Timer
from .stack import StackSites, base
from .trunk import TrunkSites, needed_activations
from .trunk_ends import TrunkEnds
from .twins import CpuTwins
from .workspace import Workspace

Open = Callable[[TunedLayer, int, Parts], Site]


class DeviceBench:
    """See `Bench`; `largest` is the largest batch size that will be asked for."""

    def __init__(self, index: int, weights: ModelWeights, largest: int, device: Device | None = None) -> None:
        self._gpu = Gpu(index)
        self.device = device or self._gpu.describe()
        self._weights = weights
        self._cache = KernelCache()
        self._space = Workspace(self._gpu)
        self._replays = Replays(self._gpu)
        self.timer: Timer = self._replays
        self._twins = CpuTwins(weights, largest)
        self._stack: StackSites | None = None
        self._bank: FilterbankSites | None = None
        self._openers: dict[str, Open] = {}
        self._batch = 0

    def build(self, wanted: Sequence[Candidate], compiling: Compiling | None) -> dict[tuple[str, str], Failure]:
        """See `Bench`."""
        capability = self._gpu.capability
        # What candidates are compared with, and what runs around them.
        around = [*(float32_choice().requests() if self._twins.has_trunk else ()), GATHER]
        around += [c.requests[0] for c in candidates("fbank")]
        precisions = dict.fromkeys(c.precision for c in wanted if c.layer.startswith("pyannet.lstm"))
        for precision in ("split", *precisions):
            around += [request for c in base(capability, precision).values() for request in c.requests]
        if any(c.layer.startswith("campplus.") for c in wanted):
            around += [request for c in candidates("campplus") for request in c.requests]
        requests: dict[str, Request] = {r.key: r for r in (*(r for c in wanted for r in c.requests), *around)}
        failed: dict[str, str] = {}
        build(list(requests.values()), capability, self._cache.folder, compiling=compiling, failed=failed)
        return {
            (c.layer, c.name): Failure(FailureKind.COMPILE, failed[request.key])
            for c in wanted
            for request in c.requests
            if request.key in failed
        }

    def ready(self, network: str) -> None:
        """See `Bench`."""
        if network not in self._openers:
            self._openers[network] = self._prepare(network)

    def open(self, layer: TunedLayer, batch: int, parts: Parts) -> Site:
        """See `Bench`."""
        if batch != self._batch:
            if self._stack is not None:
                self._stack.release()
            self._space.memory.trim()
            self._batch = batch
        self.ready(layer.network)
        return self._openers[layer.network](layer, batch, parts)

    def _prepare(self, network: str) -> Open:
        """What opens the sites of a network, with the twins that all of its sites share."""
        space, weights, twins = self._space, self._weights, self._twins
        if network == "pyannet":
            layers = segmentation_layers(weights.segmentation)
            stack = self._stack = StackSites(space, layers, twins.samples, twins.stack(), self._cache)
            return lambda layer, batch, _: stack.open(layer, batch)
        if network == "resnet34":
            return self._prepare_trunk()
        if self._bank is None:
            layer = log_mel_layer(twins.analysis_window)
            self._bank = FilterbankSites(space, layer, twins.bank(), twins.samples, self._cache)
        bank = self._bank
        if network == "fbank":
            return lambda layer, batch, _: bank.open(layer, batch)
        sites = CampPlusSites(space, campplus_layers(weights.embedding), weights.embedding, bank, self._cache)
        return lambda layer, batch, _: sites.open(layer, batch)

    def _prepare_trunk(self) -> Open:
        space = self._space
        layers = resnet34_layers(self._weights.embedding)
        inner = [c.layer for c in candidates("resnet34") if c.layer.count(".") == 2]
        names = {*needed_activations(inner), "layer4.2.conv2"}
        features, expected = self._twins.trunk()
        read = trunk_activations(space, layers, features, expected, names, self._cache)
        loader = ConvolutionLoader(self._gpu, space.memory, self._cache)
        convolutions = TrunkSites(space, loader, layers, read)
        ends = TrunkEnds(space, loader, layers, features, read)

        def opened(layer: TunedLayer, batch: int, parts: Parts) -> Site:
            return convolutions.open(layer, batch, parts) if layer.id.count(".") == 2 else ends.open(layer, batch)

        return opened

    def check(self) -> None:
        """See `Bench`."""
        self._gpu.synchronize()

    def close(self) -> None:
        """See `Bench`."""
        self._twins.close()
        if self._stack is not None:
            self._stack.release()
        self._replays.close()
        self._space.memory.close()
