"""Which recordings the arguments mean: files, folders, patterns that the shell left alone, and lists."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# What a folder is searched for; a file given by name may be called anything.
SUFFIXES = frozenset(
    {".wav", ".w64", ".rf64", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff", ".au", ".caf"}
    | {".m4a", ".mp4", ".mov", ".aac", ".webm", ".mkv", ".mka", ".wma", ".amr"}
)
# Said here as well as in diarize/spool.py, whose import costs that of numpy.
STDIN = "-"
STDIN_NAME = "standard input"
_MAGIC = "*?["


@dataclass(frozen=True)
class Inputs:
    """What the arguments mean: `recordings`, and for each argument that yields none a line in `problems`."""

    recordings: list[str]
    problems: list[str]


def expand(arguments: Sequence[str], recursive: bool = False) -> Inputs:
    """The recordings that `arguments` mean, each once, in the order given and sorted within folders and patterns.

    A folder means the recordings in it, with `recursive` also those in the folders below. `@FILE` means the lines of a
    text file, each one an argument of its own. What exists under its name is never taken for a pattern. A folder,
    pattern or list that holds no recording or cannot be read is a problem, and the others still count.
    """
    found: dict[str, None] = {}
    problems: dict[str, None] = {}
    for argument in arguments:
        for path in _expand(argument, recursive):
            if isinstance(path, _Problem):
                problems.setdefault(path.text)
            else:
                found.setdefault(path)
    return Inputs(list(found), list(problems))


@dataclass(frozen=True)
class _Problem:
    """Why an argument yields no recording, in one line."""

    text: str


def _expand(argument: str, recursive: bool, within: str = "") -> Iterator[str | _Problem]:
    if os.path.isdir(argument):
        yield from _folder(argument, recursive)
    elif argument.startswith("@") and not os.path.exists(argument):
        if within:
            yield _Problem(f"{within} holds {argument}; a list of recordings may not name another list")
        else:
            yield from _list(argument[1:], recursive)
    elif any(sign in argument for sign in _MAGIC) and not os.path.exists(argument):
        matches = sorted(glob.glob(argument, recursive=True))
        if not matches:
            yield _Problem(f"no file matches {argument}; check the pattern")
        for match in matches:
            yield from _folder(match, recursive) if os.path.isdir(match) else (match,)
    else:
        yield argument


def _folder(folder: str, recursive: bool) -> Iterator[str | _Problem]:
    found: list[str] = []
    for parent, folders, files in os.walk(folder):
        if not recursive:
            folders.clear()
        found += [os.path.join(parent, name) for name in files if _suffix(name) in SUFFIXES]
    if not found:
        where = "it or the folders below" if recursive else "it; --recursive also looks below"
        yield _Problem(f"{folder}: is a directory with no recording in {where}")
    yield from sorted(found)


def _suffix(name: str) -> str:
    # Hidden files are left out: other programs' remains, as ._talk.wav, bear the suffix of a recording.
    return "" if name.startswith(".") else os.path.splitext(name)[1].lower()


def _list(path: str, recursive: bool) -> Iterator[str | _Problem]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        yield _Problem(f"@{path}: the list of recordings cannot be read ({reason}); check the path")
        return
    entries = [line for line in lines if line and not line.startswith("#")]
    if not entries:
        yield _Problem(f"@{path}: the list names no recording; write one path a line")
    for entry in entries:
        yield from _expand(entry, recursive, path)
