"""What the option parser finds wrong, said plainly: the value, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperGroup


class Commands(TyperGroup):
    """The commands, whose parser's complaints about values are put into words of our own."""

    def invoke(self, ctx: Any) -> Any:
        """Parse the command's options and run it."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as mistake:
            # The parser's checks come from pydantic, whose words are for programmers.
            details = getattr(mistake.__cause__, "errors", None)
            if details is not None:
                mistake.message = plain(details()[0], mistake.message)
            raise


def plain(detail: Mapping[str, Any], message: str) -> str:
    """One of pydantic's errors in plain words; `message`, what it says itself, where none are known.

    >>> plain({"type": "greater_than_equal", "input": "0", "ctx": {"ge": 1}}, "")
    "'0' is too small; it must be at least 1"
    """
    kind, value = str(detail.get("type")), detail.get("input")
    limits = detail.get("ctx") or {}
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind.startswith("int_"):
        return f"{value!r} is no whole number"
    if kind.startswith("float_"):
        return f"{value!r} is no number"
    for name, size, limit in (("ge", "small", "at least"), ("le", "large", "at most")):
        if name in limits:
            bound = f"it must be {limit} {limits[name]:g}"
            return f"{value!r} is no number; {bound}" if _is_nan(value) else f"{value!r} is too {size}; {bound}"
    return message


def _is_nan(value: Any) -> bool:
    try:
        return math.isnan(float(value))
    except (TypeError, ValueError):
        return False
