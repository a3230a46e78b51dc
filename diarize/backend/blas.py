"""How many threads the matrix products of numpy use."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SUFFIXES = ("64_", "")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """While open, numpy's own OpenBLAS works in the calling thread alone, in the whole process.

    For callers that have several threads of their own, whose small products would wait for each other's helpers.
    Nothing happens with another BLAS.
    """
    libraries = [library for library in _libraries() if library is not None]
    before = [get() for get, _ in libraries]
    for _, set_threads in libraries:
        set_threads(ctypes.c_int(1))
    try:
        yield
    finally:
        for (_, set_threads), count in zip(libraries, before, strict=True):
            set_threads(ctypes.c_int(count))


def _libraries() -> list[tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer] | None]:
    """Functions that get and set the number of threads, of each OpenBLAS in numpy's wheel."""
    import numpy

    folder = Path(numpy.__file__).resolve().parents[1] / "numpy.libs"
    return [_functions(ctypes.CDLL(str(path))) for path in sorted(folder.glob("libscipy_openblas*.so*"))]


def _functions(library: ctypes.CDLL) -> tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer] | None:
    for suffix in _SUFFIXES:
        names = [f"scipy_openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")]
        if all(hasattr(library, name) for name in names):
            return getattr(library, names[0]), getattr(library, names[1])
    return None
