"""Reads JSON objects field by field: each is there, none is unknown, each has its type; else the file is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

from .errors import RecipeError

REMEDY = "run: diarize cuda tune"
_SHOWN = 60
_SHA256 = re.compile(r"[0-9a-f]{64}")


def refusal(where: str, field: str, seen: Any, wanted: str, remedy: str = REMEDY) -> RecipeError:
    """The error that refuses the file `where`, in one line."""
    return RecipeError(f"{where}: {field} is {shown(seen)}, wanted {wanted}; {remedy}")


def shown(value: Any) -> str:
    """A value for a message, on one line and not too long; `Words` stay as they are.

    >>> shown([1, "a"])
    "[1, 'a']"
    """
    if isinstance(value, Words):
        return str(value)
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def plain_name(name: str) -> str:
    """A field's name for a message: as it is if it is a plain one, else quoted, and not too long.

    >>> plain_name("batch"), plain_name("a b")
    ('batch', "'a b'")
    """
    return name if name.isidentifier() and name.isascii() and len(name) <= _SHOWN else shown(name)


class Words(str):
    """What was seen, in words instead of a value of the file."""


class Fields:
    """The fields of an object of the file `where`, whose name there is `path`."""

    def __init__(self, value: Any, where: str, path: str, names: Collection[str]) -> None:
        self.where = where
        self.path = path
        if not isinstance(value, dict):
            raise refusal(where, path or "the file", Words(_kind(value)), "an object")
        for name in value:
            if name not in names:
                raise refusal(where, self.name(plain_name(name)), Words("unknown"), f"only {', '.join(names)}")
        for name in names:
            if name not in value:
                raise refusal(where, self.name(name), Words("missing"), "it")
        self.values = value

    def name(self, field: str) -> str:
        """The field's full name."""
        return f"{self.path}.{field}" if self.path else field

    def refuse(self, field: str, seen: Any, wanted: str) -> RecipeError:
        """The error that refuses a field."""
        return refusal(self.where, self.name(field), seen, wanted)

    def text(self, field: str, empty: bool = False) -> str:
        """A string, not empty unless `empty`."""
        value = self.values[field]
        if not isinstance(value, str) or not (value or empty):
            raise self.refuse(field, value, "a string" if empty else "a string that is not empty")
        return value

    def one_of(self, field: str, allowed: Collection[str]) -> str:
        """One of some strings."""
        value = self.values[field]
        if not isinstance(value, str) or value not in allowed:
            raise self.refuse(field, value, f"one of {', '.join(allowed)}")
        return value

    def sha256(self, field: str) -> str:
        """64 hexadecimal digits."""
        value = self.values[field]
        if not isinstance(value, str) or not _SHA256.fullmatch(value):
            raise self.refuse(field, value, "a sha256 of 64 hexadecimal digits")
        return value

    def count(self, field: str, lowest: int = 1, highest: int = 1_000_000) -> int:
        """A whole number."""
        value = self.values[field]
        if type(value) is not int or not lowest <= value <= highest:
            raise self.refuse(field, value, f"a whole number from {lowest} to {highest}")
        return value

    def number(self, field: str) -> float:
        """A finite number."""
        value = self.values[field]
        if not is_number(value):
            raise self.refuse(field, value, "a finite number")
        return float(value)

    def positive(self, field: str) -> float:
        """A finite number above zero."""
        value = self.values[field]
        if not is_number(value) or value <= 0:
            raise self.refuse(field, value, "a finite number above 0")
        return float(value)

    def items(self, field: str) -> list[Any]:
        """A list."""
        value = self.values[field]
        if not isinstance(value, list):
            raise self.refuse(field, Words(_kind(value)), "a list")
        return value


def is_number(value: Any) -> bool:
    """Whether a value is a number that a float can hold; true and false are none."""
    if type(value) not in (int, float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
