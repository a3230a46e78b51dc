"""Fetch one file over HTTP: resumed after a cut connection or an interrupted run, checked, whole or absent.

What has arrived is kept as `NAME.part` beside the target, with a note of the version it belongs to, so that a part is
never continued with bytes of another version.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import logging
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import BinaryIO

from ..errors import DatasetError
from ..offline import offline

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int | None], None]
"""Called with the name of the file, the bytes that are there and those of the whole, where known."""

_BLOCK = 1 << 20
_TIMEOUT_S = 60.0
_ATTEMPTS = 5
# Worth another attempt: too many requests, and what servers and gateways say while they are overloaded.
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_HEADERS = {"User-Agent": "diarize", "Accept-Encoding": "identity"}


@dataclass(frozen=True)
class Fetched:
    """A file that has arrived: its `size` in bytes and `sha256`."""

    size: int
    sha256: str


class _Cut(Exception):
    """The connection ended early; another attempt goes on where it stopped."""


def fetch(
    url: str,
    target: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    progress: Progress | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Fetched:
    """Fetch `url` into the file `target`, going on from a part that an earlier call has left.

    `size` and `sha256` are what it must have, where known. `wait` is called with the seconds between attempts.

    Raises
    ------
    DatasetError
        The server refuses or cannot be reached, there is no room, or the file is not the expected one; or
        DIARIZE_OFFLINE is set.
    """
    if offline():
        raise DatasetError(f"{url} cannot be fetched offline; leave out --offline and unset DIARIZE_OFFLINE")
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    attempt, before = 0, -1
    while True:
        try:
            _attempt(url, part, size, progress)
            break
        except (_Cut, OSError, http.client.HTTPException) as error:
            _raise_lasting(url, part, error)
            have = part.stat().st_size if part.exists() else 0
            # An attempt that brought something does not count: long files may be cut many times.
            attempt = 1 if have > before else attempt + 1
            before = have
            if attempt >= _ATTEMPTS:
                raise DatasetError(
                    f"{url} cannot be fetched ({_reason(error)}), tried {attempt} times; run the command again to go on"
                ) from error
            _log.warning("%s: %s at %d bytes; trying again", url, _reason(error), have)
            wait(min(2.0**attempt, 30.0))
    fetched = Fetched(part.stat().st_size, file_sha256(part))
    if (size is not None and fetched.size != size) or (sha256 is not None and fetched.sha256 != sha256):
        _discard(part)
        raise DatasetError(
            f"{url} is not the expected file: {fetched.size} bytes, sha256 {fetched.sha256}, expected "
            f"{size if size is not None else 'any'} bytes, sha256 {sha256 or 'any'}; it was deleted, run again"
        )
    os.replace(part, target)
    _note(part).unlink(missing_ok=True)
    return fetched


def remote_size(url: str) -> int | None:
    """Bytes of the file at `url` as the server states them, None where it does not or cannot be asked."""
    if offline():
        return None
    request = urllib.request.Request(url, headers=_HEADERS, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return _length(answer.headers)
    except (OSError, http.client.HTTPException) as error:
        _log.info("%s: size unknown, %s", url, _reason(error))
        return None


def file_sha256(path: Path) -> str:
    """sha256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_space(folder: Path, needed: int, what: str) -> None:
    """Nothing where `needed` bytes fit on the disk of `folder`.

    Raises
    ------
    DatasetError
        They do not.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DatasetError(
            f"{what} needs {needed / 1e6:.1f} MB in {folder}, but {free / 1e6:.1f} MB are free; "
            "free some, or choose another disk with --to"
        )


def _attempt(url: str, part: Path, size: int | None, progress: Progress | None) -> None:
    """One connection; returns when the part is complete."""
    have, validator = _resumable(part, url)
    headers = dict(_HEADERS)
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 416:
                raise
            # The part is as long as the file, or longer than a file that has changed.
            if _total(error.headers, 0) == have:
                return
            _discard(part)
            raise _Cut("the server has another file now") from error
    with answer:
        if answer.status != 206 or _range_start(answer.headers) != have:
            have = 0
        total = _total(answer.headers, have)
        if size is not None and total is not None and total != size:
            _discard(part)
            raise DatasetError(f"{url} has {total} bytes, expected {size}; it has changed, check the manifest")
        if total is not None:
            check_space(part.parent, total - have, part.name.removesuffix(".part"))
        _note(part).write_text(json.dumps({"url": url, "validator": _validator(answer.headers)}))
        with part.open("r+b" if have else "wb") as file:
            file.truncate(have)
            file.seek(have)
            have = _copy(answer, file, have, total, part, progress)
        if total is not None and have < total:
            raise _Cut("the connection was cut")


def _copy(answer: BinaryIO, file: BinaryIO, have: int, total: int | None, part: Path, progress: Progress | None) -> int:
    """Write what comes, and return how much there is then."""
    name = part.name.removesuffix(".part")
    while block := answer.read(_BLOCK):
        file.write(block)
        have += len(block)
        if progress is not None:
            progress(name, have, total)
    return have


def _raise_lasting(url: str, part: Path, error: Exception) -> None:
    """Raise what another attempt will not mend."""
    if isinstance(error, urllib.error.HTTPError):
        if error.code not in _PASSING:
            raise DatasetError(
                f"{url} cannot be fetched: the server says {error.code} {error.reason}; "
                "the address may have moved, see the data set's homepage"
            ) from error
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DatasetError(
            f"the disk of {part.parent} is full; free some space, then run the command again to go on"
        ) from error
    elif isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.EISDIR):
        raise DatasetError(f"{part.parent} cannot be written ({error.strerror}); choose another with --to") from error


def _resumable(part: Path, url: str) -> tuple[int, str]:
    """Bytes of a part that may be continued, and the version that the server must still have; 0 where there is none."""
    try:
        note = json.loads(_note(part).read_text())
        if note["url"] == url and note["validator"]:
            return part.stat().st_size, str(note["validator"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, ""


def _validator(headers: Message) -> str:
    """What identifies this version of the file; weak tags do not, since they allow other bytes."""
    tag = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")


def _length(headers: Message) -> int | None:
    text = headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _total(headers: Message, have: int) -> int | None:
    """Bytes of the whole file."""
    whole = headers.get("Content-Range", "").rpartition("/")[2]
    if whole.isdecimal():
        return int(whole)
    length = _length(headers)
    return None if length is None else have + length


def _range_start(headers: Message) -> int:
    start = headers.get("Content-Range", "").removeprefix("bytes").strip().partition("-")[0]
    return int(start) if start.isdecimal() else -1


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return str(reason) or type(error).__name__
