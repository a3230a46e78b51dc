"""`diarize run` on real audio: what each option does to the result, and where the result goes."""

from __future__ import annotations

import inspect
import json
import os
import pty
import re
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from diarize.pipeline import Pipeline
from diarize.types import SpeakerBounds

from .conftest import RATE, Finished, command

TURN = re.compile(r"SPEAKER (\S+) 1 (\d+\.\d{3}) (\d+\.\d{3}) <NA> <NA> (\S+) <NA> <NA>")


def turns_of(rttm: str) -> list[tuple[str, float, float, str]]:
    """File id, start, end and speaker of each RTTM line."""
    found = []
    for line in rttm.splitlines():
        match = TURN.fullmatch(line)
        assert match is not None, line
        found.append((match[1], float(match[2]), float(match[2]) + float(match[3]), match[4]))
    return found


def test_rttm_goes_to_standard_output_and_all_else_to_standard_error(cli: Callable[..., Finished], cut: Path) -> None:
    done = cli("run", cut, "--model", "campplus", "--device", "cpu")
    assert done.code == 0
    turns = turns_of(done.out)
    # The reference has slt from 0.4 to 6.7 s and rms from 7.2 s on.
    assert [turn[3] for turn in turns] == ["SPEAKER_00", "SPEAKER_01"]
    assert [turn[1] for turn in turns] == pytest.approx([0.4, 7.2], abs=0.2)
    assert [turn[2] for turn in turns] == pytest.approx([6.7, 12.0], abs=0.2)
    assert {turn[0] for turn in turns} == {"cut"}
    # A first run also says that it compiles, and then takes long enough for a line of progress.
    said = [line for line in done.err if not re.search("first run: compiling|: (analyse|cluster), ", line)]
    assert said[0] == "diarize: model campplus, device cpu, mode exact"
    assert re.fullmatch(
        r"diarize: cut\.wav: 2 speakers, 2 turns; 12\.0 s of audio in \d+\.\d\d s, \d+\.\dx real time", said[-1]
    )
    assert len(said) == 2


def test_automatic_choices_are_named_once(cli: Callable[..., Finished], cut: Path) -> None:
    done = cli("run", cut)
    assert done.code == 0
    (line,) = (line for line in done.err if "model campplus" in line)
    assert re.fullmatch(r"diarize: model campplus \(automatic\), device cpu \(automatic: .+\), mode exact", line)


def test_a_first_run_says_that_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diarize import cache
    from diarize.cli.run import _must_compile

    monkeypatch.setattr(cache, "compiled_folder", lambda file: tmp_path / file.parent.name)
    assert _must_compile()
    (tmp_path / "cpu").mkdir()
    assert _must_compile()
    (tmp_path / "cpu" / "gemm.sgemm-1.py311.nbi").touch()
    assert not _must_compile()


def test_json_records_what_ran(cli: Callable[..., Finished], cut: Path) -> None:
    done = cli("run", cut, "--format", "json", "--mode", "fast", "--file-id", "my talk")
    result = json.loads(done.out)
    assert (result["file"], result["model"], result["device"], result["mode"]) == ("my talk", "campplus", "cpu", "fast")
    assert result["duration"] == 12.0
    assert [item["speaker"] for item in result["speakers"]] == ["SPEAKER_00", "SPEAKER_01"]


def test_text_is_for_people_and_formats_follow_one_another(cli: Callable[..., Finished], cut: Path) -> None:
    done = cli("run", cut, "--format", "text,rttm", "--file-id", "my talk")
    lines = done.out.splitlines()
    assert lines[0] == "my talk: 2 speakers, 2 turns, 0:00:12.0"
    assert [re.sub(r"\d", "0", line) for line in lines[1:3]] == ["  0:00:00.0 - 0:00:00.0  SPEAKER_00"] * 2
    assert {turn[0] for turn in turns_of("\n".join(lines[3:]))} == {"my_talk"}


def test_quiet_says_nothing_and_verbose_says_more(cli: Callable[..., Finished], cut: Path) -> None:
    assert cli("run", cut, "-q").err == []
    assert cli("run", cut, "-qq").err == []
    shown = cli("run", cut, "-v").err
    assert any(re.search(r"cut\.wav: analysis \d+\.\d\d s, .*total \d+\.\d\d s$", line) for line in shown)
    assert re.fullmatch(r"diarize: peak memory \d+ MB", shown[-1])


def test_a_file_is_written_and_not_replaced_unless_forced(
    cli: Callable[..., Finished], cut: Path, tmp_path: Path
) -> None:
    target = tmp_path / "turns.rttm"
    done = cli("run", cut, "-o", target)
    assert (done.code, done.out) == (0, "")
    first = target.read_text()
    assert len(turns_of(first)) == 2
    refused = cli("run", cut, "-o", target, "--num-speakers", "1")
    assert (refused.code, refused.err) == (1, [f"diarize: error: {target} exists already; --force replaces it"])
    assert target.read_text() == first
    assert cli("run", cut, "-o", target, "--num-speakers", "1", "--force").code == 0
    assert {turn[3] for turn in turns_of(target.read_text())} == {"SPEAKER_00"}
    assert os.listdir(tmp_path) == ["turns.rttm"]


