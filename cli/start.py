"""The way into the installed command, quick to load: an interrupt meanwhile ends it in one line."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

# `_output.INTERRUPTED`, which is part of what takes time to load.
_INTERRUPTED = 130


def main() -> None:
    """Load the command line and run it."""
    signal.signal(signal.SIGINT, _end)
    alone = sys._getframe(1).f_globals.get("__name__") == "__main__"
    from .main import main as run

    run(alone)


def _end(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"diarize: interrupted\n")
    os._exit(_INTERRUPTED)
