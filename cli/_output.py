"""What the command line says: messages on stderr, data on stdout, and the exit codes.

Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 threshold not met, 130 interrupted.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ..errors import DiarizeError, OptionError, OutputError
from ..outputs.text import legible

FAILED = 1
USAGE = 2
INTERRUPTED = 130


def say(message: str) -> None:
    """Print one line on stderr; control characters, as in an odd file name, are shown escaped."""
    print(f"diarize: {printable(message)}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """`text` on one line, with control characters, which could move a terminal's cursor or more, shown escaped.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def report(error: BaseException, verbosity: int, subject: str = "") -> str:
    """Print an error as one line on stderr, and give it; with `verbosity` 2 or more its traceback as well."""
    if verbosity >= 2:
        traceback.print_exception(error)
    if isinstance(error, DiarizeError):
        text = str(error)
    elif isinstance(error, MemoryError):
        text = "out of memory; use --mode fast, or split the recording"
    elif isinstance(error, OSError):
        text = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    else:
        advice = "please report it" if verbosity >= 2 else "-vv shows the traceback, please report it"
        text = f"internal error, {type(error).__name__}: {error}; {advice}"
    say(f"error: {subject}{text}")
    return subject + text


def write_stdout(text: str) -> None:
    """Write data to stdout and flush it.

    Raises
    ------
    OutputError
        Stdout is closed, or the device behind it is full or fails.
    BrokenPipeError
        The reader has gone.
    """
    check_stdout("open it")
    try:
        # Bytes, so that neither the locale nor a file name that is not UTF-8 can make it fail.
        sys.stdout.flush()
        data = memoryview(legible(text).encode())
        while data:
            # Where PYTHONUNBUFFERED is set the system may take a part alone: a full disk, a reader that leaves.
            taken = sys.stdout.buffer.write(data)
            if taken is None:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            data = data[taken:]
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_stdout()
        raise OutputError(f"cannot write to standard output: {error.strerror}") from error


def check_stdout(advice: str = "open it, or name a file with --output") -> None:
    """Nothing where data can go to stdout, for asking before the long work; `advice` is what to do.

    Raises
    ------
    OutputError
        It is closed.
    """
    if sys.stdout is None:
        raise OutputError(f"standard output is closed; {advice}")


def _drop_stdout() -> None:
    # What is still buffered would fail once more, with a traceback, when the interpreter flushes at exit.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@contextmanager
def exit_codes(verbosity: int) -> Iterator[None]:
    """Turn whatever ends the body into one line on stderr and the exit code that belongs to it."""
    try:
        yield
    except typer.Exit:
        raise
    except BrokenPipeError:
        if sys.stdout is not None:
            _drop_stdout()
        raise SystemExit(FAILED) from None
    except KeyboardInterrupt:
        say("interrupted")
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        report(error, verbosity)
        raise SystemExit(USAGE if isinstance(error, OptionError) else FAILED) from None


def start_logging(verbosity: int) -> None:
    """Send the library's messages to stderr: warnings by default, everything with `verbosity` 2, errors with -1."""
    level = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(max(verbosity, -1), logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("diarize: %(levelname)s: %(message)s"))
    logger = logging.getLogger("diarize")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
