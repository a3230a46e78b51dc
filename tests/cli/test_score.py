"""`diarize score` as users call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Finished

REFERENCE = """SPEAKER f 1 0.00 10.00 <NA> <NA> a <NA> <NA>
SPEAKER f 1 8.00 6.00 <NA> <NA> b <NA> <NA>
SPEAKER f 1 20.00 5.00 <NA> <NA> c <NA> <NA>
"""
HYPOTHESIS = """SPEAKER f 1 0.50 9.00 <NA> <NA> x <NA> <NA>
SPEAKER f 1 9.50 6.00 <NA> <NA> y <NA> <NA>
SPEAKER f 1 19.00 4.00 <NA> <NA> x <NA> <NA>
"""


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A reference and a hypothesis."""
    (tmp_path / "r.rttm").write_text(REFERENCE)
    (tmp_path / "h.rttm").write_text(HYPOTHESIS)
    return tmp_path / "r.rttm", tmp_path / "h.rttm"


def test_the_table(cli: Callable[..., Finished], pair: tuple[Path, Path]) -> None:
    shown = cli("score", *pair, "--per-file")
    assert (shown.code, shown.err) == (0, [])
    assert shown.out == (
        "            DER %   missed %    false % confused %      JER %    speakers\n"
        "f           47.62      21.43      11.90      14.29      58.57      2 of 3\n"
        "pooled      47.62      21.43      11.90      14.29      58.57   0/1 exact\n"
        "21.00 s of speaker time in 1 files; missed 4.50 s, false alarm 2.50 s, confusion 3.00 s\n"
        "speaker count: exact in 0 of 1 files, absolute differences sum to 1\n"
        "collar 0 s on each side, overlap scored, regions from the first to the last moment of reference and "
        "hypothesis\n"
    )


def test_json_states_fractions_and_the_protocol(cli: Callable[..., Finished], pair: tuple[Path, Path]) -> None:
    (pair[0].parent / "u.uem").write_text("f 1 0.0 12.0\n")
    shown = cli("score", *pair, "--uem", pair[0].parent / "u.uem", "--collar", 0.25, "--skip-overlap", "--json")
    document = json.loads(shown.out)
    assert document["schema"] == "diarize-score/1"
    assert document["protocol"] == {"collar_each_side": 0.25, "skip_overlap": True, "regions": "uem"}
    # Left are 0.25-7.75 and 10.25-12: the first 0.25 s of them are missed.
    assert document["total"] == pytest.approx(9.25)
    assert document["der"] == pytest.approx(0.25 / 9.25)


def test_rates_without_scored_speech_are_undefined(cli: Callable[..., Finished], pair: tuple[Path, Path]) -> None:
    warning = (
        "diarize: warning: no speech of the reference was scored in f: error rates are undefined there; "
        "check reference, regions and collar"
    )
    shown = cli("score", pair[0], pair[0], "--collar", 100)
    assert (shown.code, shown.err) == (0, [warning])
    assert shown.out.splitlines()[1].split()[:6] == ["pooled", "n/a", "n/a", "n/a", "n/a", "n/a"]
    document = json.loads(cli("score", pair[0], pair[0], "--collar", 100, "--json").out)
    for part in (document, document["files"]["f"]):
        assert (part["der"], part["jer"], part["total"]) == (None, None, 0.0)
    # Regions in which only the hypothesis speaks: seconds of false alarm, but no rate.
    (pair[0].parent / "u.uem").write_text("f 1 15.0 15.5\n")
    shown = cli("score", *pair, "--uem", pair[0].parent / "u.uem", "--json")
    document = json.loads(shown.out)
    assert (document["der"], document["jer"], document["false_alarm"]) == (None, None, pytest.approx(0.5))
    assert shown.err == [warning]


def test_missing_and_unknown_files_are_warned_of(cli: Callable[..., Finished], tmp_path: Path) -> None:
    for side, names in (("ref", "ab"), ("hyp", "bc")):
        (tmp_path / side).mkdir()
        for name in names:
            line = f"SPEAKER {name} 1 0 10 <NA> <NA> s <NA> <NA>\n"
            (tmp_path / side / f"{name}.rttm").write_text(line)
    shown = cli("score", tmp_path / "ref", tmp_path / "hyp", "--json")
    assert shown.code == 0
    assert [line.split(";")[0] for line in shown.err] == [
        "diarize: warning: no hypothesis for a: everything in them counts as missed",
        "diarize: warning: not in the reference, so not scored: c",
    ]
    document = json.loads(shown.out)
    assert (document["der"], document["missing"], document["unknown"]) == (0.5, ["a"], ["c"])
    assert cli("score", tmp_path / "ref", tmp_path / "hyp", "-q").err == []


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--collar", "-1"], 2, "collar is -1.0; it must be 0 or more seconds"),
        (["--uem", "absent.uem"], 1, "absent.uem: cannot be read"),
    ],
)
def test_errors_are_one_line(
    cli: Callable[..., Finished], pair: tuple[Path, Path], arguments: list[str], code: int, reason: str
) -> None:
    shown = cli("score", *pair, *arguments)
    assert (shown.code, shown.out, len(shown.err)) == (code, "", 1)
    assert reason in shown.err[0]


def test_a_damaged_line_is_named(cli: Callable[..., Finished], pair: tuple[Path, Path]) -> None:
    pair[1].write_text(HYPOTHESIS + "SPEAKER f\n")
    shown = cli("score", *pair)
    assert shown.code == 1
    assert "h.rttm:4: has 2 fields" in shown.err[0]
