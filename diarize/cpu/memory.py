"""Arrays that start on a cache line, and scratch memory that each thread keeps between calls.

A vector load that straddles two cache lines costs two; numpy aligns to 16 bytes only.
"""

from __future__ import annotations

import math
import threading

import numpy as np

ALIGNMENT_BYTES = 64

_local = threading.local()


def aligned_empty(shape: int | tuple[int, ...]) -> np.ndarray:
    """Uninitialised float32 array whose first element lies on a 64-byte boundary."""
    shape = (shape,) if isinstance(shape, int) else shape
    size = 4 * math.prod(shape)
    raw = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size].view(np.float32).reshape(shape)


def aligned(array: np.ndarray) -> np.ndarray:
    """Aligned C-contiguous float32 copy of `array`."""
    copy = aligned_empty(array.shape)
    copy[...] = array
    return copy


def workspace(size: int) -> np.ndarray:
    """This thread's scratch array of at least `size` float32, contents undefined.

    Every call in a thread may return the same memory: use it within one kernel only.
    """
    held: np.ndarray | None = getattr(_local, "scratch", None)
    if held is None or held.size < size:
        held = _local.scratch = aligned_empty(size)
    return held
