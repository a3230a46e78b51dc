"""The CUDA driver as the backend needs it: context, memory, streams, events, graphs, tensor maps and bare launches.

Everything goes through cuda.bindings; a prepared launch costs a few microseconds. Errors of the driver become
`BackendError`, out of memory its subclass `OutOfMemoryError`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import BackendError
from ..hardware import Device
from .cuda_compile import Image

if TYPE_CHECKING:
    from ..kernels.spec import Kernel


class OutOfMemoryError(BackendError):
    """The device has not enough free memory; a smaller batch may fit."""


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise BackendError(f"the CUDA bindings cannot be imported ({error}): install diarize-cuda[cuda]") from error
    return driver


def check(result: tuple[Any, ...]) -> Any:
    """The value of a driver call: nothing, one value or a tuple.

    Raises
    ------
    OutOfMemoryError, BackendError
        The call failed.
    """
    code = result[0]
    if int(code) != 0:
        text = f"CUDA driver error {code.name} ({int(code)})"
        if code.name == "CUDA_ERROR_OUT_OF_MEMORY":
            raise OutOfMemoryError(f"{text}: the device memory is used up; use a smaller batch")
        raise BackendError(f"{text}: the device refused or failed; see the driver's log or use --device cpu")
    if len(result) < 3:
        return result[1] if len(result) == 2 else None
    return result[1:]


class Gpu:
    """One GPU with its primary context made current on the thread that asks for it.

    `opened` counts what this process has opened.
    """

    opened: ClassVar[int] = 0

    def __init__(self, index: int = 0) -> None:
        self.driver = _driver()
        try:
            initialised = self.driver.cuInit(0)
        except RuntimeError as error:
            raise BackendError(
                "no NVIDIA driver: libcuda.so.1 cannot be loaded; install one or use --device cpu"
            ) from error
        if int(initialised[0]) != 0:
            raise BackendError(f"no usable NVIDIA driver ({initialised[0].name}): install one or use --device cpu")
        count = check(self.driver.cuDeviceGetCount())
        if not 0 <= index < count:
            raise BackendError(f"no GPU number {index}: there are {count}, numbered from 0; choose one of them")
        self.index = index
        self.handle = check(self.driver.cuDeviceGet(index))
        self.context = check(self.driver.cuDevicePrimaryCtxRetain(self.handle))
        Gpu.opened += 1
        self.use()
        attribute = self.driver.CUdevice_attribute
        self.capability = (
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self.multiprocessors = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.memory_bytes = int(check(self.driver.cuDeviceTotalMem(self.handle)))

    def _attribute(self, attribute: Any) -> int:
        return int(check(self.driver.cuDeviceGetAttribute(attribute, self.handle)))

    def use(self) -> None:
        """Make the context current on this thread; every thread that launches must do so once."""
        check(self.driver.cuCtxSetCurrent(self.context))

    def describe(self) -> Device:
        """The device as records and recipes name it."""
        name = check(self.driver.cuDeviceGetName(128, self.handle)).decode().split("\0")[0].strip()
        version = int(check(self.driver.cuDriverGetVersion()))
        runtime = f"{version // 1000}.{version % 1000 // 10}"
        driver_version = _driver_release()
        return Device(
            "cuda", name, self.index, self.capability, self.multiprocessors, self.memory_bytes, driver_version, runtime
        )

    def free_bytes(self) -> int:
        """Device memory that is free now, in bytes."""
        return int(check(self.driver.cuMemGetInfo())[0])

    def synchronize(self) -> None:
        """Wait for all work given to this GPU."""
        check(self.driver.cuCtxSynchronize())

    def load(self, image: Image, kernel: Kernel, early_start: bool = True) -> LoadedKernel:
        """Load a compiled kernel; `early_start` false launches it only after the one before it has ended."""
        return LoadedKernel(self, image, kernel, early_start)

    def stream(self) -> Stream:
        """A new stream that does not wait for the default one."""
        return Stream(self)


def _driver_release() -> str:
    """The driver's release as the kernel module states it, empty where it cannot be read."""
    try:
        with open("/proc/driver/nvidia/version", encoding="ascii", errors="replace") as file:
            words = file.readline().split()
    except OSError:
        return ""
    return next((w for w in words if w[:1].isdigit() and w.count(".") >= 1), "")


