"""Turns a device name from the user into a device that can be used, and says what an automatic choice came to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import BackendError, OptionError
from ..hardware import Device
from .cuda_devices import Discovery, discover, has_kernels, kernel_set, missing_packages

_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")
_INSTALL = "pip install 'diarize-cuda[cuda]'"


@dataclass(frozen=True)
class Choice:
    """Where to run: the GPU, or None for the CPU; and sentences on what was chosen automatically."""

    gpu: Device | None
    notes: tuple[str, ...] = ()


def check_device_name(name: str) -> str:
    """`name` itself, if it is "auto", "cpu", "cuda" or "cuda:N".

    Raises
    ------
    OptionError
        It is anything else.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(f"device is {name!r}; allowed are auto, cpu, cuda and cuda:N (N = GPU number from 0)")
    return name


@cache
def discovered() -> Discovery:
    """What `discover` finds, asked once: a process keeps the GPUs that its driver first showed it."""
    return discover()


@cache
def lacking() -> tuple[str, ...]:
    """What `missing_packages` finds, asked once: it reads every folder of the path."""
    return missing_packages()


def choose_device(
    name: str,
    find: Callable[[], Discovery] = discovered,
    missing: Callable[[], tuple[str, ...]] = lacking,
) -> Choice:
    """The device for a name.

    Raises
    ------
    OptionError
        The name is not one that `check_device_name` allows.
    BackendError
        The device asked for cannot be used.
    """
    check_device_name(name)
    if name == "cpu":
        return Choice(None)
    found = find()
    index = int(name.partition(":")[2] or 0)
    reason = obstacle(found, index, missing())
    if name != "auto":
        if reason:
            raise BackendError(f"device {name} cannot be used: {reason}; use --device cpu, or see diarize devices")
        return Choice(found.gpus[index])
    if reason:
        return Choice(None, (f"device cpu (automatic: {reason})",))
    return Choice(found.gpus[0], (f"device cuda:0, {found.gpus[0].name} (automatic)",))


def check_tune_file(tune_file: Path | None, choice: Choice) -> None:
    """Raises `OptionError` where a tune file was named and nothing can use it."""
    if tune_file is not None and choice.gpu is None:
        reason = choice.notes[0] if choice.notes else "device cpu"
        raise OptionError(
            f"tune file {tune_file} is for a GPU, but this is {reason}; leave it out, or give --device cuda"
        )


def obstacle(found: Discovery, index: int, missing: tuple[str, ...]) -> str:
    """Why GPU `index` cannot be used, in words; empty where it can."""
    if found.problem:
        return found.problem
    if index >= len(found.gpus):
        count = len(found.gpus)
        number = "there is one, cuda:0" if count == 1 else f"there are {count}, cuda:0 to cuda:{count - 1}"
        return f"there is no GPU {index}; {number}"
    gpu = found.gpus[index]
    if not has_kernels(gpu):
        assert gpu.compute_capability is not None
        have = ".".join(map(str, gpu.compute_capability))
        return f"{gpu.name} has compute capability {have}, and its kernels: {kernel_set(gpu)}"
    if missing:
        return f"{' and '.join(missing)} cannot be imported: {_INSTALL}"
    return ""
