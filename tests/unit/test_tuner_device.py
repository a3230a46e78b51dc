# ruff: noqa: N815 (the names are those of the driver)
"""The tuner's sites on a driver that is host memory and kernels that copy nothing: arrays, arguments, memory.

What kernels compute is tested on a GPU; here every output stays zero, and so do the twins.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tools.host_gpu import Code, HostDriver
from tools.random_resnet34 import random_resnet34

from diarize.backend import cuda_compile, cuda_driver
from diarize.backend.cuda_driver import MemoryPool, OutOfMemoryError, Stream
from diarize.candidates import SEPARATE
from diarize.hardware import Device
from diarize.model.weights import EmbeddingNetwork, ModelWeights, load_model, load_segmentation
from diarize.registry import LAYERS, find
from diarize.tuner import activations, device, others, periodic, stack
from diarize.tuner.log import Session
from diarize.tuner.replay import Replays
from diarize.tuner.run import tune
from diarize.tuner.site import FailureKind
from diarize.tuner.wish import wish_for

H200 = Device("cuda", "NVIDIA H200", 0, (9, 0), 132)


class Driver(HostDriver):
    """Memory that is zero, graphs that are numbers; `refuses_events` as old drivers do inside graphs."""

    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(self, largest: int = 1 << 31, refuses_events: bool = False) -> None:
        super().__init__(1 << 40)
        self.largest = largest
        self.refuses_events = refuses_events
        self.graphs: set[int] = set()
        self.calls: list[str] = []
        self.launched: set[str] = set()

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:
        if nbytes > self.largest:
            return (Code.CUDA_ERROR_OUT_OF_MEMORY, 0)
        block = np.zeros(nbytes, np.uint8)
        self.blocks[block.ctypes.data] = block
        return (Code.CUDA_SUCCESS, block.ctypes.data)

    def cuMemcpyDtoH(self, target: int, source: int, nbytes: int) -> tuple[Any, ...]:
        ctypes.memmove(target, source, nbytes)
        return (Code.CUDA_SUCCESS,)

    def _unchanged(self, *_: Any) -> tuple[Any, ...]:
        return (Code.CUDA_SUCCESS,)

    # Poison would make all outputs wrong, since nothing is written over it.
    cuMemsetD8Async = cuMemsetD16Async = _unchanged
    cuEventDestroy = cuGraphDestroy = cuStreamBeginCapture = _unchanged

    def cuMemsetD32Async(self, target: int, value: int, count: int, stream: Any) -> tuple[Any, ...]:
        self.calls.append("flush")
        return (Code.CUDA_SUCCESS,)

    def cuDeviceGetAttribute(self, attribute: int, handle: int) -> tuple[Any, ...]:
        return (Code.CUDA_SUCCESS, 1 << 20)

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        return (Code.CUDA_SUCCESS, 7)

    def cuEventRecord(self, event: int, stream: int) -> tuple[Any, ...]:
        self.calls.append("event")
        return (Code.CUDA_SUCCESS,)

    def cuEventRecordWithFlags(self, event: int, stream: int, flags: int) -> tuple[Any, ...]:
        if self.refuses_events:
            return (Refused(801),)
        self.calls.append("event node")
        return (Code.CUDA_SUCCESS,)

    def cuEventElapsedTime(self, start: int, end: int) -> tuple[Any, ...]:
        return (Code.CUDA_SUCCESS, 0.5)

    def cuStreamEndCapture(self, stream: int) -> tuple[Any, ...]:
        return (Code.CUDA_SUCCESS, 3)

    def cuGraphInstantiate(self, captured: int, flags: int) -> tuple[Any, ...]:
        self.graphs.add(len(self.calls))
        return (Code.CUDA_SUCCESS, len(self.calls))

    def cuGraphExecDestroy(self, graph: int) -> tuple[Any, ...]:
        self.graphs.discard(graph)
        return (Code.CUDA_SUCCESS,)

    def cuGraphLaunch(self, graph: int, stream: int) -> tuple[Any, ...]:
        self.calls.append("graph")
        return (Code.CUDA_SUCCESS,)


class Refused(int):
    """A code of an error."""

    name = "CUDA_ERROR_NOT_SUPPORTED"


class Loaded:
    """A kernel that checks its arguments and does nothing but to note that it was launched."""

    def __init__(self, kernel: Any, launched: set[str]) -> None:
        self.arguments, self.name, self.launched = kernel.arguments, kernel.name, launched

    def bind(self, grid: tuple[int, int, int], *values: Any) -> Any:
        assert len(values) == len(self.arguments), self.name
        assert all(0 < size < 1 << 31 for size in grid), (self.name, grid)
        for letter, value in zip(self.arguments, values, strict=True):
            assert isinstance(value, float if letter == "s" else int) == (letter in "is"), (self.name, letter, value)
        return lambda stream: self.launched.add(self.name)


class Gpu:
    """A GPU of compute capability 9.0 on the host's memory."""

    capability, multiprocessors, handle, index = (9, 0), 132, 0, 0

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def describe(self) -> Device:
        return H200

    def use(self) -> None: ...

    synchronize = use

    def stream(self) -> Stream:
        return Stream(self)  # type: ignore[arg-type]

    def load(self, image: Any, kernel: Any, early_start: bool = True) -> Loaded:
        return Loaded(kernel, self.driver.launched)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    monkeypatch.setattr(device, "Gpu", lambda index: Gpu(made))
    monkeypatch.setattr(device, "build", lambda *_, **__: 0)
    monkeypatch.setattr(cuda_compile.KernelCache, "get", lambda *_: None)

    def tensor_map(self: MemoryPool, source: Any, box: Any, parity: Any = None) -> Any:
        return self.put(np.zeros(16, np.uint64))

    monkeypatch.setattr(cuda_driver.MemoryPool, "tensor_map", tensor_map)

    def compare(got: Any, expected: Any, precision: str) -> float:
        assert [np.shape(array) for array in got] == [np.shape(array) for array in expected]
        return 0.001

    for module in (activations, periodic, stack, others):
        monkeypatch.setattr(module, "compare", compare)
    monkeypatch.setattr(stack, "compare_classes", lambda got, expected, exact: compare(got, expected, "") * 0)
    yield made
    assert not made.graphs


