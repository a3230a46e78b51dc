"""Tables for people: folding on narrow terminals, and what a stranger's text could do to one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from diarize.cli._tables import table
from diarize.recipe import DEFAULT, Key, Recipe, to_text

from .conftest import Finished

HEADS = ("name", "number", "about")
ROWS = [("resnet34.layer3.conv1", "12", "one or two words"), ("b", "3", "")]


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes standard output a terminal of some columns."""

    def set_columns(number: int) -> None:
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setenv("COLUMNS", str(number))

    return set_columns


def test_elsewhere_than_on_a_terminal_nothing_is_folded() -> None:
    long = "word " * 1000 + "end"
    lines = table(("a", "b"), [(long, "1")], ("b",)).splitlines()
    assert lines[2] == f"{long}   1"


def test_cells_are_folded_between_words(columns: Callable[[int], None]) -> None:
    columns(40)
    lines = table(HEADS, ROWS, ("number",)).splitlines()
    assert max(map(len, lines)) <= 40
    assert [line.split() for line in lines if line[0] != "─"] == [
        ["name", "number", "about"],
        ["resnet34.layer3.conv1", "12", "one", "or"],
        ["two"],
        ["words"],
        ["b", "3"],
    ]


@pytest.mark.parametrize("width", [1, 20, 30])
def test_names_stay_whole_on_a_narrow_terminal(columns: Callable[[int], None], width: int) -> None:
    columns(width)
    lines = table(HEADS, ROWS, ("number",)).splitlines()
    assert lines[0] == "name                    number   about"
    assert lines[2] == "resnet34.layer3.conv1       12   one or two words"
    assert len(lines) == 4


def test_very_long_words_are_folded(columns: Callable[[int], None]) -> None:
    columns(50)
    assert max(map(len, table(("a", "b"), [("x" * 500, "y")]).splitlines())) <= 50


def test_control_characters_are_shown_escaped(cli: Callable[..., Finished], tmp_path: Path) -> None:
    assert "\x1b" not in table(("a",), [("\x1b[2J",)])
    path = tmp_path / "odd\x1b[31m.json"
    path.write_text(to_text(Recipe(DEFAULT, Key(capability=(9, 0)), {"by\n": "\x1b[2J\x07\u202e", "list": ["a\rb"]})))
    done = cli("cuda", "recipes", "show", path)
    assert done.code == 0
    assert all(line.isprintable() for line in done.out.split("\n"))
    assert r"  by\n: \x1b[2J\x07\u202e" in done.out.splitlines()
