"""The public names: complete, sorted, and each one there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import diarize
from diarize import errors


def test_all_is_sorted_and_has_no_duplicates() -> None:
    assert sorted(set(diarize.__all__)) == diarize.__all__
    assert dir(diarize) == diarize.__all__


@pytest.mark.parametrize("name", diarize.__all__)
def test_each_name_is_there(name: str) -> None:
    assert getattr(diarize, name).__class__ is not None
    assert name in vars(diarize)


def test_all_lists_every_error() -> None:
    tree = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert tree
    assert tree <= set(diarize.__all__)
    assert all(issubclass(getattr(diarize, name), diarize.DiarizeError) for name in tree)


def test_type_checkers_see_the_same_names() -> None:
    source = Path(diarize.__file__ or "").read_text()
    guarded = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    seen = [alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted([*seen, "__version__"]) == diarize.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'diarise'"):
        diarize.diarise  # noqa: B018
