"""The command's frame: help, version, usage errors, and a start that loads nothing heavy."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

import diarize

from .conftest import Finished

HEAVY = {"numba", "numpy", "scipy", "huggingface_hub", "soundfile", "soxr", "safetensors", "rich", "pandas"}
START = "from diarize.cli.main import main; main()"


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_start_is_quick_and_loads_nothing_heavy(option: str) -> None:
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", START, option], capture_output=True, text=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & HEAVY
    # Processor time, because the tests may share the processor with other work; measured 0.07 s.
    assert min(seconds) < 0.3


def test_help_names_commands_and_exit_codes(cli: Callable[..., Finished]) -> None:
    shown = cli("--help")
    assert shown.code == 0
    assert shown.err == []
    assert "  run " in shown.out
    assert "Exit codes: 0 ok, 1 failed, 2 wrong usage" in shown.out
    bare = cli()
    assert bare.code == 2
    assert "Usage: diarize [OPTIONS] COMMAND [ARGS]..." in bare.out.splitlines() + bare.err


def test_help_of_run_names_units_and_environment(cli: Callable[..., Finished]) -> None:
    shown = cli("run", "--help")
    assert shown.code == 0
    for words in ("auto|cpu|cuda[:N]", "seconds", "every 1 s", "counted from 1", "DIARIZE_MODEL", "DIARIZE_DEVICE"):
        assert words in " ".join(shown.out.split())


def test_version(cli: Callable[..., Finished]) -> None:
    assert cli("--version") == Finished(0, f"diarize {diarize.__version__}\n", [])


def test_the_package_can_be_run() -> None:
    done = subprocess.run([sys.executable, "-m", "diarize", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"diarize {diarize.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["walk"], "'walk'"),
        (["run"], "'AUDIO'"),
        (["run", "a.wav", "--colour"], "--colour"),
        (["run", "a.wav", "--mode", "slow"], "'exact', 'fast'"),
        (["run", "a.wav", "--threads", "0"], "'--threads' (env var: 'DIARIZE_THREADS')"),
        (["run", "a.wav", "--start", "soon"], "'--start'"),
        (["run", "a.wav", "--start", "soon"], ": 'soon' is no number"),
        (["run", "a.wav", "--threads", "two"], ": 'two' is no whole number"),
        (["run", "a.wav", "--threads", "0"], ": '0' is too small; it must be at least 1"),
        (["run", "a.wav", "--mode", "slow"], ": 'slow' is not one of 'exact', 'fast'."),
        (["run", "a.wav", "--voice-threshold", "2"], ": '2' is too large; it must be at most 1"),
        (["run", "a.wav", "--merge-gap", "nan"], ": 'nan' is no number; it must be at least 0"),
        (["score", "a", "b", "--collar", "wide"], ": 'wide' is no number"),
        (["models", "pull"], "'NAME'"),
    ],
)
def test_wrong_usage_exits_2(cli: Callable[..., Finished], arguments: list[str], named: str) -> None:
    shown = cli(*arguments)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err[-1].startswith("Error: ")
    assert named in shown.err[-1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--min-speakers", "3", "--max-speakers", "2"], "min-speakers 3 is above max-speakers 2; swap them"),
        (
            ["--num-speakers", "3", "--max-speakers", "2"],
            "num-speakers 3 contradicts max-speakers 2; give num-speakers",
        ),
        (
            ["--num-speakers", "3", "--min-speakers", "4"],
            "num-speakers 3 contradicts min-speakers 4; give num-speakers",
        ),
        (
            ["--skip-existing", "--force", "-o", "x/"],
            "--skip-existing keeps results that exist and --force replaces them",
        ),
        (["--voice-threshold", "0.5"], "--voice-threshold 0.5 has no voice to compare with; give --enroll or"),
        (["--model", "nosuch"], "unknown model 'nosuch'; allowed are auto, campplus, community-1 and a folder"),
        (["--device", "gpu"], "device is 'gpu'; allowed are auto, cpu, cuda and cuda:N"),
        (["--format", "xml"], "unknown format 'xml'; allowed are rttm, json, "),
        (["--format", "rttm,rttm"], "--format rttm,rttm names a format twice"),
        (["--output", ""], "--output is empty"),
        (["--file-id", " "], "--file-id is ' '"),
        (["--no-embed-audio"], "--no-embed-audio is for --format html; leave it out"),
        (["--output", "a.wav"], "the result a.wav would replace the recording itself"),
        (
            ["--output", "a.x", "--format", "rttm,json", "a.x"],
            "a.wav and a.x have the same name in the result; rename one, or run them apart",
        ),
        (
            ["x/a.flac"],
            "the same name in the result; rename one, run them apart, or give --output a template with {parent}",
        ),
        (["--output", "{parent}/{stem}", "a.x"], "the same file a.rttm; rename one, or run them apart"),
        (
            ["--output", "{stem}.rttm", "x/a.flac"],
            "the same file a.rttm; rename one, run them apart, or give --output a",
        ),
        (["--output", "x.rttm", "'{stem}'.wav", "b b.wav", "b_b.wav"], "or give --output a template with {stem}"),
        (["--file-id", "x", "b.wav"], "--file-id x names one recording, but 2 are given"),
        (["--output", "all.json", "--format", "json", "b.wav"], "json needs one for each recording"),
    ],
)
def test_contradictions_exit_2_in_one_line(cli: Callable[..., Finished], arguments: list[str], reason: str) -> None:
    shown = cli("run", "a.wav", *arguments)
    assert (shown.code, shown.out) == (2, "")
    assert len(shown.err) == 1
    assert shown.err[0].startswith("diarize: error: ")
    assert reason in shown.err[0]


@pytest.mark.parametrize("group", [[], ["models"], ["datasets"]])
def test_lists_of_commands_are_whole_sentences(cli: Callable[..., Finished], group: list[str]) -> None:
    lines = cli(*group, "--help").out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(lines) >= 4
    for line in lines:
        assert line.endswith(".")
        assert not line.endswith("..")


@pytest.mark.parametrize("options", [["-vv"], ["-q", "-vv"]])
def test_a_fault_of_our_own_shows_its_traceback_with_vv(
    cli: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    from diarize.cli import run

    def fail(*_: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(run, "expand", fail)
    advised = cli("run", "a.wav", "-q", "-v")
    message = "diarize: error: internal error, ZeroDivisionError: no; "
    assert (advised.code, advised.err) == (1, [f"{message}-vv shows the traceback, please report it"])
    shown = cli("run", "a.wav", *options)
    assert shown.err[0].startswith("Traceback")
    assert shown.err[-1] == f"{message}please report it"
