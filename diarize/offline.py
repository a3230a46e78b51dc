"""Whether this package may use the network: not while DIARIZE_OFFLINE is set. Only downloads that were asked for do."""

from __future__ import annotations

import os

VARIABLE = "DIARIZE_OFFLINE"
_NO = ("", "0", "false", "no", "off")


def offline() -> bool:
    """Whether DIARIZE_OFFLINE is set to anything but 0, false, no or off."""
    return os.environ.get(VARIABLE, "").strip().lower() not in _NO
