"""Every inline-PTX intrinsic of the kernels, or its Python twin under the CUDA simulator.

A port to another front end would touch this module's parts only: `ptx_asm` (how an instruction is emitted),
`ptx_device`, `ptx_hopper`, `ptx_split` and `ptx_lstm` (the instructions), `ptx_sim...` (what they mean, in numpy).
"""

from __future__ import annotations

import os

SIMULATOR = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
"""Whether kernels run in the CUDA simulator."""

if SIMULATOR:
    from .ptx_sim import *  # noqa: F403
    from .ptx_sim_hopper import *  # noqa: F403
    from .ptx_sim_lstm import *  # noqa: F403
    from .ptx_sim_split import *  # noqa: F403
else:
    from .ptx_device import *  # noqa: F403
    from .ptx_hopper import *  # noqa: F403
    from .ptx_lstm import *  # noqa: F403
    from .ptx_split import *  # noqa: F403


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
