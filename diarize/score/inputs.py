"""References, hypotheses and scored regions read from files or folders, by file id."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from ..errors import FormatError
from ..outputs.rttm import RttmTurn, read_rttm
from ..outputs.text import clean_field
from ..outputs.uem import UemRegion, read_uem
from ..types import Turn

_Item = TypeVar("_Item")
# Ten years.
_LONGEST = 315_576_000


def read_turns(path: str | os.PathLike[str]) -> dict[str, list[Turn]]:
    """Turns of each file id in an RTTM file, or in all `*.rttm` files of a folder.

    A file without any turn stands for one recording without speech, named as the file is without its suffix.

    Raises
    ------
    FormatError
        Something cannot be read, a line is not valid, the folder holds no RTTM, or two of its files hold the same id.
    """
    files: dict[str, list[RttmTurn]] = _gather(Path(path), "*.rttm", read_rttm)
    return {
        name: [Turn(_seconds(turn.start, path), _seconds(turn.end, path), turn.speaker) for turn in turns]
        for name, turns in files.items()
    }


def read_regions(path: str | os.PathLike[str]) -> dict[str, list[tuple[float, float]]]:
    """Scored regions, (start, end) in seconds, of each file id in a UEM file, or in all `*.uem` files of a folder.

    Raises
    ------
    FormatError
        As `read_turns`.
    """
    files: dict[str, list[UemRegion]] = _gather(Path(path), "*.uem", read_uem)
    return {
        name: [(_seconds(r.start, path), _seconds(r.end, path)) for r in regions] for name, regions in files.items()
    }


def _seconds(value: Decimal, path: str | os.PathLike[str]) -> float:
    """A time as a number; sums of times beyond ten years would lose their milliseconds."""
    if value > _LONGEST:
        raise FormatError(f"a time is {value} s; allowed are times up to {_LONGEST} s", os.fspath(path))
    return float(value)


def _gather(path: Path, pattern: str, read: Callable[[Path], Mapping[str, list[_Item]]]) -> dict[str, list[_Item]]:
    """Items of each file id; which file an id came from is kept only to name it in an error."""
    found: dict[str, list[_Item]] = {}
    origin: dict[str, Path] = {}
    for file in _files(path, pattern):
        # File ids have no white space in these formats, so neither has the id of an empty file.
        content = read(file) or {clean_field(file.stem, "file name"): []}
        for name, items in content.items():
            if name in found:
                raise FormatError(f"file id {name} is in {origin[name]} as well; keep one of them", str(file))
            found[name] = list(items)
            origin[name] = file
    return found


def _files(path: Path, pattern: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.glob(pattern) if file.is_file())
    if not files:
        raise FormatError(f"holds no {pattern} file; name another folder, or a file", str(path))
    return files
