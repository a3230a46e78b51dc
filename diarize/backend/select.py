"""Turns a device name from the user into a ready backend, and says what an automatic choice came to."""

from __future__ import annotations

import re

from ..errors import BackendError, OptionError
from .base import Backend

_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")


def check_device_name(name: str) -> str:
    """`name` itself, if it is "auto", "cpu", "cuda" or "cuda:N".

    Raises
    ------
    OptionError
        It is anything else.
    """
    if not _NAME.fullmatch(name):
        raise OptionError(f"device is {name!r}; allowed are auto, cpu, cuda and cuda:N (N = GPU number from 0)")
    return name


def open_backend(name: str) -> tuple[Backend, tuple[str, ...]]:
    """Backend for a device name, and sentences on what was chosen automatically.

    Raises
    ------
    OptionError
        The name is not one that `check_device_name` allows.
    BackendError
        The device asked for cannot be used.
    """
    check_device_name(name)
    if name.startswith("cuda"):
        raise BackendError(f"device {name} cannot be used: the CUDA backend is not built yet; use --device cpu")
    from .cpu import CpuBackend

    notes = ("device cpu (automatic: the CUDA backend is not built yet)",) if name == "auto" else ()
    return CpuBackend(), notes
