"""The process around a command: standard streams that its caller has closed, interrupts, and its end."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

from ._output import INTERRUPTED

# `timeout` and some terminals send one interrupt twice.
_SAME_INTERRUPT_S = 0.5


def open_streams() -> None:
    """Put the null device in place of standard input and error where the caller has closed them.

    Else the next file to be opened would get the number of standard error, and messages would land in it. Standard
    output keeps the null device's number too, but stays None in `sys`: a result that should go there must fail.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one.
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def watch_interrupts() -> None:
    """Let the first interrupt raise KeyboardInterrupt, and a second one, half a second later or more, end the process.

    A shell script starts its background jobs with interrupts ignored, and Python would leave them so.
    """
    first: list[float] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not first:
            first.append(time.monotonic())
            raise KeyboardInterrupt
        if time.monotonic() - first[0] >= _SAME_INTERRUPT_S:
            os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, interrupt)


def leave(code: object, alone: bool = False) -> NoReturn:
    """Exit with `code`; where this process is the command's `alone`, at once if that saves time.

    After an interrupt nobody waits for threads that still compute. Where a GPU was used, to take the interpreter and
    the driver apart first costs a third of a second, and the system cleans up after both.
    """
    if alone and code == INTERRUPTED and threading.active_count() > 1:
        # Whatever had to be tidied up was, on the way of KeyboardInterrupt to here.
        _flush()
        os._exit(INTERRUPTED)
    if alone and isinstance(code, int | None) and _used_gpu():
        atexit._run_exitfuncs()
        if _flush():
            os._exit(code or 0)
    raise SystemExit(code)


def _flush() -> bool:
    """Write out what standard output and error still hold; whether all of it arrived."""
    arrived = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            arrived = False
    return arrived


def _used_gpu() -> bool:
    # Asked of what is loaded: a command that needs no GPU loads nothing of it.
    driver = sys.modules.get("diarize.backend.cuda_driver")
    return driver is not None and driver.Gpu.opened > 0
