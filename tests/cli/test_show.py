"""`diarize run --show`: lanes on standard error that fit the terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from diarize.cli._lanes import lanes
from diarize.types import Diarization, Turn

from .conftest import Finished, command


def result_of(turns: list[Turn], duration: float) -> Diarization:
    """A result with these turns, whose speakers are in the order of their names."""
    names = tuple(sorted({turn.speaker for turn in turns}))
    return Diarization(tuple(turns), (), names, np.zeros((len(names), 0)), duration, "campplus", "cpu", "exact")


def drawn(turns: list[Turn], duration: float, width: int, encoding: str = "utf-8", title: str = "talk") -> list[str]:
    """The lines as plain text, on a terminal of `width` columns."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=out, width=width)
    return [line.plain for line in lanes(result_of(turns, duration), turns, title, console)]


TURNS = [Turn(0.0, 5.0, "Ann"), Turn(4.0, 6.0, "Bo"), Turn(7.5, 10.0, "Ann")]


def test_whole_drawing() -> None:
    # 31 columns leave 10 cells of one second each.
    assert drawn(TURNS, 10.0, 31) == [
        "talk  0:10",
        "Ann     │█████  ▄██│ 0:08  79 %",
        "Bo      │    ██    │ 0:02  21 %",
        "overlap │    █     │ 0:01",
        "         0:00  0:10",
    ]


def test_only_signs_that_the_terminal_can_show() -> None:
    assert drawn(TURNS, 10.0, 31, "ascii", "tälk")[:3] == [
        "t?lk  0:10",
        "Ann     |@@@@@  =@@| 0:08  79 %",
        "Bo      |    @@    | 0:02  21 %",
    ]


@pytest.mark.parametrize("width", [40, 80, 81, 200])
def test_lanes_fill_the_width(width: int) -> None:
    turns = [Turn(10.0 * n, 10.0 * n + 9, f"speaker {n % 3} 日本") for n in range(700)]
    shown = drawn(turns, 7000.0, width)
    assert {cell_len(line) for line in shown[1:4]} == {width}
    assert all(cell_len(line) <= width for line in shown)
    assert "1:56:40" in shown[-1]


def test_a_word_is_seen_in_an_hour_and_long_names_are_cut() -> None:
    shown = drawn([Turn(1800.0, 1800.2, "A\x1b[2Jvery long name of one speaker"), Turn(0, 3600, "B")], 3600.0, 60)
    assert shown[1].startswith("A?[2Jvery long name of o │")
    assert shown[1].count("▁") == 1
    assert "█" * 19 in shown[2]


def test_nobody_speaks() -> None:
    assert drawn([], 0.0, 80)[0] == "talk  0:00"
    assert len(drawn([], 5.0, 80)) == 2


def test_lanes_go_to_standard_error_without_colours_away_from_a_terminal(
    cli: Callable[..., Finished], cut: Path, tmp_path: Path
) -> None:
    done = cli("run", cut, "--show", "-q")
    assert done.code == 0
    assert all(line.startswith("SPEAKER cut ") for line in done.out.splitlines())
    assert [line.split(" ")[0] for line in done.err[:3]] == ["cut.wav", "SPEAKER_00", "SPEAKER_01"]
    assert "\x1b" not in "".join(done.err)


@pytest.mark.parametrize("colours", [True, False])
def test_a_terminal_gets_colours_unless_told_not_to(cut: Path, colours: bool) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "70"} | ({} if colours else {"NO_COLOR": "1"})
    process = subprocess.Popen(command("run", cut, "--show", "-q"), stdout=subprocess.DEVNULL, stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait() == 0
    assert (re.search(rb"\x1b\[[0-9;]*(3|9)[0-9]m", shown) is not None) == colours
    assert "█" in shown.decode()
