"""Writing a result so that it is whole or absent: a file without a name in the same folder, then a name for it.

What has no name vanishes with the process, however that ends, so nothing half-written is ever seen. Where the file
system has no such files, or the result replaces another, a hidden temporary file is renamed. Every failure becomes one
`OutputError`; the temporary file is removed, also when the user interrupts.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat

from ..errors import OutputError
from .text import legible

_ADVICE = {
    errno.ENOSPC: "free some space or choose another place",
    errno.EDQUOT: "free some space or choose another place",
    errno.EFBIG: "raise the limit on file sizes or choose another place",
    errno.ENOENT: "make the folder first",
    errno.ENOTDIR: "a part of the path is a file; choose another place",
    errno.EISDIR: "name a file, not a directory",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all; see `write_bytes`."""
    write_bytes(path, legible(text).encode())


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path`, whole or not at all; a file that is there is replaced and its permissions kept.

    A link is followed. A pipe or device is written to directly.

    Raises
    ------
    OutputError
        It cannot be written; `path` is as it was before.
    """
    try:
        target = os.path.realpath(path)
        mode = _mode_of(target)
        if mode is None or stat.S_ISREG(mode):
            _replace(target, data, mode)
        else:
            with open(target, "wb", buffering=0) as file:
                _write_all(file.fileno(), data)
    except (OSError, ValueError) as error:
        raise _output_error(path, error) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Nothing where a result can be written to `path`, tried with an empty file beside it.

    Raises
    ------
    OutputError
        The folder is missing or not writable, or `path` is a directory.
    """
    try:
        target = os.path.realpath(path)
        mode = _mode_of(target)
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if mode is not None and not stat.S_ISREG(mode):
            if not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        descriptor = _open_nameless(os.path.dirname(target))
        if descriptor is not None:
            os.close(descriptor)
            return
        temporary = _temporary_name(target)
        try:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        finally:
            _remove(temporary)
    except (OSError, ValueError) as error:
        raise _output_error(path, error) from error


def _replace(target: str, data: bytes, mode: int | None) -> None:
    """Make `data` the content of `target`, whose permissions are `mode` if it exists."""
    descriptor = _open_nameless(os.path.dirname(target))
    if descriptor is None:
        _rename_over(target, data, mode)
        return
    try:
        _fill(descriptor, data, mode)
        if mode is None:
            try:
                _give_name(descriptor, target)
                return
            except FileExistsError:
                # Someone else has made it in the meantime.
                pass
        temporary = _temporary_name(target)
        _give_name(descriptor, temporary)
        try:
            os.replace(temporary, target)
        except BaseException:
            _remove(temporary)
            raise
    finally:
        os.close(descriptor)


def _open_nameless(folder: str) -> int | None:
    """A new file in `folder` that has no name yet; None where the file system has no such files."""
    try:
        return os.open(folder or ".", os.O_WRONLY | os.O_TMPFILE, 0o666)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL) and os.path.isdir(folder or "."):
            return None
        raise


def _give_name(descriptor: int, name: str) -> None:
    """Let the nameless file appear as `name`, at once and whole."""
    # A folder descriptor, which an absolute path ignores, makes Python follow the link under /proc.
    os.link(f"/proc/self/fd/{descriptor}", os.path.abspath(name), src_dir_fd=descriptor, follow_symlinks=True)


def _rename_over(target: str, data: bytes, mode: int | None) -> None:
    """Write `data` to a temporary file and rename it to `target`."""
    temporary = _temporary_name(target)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            _fill(descriptor, data, mode)
        finally:
            os.close(descriptor)
        os.replace(temporary, target)
    except BaseException:
        _remove(temporary)
        raise


def _fill(descriptor: int, data: bytes, mode: int | None) -> None:
    """Write `data`, down to the disk."""
    if mode is not None:
        os.fchmod(descriptor, stat.S_IMODE(mode))
    _write_all(descriptor, data)
    # Some disks report that they are full only here.
    os.fsync(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; the system may take less at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _mode_of(path: str) -> int | None:
    """File type and permissions, None where nothing is there."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _temporary_name(target: str) -> str:
    """A new hidden name in the folder of `target`."""
    return os.path.join(os.path.dirname(target), f".diarize-{secrets.token_hex(8)}.part")


def _remove(path: str) -> None:
    """Remove a temporary file that may not exist; the error that led here matters more than one from this."""
    try:
        os.unlink(path)
    except OSError:
        return


def _output_error(path: str | os.PathLike[str], error: OSError | ValueError) -> OutputError:
    """One line for the user."""
    text = os.fspath(path)
    name = text if text.isprintable() else ascii(text)
    if isinstance(error, OSError):
        advice = _ADVICE.get(error.errno or 0, "choose another place")
        return OutputError(f"{name or 'the result'}: cannot be written ({error.strerror}); {advice}")
    return OutputError(f"{name!r}: cannot be written ({error}); choose another name")
