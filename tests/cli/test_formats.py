"""`diarize run --format`: all formats at once, where they go, and that every one of them says the same."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from diarize.cli._destination import destination
from diarize.cli._formats import FORMATS, parse_formats
from diarize.errors import OptionError
from diarize.outputs.audacity import read_audacity
from diarize.outputs.csv import HEADER, parse_csv, read_csv
from diarize.outputs.json import read_json
from diarize.outputs.lab import read_lab
from diarize.outputs.rttm import parse_rttm, read_rttm
from diarize.outputs.subtitles import parse_srt, parse_vtt
from diarize.outputs.textgrid import read_textgrid

from .conftest import RATE, Finished, command

ALL = ",".join(FORMATS)
SUFFIXES = {
    "rttm": ".rttm",
    "json": ".json",
    "csv": ".csv",
    "srt": ".srt",
    "vtt": ".vtt",
    "textgrid": ".TextGrid",
    "audacity": ".audacity.txt",
    "lab": ".lab",
    "html": ".html",
    "text": ".txt",
}


@pytest.fixture
def odd(cut: Path, tmp_path: Path) -> Path:
    """The cut recording under a name with spaces and signs of several scripts."""
    path = tmp_path / "Sitzung 1 #ü 日本.wav"
    path.write_bytes(cut.read_bytes())
    return path


def test_all_formats_at_once_say_the_same(cli: Callable[..., Finished], odd: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = cli("run", odd, "--format", ALL, "-o", folder)
    assert (done.code, done.out) == (0, "")
    assert {path.name for path in folder.iterdir()} == {f"{odd.stem}{suffix}" for suffix in SUFFIXES.values()}
    files = {name: folder / f"{odd.stem}{suffix}" for name, suffix in SUFFIXES.items()}
    ((file_id, rttm),) = read_rttm(files["rttm"]).items()
    assert file_id == "Sitzung_1_#ü_日本"
    turns = [(float(turn.start), float(turn.end), turn.speaker) for turn in rttm]
    assert len(turns) == 2
    document = read_json(files["json"])
    assert document.file_id == odd.stem
    readers = {
        "json": document.diarization.turns,
        "csv": read_csv(files["csv"])[odd.stem],
        "srt": parse_srt(files["srt"].read_text("utf-8")),
        "vtt": parse_vtt(files["vtt"].read_text("utf-8")),
        "textgrid": read_textgrid(files["textgrid"]).turns,
        "audacity": read_audacity(files["audacity"]),
        "lab": read_lab(files["lab"]),
    }
    for name, read in readers.items():
        assert [turn.speaker for turn in read] == [turn[2] for turn in turns], name
        # Each is rounded on its own, RTTM's end is the sum of two rounded numbers.
        assert [turn.start for turn in read] == pytest.approx([turn[0] for turn in turns], abs=1.1e-3), name
        assert [turn.end for turn in read] == pytest.approx([turn[1] for turn in turns], abs=2.1e-3), name
    assert read_textgrid(files["textgrid"]).duration == 12.0
    page = files["html"].read_text("utf-8")
    assert "data:audio/wav;base64," in page
    assert f"<title>{odd.stem}</title>" in page
    assert files["text"].read_text("utf-8").startswith(f"{odd.stem}: 2 speakers, 2 turns")


def test_json_names_model_checksum_and_recipe(cli: Callable[..., Finished], cut: Path) -> None:
    from diarize.model.weights import bundled_checksum

    document = json.loads(cli("run", cut, "--model", "campplus", "--device", "cpu", "--format", "json").out)
    assert document["schema"] == "diarize/1"
    assert document["model_checksum"] == bundled_checksum()
    assert (document["recipe"], document["offset"]) == (None, 0.0)
    assert set(document["turns"][0]) == {"start", "end", "speaker", "confidence"}
    assert {"speakers", "overlap", "exclusive", "warnings", "timings", "versions"} <= set(document)


def test_a_template_names_each_file(cli: Callable[..., Finished], cut: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "talk.wav").write_bytes(cut.read_bytes())
    recordings = [tmp_path / "a" / "talk.wav", tmp_path / "b" / "talk.wav"]
    assert cli("run", *recordings, "-o", "{parent}/{stem}.turns").code == 0
    assert cli("run", *recordings, "-o", "{parent}/new/{stem}", "--format", "csv,lab").code == 0
    for recording in recordings:
        assert sorted(os.listdir(recording.parent)) == ["new", "talk.turns", "talk.wav"]
        assert sorted(os.listdir(recording.parent / "new")) == ["talk.csv", "talk.lab"]
        assert set(read_rttm(recording.with_suffix(".turns"))) == {"talk"}
    refused = cli("run", *recordings, "-o", "{parent}/{stem}.turns")
    assert (refused.code, len(refused.errors())) == (1, 1)
    assert "exists already" in refused.errors()[0]


@pytest.mark.parametrize(
    ("template", "formats", "part"),
    [
        ("{stem}.{rate}", "rttm", "holds {rate}; allowed are {parent}, {stem}, {suffix}, and {{ for a brace"),
        ("{stme}.rttm", "rttm", "holds {stme}; allowed are {parent}, {stem}, {suffix}, and {{ for a brace"),
        ("{stem}.x", "rttm,csv", "names one suffix for 2 formats; use {suffix}"),
        (
            "out/{stem}.rttm",
            "rttm",
            "the same file out/talk.rttm; rename one, run them apart, or give --output a template with {parent}",
        ),
        ("{parent}/{stem}.wav", "rttm", "would replace the recording itself"),
        ("{stem}}", "rttm", "holds }; allowed are"),
    ],
)
def test_templates_that_cannot_work(
    cli: Callable[..., Finished],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    formats: str,
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
        Path(name, "talk.wav").touch()
    done = cli("run", "a/talk.wav", "b/talk.wav", "-o", template, "--format", formats)
    assert (done.code, len(done.errors())) == (2, 1)
    assert part in done.errors()[0]


def test_braces_and_places_of_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def files(template: str, audio: str, names: str) -> list[str]:
        return [str(path) for path in destination(template, [audio], parse_formats(names), False).files.values()]

    assert files("x{{{stem}}}{suffix}", "a b.wav", "rttm,textgrid") == ["x{a b}.rttm", "x{a b}.TextGrid"]
    assert files("{parent}/{stem}", "talk.wav", "srt") == ["talk.srt"]
    assert files("{parent}/x/", "sub/talk.wav", "srt") == ["sub/x/talk.srt"]
    assert Path("sub/x").is_dir()
    with pytest.raises(OptionError, match="names one suffix"):
        files("{stem}.v1", "talk.wav", "srt,vtt")


def test_several_recordings_make_one_table(cli: Callable[..., Finished], cut: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.wav"
    other.write_bytes(cut.read_bytes())
    done = cli("run", cut, other, "--format", "csv")
    assert done.out.startswith(HEADER)
    assert done.out.count(HEADER) == 1
    assert {name: len(turns) for name, turns in parse_csv(done.out).items()} == {"cut": 2, "other": 2}
    target = tmp_path / "all.csv"
    assert cli("run", cut, other, "--format", "csv", "-o", target).code == 0
    assert target.read_text() == done.out
    refused = cli("run", cut, other, "--format", "srt", "-o", tmp_path / "all.srt")
    assert refused.code == 2
    assert "srt needs one for each recording; name a folder" in refused.errors()[0]


def test_short_speakers_and_gaps(cli: Callable[..., Finished], speech: np.ndarray, tmp_path: Path) -> None:
    # One speaker in full, a second of the other, and the first one again.
    parts = [speech[: 7 * RATE], speech[8 * RATE : 10 * RATE], speech[: 7 * RATE]]
    path = tmp_path / "parts.wav"
    soundfile.write(path, np.concatenate(parts), RATE, "PCM_16")
    plain = parse_rttm(cli("run", path, "--num-speakers", 2).out)["parts"]
    assert len({turn.speaker for turn in plain}) == 2
    done = cli("run", path, "--num-speakers", 2, "--min-speaker-time", 4)
    kept = parse_rttm(done.out)["parts"]
    assert {turn.speaker for turn in kept} == {"SPEAKER_00"}
    assert any("warning: parts.wav: SPEAKER_01 was removed: " in line for line in done.err)
    assert len(kept) >= 2
    joined = parse_rttm(cli("run", path, "--num-speakers", 2, "--min-speaker-time", 4, "--merge-gap", 5).out)["parts"]
    assert len(joined) == 1
    # Start and duration are rounded on their own.
    assert [float(joined[0].start), float(joined[0].end)] == pytest.approx(
        [float(kept[0].start), float(kept[-1].end)], abs=2e-3
    )
    refused = cli("run", path, "--merge-gap", "-1")
    assert refused.code == 2


def test_a_page_plays_the_recording_from_its_place_when_told_to(
    cli: Callable[..., Finished], odd: Path, tmp_path: Path
) -> None:
    target = tmp_path / "pages" / "page.html"
    target.parent.mkdir()
    assert cli("run", odd, "--format", "html", "-o", target, "--no-embed-audio").code == 0
    assert '"src":"./../Sitzung%201%20%23%C3%BC%20%E6%97%A5%E6%9C%AC.wav"' in target.read_text("utf-8")


def test_a_page_of_a_pipe_has_lanes_but_no_sound(cut: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    with cut.open("rb") as pipe:
        done = subprocess.run(
            command("run", "-", "--format", "html", "-o", target),
            stdin=pipe,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    page = target.read_text("utf-8")
    assert '"audio":{"src":"","name":"","embedded":false}' in page
    assert page.count('"speaker":"SPEAKER_00"') >= 2


def test_help_names_formats_and_units(cli: Callable[..., Finished]) -> None:
    text = " ".join(cli("run", "--help").out.split())
    for words in ("textgrid", "{parent}/{stem}.rttm", "--min-speaker-time SECONDS", "--merge-gap SECONDS", "8 MiB"):
        assert words in text


def test_options_have_the_defaults_of_the_library() -> None:
    from diarize.cli.assign import assign
    from diarize.cli.run import run
    from diarize.postprocess import postprocess
    from diarize.transcript import assign_speakers

    library = inspect.signature(postprocess).parameters
    ours = inspect.signature(run).parameters
    for name in ("min_speaker_time", "merge_gap"):
        assert ours[name].default == library[name].default
    assert inspect.signature(assign).parameters["max_gap"].default == (
        inspect.signature(assign_speakers).parameters["max_gap"].default
    )
