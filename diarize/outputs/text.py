"""What the text formats share: reading files and lines, splitting fields, names that fit on a line or in a field."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from ..errors import FormatError

_WHITE_SPACE = re.compile(r"\s+")


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Lines of a UTF-8 file, without line feeds; a byte order mark is left out.

    Raises
    ------
    FormatError
        The file cannot be read or is not UTF-8.
    """
    return read_text(path).split("\n")


def read_text(path: str | os.PathLike[str], keep_mark: bool = False) -> str:
    """A UTF-8 file as it is; a byte order mark is left out unless `keep_mark`.

    Raises
    ------
    FormatError
        The file cannot be read or is not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FormatError(f"cannot be read ({reason}); check the path", os.fspath(path)) from error
    text = decode(data, os.fspath(path))
    return text if keep_mark else text.removeprefix("\ufeff")


def decode(data: bytes, path: str) -> str:
    """Text of UTF-8 bytes; `path` serves for the message.

    Raises
    ------
    FormatError
        They are not UTF-8.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise FormatError("is UTF-16 text, as some editors of Windows save it; save it as UTF-8", path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError("is not UTF-8 text; convert it", path, data.count(b"\n", 0, error.start) + 1) from error


def split_lines(text: str) -> list[str]:
    """Lines of `text` without their ends, which are those of Unix, Windows and old Macs; no other sign ends a line."""
    return re.split("\r\n|\n|\r", text)


def split_fields(line: str) -> list[str]:
    """Fields of a line, separated by spaces and tabs only: other Unicode spaces may be part of a name."""
    return re.findall(r"[^ \t\r\n]+", line)


def clean_field(value: str, what: str) -> str:
    """`value` as one field: each run of white space becomes "_", what UTF-8 cannot hold "?", the rest stays.

    Raises
    ------
    FormatError
        Nothing is left.
    """
    text = _WHITE_SPACE.sub("_", legible(value).strip())
    if not text:
        raise FormatError(f"{what} is {value!r}; it must hold at least one visible character")
    return text


def clean_text(value: str, what: str) -> str:
    """`value` on one line: each run of white space becomes one space, what UTF-8 cannot hold "?", the rest stays.

    Raises
    ------
    FormatError
        Nothing is left.
    """
    text = _WHITE_SPACE.sub(" ", legible(value).strip())
    if not text:
        raise FormatError(f"{what} is {value!r}; it must hold at least one visible character")
    return text


def legible(text: str) -> str:
    """`text` as UTF-8 can hold it: bytes of a file name that the locale could not read are taken for UTF-8.

    What is not UTF-8 either becomes "?".

    >>> legible("\\udcc3\\udcbcbung")
    'übung'
    """
    # Not so for half of a character, which no file name brings.
    with suppress(UnicodeEncodeError):
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    return text.encode("utf-8", "replace").decode("utf-8")
