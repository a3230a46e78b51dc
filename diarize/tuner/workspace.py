"""Device arrays of the tuner: poisoned outputs, inputs that repeat a few windows, and windows that are read back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backend.cuda_driver import DeviceArray, Gpu, MemoryPool, check

CONTENTS = 3
"""Windows of different content; those of a larger batch repeat them."""
_NAN = {2: 0x7E00, 4: 0x7FC00000}


class Workspace:
    """A GPU with one stream and memory that sites take and give back."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.memory = MemoryPool(gpu)
        self.stream = gpu.stream()

    def poison(self, array: DeviceArray) -> None:
        """Fill an array with NaN, or bytes with 255."""
        driver, size = self.gpu.driver, array.dtype.itemsize
        handle, count = self.stream.handle, array.nbytes // size
        if size == 1:
            check(driver.cuMemsetD8Async(array.address, 0xFF, count, handle))
        elif size == 2:
            check(driver.cuMemsetD16Async(array.address, _NAN[size], count, handle))
        else:
            check(driver.cuMemsetD32Async(array.address, _NAN[size], count, handle))

    def clear(self, flag: DeviceArray) -> None:
        """Set a flag to zero."""
        check(self.gpu.driver.cuMemsetD32Async(flag.address, 0, flag.nbytes // 4, self.stream.handle))

    def zeros(self, count: int = 1) -> DeviceArray:
        """A new flag, or several, int32 zeros."""
        return self.memory.put(np.zeros(count, np.int32))

    def fill(self, array: DeviceArray, values: np.ndarray) -> None:
        """Copy a host array of the same size into `array`."""
        source = np.ascontiguousarray(values, array.dtype)
        assert source.nbytes == array.nbytes
        check(self.gpu.driver.cuMemcpyHtoD(array.address, source.ctypes.data, source.nbytes))
        # The copy returns when the source may change; our stream does not wait for its end by itself.
        check(self.gpu.driver.cuStreamSynchronize(0))

    def repeated(self, contents: np.ndarray, batch: int, held: list[DeviceArray]) -> DeviceArray:
        """(batch, ...) array whose window w is `contents[w % CONTENTS]`; it is added to `held`."""
        shape, itemsize = contents.shape[1:], contents.dtype.itemsize
        target = self.memory.empty((batch, *shape), contents.dtype)
        held.append(target)
        few = self.memory.put(contents)
        size = int(np.prod(shape, dtype=np.int64)) * itemsize
        driver, handle = self.gpu.driver, self.stream.handle
        for window in range(batch):
            source = few.address + window % len(contents) * size
            check(driver.cuMemcpyDtoDAsync(target.address + window * size, source, size, handle))
        self.stream.synchronize()
        self.memory.free(few)
        return target

    def empty(self, shape: Sequence[int], dtype: object, held: list[DeviceArray]) -> DeviceArray:
        """An array with undefined content; it is added to `held`."""
        array = self.memory.empty(shape, dtype)
        held.append(array)
        return array

    def rows(self, array: DeviceArray, first: int, count: int) -> np.ndarray:
        """Host copy of `count` rows of an array along its first axis, after the stream has come past."""
        out = np.empty((count, *array.shape[1:]), array.dtype)
        size = out.nbytes // count
        self.stream.synchronize()
        check(self.gpu.driver.cuMemcpyDtoH(out.ctypes.data, array.address + first * size, out.nbytes))
        return out

    def strided_rows(self, array: DeviceArray, first: int, step: int, count: int, width: int = 1) -> np.ndarray:
        """(count, width, ...) host copy of `width` rows at first, first + step and so on."""
        out = np.empty((count, width, *array.shape[1:]), array.dtype)
        size = out[0].nbytes
        row = size // width
        self.stream.synchronize()
        copy, start, target = self.gpu.driver.cuMemcpyDtoH, array.address + first * row, out.ctypes.data
        for index in range(count):
            check(copy(target + index * size, start + index * step * row, size))
        return out

    def give_back(self, held: list[DeviceArray]) -> None:
        """Free arrays, after all work that uses them."""
        self.stream.synchronize()
        for array in held:
            self.memory.free(array)
        held.clear()


def read_windows(batch: int, full: bool) -> list[int]:
    """Windows whose outputs are read back: of each content, or without `full` the first; and always the last.

    >>> read_windows(64, True), read_windows(64, False), read_windows(2, True)
    ([0, 1, 2, 63], [0, 63], [0, 1])
    """
    return sorted({*range(min(CONTENTS if full else 1, batch)), batch - 1})
