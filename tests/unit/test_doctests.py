"""The examples in docstrings run and show what they say; only modules that hold some are imported."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def modules_with_examples() -> list[str]:
    """Names of the modules whose text holds an example."""
    found = []
    for folder, package in ((ROOT / "diarize", "diarize"), (ROOT / "cli", "diarize.cli")):
        for path in sorted(folder.rglob("*.py")):
            if any(line.lstrip().startswith(">>> ") for line in path.read_text(encoding="utf-8").splitlines()):
                parts = path.relative_to(folder).with_suffix("").parts
                found.append(".".join((package, *(part for part in parts if part != "__init__"))))
    return found


MODULES = modules_with_examples()


def test_examples_are_found() -> None:
    assert len(MODULES) > 20
    assert {"diarize", "diarize.types", "diarize.framing"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = import_module(name)
    examples = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert examples, "the text has examples that doctest does not find"
    assert doctest.testmod(module).failed == 0
