"""Take the wanted files out of an archive that nobody has vouched for.

Names in the archive never become paths: a wanted file is written as `FOLDER/ID.SUFFIX`, with an id that `valid_id`
allows. Links, devices and the like are refused where they are wanted, and an archive with a name that points out of its
folder, or that grows beyond all measure, is refused as a whole before anything is written.

References
----------
Python documentation, "tarfile: extraction filters", for what malicious archives do.
"""

from __future__ import annotations

import fnmatch
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from ..errors import DatasetError
from .download import check_space
from .manifest import Member, valid_id

# Audio shrinks to a half and text to a tenth; more than this is made to fill the disk.
_LARGEST_RATIO = 100
_ALWAYS_ALLOWED = 100_000_000
_MOST_MEMBERS = 200_000
_BLOCK = 1 << 20
# Folders that hold references.
REFERENCES = ("rttm/", "textgrid/")
_SUFFIX = re.compile(r"\.[a-z0-9]{1,8}")


@dataclass(frozen=True)
class _Entry:
    """A file of an archive: its `name` there, unpacked `size`, whether it is a `plain` file, and a handle."""

    name: str
    size: int
    plain: bool
    folder: bool
    handle: zipfile.ZipInfo | tarfile.TarInfo


@dataclass(frozen=True)
class Unpacked:
    """A file that was written: its id, and its path relative to the root."""

    file_id: str
    path: str


def unpack(
    archive: Path, members: Iterable[Member], root: Path, ids: set[str] | None = None, limit: int | None = None
) -> list[Unpacked]:
    """Write the files of a zip or tar archive that `members` describe below `root`, sorted by path.

    `ids` limits them to these file ids; without it `limit` takes the first ones that have a reference in this archive.

    Raises
    ------
    DatasetError
        The archive is damaged or malicious, two of its files have the same id, or there is no room.
    """
    rules = list(members)
    try:
        with _opened(archive) as (entries, read):
            wanted = _wanted(archive, entries, rules, ids)
            if ids is None and limit is not None:
                first = sorted({name for _, name, path in wanted if path.startswith(REFERENCES)})[:limit]
                wanted = [item for item in wanted if item[1] in first]
            root.mkdir(parents=True, exist_ok=True)
            check_space(root, sum(entry.size for entry, _, _ in wanted), f"unpacking {archive.name}")
            for entry, _, path in wanted:
                _write(read(entry), root / path, entry)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, RuntimeError) as error:
        raise DatasetError(f"{archive.name} is damaged or cut short ({error}); delete it and pull again") from error
    except OSError as error:
        raise DatasetError(f"{archive.name} cannot be unpacked ({error.strerror or error}) into {root}") from error
    return sorted((Unpacked(name, path) for _, name, path in wanted), key=lambda item: item.path)


@contextmanager
def _opened(archive: Path) -> Iterator[tuple[Iterator[_Entry], Callable[[_Entry], IO[bytes]]]]:
    """Entries of the archive, and a function that opens one."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as package:
            yield (_zip_entry(info) for info in package.infolist()), partial(_zip_open, package)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as package:
            yield (_tar_entry(info) for info in package), partial(_tar_open, package)
    else:
        raise tarfile.ReadError("it is neither zip nor tar")


def _zip_open(package: zipfile.ZipFile, entry: _Entry) -> IO[bytes]:
    assert isinstance(entry.handle, zipfile.ZipInfo)
    return package.open(entry.handle)


def _tar_open(package: tarfile.TarFile, entry: _Entry) -> IO[bytes]:
    assert isinstance(entry.handle, tarfile.TarInfo)
    file = package.extractfile(entry.handle)
    assert file is not None, "only plain files are opened"
    return file


def _zip_entry(info: zipfile.ZipInfo) -> _Entry:
    # The upper half holds the Unix mode, whose type is 0 where the archive comes from elsewhere.
    kind = info.external_attr >> 28
    return _Entry(info.filename, info.file_size, kind in (0, 0o10) and not info.is_dir(), info.is_dir(), info)


def _tar_entry(info: tarfile.TarInfo) -> _Entry:
    return _Entry(info.name, info.size, info.isreg() and not info.issparse(), info.isdir(), info)


def _wanted(
    archive: Path, entries: Iterator[_Entry], rules: list[Member], ids: set[str] | None
) -> list[tuple[_Entry, str, str]]:
    """(entry, file id, relative path) of what is taken, after looking at the whole archive."""
    limit = max(_LARGEST_RATIO * archive.stat().st_size, _ALWAYS_ALLOWED)
    taken: dict[str, tuple[_Entry, str, str]] = {}
    total = 0
    for count, entry in enumerate(entries, 1):
        _check_name(archive, entry.name)
        total += entry.size
        if total > limit or count > _MOST_MEMBERS:
            raise DatasetError(
                f"{archive.name} unpacks to more than {limit / 1e6:.0f} MB or {_MOST_MEMBERS} files, far beyond what "
                "recordings do; it is not what the manifest says"
            )
        rule = next((rule for rule in rules if fnmatch.fnmatchcase(entry.name, rule.match)), None)
        if rule is None or entry.folder or _is_litter(entry.name):
            continue
        if not entry.plain:
            raise DatasetError(f"{archive.name} holds {entry.name!r}, which is a link or device; it is refused")
        name, path = _target(archive, entry.name, rule)
        if ids is not None and name not in ids:
            continue
        if path in taken:
            raise DatasetError(f"{archive.name} holds {path} twice, as {taken[path][0].name!r} and {entry.name!r}")
        taken[path] = (entry, name, path)
    return list(taken.values())


def _check_name(archive: Path, name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if name.startswith(("/", "\\")) or ".." in parts or "\0" in name or re.match(r"[A-Za-z]:", name):
        raise DatasetError(f"{archive.name} holds {name[:200]!r}, a path out of its folder; the archive is refused")


def _is_litter(name: str) -> bool:
    """What macOS adds to archives."""
    path = PurePosixPath(name)
    return path.name.startswith(".") or "__MACOSX" in path.parts


def _target(archive: Path, name: str, rule: Member) -> tuple[str, str]:
    path = PurePosixPath(name)
    found = path.stem
    if rule.id_pattern is not None:
        match = re.search(rule.id_pattern, path.stem)
        found = (match.group(1) or "") if match else ""
    suffix = path.suffix.lower()
    if not valid_id(found) or not _SUFFIX.fullmatch(suffix):
        raise DatasetError(f"{archive.name} holds {name[:200]!r}, from which no file id can be made; it is refused")
    return found, f"{rule.to}/{found}{suffix}"


def _write(source: IO[bytes], target: Path, entry: _Entry) -> None:
    """Write one file, whole or not at all, and never more than it is stated to have."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        with source, part.open("wb") as file:
            left = entry.size
            while block := source.read(min(_BLOCK, left + 1)):
                left -= len(block)
                if left < 0:
                    raise tarfile.ReadError(f"{entry.name!r} is longer than stated")
                file.write(block)
            if left:
                raise tarfile.ReadError(f"{entry.name!r} is shorter than stated")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
