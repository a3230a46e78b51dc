"""Fetch a data set into `audio/`, `rttm/` and `uem/` of one folder, and check what is there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import DatasetError, OptionError
from ..outputs.files import write_text
from ..outputs.rttm import format_rttm
from .download import Fetched, Progress, fetch, file_sha256, remote_size
from .lock import Lock, LockedDownload, LockedFile, read_lock
from .manifest import Download, Manifest
from .textgrid import read_textgrid
from .unpack import REFERENCES, unpack

ARCHIVES = "archives"


@dataclass(frozen=True)
class Pulled:
    """What a call did: the folder, the file ids that have both audio and a reference, and those that lack one."""

    root: Path
    complete: tuple[str, ...]
    incomplete: tuple[str, ...]


@dataclass(frozen=True)
class DownloadSize:
    """Bytes that are `stated` by the manifest or the servers, `about` as many more, and downloads of `unknown` size."""

    stated: int = 0
    about: int = 0
    unknown: int = 0


def download_size(manifest: Manifest, limit: int | None = None) -> DownloadSize:
    """What there is to download; servers are asked for archives, but not for each of many files."""
    stated = about = unknown = 0
    for download in manifest.downloads:
        count = 1 if download.members else len(_first(manifest.ids, limit))
        size = download.size
        if size is None and download.members:
            size = remote_size(download.url)
        if size is not None:
            stated += size
        elif download.about_bytes is not None:
            about += download.about_bytes if download.members else download.about_bytes * count // len(manifest.ids)
        else:
            unknown += count
    return DownloadSize(stated, about, unknown)


def pull(manifest: Manifest, root: Path, limit: int | None = None, progress: Progress | None = None) -> Pulled:
    """Fetch and lay out the data set, or its first `limit` file ids in alphabetical order.

    Goes on where an earlier call has stopped. Archives come whole whatever the limit; they are deleted once everything
    has been taken out of them.

    Raises
    ------
    OptionError
        The set cannot be fetched, or `limit` is below 1.
    DatasetError
        A download fails, is not what it was when it was first seen, or cannot be unpacked.
    """
    if not manifest.downloads:
        raise OptionError(f"{manifest.name} cannot be fetched: {manifest.by_hand or 'it is on this machine already'}")
    if limit is not None and limit < 1:
        raise OptionError(f"limit is {limit}; it must be at least 1")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(f"{root} cannot be made ({error.strerror}); choose another with --to") from error
    lock = read_lock(root, manifest.name)
    ids = set(_first(manifest.ids, limit)) if manifest.ids else None
    for download in manifest.downloads:
        if download.members:
            _pull_archive(download, root, lock, ids, limit, progress)
        else:
            for name in sorted(ids or ()):
                _pull_file(download, name, root, lock, progress)
        if ids is None and any(f"{member.to}/" in REFERENCES for member in download.members):
            # References come first in a manifest; they say which ids there are.
            ids = set(_first(tuple(_stems(lock, "rttm")), limit))
    return _pulled(root, lock, ids)


def verify(root: Path, manifest: Manifest) -> list[str]:
    """What is wrong with the files of a pulled data set, one sentence each; empty where everything is right.

    Raises
    ------
    DatasetError
        Nothing was pulled into `root`.
    """
    lock = read_lock(root, manifest.name)
    if not lock.files and manifest.by_hand:
        raise DatasetError(
            f"{manifest.name} is not pulled but laid out by hand, so there is nothing to verify it against"
        )
    if not lock.files:
        raise DatasetError(f"{root} holds no pulled data set; run: diarize datasets pull {manifest.name}")
    problems = []
    for name, known in sorted(lock.files.items()):
        path = root / name
        if not path.is_file():
            problems.append(f"{name} is missing; pull again")
        elif path.stat().st_size != known.size or file_sha256(path) != known.sha256:
            problems.append(f"{name} is not what was pulled; delete it and pull again")
    for download in manifest.downloads:
        seen = lock.downloads.get(download.url)
        if seen and download.sha256 and seen.sha256 != download.sha256:
            problems.append(f"{download.url} was pulled with sha256 {seen.sha256}, the manifest says {download.sha256}")
    pulled = _pulled(root, lock, set(manifest.ids) if manifest.ids else None)
    problems += [f"{name} lacks its audio or its reference" for name in pulled.incomplete if name in _present(lock)]
    return problems


def _pull_file(download: Download, name: str, root: Path, lock: Lock, progress: Progress | None) -> None:
    assert download.to is not None
    path = download.to.replace("{id}", name)
    if _intact(root, path, lock):
        return
    url = download.url.replace("{id}", name)
    fetched = _fetch(url, download, root / path, lock, progress)
    lock.files[path] = LockedFile(fetched.size, fetched.sha256)
    lock.write(root)


def _pull_archive(
    download: Download, root: Path, lock: Lock, ids: set[str] | None, limit: int | None, progress: Progress | None
) -> None:
    archive = root / ARCHIVES / (Path(urlsplit(download.url).path).name or "archive")
    if _is_unpacked(download, root, lock, ids, limit):
        if limit is None:
            archive.unlink(missing_ok=True)
        return
    seen = lock.downloads.get(download.url)
    if not archive.is_file() or seen is None or archive.stat().st_size != seen.size:
        _fetch(download.url, download, archive, lock, progress)
        lock.write(root)
    try:
        unpacked = unpack(archive, download.members, root, ids, limit)
    except DatasetError:
        # It would fail again; without it the next call fetches a new copy.
        archive.unlink(missing_ok=True)
        raise
    if not unpacked:
        archive.unlink(missing_ok=True)
        raise DatasetError(f"{download.url} holds none of the files that the manifest names; it may have changed")
    for item in unpacked:
        lock.files[item.path] = _locked(root / item.path)
        if item.path.startswith("textgrid/"):
            path = f"rttm/{item.file_id}.rttm"
            (root / "rttm").mkdir(exist_ok=True)
            write_text(root / path, format_rttm(read_textgrid(root / item.path), item.file_id))
            lock.files[path] = _locked(root / path)
    entry = lock.downloads[download.url]
    entry.all_unpacked = limit is None
    entry.unpacked = sorted({item.file_id for item in unpacked})
    lock.write(root)
    if limit is None:
        archive.unlink(missing_ok=True)


def _is_unpacked(download: Download, root: Path, lock: Lock, ids: set[str] | None, limit: int | None) -> bool:
    """Whether an earlier call took what is wanted now out of the archive, and it is still there."""
    seen = lock.downloads.get(download.url)
    if seen is None or not seen.unpacked:
        return False
    if ids is None and limit is not None:
        ids = set(_first(tuple(seen.unpacked), limit)) if len(seen.unpacked) >= limit else None
    if not seen.all_unpacked and (ids is None or not ids <= set(seen.unpacked)):
        return False
    folders = {member.to for member in download.members}
    mine = [path for path in lock.files if path.partition("/")[0] in folders]
    return all(_intact(root, path, lock) for path in mine if Path(path).stem in (ids or seen.unpacked))


def _locked(path: Path) -> LockedFile:
    return LockedFile(path.stat().st_size, file_sha256(path))


def _fetch(url: str, download: Download, target: Path, lock: Lock, progress: Progress | None) -> Fetched:
    """Fetch, and compare with what the manifest says, else with what was seen first."""
    fetched = fetch(url, target, size=download.size, sha256=download.sha256, progress=progress)
    seen = lock.downloads.get(url)
    if seen is None:
        lock.downloads[url] = LockedDownload(fetched.size, fetched.sha256, time.strftime("%Y-%m-%d"))
    elif seen.sha256 != fetched.sha256:
        target.unlink(missing_ok=True)
        raise DatasetError(
            f"{url} has changed: sha256 {fetched.sha256}, first seen on {seen.first_seen} as {seen.sha256}; "
            "delete the folder to start anew with the changed one"
        )
    return fetched


def _pulled(root: Path, lock: Lock, ids: set[str] | None) -> Pulled:
    audio, rttm = set(_stems(lock, "audio")), set(_stems(lock, "rttm"))
    wanted = audio | rttm if ids is None else ids
    complete = wanted & audio & rttm
    return Pulled(root, tuple(sorted(complete)), tuple(sorted(wanted - complete)))


def _present(lock: Lock) -> set[str]:
    return {Path(path).stem for path in lock.files}


def _stems(lock: Lock, folder: str) -> Iterator[str]:
    """File ids with a file in a folder; a name may hold dots, so only the last suffix goes."""
    return (Path(path).stem for path in lock.files if path.startswith(f"{folder}/"))


def _intact(root: Path, path: str, lock: Lock) -> bool:
    """Whether a file is there with the size it had; its checksum is for `verify`."""
    known = lock.files.get(path)
    return known is not None and (root / path).is_file() and (root / path).stat().st_size == known.size


def _first(ids: tuple[str, ...], limit: int | None) -> tuple[str, ...]:
    return tuple(sorted(ids))[:limit]
