"""Numbers that a caller gives: of the right type, or a message that says which value was wrong."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

from .errors import OptionError


def whole_number(name: str, value: Any) -> int:
    """`value` as an int; `name` is what messages call it.

    >>> whole_number("jobs", 2.0)
    2

    Raises
    ------
    OptionError
        It is no number, or not a whole one.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            if float(value).is_integer():
                return int(float(value))
    raise OptionError(f"{name} is {value!r}; give a whole number")


def seconds(name: str, value: Any) -> float:
    """`value` as a float.

    Raises
    ------
    OptionError
        It is not a finite number.
    """
    if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise OptionError(f"{name} is {value!r}; it must be a number of seconds")


def check_seconds(name: str, value: Any) -> None:
    """Nothing where `value` is a finite number from 0 on.

    Raises
    ------
    OptionError
        It is not.
    """
    if isinstance(value, Real) and not 0 <= float(value) < math.inf:
        raise OptionError(f"{name} is {float(value):g}; it must be a number of seconds, 0 or more")
    seconds(name, value)
