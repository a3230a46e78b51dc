"""Names of numba that are looked up when a kernel is compiled: a kernel found in the cache never imports numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Deferred:
    """Stands for what `look_up` gives; calling it stands for the result of the call."""

    def __init__(self, name: str, look_up: Callable[[], Any]) -> None:
        self._name = name
        self._look_up = look_up
        self._found: list[Any] = []

    def __call__(self, *arguments: Any, **named: Any) -> Deferred:
        return Deferred(f"{self._name}(...)", lambda: self.resolve()(*arguments, **named))

    def __repr__(self) -> str:
        return f"Deferred({self._name})"

    def resolve(self) -> Any:
        """What this stands for, looked up once."""
        if not self._found:
            self._found.append(self._look_up())
        return self._found[0]


def resolved(value: Any) -> Any:
    """What `value` stands for where it is deferred, else `value` itself."""
    return value.resolve() if isinstance(value, Deferred) else value