class Stream:
    """A queue of work on the device."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        flags = gpu.driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.handle = check(gpu.driver.cuStreamCreate(flags))

    def synchronize(self) -> None:
        """Wait for the work given so far."""
        check(self.gpu.driver.cuStreamSynchronize(self.handle))

    def record(self) -> Event:
        """An event that completes when the work given so far has."""
        event = Event(self.gpu)
        check(self.gpu.driver.cuEventRecord(event.handle, self.handle))
        return event

    def wait(self, event: Event) -> None:
        """Let later work on this stream wait for `event`."""
        check(self.gpu.driver.cuStreamWaitEvent(self.handle, event.handle, 0))

    def begin_capture(self) -> None:
        """Collect the following launches instead of running them."""
        mode = self.gpu.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(self.gpu.driver.cuStreamBeginCapture(self.handle, mode))

    def end_capture(self) -> Graph:
        """The launches since `begin_capture` as a graph."""
        return Graph(self.gpu, check(self.gpu.driver.cuStreamEndCapture(self.handle)))


class Event:
    """A point in a stream's work."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.handle = check(gpu.driver.cuEventCreate(0))

    def synchronize(self) -> None:
        """Wait until the event has completed."""
        check(self.gpu.driver.cuEventSynchronize(self.handle))

    def seconds_since(self, start: Event) -> float:
        """Device time from `start` to this event, both completed, in seconds."""
        return float(check(self.gpu.driver.cuEventElapsedTime(start.handle, self.handle))) * 1e-3


class Graph:
    """Captured launches, ready to be replayed as one."""

    def __init__(self, gpu: Gpu, captured: Any) -> None:
        self.gpu = gpu
        self.executable = check(gpu.driver.cuGraphInstantiate(captured, 0))
        check(gpu.driver.cuGraphDestroy(captured))

    def launch(self, stream: Stream) -> None:
        """Replay the graph on a stream."""
        check(self.gpu.driver.cuGraphLaunch(self.executable, stream.handle))


