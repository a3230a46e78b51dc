"""Which NVIDIA GPUs this machine has, asked of the driver alone: nothing is imported, compiled or allocated.

Works without the CUDA extra and without a driver; what is missing becomes a sentence.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..hardware import Device

LOWEST_CAPABILITY = (7, 5)
"""Compute capability from which every layer has a kernel: tensor cores that are loaded by ldmatrix (Turing)."""
LOWEST_DRIVER = (13, 0)
"""CUDA version that a driver must support at least: that of the compilers which the CUDA extra installs."""
HOPPER = (9, 0)
"""Compute capability for which there are kernels of its own, chosen by measurement."""

_NO_DEVICE = 100
_NAME_BYTES = 128
# cuDeviceGetAttribute: multiprocessors, and both halves of the compute capability.
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76


@dataclass(frozen=True)
class Discovery:
    """What the driver told: its GPUs, its own release and CUDA version, and why there are none or they are no use."""

    gpus: tuple[Device, ...] = ()
    driver: str = ""
    runtime: str = ""
    problem: str = ""


def discover(load: Callable[[str], Any] = ctypes.CDLL) -> Discovery:
    """The GPUs that the driver shows, in its order (CUDA_VISIBLE_DEVICES counts); never raises.

    `load` opens a shared library by name.
    """
    try:
        cuda = load("libcuda.so.1")
    except OSError:
        return Discovery(problem="no NVIDIA driver is installed (libcuda.so.1 cannot be loaded)")
    release = driver_release(load)
    version = ctypes.c_int(0)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    supported = (version.value // 1000, version.value % 1000 // 10)
    runtime = f"{supported[0]}.{supported[1]}" if version.value else ""
    code = int(cuda.cuInit(0))
    if code == _NO_DEVICE:
        return Discovery((), release, runtime, "the NVIDIA driver sees no GPU")
    if code:
        return Discovery((), release, runtime, f"the NVIDIA driver does not start (CUDA error {code})")
    count = ctypes.c_int(0)
    cuda.cuDeviceGetCount(ctypes.byref(count))
    gpus = tuple(_describe(cuda, index, release, runtime) for index in range(count.value))
    if not gpus:
        return Discovery((), release, runtime, "the NVIDIA driver sees no GPU")
    problem = ""
    if supported < LOWEST_DRIVER:
        needed = ".".join(map(str, LOWEST_DRIVER))
        problem = f"the NVIDIA driver {release} supports CUDA {runtime}; {needed} or newer is needed, update the driver"
    return Discovery(gpus, release, runtime, problem)


def _describe(cuda: Any, index: int, release: str, runtime: str) -> Device:
    handle = ctypes.c_int(0)
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    cuda.cuDeviceGetName(name, _NAME_BYTES, handle)
    memory = ctypes.c_size_t(0)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)

    def attribute(number: int) -> int:
        value = ctypes.c_int(0)
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        return value.value

    capability = (attribute(_MAJOR), attribute(_MINOR))
    title = name.value.decode(errors="replace").strip()
    return Device("cuda", title, index, capability, attribute(_MULTIPROCESSORS), memory.value, release, runtime)


def driver_release(load: Callable[[str], Any] = ctypes.CDLL) -> str:
    """The driver's release, such as 580.159.04, from the management library; empty where that is missing."""
    try:
        management = load("libnvidia-ml.so.1")
    except OSError:
        return ""
    if management.nvmlInit_v2():
        return ""
    text = ctypes.create_string_buffer(_NAME_BYTES)
    failed = management.nvmlSystemGetDriverVersion(text, _NAME_BYTES)
    management.nvmlShutdown()
    return "" if failed else text.value.decode(errors="replace").strip()


def missing_packages() -> tuple[str, ...]:
    """Packages of the CUDA extra that cannot be found; empty where it is installed."""
    wanted = {"numba_cuda": "numba-cuda", "cuda.bindings": "cuda-bindings"}
    return tuple(title for module, title in wanted.items() if not _found(module))


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # A package around it is missing.
        return False


def has_kernels(device: Device) -> bool:
    """Whether every layer has a kernel for this GPU."""
    return device.compute_capability is not None and device.compute_capability >= LOWEST_CAPABILITY


def kernel_set(device: Device) -> str:
    """Which kernels the GPU gets, in words."""
    if not has_kernels(device):
        needed = ".".join(map(str, LOWEST_CAPABILITY))
        return f"none: compute capability {needed} or newer is needed"
    return "chosen by measurement for compute capability 9.0" if device.compute_capability == HOPPER else "portable"
