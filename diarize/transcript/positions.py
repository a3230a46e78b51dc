"""Where a value stands in a JSON text, for messages: the standard reader keeps no lines."""

from __future__ import annotations

import json
from collections.abc import Sequence


def line_of(text: str, place: Sequence[str | int]) -> int | None:
    """1-based line on which the value begins that keys and indices lead to, None where they lead nowhere.

    `text` is valid JSON.

    >>> line_of('{"a": [1,\\n {"b": 2}]}', ["a", 1])
    2
    """
    decoder = json.JSONDecoder()
    position = _skip(text, 0)
    for part in place:
        found = _member(text, position, part, decoder)
        if found is None:
            return None
        position = found
    return text.count("\n", 0, position) + 1


def _member(text: str, position: int, part: str | int, decoder: json.JSONDecoder) -> int | None:
    """Where the value of a key or index begins in the object or list at `position`."""
    opening = text[position]
    if opening != ("{" if isinstance(part, str) else "["):
        return None
    position = _skip(text, position + 1)
    index = 0
    found = None
    while text[position] not in "}]":
        key: str | int = index
        if opening == "{":
            key, position = decoder.raw_decode(text, position)
            # Past the colon.
            position = _skip(text, _skip(text, position) + 1)
        if key == part:
            # Of a key that stands twice, the last counts.
            found = position
            if opening == "[":
                return found
        _, position = decoder.raw_decode(text, position)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
        index += 1
    return found


def _skip(text: str, position: int) -> int:
    """The next position that is not white space."""
    while text[position] in " \t\r\n":
        position += 1
    return position
