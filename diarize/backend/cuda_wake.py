"""Starts the driver's context on a GPU in a thread, early: that takes half a second in which the rest is loaded."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from threading import Thread

from ..errors import BackendError, OptionError
from .select import choose_device


def wake(name: str) -> None:
    """Start the context on the GPU that a device name means, if it means one; returns at once.

    Nothing is reported: whoever opens the device next hears what is wrong with it. The context stays until the process
    ends.
    """
    if name != "cpu":
        Thread(target=_start, args=(name,), name="wake-gpu").start()


def _start(name: str) -> None:
    # Errors of the driver too, as its functions return them as numbers. Plain ctypes, since it imports nothing.
    with suppress(OptionError, BackendError, OSError):
        gpu = choose_device(name).gpu
        if gpu is None:
            return
        driver = ctypes.CDLL("libcuda.so.1")
        handle, context = ctypes.c_int(0), ctypes.c_void_p(None)
        driver.cuDeviceGet(ctypes.byref(handle), gpu.index)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
