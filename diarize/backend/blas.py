"""How many threads the matrix products of numpy use."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_SUFFIXES = ("64_", "")


_lock = threading.Lock()
_open = 0
_before: list[int] = []


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """While open, numpy's own OpenBLAS works in the calling thread alone, in the whole process.

    For callers that have several threads of their own, whose small products would wait for each other's helpers, and
    for sums that must not depend on the number of threads. May be open in several threads at once: the last one to
    leave restores what was before the first. Nothing happens with another BLAS.
    """
    global _open, _before
    libraries = _libraries()
    with _lock:
        if _open == 0:
            _before = [get() for get, _ in libraries]
            for _, set_threads in libraries:
                set_threads(ctypes.c_int(1))
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0:
                for (_, set_threads), count in zip(libraries, _before, strict=True):
                    set_threads(ctypes.c_int(count))


@cache
def _libraries() -> list[tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer]]:
    """Functions that get and set the number of threads, of each OpenBLAS in numpy's wheel."""
    import numpy

    folder = Path(numpy.__file__).resolve().parents[1] / "numpy.libs"
    found = [_functions(ctypes.CDLL(str(path))) for path in sorted(folder.glob("libscipy_openblas*.so*"))]
    return [functions for functions in found if functions is not None]


def _functions(library: ctypes.CDLL) -> tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer] | None:
    for suffix in _SUFFIXES:
        names = [f"scipy_openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")]
        if all(hasattr(library, name) for name in names):
            return getattr(library, names[0]), getattr(library, names[1])
    return None
