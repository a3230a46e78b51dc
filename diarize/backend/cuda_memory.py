"""Memory of one worker on a GPU: a block that plans of every size share, and page-locked memory on the host."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..errors import BackendError
from .cuda_driver import DeviceArray, Gpu, MemoryPool, Stream, _driver, check


class ArenaFullError(BackendError):
    """The block is too small for what is carved from it; `needed` bytes would have done so far."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"a plan needs more than the {needed} bytes reserved for it; report this")
        self.needed = needed


class Arena(MemoryPool):
    """One block of device memory from which plans that never run at the same time carve their arrays.

    Each plan starts at the beginning (`rewind`). What is put, and tensor maps, come from `pool` and stay: a map is made
    once for each array that it describes.
    """

    def __init__(self, pool: MemoryPool) -> None:
        super().__init__(pool.gpu)
        self._pool = pool
        self._block = 0
        self._size = 0
        self._used = 0
        self._maps: dict[tuple[Any, ...], DeviceArray] = {}

    def reserve(self, nbytes: int) -> bool:
        """Make the block at least `nbytes` large; true if it moved, and with it everything carved from it.

        Nothing on the device may still use the old block.

        Raises
        ------
        OutOfMemoryError
            The device has not enough memory; the arena is then empty.
        """
        if nbytes <= self._size:
            return False
        self.release()
        self._block = int(check(self.gpu.driver.cuMemAlloc(nbytes)))
        self._size = self.held_bytes = nbytes
        self.peak_bytes = max(self.peak_bytes, nbytes)
        return True

    def zero(self, stream: Stream, nbytes: int) -> None:
        """Fill the beginning of the block with zeros."""
        check(self.gpu.driver.cuMemsetD32Async(self._block, 0, nbytes // 4, stream.handle))

    @property
    def used_bytes(self) -> int:
        """What has been carved since `rewind`."""
        return self._used

    def release(self) -> None:
        """Give the block back to the device."""
        if self._block:
            check(self.gpu.driver.cuMemFree(self._block))
        self._block = self._size = self._used = self.held_bytes = 0
        self._maps.clear()

    def rewind(self) -> None:
        """Carve from the beginning again."""
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        """An array with undefined content from the block.

        Raises
        ------
        ArenaFullError
            The block is too small.
        """
        array = DeviceArray(self._block + self._used, tuple(shape), np.dtype(dtype))
        self._used += -(-max(array.nbytes, 1) // self.ALIGNMENT) * self.ALIGNMENT
        if self._used > self._size:
            raise ArenaFullError(self._used)
        return array

    def put(self, array: np.ndarray) -> DeviceArray:
        """A device copy that stays, from the pool."""
        return self._pool.put(array)

    def free(self, array: DeviceArray) -> None:
        """Nothing: the whole block is used again after `rewind`."""

    def tensor_map(
        self, source: DeviceArray, box: tuple[int, int, int], parity: tuple[int, int] | None = None
    ) -> DeviceArray:
        """As that of `MemoryPool`; equal arguments give the same map."""
        key = (source.address, source.shape, box, parity)
        if key not in self._maps:
            self._maps[key] = super().tensor_map(source, box, parity)
        return self._maps[key]


class HostBlock:
    """Page-locked memory of the host, which the device copies from and to without waiting for the host."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._address = 0
        self._size = 0
        self._used = 0

    def rewind(self, nbytes: int) -> None:
        """Start anew with room for at least `nbytes`; arrays taken before must not be used any more."""
        self._used = 0
        if nbytes <= self._size:
            return
        self.release()
        self._address = int(check(self._gpu.driver.cuMemHostAlloc(nbytes, 0)))
        self._size = nbytes

    def release(self) -> None:
        """Give the memory back."""
        if self._address:
            check(self._gpu.driver.cuMemFreeHost(self._address))
        self._address = self._size = 0

    def take(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """An array with undefined content.

        Raises
        ------
        BackendError
            More is taken than there is room for.
        """
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if self._used + nbytes > self._size:
            raise BackendError(f"{nbytes} bytes do not fit the {self._size} reserved on the host; report this")
        buffer = (ctypes.c_char * nbytes).from_address(self._address + self._used)
        self._used += -(-nbytes // 64) * 64
        return np.frombuffer(buffer, kind).reshape(shape)


def upload(stream: Stream, target: DeviceArray, source: np.ndarray) -> None:
    """Copy a C-contiguous host array into the beginning of a device array.

    Page-locked sources must stay as they are until the stream has come past; others may change at once.
    """
    assert source.flags.c_contiguous
    assert source.dtype == target.dtype
    if source.nbytes > target.nbytes:
        raise BackendError(f"{source.nbytes} bytes do not fit an array of {target.nbytes}; report this")
    if source.nbytes:
        driver = stream.gpu.driver
        check(driver.cuMemcpyHtoDAsync(target.address, source.ctypes.data, source.nbytes, stream.handle))


def download(stream: Stream, target: np.ndarray, source: DeviceArray) -> None:
    """Copy the beginning of a device array into page-locked memory, complete when the stream has come past."""
    assert target.flags.c_contiguous
    assert source.dtype == target.dtype
    if target.nbytes > source.nbytes:
        raise BackendError(f"an array of {source.nbytes} bytes cannot fill {target.nbytes}; report this")
    if target.nbytes:
        driver = stream.gpu.driver
        check(driver.cuMemcpyDtoHAsync(target.ctypes.data, source.address, target.nbytes, stream.handle))


def copy_samples(stream: Stream, target: DeviceArray, source: DeviceArray, first: int) -> None:
    """Fill `target` with the values of `source` from number `first` on, both one-dimensional."""
    assert first + target.shape[0] <= source.shape[0]
    start = source.address + first * source.dtype.itemsize
    check(stream.gpu.driver.cuMemcpyDtoDAsync(target.address, start, target.nbytes, stream.handle))


def clear(stream: Stream, flag: DeviceArray) -> None:
    """Set a flag to zero."""
    check(stream.gpu.driver.cuMemsetD32Async(flag.address, 0, 1, stream.handle))


def free_with(owner: object, gpu: Gpu, pools: Sequence[MemoryPool]) -> weakref.finalize:
    """Give the memory of `pools` back when `owner` is collected; the end of the process does so by itself."""
    finalizer = weakref.finalize(owner, _free_all, gpu, pools)
    finalizer.atexit = False
    return finalizer


def _free_all(gpu: Gpu, pools: Sequence[MemoryPool]) -> None:
    # A driver that fails here has taken the memory back already.
    with suppress(BackendError):
        gpu.use()
        gpu.synchronize()
        for pool in pools:
            if isinstance(pool, Arena):
                pool.release()
            else:
                pool.close()


def reset(index: int) -> None:
    """End the driver's context on GPU `index`, and everything in it, as after a fault that it does not survive.

    Raises
    ------
    BackendError
        The GPU does not answer any more.
    """
    driver = _driver()
    check(driver.cuDevicePrimaryCtxReset(check(driver.cuDeviceGet(index))))
