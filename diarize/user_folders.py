"""Folders of the user: where downloads and tune files lie, also for a user without a home folder."""

from __future__ import annotations

import os
from pathlib import Path

# As in /etc/passwd for users that have none: nothing is found there, and whoever would write there is told.
_NO_HOME = Path("/nonexistent")


def expanded(path: str | Path) -> Path:
    """`path` with the home folder for a leading ~, and unchanged where that is unknown.

    >>> expanded("a/~b")
    PosixPath('a/~b')
    """
    return Path(os.path.expanduser(path))


def cache_home() -> Path:
    """XDG_CACHE_HOME, else ~/.cache."""
    return _folder("XDG_CACHE_HOME", ".cache")


def config_home() -> Path:
    """XDG_CONFIG_HOME, else ~/.config."""
    return _folder("XDG_CONFIG_HOME", ".config")


def _folder(variable: str, name: str) -> Path:
    chosen = expanded(os.environ.get(variable, ""))
    # The XDG Base Directory Specification has relative paths ignored.
    if chosen.is_absolute():
        return chosen
    home = expanded("~")
    return (home if home.is_absolute() else _NO_HOME) / name