def test_a_folder_gets_one_file_for_each_format(cli: Callable[..., Finished], cut: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "results"
    done = cli("run", cut, "--format", "rttm,json,text", "-o", folder)
    assert (done.code, done.out) == (0, "")
    assert sorted(os.listdir(folder)) == ["cut.json", "cut.rttm", "cut.txt"]
    assert json.loads((folder / "cut.json").read_text())["file"] == "cut"


def test_a_name_ending_in_a_slash_is_a_folder(cli: Callable[..., Finished], cut: Path, tmp_path: Path) -> None:
    assert cli("run", cut, "-o", f"{tmp_path}/results/").code == 0
    assert os.listdir(tmp_path / "results") == ["cut.rttm"]


@pytest.mark.parametrize("number", [1, 2])
def test_the_number_of_speakers_asked_for_comes_out(cli: Callable[..., Finished], cut: Path, number: int) -> None:
    done = cli("run", cut, "--num-speakers", number)
    assert done.code == 0
    assert len({turn[3] for turn in turns_of(done.out)}) == number


def test_exclusive_turns_do_not_overlap(cli: Callable[..., Finished], speech: np.ndarray, tmp_path: Path) -> None:
    # The second speaker's turn laid over the first one's.
    mixed = speech[: 6 * RATE] + speech[6 * RATE : 12 * RATE]
    path = tmp_path / "mixed.wav"
    soundfile.write(path, np.concatenate([speech, mixed]), RATE, "FLOAT")
    plain = json.loads(cli("run", path, "--format", "json").out)
    assert plain["overlap"] > 1.0
    done = cli("run", path, "--exclusive")
    turns = turns_of(done.out)
    assert len(turns) > 2
    # Start and duration are each rounded to a millisecond, so their sum may be 1.5 of them off.
    assert all(before[2] <= after[1] + 2e-3 for before, after in pairwise(turns))
    assert f"{len(turns)} turns" in done.err[-1]


def test_one_channel_may_be_chosen(cli: Callable[..., Finished], speech: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "stereo.wav"
    soundfile.write(path, np.stack([np.zeros_like(speech), speech], axis=1), RATE, "PCM_16")
    assert cli("run", path, "--channel", "1").out == ""
    assert len(turns_of(cli("run", path, "--channel", "2").out)) == 2
    beyond = cli("run", path, "--channel", "3")
    assert beyond.code == 1
    assert "channel 3 was asked for; the recording has 2" in beyond.errors()[0]


def test_options_have_the_defaults_of_the_library() -> None:
    from diarize.cli.run import run

    library = inspect.signature(Pipeline.from_pretrained).parameters
    command_line = inspect.signature(run).parameters
    # How compilation is shown is no option.
    shared = {name: parameter for name, parameter in library.items() if name != "compiling"}
    assert set(shared) <= set(command_line)
    for name, parameter in shared.items():
        assert command_line[name].default == parameter.default, name
    assert "channel" in inspect.signature(Pipeline.diarize).parameters
    speakers = {"num": "num_speakers", "minimum": "min_speakers", "maximum": "max_speakers"}
    assert [speakers[name] for name in inspect.signature(SpeakerBounds.of).parameters] == list(speakers.values())
    assert set(speakers.values()) <= set(command_line)


def test_options_reach_the_library(cli: Callable[..., Finished], cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    load, diarize = Pipeline.from_pretrained, Pipeline.diarize

    def from_pretrained(*arguments: Any) -> Pipeline:
        seen["load"] = arguments
        return load(*arguments)

    def spy(self: Pipeline, source: object, **options: Any) -> Any:
        seen["run"] = (source, options["bounds"], options["channel"])
        return diarize(self, source, **options)

    monkeypatch.setattr(Pipeline, "from_pretrained", from_pretrained)
    monkeypatch.setattr(Pipeline, "diarize", spy)
    options = "--model campplus --device cpu --mode fast --threads 2 --min-speakers 2 --max-speakers 3 --channel 1"
    assert cli("run", cut, *options.split()).code == 0
    assert seen["load"][:4] == ("campplus", "cpu", "fast", 2)
    assert seen["run"] == (str(cut), SpeakerBounds(2, 3), 1)


def test_the_environment_chooses_where_no_option_does(
    cli: Callable[..., Finished], cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIARIZE_DEVICE", "cuda:7")
    assert cli("run", cut).code == 1
    assert cli("run", cut, "--device", "cpu").code == 0


def test_progress_away_from_a_terminal_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from diarize.cli import _progress

    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with _progress.progress("talk.wav", verbosity=0) as show:
        for step in range(60):
            now = 100.0 + step
            show("analyse", 10.0 * step, 600.0)
        now += 60
        show("cluster", 600.0, None)
    assert capsys.readouterr().err.splitlines() == [
        "diarize: talk.wav: analyse, 150 of 600 s",
        "diarize: talk.wav: analyse, 300 of 600 s",
        "diarize: talk.wav: analyse, 450 of 600 s",
        "diarize: talk.wav: cluster, 600 s",
    ]


def test_a_terminal_gets_a_bar_and_standard_output_stays_clean(cut: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("run", cut), stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:
            # Linux reports the end of a terminal so.
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.stdout is not None
    out = process.stdout.read().decode()
    process.stdout.close()
    assert process.wait() == 0
    assert len(turns_of(out)) == 2
    assert b"cut.wav: " in shown
    assert "━".encode() in shown
    assert b"\x1b[?25l" in shown, "a bar hides the cursor"
