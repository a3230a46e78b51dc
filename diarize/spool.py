"""Recordings that cannot be read twice or jumped about in, copied to a temporary file: pipes, standard input, streams.

Decoders look at a file's end before its beginning and the channels of a call are read one after another, so that what
comes through a pipe must lie somewhere. The copy goes with the process that made it, however that ends.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .errors import AudioError, OptionError

_DESCRIPTORS = "/proc/self/fd"
STDIN = "-"
STDIN_NAME = "standard input"

Source = str | os.PathLike[str] | np.ndarray | BinaryIO
"""A recording: a path, "-" for standard input, samples, or a binary file object that is open for reading."""


@dataclass(frozen=True)
class Seekable:
    """A recording that can be opened any number of times: `source` a path or samples, `name` what messages call it."""

    source: str | np.ndarray
    name: str


@contextmanager
def seekable(source: Source) -> Iterator[Seekable]:
    """`source` itself, or a copy of it in a temporary file (in TMPDIR) where it is a pipe or stream.

    Raises
    ------
    AudioError
        Standard input is a terminal or closed, a stream gives text, or there is no room for the copy.
    OptionError
        `source` is none of these.
    """
    if isinstance(source, np.ndarray):
        yield Seekable(source, "")
    elif isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        if path == STDIN:
            with _copy(_standard_input(), STDIN_NAME) as copy:
                yield Seekable(copy, STDIN_NAME)
        elif is_pipe(path):
            with _open_pipe(path) as pipe, _copy(pipe, path) as copy:
                yield Seekable(copy, path)
        else:
            yield Seekable(path, "")
    elif not callable(getattr(source, "read", None)):
        raise OptionError(
            f"source is of type {type(source).__name__}; give a path, '-' for standard input, a binary stream, "
            "or a NumPy array with its sample_rate"
        )
    else:
        name = str(getattr(source, "name", "") or "stream")
        with _copy(source, name) as copy:
            yield Seekable(copy, name)


def stem(source: Source) -> str:
    """The name of a recording without folder and suffix; "stdin" for standard input, "" for what has no name.

    >>> stem("calls/monday.take2.wav"), stem("-")
    ('monday.take2', 'stdin')
    """
    if isinstance(source, (str, os.PathLike)):
        return "stdin" if os.fspath(source) == STDIN else Path(source).stem
    if isinstance(source, np.ndarray):
        return ""
    return Path(str(getattr(source, "name", ""))).stem


def _standard_input() -> BinaryIO:
    """Standard input as bytes; raises `AudioError` where nothing can come from it."""
    if sys.stdin is None or sys.stdin.closed:
        raise AudioError(f"{STDIN_NAME}: is closed; pipe a recording into it")
    if sys.stdin.isatty():
        raise AudioError(f"{STDIN_NAME}: is a terminal; pipe a recording into it, or give a file")
    return sys.stdin.buffer


def is_pipe(path: str) -> bool:
    """Whether `path` is a named pipe, or one that the shell has made."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        # What is wrong with it is said by whoever opens it.
        return False


def _open_pipe(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise AudioError(f"{path}: cannot be opened ({error.strerror}); check the path") from error


@contextmanager
def _copy(stream: BinaryIO, name: str) -> Iterator[str]:
    """Path of a temporary file with the rest of `stream`."""
    # Without a name in the folder it cannot be left behind by a process that is killed.
    nameless = os.path.isdir(_DESCRIPTORS)
    with tempfile.TemporaryFile() if nameless else tempfile.NamedTemporaryFile(prefix="diarize-") as file:
        try:
            shutil.copyfileobj(stream, file, 1 << 20)
            file.flush()
        except TypeError as error:
            raise AudioError(f'{name}: gives text, not bytes; open it in binary mode, "rb"') from error
        except (OSError, ValueError, io.UnsupportedOperation) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise AudioError(
                f"{name}: cannot be copied to {tempfile.gettempdir()} ({reason}); TMPDIR names another folder"
            ) from error
        yield f"{_DESCRIPTORS}/{file.fileno()}" if nameless else file.name
