"""How far the compilation of GPU kernels has come: one line, and a bar on a terminal; nothing where none is needed."""

from __future__ import annotations

from types import TracebackType

from ._output import say
from ._progress import Progress, progress

_TITLE = "GPU kernels"


class Compiling:
    """Shown while its context is open; call it with the number of kernels that are ready and of those wanted."""

    def __init__(self, verbosity: int) -> None:
        self._verbosity = verbosity
        self._shown: Progress | None = None

    def __enter__(self) -> Compiling:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown.__exit__(kind, error, trace)

    def __call__(self, done: int, total: int) -> None:
        if self._shown is None:
            if self._verbosity >= 0:
                say(f"compiling {total} kernels for this kind of GPU, once")
            self._shown = progress(_TITLE, self._verbosity)
            self._shown.__enter__()
        self._shown("compile", done, total)
