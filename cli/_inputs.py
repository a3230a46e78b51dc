"""Which recordings the arguments mean: files, folders, patterns that the shell left alone, and lists."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence

from ..errors import OptionError

# What a folder is searched for; a file given by name may be called anything.
SUFFIXES = frozenset(
    {".wav", ".w64", ".rf64", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff", ".au", ".caf"}
    | {".m4a", ".mp4", ".mov", ".aac", ".webm", ".mkv", ".mka", ".wma", ".amr"}
)
# Said here as well as in diarize/spool.py, whose import costs that of numpy.
STDIN = "-"
STDIN_NAME = "standard input"
_MAGIC = "*?["


def expand(arguments: Sequence[str], recursive: bool = False) -> list[str]:
    """The recordings that `arguments` mean, each once, in the order given and sorted within folders and patterns.

    A folder means the recordings in it, with `recursive` also those in the folders below. `@FILE` means the lines of a
    text file, each one an argument of its own. What exists under its name is never taken for a pattern.

    Raises
    ------
    OptionError
        A folder, pattern or list holds no recording, or a list cannot be read.
    """
    found: dict[str, None] = {}
    for argument in arguments:
        for path in _expand(argument, recursive):
            found.setdefault(path)
    return list(found)


def _expand(argument: str, recursive: bool, within: str = "") -> Iterator[str]:
    if os.path.isdir(argument):
        yield from _folder(argument, recursive)
    elif argument.startswith("@") and not os.path.exists(argument):
        if within:
            raise OptionError(f"{within} holds {argument}; a list of recordings may not name another list")
        yield from _list(argument[1:], recursive)
    elif any(sign in argument for sign in _MAGIC) and not os.path.exists(argument):
        matches = sorted(glob.glob(argument, recursive=True))
        if not matches:
            raise OptionError(f"no file matches {argument}; check the pattern")
        for match in matches:
            yield from _folder(match, recursive) if os.path.isdir(match) else (match,)
    else:
        yield argument


def _folder(folder: str, recursive: bool) -> Iterator[str]:
    found: list[str] = []
    for parent, folders, files in os.walk(folder):
        if not recursive:
            folders.clear()
        found += [os.path.join(parent, name) for name in files if _suffix(name) in SUFFIXES]
    if not found:
        where = "it or the folders below" if recursive else "it; --recursive also looks below"
        raise OptionError(f"{folder}: is a directory with no recording in {where}")
    yield from sorted(found)


def _suffix(name: str) -> str:
    # Hidden files are left out: other programs' remains, as ._talk.wav, bear the suffix of a recording.
    return "" if name.startswith(".") else os.path.splitext(name)[1].lower()


def _list(path: str, recursive: bool) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(f"@{path}: the list of recordings cannot be read ({reason}); check the path") from error
    entries = [line for line in lines if line and not line.startswith("#")]
    if not entries:
        raise OptionError(f"@{path}: the list names no recording; write one path a line")
    for entry in entries:
        yield from _expand(entry, recursive, path)
