"""`diarize bench` as users call it, on a cut of the dialogue, with the real pipeline."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from .conftest import RATE, Finished, command

REFERENCE = "SPEAKER cut 1 0.400 6.300 <NA> <NA> slt <NA> <NA>\nSPEAKER cut 1 7.250 4.750 <NA> <NA> rms <NA> <NA>\n"
FAST = ("--device", "cpu", "--model", "campplus", "--threads", 1, "--rounds", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, speech: np.ndarray) -> Path:
    """A data set of one's own: the cut and its reference side by side."""
    path = tmp_path_factory.mktemp("own")
    soundfile.write(path / "cut.wav", speech, RATE, "PCM_16")
    (path / "cut.rttm").write_text(REFERENCE)
    return path


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run into a folder, with a report."""
    out = tmp_path_factory.mktemp("out") / "run"
    done = subprocess.run(
        command("bench", folder, *FAST, "--output", out, "--html", "--per-file"),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "200"},
    )
    return out, done


def test_a_run_prints_tables_and_keeps_its_files(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, done = run
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].partition(":")[2].startswith(" 1 files, 0.2 min; collar 0 s on each side, overlap scored")
    assert lines[2].split()[:3] == ["system", "DER", "%"]
    row = lines[3].split()
    assert row[0] == "diarize"
    assert 0 < float(row[1]) < 15
    assert "stages of diarize: analysis" in done.stdout
    assert "warning: 1 round: too few to tell the spread; use --rounds 3 or more" in done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["journal.jsonl", "record.json", "report.html", "rttm"]
    assert (out / "rttm" / "diarize" / "cut.rttm").read_text().startswith("SPEAKER cut 1 ")
    record = json.loads((out / "record.json").read_text())
    about = record["systems"]["diarize"]["about"]
    assert (about["model"], about["mode"], about["threads"]) == ("campplus", "exact", 1)
    assert len(about["model_sha256"]) == 64
    assert record["systems"]["diarize"]["rtfx"]["warm"] > record["systems"]["diarize"]["rtfx"]["whole_process"] > 0
    assert record["systems"]["diarize"]["peak_host_bytes"] > 50e6


def test_a_finished_run_is_not_replaced(
    cli: Callable[..., Finished], folder: Path, run: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    shown = cli("bench", folder, *FAST, "--output", run[0])
    assert (shown.code, shown.out) == (1, "")
    assert "holds a finished run" in shown.err[-1]


def test_thresholds_against_and_json(
    cli: Callable[..., Finished], folder: Path, run: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    record = run[0] / "record.json"
    shown = cli(
        "bench", folder, *FAST, "--fail-above-der", 0.01, "--fail-below-rtfx", 1e9, "--against", record, "--json"
    )
    assert shown.code == 3
    document = json.loads(shown.out)
    assert document["schema"] == "diarize-bench/1"
    (against,) = document["against"]
    assert (against["first"], against["second"], against["identical_rttm"]) == (str(record), "this run", 1)
    assert [line.split(":")[2] for line in shown.errors()] == [" threshold not met"] * 2
    # The same data with the same model gives the same bytes.
    old = json.loads(record.read_text())
    (run[0] / "second.json").write_text(shown.out)
    compared = cli("bench", "compare", record, run[0] / "second.json")
    assert compared.code == 0
    assert compared.out.splitlines()[5].split()[-1] == "1/1"
    as_json = json.loads(cli("bench", "compare", record, run[0] / "second.json", "--json").out)
    assert (as_json["schema"], as_json["der_difference"]) == ("diarize-bench-compare/1", 0.0)
    old["dataset"]["fingerprint"] = "another"
    (run[0] / "other.json").write_text(json.dumps(old))
    refused = cli("bench", "compare", record, run[0] / "other.json")
    assert refused.code == 2
    assert "other audio, references or channels" in refused.err[0]
    # Seen before anything is run.
    refused = cli("bench", folder, *FAST, "--against", run[0] / "other.json")
    assert (refused.code, refused.out, len(refused.err)) == (2, "", 1)
    assert "other audio, references or channels" in refused.err[0]


def test_a_bad_file_is_reported_and_counts_as_missed(cli: Callable[..., Finished], tmp_path: Path) -> None:
    (tmp_path / "noise.wav").write_bytes(b"not audio")
    (tmp_path / "noise.rttm").write_text(REFERENCE.replace("cut", "noise"))
    shown = cli("bench", tmp_path, *FAST)
    assert shown.code == 1
    assert "100.00" in shown.out
    assert [line for line in shown.errors() if "noise.wav" in line]


def test_what_has_no_partner_is_named(cli: Callable[..., Finished], folder: Path, tmp_path: Path) -> None:
    for name in ("cut.wav", "cut.rttm"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    for name in ("alone.wav", "single.wav"):
        (tmp_path / name).write_bytes((folder / "cut.wav").read_bytes())
    (tmp_path / "gone.rttm").write_text(REFERENCE.replace("cut", "gone"))
    shown = cli("bench", tmp_path, *FAST, "--json")
    assert shown.code == 0
    sentences = [
        "2 recordings without a reference left out: alone, single",
        "1 reference without a recording left out: gone",
    ]
    assert json.loads(shown.out)["warnings"][:2] == sentences
    assert [line for line in shown.err if "left out" in line] == [f"diarize: warning: {s}" for s in sentences]


def test_references_without_a_turn_are_refused(cli: Callable[..., Finished], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.wav").write_bytes((folder / "cut.wav").read_bytes())
    (tmp_path / "cut.rttm").write_text(";; cut\n")
    shown = cli("bench", tmp_path, *FAST)
    assert (shown.code, shown.out, len(shown.errors())) == (1, "", 1)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["nosuch"], 2, "unknown data set 'nosuch'; known are aishell-4"),
        (["mini", "voxconverse"], 2, "one data set at a time, but 2 are given: mini voxconverse"),
        (["mini", "--html"], 2, "--html needs --output"),
        (["mini", "--model", "nosuch"], 2, "unknown model 'nosuch'"),
        (["mini", "--peer", "other", "--device", "cpu"], 2, "unknown peer 'other'"),
        (["mini", "--device", "cpu", "--tune-file", "t.json"], 2, "t.json is for a GPU, but this is device cpu"),
        (["mini", "--against", "absent.json"], 1, "absent.json: cannot be read"),
        (["compare", "a.json"], 2, "compare takes two records, but 1 are given"),
        (["compare", "a.json", "b.json", "--fail-above-der", "1"], 2, "--fail-above-der is of no use with compare"),
        (["compare", "a.json", "b.json", "-o", "out"], 2, "--output is of no use with compare"),
        (["mini", "--peer-python", "/usr/bin/python3"], 2, "--peer-python needs --peer"),
    ],
)
def test_errors_are_one_line(cli: Callable[..., Finished], arguments: list[str], code: int, reason: str) -> None:
    shown = cli("bench", *arguments)
    assert (shown.code, shown.out, len(shown.err)) == (code, "", 1)
    assert reason in shown.err[0]


def test_help_states_units(cli: Callable[..., Finished]) -> None:
    words = " ".join(cli("bench", "--help").out.split())
    for expected in ("NAME|DIR|MANIFEST", "compare A.json B.json", "PERCENT", "Exit with 3", "DIARIZE_DEVICE"):
        assert expected in words