@pytest.fixture(scope="module")
def resnet34() -> ModelWeights:
    embedding = {name.removeprefix("resnet."): tensor for name, tensor in random_resnet34(0).items()}
    return ModelWeights("random", EmbeddingNetwork.RESNET34, "0" * 64, (), load_segmentation(), embedding, {})


def session_of(
    weights: ModelWeights, layers: list[str], precisions: tuple[str, ...] = (), batches: tuple[int, int] = (5, 1)
) -> Session:
    own, other = batches
    wish = wish_for(weights.network.value, (9, 0), layers, precisions)
    wish = replace(wish, batches=(other,), rules=replace(wish.rules, own=dict.fromkeys(wish.rules.own, own)))
    session = Session(wish.rules)
    bench = device.DeviceBench(0, weights, own)
    try:
        tune(bench, wish, session)
    finally:
        bench.close()
    return session


def check_every_candidate_ran(session: Session, driver: Driver) -> None:
    """Each candidate that was timed launched a kernel of its own."""
    assert [trial for trial in session.trials if trial.failure] == []
    for trial in session.trials:
        candidate = find(trial.layer, trial.candidate)
        assert candidate is not None
        made = [request.make() for request in candidate.requests]
        names = {getattr(m, "kernel", m).name for m in made}
        assert not names or names & driver.launched, (trial.layer, trial.candidate)


TRUNK = ["resnet34.conv1", "resnet34.layer4.entry", "resnet34.layer4.conv2", "resnet34.pool", "resnet34.seg_1"]


def test_layers_of_resnet34(driver: Driver, resnet34: ModelWeights) -> None:
    session = session_of(resnet34, TRUNK)
    check_every_candidate_ran(session, driver)
    assert {trial.layer for trial in session.trials} == {*TRUNK, "resnet34.layer4.down", "resnet34.layer4.shortcut"}
    assert any(trial.candidate == SEPARATE for trial in session.trials)
    assert {trial.batch for trial in session.trials} == {1, 5}
    assert driver.blocks == {}


def test_a_block_by_its_parts_and_in_one_kernel(driver: Driver, resnet34: ModelWeights) -> None:
    session = session_of(resnet34, ["resnet34.layer1.block"], batches=(1, 1))
    assert [trial for trial in session.trials if trial.failure] == []
    assert driver.blocks == {}


def test_layers_of_the_segmentation_network_the_filterbank_and_campplus(driver: Driver) -> None:
    session = session_of(load_model("campplus"), [], batches=(5, 2))
    check_every_candidate_ran(session, driver)
    assert {trial.layer for trial in session.trials} == {i for i, v in LAYERS.items() if v.network != "resnet34"}
    assert driver.blocks == {}


def test_a_batch_that_does_not_fit_is_a_failure_and_leaves_no_memory(driver: Driver, resnet34: ModelWeights) -> None:
    # Room for the float32 images of three windows, which twins need, but not for float16 ones of seven.
    driver.largest = 33 << 20
    session = session_of(resnet34, ["resnet34.conv1"], batches=(7, 1))
    kinds = {trial.batch: trial.failure and trial.failure.kind for trial in session.trials}
    assert kinds == {7: FailureKind.MEMORY, 1: None}
    assert driver.blocks == {}


def test_events_are_nodes_of_graphs_that_flush_first() -> None:
    own = Driver()
    replays = Replays(Gpu(own))  # type: ignore[arg-type]
    made = replays.prepare([lambda stream: own.calls.append("launch")])
    assert own.calls == ["flush", "event node", "launch", "event node"]
    assert replays.round([made, made]) == [0.0005, 0.0005]
    assert own.calls[4:] == ["graph", "graph"]
    replays.release([made])
    replays.close()
    assert (own.graphs, own.blocks) == (set(), {})


def test_where_events_are_refused_in_graphs_they_stand_around_them() -> None:
    own = Driver(refuses_events=True)
    replays = Replays(Gpu(own))  # type: ignore[arg-type]
    made = replays.prepare([lambda stream: own.calls.append("launch")])
    own.calls.clear()
    replays.round([made])
    assert own.calls == ["flush", "event", "graph", "event"]
    replays.release([made])
    replays.close()


def test_launches_that_are_refused_raise() -> None:
    own = Driver()
    replays = Replays(Gpu(own))  # type: ignore[arg-type]

    def refuse(stream: Any) -> None:
        raise OutOfMemoryError("too many resources")

    with pytest.raises(OutOfMemoryError, match="too many"):
        replays.prepare([refuse])
    assert replays.whole
    replays.close()
