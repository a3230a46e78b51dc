"""Cuts decoded audio into stretches of neighbouring windows, holding only what is still needed.

A stretch is what one worker analyses at a time. Results never depend on how a recording was cut: the networks give the
same bytes for a window whatever stretch it lies in. This module knows nothing of files or networks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from .framing import WINDOW_SAMPLES, num_windows


@dataclass(frozen=True)
class Stretch:
    """Windows `first_window` .. `first_window + num_windows - 1` and the samples that they cover.

    `samples` ((num_windows - 1) * step + 160,000,) float32, zeros past the end of the recording.
    """

    first_window: int
    num_windows: int
    samples: np.ndarray


class Room:
    """Memory for the samples of stretches, used again: fresh memory takes the system longer than decoding.

    It may be used from several threads. At most `spare` arrays wait for their next use.
    """

    def __init__(self, spare: int = 8) -> None:
        self._spare = spare
        self._free: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, num_samples: int) -> np.ndarray:
        """(num_samples,) float32 with undefined content."""
        with self._lock:
            fitting = [array for array in self._free if len(array) >= num_samples]
            if fitting:
                array = min(fitting, key=len)
                self._free = [other for other in self._free if other is not array]
                return array[:num_samples]
        return np.empty(num_samples, np.float32)

    def give_back(self, samples: np.ndarray) -> None:
        """`samples`, from `take`, are not used any more."""
        whole = samples if samples.base is None else samples.base
        assert isinstance(whole, np.ndarray)
        with self._lock:
            self._free.append(whole)
            if len(self._free) > self._spare:
                smallest = min(range(len(self._free)), key=lambda index: len(self._free[index]))
                del self._free[smallest]


class Stretcher:
    """Iterates over the stretches of a recording given as blocks of 16 kHz samples.

    `max_windows` bounds a stretch. Near the end the remaining windows are shared out evenly over `workers`, so that
    none idles while another finishes. With `first_windows` the first stretch has so many and each next one twice as
    many until `max_windows`, so that work begins soon. Samples lie in arrays of `room`. After the iteration
    `num_samples` and `num_windows` describe the recording; one without any sample has no stretch.
    """

    def __init__(
        self,
        blocks: Iterable[np.ndarray],
        step_samples: int,
        max_windows: int,
        workers: int,
        first_windows: int = 0,
        room: Room | None = None,
    ) -> None:
        self._room = room or Room(0)
        self._blocks = iter(blocks)
        self._step = step_samples
        self._max = max_windows
        self._size = min(first_windows or max_windows, max_windows)
        self._workers = workers
        self._pending: deque[np.ndarray] = deque()
        self._pending_samples = 0
        self._first = 0
        self.num_samples = 0

    @property
    def num_windows(self) -> int:
        """Windows of what has been read so far."""
        return num_windows(self.num_samples, self._step) if self.num_samples else 0

    def __iter__(self) -> Iterator[Stretch]:
        for block in self._blocks:
            self._pending.append(block)
            self._pending_samples += len(block)
            self.num_samples += len(block)
            # Holding back one full round of work is what lets the end be shared out evenly.
            while self._pending_samples > self._span(self._size * (self._workers + 1)):
                yield self._take(self._size)
                self._size = min(2 * self._size, self._max)
        left = self.num_windows - self._first
        parts = -(-left // self._max)
        parts = min(left, -(-parts // self._workers) * self._workers)
        for part in range(parts):
            yield self._take(left // parts + (part < left % parts))

    def _span(self, windows: int) -> int:
        return (windows - 1) * self._step + WINDOW_SAMPLES

    def _take(self, windows: int) -> Stretch:
        samples = self._room.take(self._span(windows))
        filled = 0
        for block in self._pending:
            part = block[: len(samples) - filled]
            samples[filled : filled + len(part)] = part
            filled += len(part)
            if filled == len(samples):
                break
        samples[filled:] = 0.0
        self._drop(windows * self._step)
        first = self._first
        self._first += windows
        return Stretch(first, windows, samples)

    def _drop(self, count: int) -> None:
        """Forget the first `count` samples of those pending, or all of them."""
        count = min(count, self._pending_samples)
        self._pending_samples -= count
        while self._pending and count >= len(self._pending[0]):
            count -= len(self._pending.popleft())
        if count:
            self._pending[0] = self._pending[0][count:]
