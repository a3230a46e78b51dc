"""What NVIDIA's management library says about a GPU, through ctypes: no command is run while something is timed."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass

_INTERVAL_S = 0.1


class _Memory(ctypes.Structure):
    """nvmlMemory_t, bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True)
class Gpu:
    """A GPU: `name`, `driver` version, and the handle of the library."""

    name: str
    driver: str
    library: ctypes.CDLL
    handle: ctypes.c_void_p

    def used_bytes(self) -> int:
        """Memory in use by all processes, 0 where it cannot be read."""
        memory = _Memory()
        failed = self.library.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory))
        return 0 if failed else int(memory.used)


def find_gpu(index: int) -> Gpu | None:
    """The GPU of this number, None where there is none or no library."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return None
    name, driver = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    library.nvmlDeviceGetName(handle, name, 96)
    library.nvmlSystemGetDriverVersion(driver, 96)
    return Gpu(name.value.decode(), driver.value.decode(), library, handle)


class MemoryWatch:
    """Reads a GPU's used memory ten times a second, from `start` to `stop`; without a GPU it does nothing."""

    def __init__(self, index: int | None) -> None:
        self._gpu = None if index is None else find_gpu(index)
        self._base = self._peak = self._gpu.used_bytes() if self._gpu else 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        if self._gpu is not None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End watching."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def peak_bytes(self) -> int | None:
        """Largest growth so far, in bytes."""
        return None if self._gpu is None else self._peak - self._base

    def _run(self) -> None:
        assert self._gpu is not None
        while not self._ended.wait(_INTERVAL_S):
            self._peak = max(self._peak, self._gpu.used_bytes())