class DeviceArray:
    """A C-contiguous array in device memory that belongs to a `MemoryPool`."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class MemoryPool:
    """Device memory by size class: freed blocks are kept for the next request of the same class.

    Small ones, such as tensor maps, come from slabs, since taking memory from the driver is slow and may wait for the
    device. `peak_bytes` is the most that was ever held. Not safe for several threads at once: each worker has its own.
    """

    ALIGNMENT = 512
    SMALL = 1 << 14
    SLAB = 1 << 20

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._free: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}
        self._small: dict[int, int] = {}
        self._slab = self._slab_end = 0
        self.held_bytes = 0
        self.peak_bytes = 0

    def _size_class(self, nbytes: int) -> int:
        size = -(-max(nbytes, 1) // self.ALIGNMENT) * self.ALIGNMENT
        return size if size < 1 << 20 else -(-size // (1 << 20)) * (1 << 20)

    def empty(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        """An array with undefined content.

        Raises
        ------
        OutOfMemoryError
            The device has not enough memory left, also after giving back what the pool keeps.
        """
        array = DeviceArray(0, tuple(shape), np.dtype(dtype))
        size = self._size_class(array.nbytes)
        if self._free.get(size):
            array.address = self._free[size].pop()
            return array
        array.address = self._carve(size) if size <= self.SMALL else self._take(size)
        return array

    def _take(self, size: int) -> int:
        """Address of new memory from the driver."""
        try:
            address = int(check(self.gpu.driver.cuMemAlloc(size)))
        except OutOfMemoryError:
            self.trim()
            address = int(check(self.gpu.driver.cuMemAlloc(size)))
        self._sizes[address] = size
        self.held_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return address

    def _carve(self, size: int) -> int:
        """Address of a part of a slab."""
        if self._slab + size > self._slab_end:
            self._slab = self._take(self.SLAB)
            self._slab_end = self._slab + self.SLAB
        address = self._slab
        self._slab += size
        self._small[address] = size
        return address

    def free(self, array: DeviceArray) -> None:
        """Return an array's memory to the pool; work that uses it must have been given to the device before."""
        # The first part of a slab has the slab's address.
        small = self._small.get(array.address)
        size = self._sizes[array.address] if small is None else small
        self._free.setdefault(size, []).append(array.address)

    def trim(self) -> None:
        """Give all unused memory back to the device."""
        for size in [size for size in self._free if size > self.SMALL]:
            for address in self._free.pop(size):
                check(self.gpu.driver.cuMemFree(address))
                del self._sizes[address]
                self.held_bytes -= size

    def close(self) -> None:
        """Give all memory back to the device; none of the pool's arrays may be used any more."""
        for address, size in self._sizes.items():
            check(self.gpu.driver.cuMemFree(address))
            self.held_bytes -= size
        self._sizes.clear()
        self._small.clear()
        self._free.clear()
        self._slab = self._slab_end = 0

    def put(self, array: np.ndarray) -> DeviceArray:
        """A device copy of a host array, complete when this returns."""
        source = np.ascontiguousarray(array)
        out = self.empty(source.shape, source.dtype)
        if source.nbytes:
            check(self.gpu.driver.cuMemcpyHtoD(out.address, source.ctypes.data, source.nbytes))
            # The copy returns when the source may change; streams that do not wait for the default one need its end.
            check(self.gpu.driver.cuStreamSynchronize(0))
        return out

    def get(self, array: DeviceArray) -> np.ndarray:
        """A host copy of a device array, after all work of the device."""
        out = np.empty(array.shape, array.dtype)
        self.gpu.synchronize()
        if out.nbytes:
            check(self.gpu.driver.cuMemcpyDtoH(out.ctypes.data, array.address, out.nbytes))
        return out

    def tensor_map(
        self, source: DeviceArray, box: tuple[int, int, int], parity: tuple[int, int] | None = None
    ) -> DeviceArray:
        """Tensor map of an NHWC float16 array for boxes of (channels, columns, rows) of one image; zeros outside it.

        `parity` (row, column) maps only the pixels of odd or even rows and columns. Boxes of 64 channels are swizzled
        over 128 bytes, of 32 over 64 bytes. The map is never freed: the hardware caches maps by address.
        """
        driver = self.gpu.driver
        n, h, w, c = source.shape
        row, column, step = (0, 0, 1) if parity is None else (*parity, 2)
        if row >= h or column >= w:
            # No pixel has this parity: an image of zeros stands in, since a map cannot be empty.
            zeros = self.put(np.zeros((n, 1, 1, c), np.float16))
            return self.tensor_map(zeros, box)
        swizzles = driver.CUtensorMapSwizzle
        swizzle = {64: swizzles.CU_TENSOR_MAP_SWIZZLE_128B, 32: swizzles.CU_TENSOR_MAP_SWIZZLE_64B}[box[0]]
        u64, u32 = driver.cuuint64_t, driver.cuuint32_t
        encoded = check(
            driver.cuTensorMapEncodeTiled(
                driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                4,
                source.address + 2 * c * (row * w + column),
                [u64(v) for v in (c, -(-(w - column) // step), -(-(h - row) // step), n)],
                [u64(v) for v in (c * 2 * step, w * c * 2 * step, h * w * c * 2)],
                [u32(v) for v in (*box, 1)],
                [u32(1)] * 4,
                driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        )
        return self.put(np.array([int(v) for v in encoded.opaque], dtype=np.uint64))


class Launch:
    """A kernel with grid and arguments bound: calling it with a stream launches it."""

    def __init__(self, kernel: LoadedKernel, grid: tuple[int, int, int], values: Sequence[Any]) -> None:
        kinds = [
            ctypes.c_int32 if a == "i" else ctypes.c_float if a == "s" else ctypes.c_void_p for a in kernel.arguments
        ]
        if len(values) != len(kinds):
            raise BackendError(f"kernel {kernel.name} takes {len(kinds)} arguments, {len(values)} given; report this")
        raw = [v.address if isinstance(v, DeviceArray) else v for v in values]
        self._keep = [kind(value) for kind, value in zip(kinds, raw, strict=True)]
        self._pointers = (ctypes.c_void_p * len(kinds))(*[ctypes.addressof(v) for v in self._keep])
        driver = kernel.gpu.driver
        self._plain = driver.cuLaunchKernel
        self._extended = driver.cuLaunchKernelEx
        self.grid = grid
        self._shape = (*grid, kernel.threads, 1, 1, kernel.shared_bytes)
        self._function = kernel.function
        self._address = ctypes.addressof(self._pointers)
        self._config = _early_start_config(driver, self._shape) if kernel.early_start else None

    def __call__(self, stream: Stream) -> None:
        if self._config is None:
            code = self._plain(self._function, *self._shape, stream.handle, self._address, 0)
        else:
            self._config.hStream = stream.handle
            code = self._extended(self._config, self._function, self._address, 0)
        if int(code[0]) != 0:
            check(code)


def _early_start_config(driver: Any, shape: tuple[int, ...]) -> Any:
    """Launch configuration that lets the kernel start while the one before it ends (programmatic dependent launch)."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = shape[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = shape[3:6]
    config.sharedMemBytes = shape[6]
    config.attrs = [attribute]
    config.numAttrs = 1
    return config


class LoadedKernel:
    """A kernel in device memory."""

    def __init__(self, gpu: Gpu, image: Image, kernel: Kernel, early_start: bool) -> None:
        self.gpu = gpu
        self.name = image.name
        self.arguments = kernel.arguments
        self.threads = kernel.threads
        self.shared_bytes = shared_bytes = kernel.shared_bytes
        self.early_start = kernel.early_start and early_start
        driver = gpu.driver
        self.module = check(driver.cuModuleLoadData(image.payload + (b"" if image.assembled else b"\0")))
        self.function = check(driver.cuModuleGetFunction(self.module, image.entry.encode()))
        attribute = driver.CUfunction_attribute
        # Static shared memory, which the compiler knows, counts as well.
        static = int(check(driver.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, self.function)))
        if shared_bytes + static > 48 * 1024:
            limit = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(self.function, limit, shared_bytes))
        self.registers = int(check(driver.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, self.function)))
        self.local_bytes = int(
            check(driver.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, self.function))
        )

    def bind(self, grid: tuple[int, int, int], *values: Any) -> Launch:
        """A launch with these arguments: device arrays, addresses, integers or floats."""
        return Launch(self, grid, values)
