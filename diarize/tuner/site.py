"""What the tuner sees of a device: sites, where the candidates of one layer run at one batch size, and a timer.

A candidate that fails is a value with a kind; an error of our own is raised. A site is used in this order: `verify`
each candidate, `launches` of those that are right, then `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from ..candidates import Candidate, TunedLayer
from ..hardware import Device

Launch = Callable[[Any], None]
"""Gives work to the stream that it is called with."""
Compiling = Callable[[int, int], None]
"""Called with the number of kernels that are ready and of those wanted in all."""


class FailureKind(StrEnum):
    """Why a candidate has no time."""

    UNSUPPORTED = "unsupported"
    COMPILE = "does not compile"
    WRONG = "wrong"
    LAUNCH = "does not launch"
    MEMORY = "out of memory"


@dataclass(frozen=True)
class Failure:
    """A candidate that cannot be used at a batch size, and why in one line."""

    kind: FailureKind
    reason: str


@dataclass(frozen=True)
class Verified:
    """A candidate that computes what its float32 twin computes.

    `error` is the largest difference relative to the twin's largest value; `digest` tells the bytes of its output for
    one fixed input from every other output, whatever the batch size.
    """

    error: float
    digest: str


@dataclass(frozen=True)
class Trial:
    """What became of one candidate of a layer at one batch size: samples in microseconds, or a failure.

    `storage` is that of the activations; for a layer computed by its parts it is theirs.
    """

    layer: str
    batch: int
    candidate: str
    version: int
    storage: str = ""
    samples_us: tuple[float, ...] = ()
    error: float = 0.0
    digest: str = ""
    failure: Failure | None = None


Parts = Mapping[str, Mapping[str, Candidate]]
"""Storage, then layer: the choices that stand for a layer of several parts."""


class Site(Protocol):
    """One layer at one batch size on a device, with arrays that its candidates share."""

    def verify(self, candidate: Candidate) -> Verified | Failure:
        """Run a candidate on poisoned outputs and compare it with its float32 twin."""

    def launches(self, candidate: Candidate) -> Sequence[Launch]:
        """What one pass of the layer launches."""

    def close(self) -> None:
        """Free what belongs to this site alone."""


class Timer(Protocol):
    """Replays launches with a cold second-level cache; `diarize.tuner.replay.Replays` is the real one."""

    def prepare(self, launches: Sequence[Launch]) -> Any:
        """Launches made ready to be replayed.

        Raises
        ------
        BackendError
            They cannot be.
        """

    def round(self, prepared: Sequence[Any]) -> list[float]:
        """Seconds of each, replayed once in this order."""

    def release(self, prepared: Iterable[Any]) -> None:
        """Forget them."""


class Bench(Protocol):
    """A device with a model's weights on it; `diarize.tuner.device.DeviceBench` is the real one."""

    device: Device
    timer: Timer

    def build(self, candidates: Sequence[Candidate], compiling: Compiling | None) -> dict[tuple[str, str], Failure]:
        """Compile what candidates need; gives those that do not compile by layer and name."""

    def ready(self, network: str) -> None:
        """Load what every site of a network needs: weights, and twins that the CPU or the float32 kernels compute.

        Raises
        ------
        BackendError
            The float32 kernels do not give the CPU's results.
        """

    def open(self, layer: TunedLayer, batch: int, parts: Parts) -> Site:
        """The site of a layer at a batch size.

        Raises
        ------
        OutOfMemoryError
            Its arrays do not fit the device.
        """

    def check(self) -> None:
        """Nothing where the device still answers.

        Raises
        ------
        BackendError
            It does not.
        """

    def close(self) -> None:
        """Free everything."""
