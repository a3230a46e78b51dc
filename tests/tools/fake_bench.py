"""A GPU for the tuner that is Python: costs and verdicts by candidate, and a record of what was timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from diarize.backend.cuda_driver import OutOfMemoryError
from diarize.candidates import Candidate, TunedLayer
from diarize.errors import BackendError
from diarize.hardware import Device
from diarize.registry import candidates
from diarize.tuner.site import Compiling, Failure, FailureKind, Launch, Parts, Verified

H200 = Device("cuda", "NVIDIA H200", 0, (9, 0), 132, 150_754_820_096, "580.159.04", "13.0")


def plain_cost(candidate: Candidate, batch: int) -> float:
    """Microseconds: later candidates of the registry are faster."""
    names = [c.name for c in candidates(candidate.layer)]
    return float(batch * (20 + len(names) - names.index(candidate.name)))


def plain_verdict(candidate: Candidate, batch: int) -> Verified | Failure:
    """All candidates of a storage and precision give the same bytes."""
    return Verified(1e-4, f"{candidate.storage or candidate.precision}")


@dataclass(frozen=True)
class FakeLaunch:
    """What a candidate launches."""

    candidate: Candidate
    batch: int

    def __call__(self, stream: Any) -> None:
        raise AssertionError("there is no stream")


@dataclass
class FakeTimer:
    """Gives each replay its cost, slightly more from round to round."""

    cost: Callable[[Candidate, int], float]
    refused: Callable[[Candidate], bool] = field(default=lambda c: False)
    timed: list[tuple[str, str, int]] = field(default_factory=list)
    rounds: int = 0
    held: int = 0

    def prepare(self, launches: Sequence[Launch]) -> FakeLaunch:
        (launch,) = launches
        assert isinstance(launch, FakeLaunch)
        if self.refused(launch.candidate):
            raise BackendError("CUDA driver error CUDA_ERROR_INVALID_VALUE (1)")
        self.held += 1
        return launch

    def round(self, prepared: Sequence[FakeLaunch]) -> list[float]:
        self.rounds += 1
        self.timed += [(p.candidate.layer, p.candidate.name, p.batch) for p in prepared]
        return [1e-6 * (self.cost(p.candidate, p.batch) + 0.01 * (self.rounds % 5)) for p in prepared]

    def release(self, prepared: Iterable[Any]) -> None:
        self.held -= len(list(prepared))


class FakeSite:
    """A site of the fake."""

    def __init__(self, bench: FakeBench, layer: TunedLayer, batch: int, parts: Parts) -> None:
        self._bench, self._layer, self._batch = bench, layer, batch
        self.parts = parts
        bench.open_sites += 1

    def verify(self, candidate: Candidate) -> Verified | Failure:
        self._bench.before_verify(candidate, self._batch)
        return self._bench.verdict(candidate, self._batch)

    def launches(self, candidate: Candidate) -> Sequence[Launch]:
        return [FakeLaunch(candidate, self._batch)]

    def close(self) -> None:
        self._bench.open_sites -= 1
        # To free memory means to wait for the device.
        self._bench.check()


class FakeBench:
    """See `Bench`; `memory_windows` is the largest batch that fits, `broken` names that do not compile."""

    def __init__(
        self,
        cost: Callable[[Candidate, int], float] = plain_cost,
        verdict: Callable[[Candidate, int], Verified | Failure] = plain_verdict,
        memory_windows: int = 1 << 20,
        broken: Sequence[str] = (),
        before_verify: Callable[[Candidate, int], None] = lambda candidate, batch: None,
        device: Device = H200,
    ) -> None:
        self.device = device
        self.timer = FakeTimer(cost)
        self.verdict = verdict
        self.memory_windows = memory_windows
        self.broken = broken
        self.before_verify = before_verify
        self.open_sites = 0
        self.closed = False
        self.lost = False
        self.networks: list[str] = []
        self.parts: list[tuple[str, int, Parts]] = []

    def build(self, wanted: Sequence[Candidate], compiling: Compiling | None) -> dict[tuple[str, str], Failure]:
        if compiling is not None:
            compiling(0, len(wanted))
            compiling(len(wanted), len(wanted))
        failure = Failure(FailureKind.COMPILE, "the assembler rejects it")
        return {(c.layer, c.name): failure for c in wanted if c.name in self.broken}

    def ready(self, network: str) -> None:
        if network not in self.networks:
            self.networks.append(network)

    def open(self, layer: TunedLayer, batch: int, parts: Parts) -> FakeSite:
        assert layer.network in self.networks
        if batch > self.memory_windows:
            raise OutOfMemoryError("CUDA driver error CUDA_ERROR_OUT_OF_MEMORY (2): the device memory is used up")
        self.parts.append((layer.id, batch, parts))
        return FakeSite(self, layer, batch, parts)

    def check(self) -> None:
        if self.lost:
            raise BackendError("CUDA driver error CUDA_ERROR_ILLEGAL_ADDRESS (700)")

    def close(self) -> None:
        self.closed = True
        self.check()
