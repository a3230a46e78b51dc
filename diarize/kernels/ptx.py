"""Every inline-PTX intrinsic of the kernels, or its Python twin under the CUDA simulator; `cuda` is numba.cuda.

The intrinsics and `cuda` are looked up when a kernel is compiled, which is seldom: numba takes half a second to import.

A port to another front end would touch this module's parts only: `ptx_asm` (how an instruction is emitted),
`ptx_device`, `ptx_conv`, `ptx_hopper`, `ptx_split`, `ptx_lstm`, `ptx_winograd` and
`ptx_winograd_f32` (the instructions), `ptx_sim...` (what they mean, in numpy).
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from .deferred import Deferred

SIMULATOR = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
"""Whether kernels run in the CUDA simulator."""

if SIMULATOR:
    from numba import cuda as cuda

    from .ptx_sim import *  # noqa: F403
    from .ptx_sim_conv import *  # noqa: F403
    from .ptx_sim_hopper import *  # noqa: F403
    from .ptx_sim_lstm import *  # noqa: F403
    from .ptx_sim_split import *  # noqa: F403
    from .ptx_sim_winograd import *  # noqa: F403
    from .ptx_sim_winograd_f32 import *  # noqa: F403
elif not TYPE_CHECKING:

    def __getattr__(name: str) -> Deferred:
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return Deferred(name, lambda: _intrinsic(name))


def _intrinsic(name: str) -> Any:
    if name == "cuda":
        return importlib.import_module("numba.cuda")
    for part in ("ptx_conv", "ptx_winograd", "ptx_winograd_f32", "ptx_split", "ptx_lstm", "ptx_hopper", "ptx_device"):
        module = importlib.import_module(f".{part}", __package__)
        if name in module.__all__:
            return getattr(module, name)
    raise ImportError(f"kernels name {name}, which no module of intrinsics has")


def signed64(value: int) -> int:
    """The 64-bit word `value` as a signed number, as numba wants its literals."""
    return value - (1 << 64) if value >= 1 << 63 else value


def wgmma_descriptor(row_bytes: int) -> int:
    """A wgmma shared-memory descriptor without its start address: K-major, swizzle as wide as a row of 128 or 64 bytes.

    References
    ----------
    PTX ISA, "Asynchronous warpgroup level matrix shared memory layout", matrix descriptor.
    """
    stride = row_bytes * 8 // 16
    swizzle = {128: 1, 64: 2}[row_bytes]
    return signed64((1 << 16) | (stride << 32) | (swizzle << 62))
