"""The small interface through which networks and the tuner see a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..hardware import Device
from ..layers import Layer

Buffer = Any
"""An array that lives on the backend's device: a numpy array on the CPU."""

BoundLayer = Callable[[Sequence[Buffer], Sequence[Buffer]], None]
"""Runs one layer: reads the inputs, writes the outputs, both in the order stated in `Op`."""


class Backend(Protocol):
    """Six methods; a backend owns its device, compiles layers for it and moves arrays to and from it."""

    @property
    def device(self) -> Device:
        """The device that this backend runs on."""

    def put(self, array: np.ndarray) -> Buffer:
        """A device copy of `array`."""

    def get(self, buffer: Buffer) -> np.ndarray:
        """A host copy of `buffer`, complete when it returns."""

    def prepare(self, layer: Layer, choice: object | None = None) -> BoundLayer:
        """Pack the weights of `layer`, compile what it needs for `choice` and return its callable.

        The callable may be called from several threads at once, on different buffers.

        Raises
        ------
        BackendError
            The operation, or this choice for it, is not available here.
        """

    def sync(self) -> None:
        """Wait until all work given to the device has finished."""

    def clock(self) -> Callable[[], float]:
        """Start a clock on the device; the returned function gives the seconds since then."""
