"""How long candidates take: replays in turn, so that all see the same clocks, until it is clear which is fastest.

A GPU's clocks move with its power and temperature within milliseconds. So each round replays every candidate once, in
an order that rotates by one and reverses from round to round; and nothing is averaged but by the median.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BackendError
from .site import Failure, FailureKind, Launch, Timer


@dataclass(frozen=True)
class Effort:
    """How often candidates are replayed.

    After `warm_up` rounds that do not count there are at least `fewest` rounds, and up to `most` while the second is
    within `close` of the first. A candidate more than `hopeless` times slower than the best after `early` rounds is
    replayed no more; its samples are kept.
    """

    warm_up: int = 1
    fewest: int = 7
    most: int = 15
    close: float = 1.02
    early: int = 3
    hopeless: float = 1.5


def measure(
    timer: Timer,
    rivals: Mapping[str, Sequence[Launch]],
    effort: Effort | None = None,
    lost: Callable[[], None] = lambda: None,
) -> dict[str, tuple[float, ...] | Failure]:
    """Microseconds of every replay of each rival, or why it cannot be replayed; `lost` raises if the device is."""
    effort = effort or Effort()
    found: dict[str, tuple[float, ...] | Failure] = {}
    ready: dict[str, Any] = {}
    try:
        for name, launches in rivals.items():
            try:
                ready[name] = timer.prepare(launches)
            except BackendError as error:
                lost()
                found[name] = failure_of(error)
        samples: dict[str, list[float]] = {name: [] for name in ready}
        running = list(ready)
        turn = -effort.warm_up
        while running and (turn < effort.fewest or (turn < effort.most and _undecided(samples, running, effort))):
            order = rotated(running, turn)
            times = timer.round([ready[name] for name in order])
            if turn >= 0:
                for name, seconds in zip(order, times, strict=True):
                    samples[name].append(round(seconds * 1e6, 3))
            turn += 1
            if turn == effort.early:
                best = min(statistics.median(samples[name]) for name in running)
                running = [n for n in running if statistics.median(samples[n]) <= effort.hopeless * best]
        found |= {name: tuple(values) for name, values in samples.items()}
    finally:
        timer.release(ready.values())
    return {name: found[name] for name in rivals}


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of a round: a rotation by one more each, every other one backwards.

    >>> [rotated(["a", "b", "c"], turn) for turn in range(3)]
    [['a', 'b', 'c'], ['a', 'c', 'b'], ['c', 'a', 'b']]
    """
    first = turn % len(names)
    order = [*names[first:], *names[:first]]
    return order[::-1] if turn % 2 else order


def failure_of(error: BackendError) -> Failure:
    """The failure that an error of the driver stands for."""
    # By name: the driver's module needs packages that a replay of a log does without.
    memory = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    return Failure(FailureKind.MEMORY if memory else FailureKind.LAUNCH, str(error))


def _undecided(samples: Mapping[str, list[float]], running: Sequence[str], effort: Effort) -> bool:
    """Whether more rounds may change which of the running ones is first."""
    medians = sorted(statistics.median(samples[name]) for name in running)
    return len(medians) > 1 and medians[1] <= effort.close * medians[0]
