"""What the line formats (RTTM, UEM) share: reading lines, splitting fields, fields without white space."""

from __future__ import annotations

import os
import re

from ..errors import FormatError

_WHITE_SPACE = re.compile(r"\s+")


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Lines of a UTF-8 file, without line feeds; a byte order mark is left out.

    Raises
    ------
    FormatError
        The file cannot be read or is not UTF-8.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return file.read().split("\n")
    except UnicodeDecodeError as error:
        raise FormatError("is not UTF-8 text; convert it", os.fspath(path)) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FormatError(f"cannot be read ({reason}); check the path", os.fspath(path)) from error


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
    text = _WHITE_SPACE.sub("_", value.strip()).encode("utf-8", "replace").decode("utf-8")
    if not text:
        raise FormatError(f"{what} is {value!r}; it must hold at least one visible character")
    return text
