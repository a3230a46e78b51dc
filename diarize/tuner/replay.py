"""Replays launches as CUDA graphs with a cold second-level cache, and times them with the device's own clock.

Each graph writes twice the size of the second-level cache, then records an event, runs the launches and records another
event: nothing of the host lies between, so its jitter is not measured. Where a driver refuses events inside graphs,
they are recorded around the graph of the launches alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend.cuda_driver import Event, Gpu, check
from ..errors import BackendError
from .site import Launch

logger = logging.getLogger(__name__)

_EXTERNAL = 1
"""CU_EVENT_RECORD_EXTERNAL: the event is one of the graph's nodes, not an edge of the capture."""


@dataclass
class Replay:
    """A graph, and the events before and after its launches."""

    executable: Any
    start: Event
    end: Event
    whole: bool


class Replays:
    """See `Timer`."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._stream = gpu.stream()
        attribute = gpu.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        cache = int(check(gpu.driver.cuDeviceGetAttribute(attribute, gpu.handle)))
        self._words = max(2 * cache, 1 << 20) // 4
        self._dirt = int(check(gpu.driver.cuMemAlloc(4 * self._words)))
        self.whole = True

    def prepare(self, launches: Sequence[Launch]) -> Replay:
        """See `Timer`."""
        if self.whole:
            try:
                return self._captured(launches, True)
            except BackendError as error:
                # Either events inside graphs are refused, or these launches: the other way tells which.
                made = self._captured(launches, False)
                logger.info("events around graphs, not inside: %s", error)
                self.whole = False
                return made
        return self._captured(launches, False)

    def _captured(self, launches: Sequence[Launch], whole: bool) -> Replay:
        gpu = self._gpu
        start, end = Event(gpu), Event(gpu)
        try:
            executable = self._graph(launches, start, end, whole)
        except BaseException:
            _destroy(gpu, start, end)
            raise
        return Replay(executable, start, end, whole)

    def _graph(self, launches: Sequence[Launch], start: Event, end: Event, whole: bool) -> Any:
        """The executable graph of the launches, between the events if it is to be `whole`."""
        gpu, stream = self._gpu, self._stream
        stream.begin_capture()
        try:
            if whole:
                self._flush()
                self._record(start)
            for launch in launches:
                launch(stream)
            if whole:
                self._record(end)
        except BaseException:
            # A stream cannot be used again before its capture has ended; how it ends does not matter.
            gpu.driver.cuStreamEndCapture(stream.handle)
            raise
        captured = check(gpu.driver.cuStreamEndCapture(stream.handle))
        try:
            return check(gpu.driver.cuGraphInstantiate(captured, 0))
        finally:
            gpu.driver.cuGraphDestroy(captured)

    def _flush(self) -> None:
        check(self._gpu.driver.cuMemsetD32Async(self._dirt, 0, self._words, self._stream.handle))

    def _record(self, event: Event) -> None:
        check(self._gpu.driver.cuEventRecordWithFlags(event.handle, self._stream.handle, _EXTERNAL))

    def round(self, prepared: Sequence[Replay]) -> list[float]:
        """See `Timer`."""
        driver, handle = self._gpu.driver, self._stream.handle
        for replay in prepared:
            if replay.whole:
                check(driver.cuGraphLaunch(replay.executable, handle))
            else:
                self._flush()
                check(driver.cuEventRecord(replay.start.handle, handle))
                check(driver.cuGraphLaunch(replay.executable, handle))
                check(driver.cuEventRecord(replay.end.handle, handle))
        self._stream.synchronize()
        return [replay.end.seconds_since(replay.start) for replay in prepared]

    def release(self, prepared: Iterable[Replay]) -> None:
        """See `Timer`."""
        driver = self._gpu.driver
        self._stream.synchronize()
        for replay in prepared:
            driver.cuGraphExecDestroy(replay.executable)
            _destroy(self._gpu, replay.start, replay.end)

    def close(self) -> None:
        """Give back the memory that flushes the cache."""
        if self._dirt:
            self._gpu.driver.cuMemFree(self._dirt)
            self._dirt = 0


def _destroy(gpu: Gpu, *events: Event) -> None:
    for event in events:
        gpu.driver.cuEventDestroy(event.handle)
