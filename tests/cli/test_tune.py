"""`diarize cuda tune` on a GPU made of Python: what is timed, written, kept, refused and interrupted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tools.fake_bench import H200, FakeBench, plain_cost, plain_verdict

from diarize.backend import cuda_devices
from diarize.backend.cuda_devices import Discovery
from diarize.candidates import Candidate
from diarize.cli import _tune
from diarize.errors import BackendError
from diarize.recipe_parse import read
from diarize.registry import LAYERS, candidates
from diarize.tuner import validate as whole
from diarize.tuner.log import parse, replay
from diarize.tuner.run import OWN
from diarize.tuner.site import Failure, FailureKind, Verified
from diarize.types import Turn

from .conftest import Finished

MAIN = OWN["pyannet"]

Tune = Callable[..., Finished]
BATCHES = (1, 4, 8, 16, 32)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_devices, "discover", lambda: Discovery((H200,), "580.159.04", "13.0"))
    monkeypatch.setattr(cuda_devices, "missing_packages", tuple)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DIARIZE_TUNE_FILE", raising=False)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    made = FakeBench()
    monkeypatch.setattr(_tune, "open_bench", lambda gpu, weights, wish: made)
    return made


@pytest.fixture
def tune(cli: Tune) -> Tune:
    return lambda *arguments: cli("cuda", "tune", "--model", "campplus", *arguments)


def tune_file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "diarize" / "nvidia-h200-sm90-132.json"


def names(bench: FakeBench, layer: str) -> set[str]:
    return {name for own, name, _ in bench.timer.timed if own == layer}


def test_a_whole_tuning_is_written_and_read_back(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    done = tune()
    assert done.code == 0, done.err
    recipe = read(tune_file(tmp_path))
    assert recipe.kind == "tune"
    assert (recipe.key.device, recipe.key.driver) == ("NVIDIA H200", "580.159.04")
    assert set(recipe.key.models) == {"pyannet", "campplus"}
    assert {entry.layer for entry in recipe.entries} == {
        layer.id for layer in LAYERS.values() if layer.network != "resnet34"
    }
    own = {entry.batch for entry in recipe.entries if entry.layer == "pyannet.lstm"}
    assert own == {*BATCHES, MAIN}
    assert {entry.batch for entry in recipe.entries if entry.layer == "campplus.tdnn"} == {*BATCHES, 64}
    # The last one of the registry is the fastest here; only candidates with evidence may win.
    best = [c for c in candidates("pyannet.lstm") if c.evidence][-1]
    assert {e.candidate for e in recipe.entries if e.layer == "pyannet.lstm"} == {best.name}
    assert (bench.open_sites, bench.timer.held, bench.closed) == (0, 0, True)
    assert "diarize: tuning cuda:0, NVIDIA H200" in "\n".join(done.err)
    assert done.err[-1].endswith(f"written to {tune_file(tmp_path)}")
    assert [path.name for path in tune_file(tmp_path).parent.iterdir()] == ["nvidia-h200-sm90-132.json"]


def test_the_table_has_winners_runners_up_and_speed(tune: Tune, bench: FakeBench) -> None:
    lines = tune("--dry-run", "--layers", "pyannet.lstm,pyannet.dense").out.splitlines()
    assert lines[0].split() == ["layer", "batch", "candidate", "us", "TFLOP/s", "error", "failure"]
    own = [line.split() for line in lines if line.startswith("pyannet.lstm ") and line.split()[1] == str(MAIN)]
    split = [c for c in candidates("pyannet.lstm") if c.precision == "split"]
    assert [row[2] for row in own] == [c.name for c in split]
    assert [row[3] for row in own if row[3] in "*+"] == ["+", "*"]
    median = float(own[-1][4])
    assert float(own[-1][5]) == pytest.approx(LAYERS["pyannet.lstm"].flops * MAIN / median / 1e6, abs=0.05)
    # At the other batch sizes only the winner.
    assert [line.split()[3] for line in lines if line.startswith("pyannet.lstm ") and " 8 " in line] == ["*"]
    assert any(line.startswith("pyannet lstm split: ") for line in lines)


def test_a_dry_run_writes_nothing(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    done = tune("--dry-run")
    assert done.code == 0
    assert "would be written to" in done.err[-1]
    assert not (tmp_path / "config").exists()


def test_a_file_that_fits_is_kept_unless_forced(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    tune()
    before = tune_file(tmp_path).read_bytes()
    rounds = bench.timer.rounds
    done = tune()
    assert done.code == 0
    assert "is kept; --force measures again" in done.err[-1]
    assert bench.timer.rounds == rounds
    assert tune_file(tmp_path).read_bytes() == before
    kept = json.loads(tune("--json").out)
    assert (kept["kept"], kept["written"], kept["trials"]) == (True, False, [])
    assert tune("--force").code == 0
    assert bench.timer.rounds > rounds


def test_a_file_for_another_driver_is_replaced_and_said_so(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    tune()
    path = tune_file(tmp_path)
    path.write_text(path.read_text().replace("580.159.04", "580.1"))
    done = tune()
    assert done.code == 0
    assert any("is replaced: " in line and "key.driver is '580.1'" in line for line in done.err)
    assert read(path).key.driver == "580.159.04"


def test_single_layers_are_merged_into_the_file(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    assert tune("--layers", "fbank").code == 0
    assert tune("--layers", "pyannet").code == 0
    recipe = read(tune_file(tmp_path))
    assert {LAYERS[entry.layer].network for entry in recipe.entries} == {"fbank", "pyannet"}
    assert set(recipe.key.models) == {"pyannet"}
    # What is there now is enough.
    assert "is kept" in tune("--layers", "fbank.mean").err[-1]


def test_entries_of_other_weights_of_a_network_are_dropped(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    tune()
    path = tune_file(tmp_path)
    content = json.loads(path.read_text())
    checksum = content["key"]["models"]["pyannet"]
    path.write_text(path.read_text().replace(checksum, "0" * 64))
    assert tune("--layers", "fbank", "--force").code == 0
    recipe = read(path)
    assert {LAYERS[entry.layer].network for entry in recipe.entries} == {"fbank", "campplus"}


def test_json_has_the_file_and_every_trial(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    done = tune("--json", "-q", "-o", tmp_path / "mine.json")
    assert done.err == []
    content = json.loads(done.out)
    assert content["schema"] == "diarize-tune/1"
    assert (content["tune_file"], content["written"]) == (str(tmp_path / "mine.json"), True)
    assert content["recipe"] == json.loads((tmp_path / "mine.json").read_text())
    assert all(trial["samples_us"] for trial in content["trials"])
    assert set(content["seconds"]) == {"compile", "prepare", "tune"}


def test_the_log_makes_the_same_choices_again(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    assert tune("--log", log).code == 0
    session = parse(log.read_text(), str(log))
    decisions = replay(session).decisions
    again = {(layer, batch): d.candidate.name for layer, by in decisions.items() for batch, d in by.items()}
    assert again == {(e.layer, e.batch): e.candidate for e in read(tune_file(tmp_path)).entries}
    assert session.about["key"]["device"] == "NVIDIA H200"


def test_a_wrong_candidate_is_never_timed(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    best = [c for c in candidates("pyannet.lstm") if c.evidence][-1]

    def verdict(candidate: Candidate, batch: int) -> Verified | Failure:
        if candidate == best and batch in (MAIN, 8):
            return Failure(FailureKind.WRONG, "it differs from float32 by 0.5")
        return plain_verdict(candidate, batch)

    bench.verdict = verdict
    done = tune()
    assert done.code == 0
    assert ("pyannet.lstm", best.name, MAIN) not in bench.timer.timed
    assert ("pyannet.lstm", best.name, 8) not in bench.timer.timed
    row = next(line for line in done.out.splitlines() if best.name in line and f" {MAIN} " in line)
    assert row.split()[-1] == "wrong"
    assert best.name not in {e.candidate for e in read(tune_file(tmp_path)).entries if e.batch == MAIN}


def test_choices_of_other_batch_sizes_keep_the_bytes(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    split = [c for c in candidates("pyannet.lstm") if c.precision == "split"]

    def verdict(candidate: Candidate, batch: int) -> Verified | Failure:
        return Verified(0.0, "odd" if candidate == split[-1] else "even")

    def cost(candidate: Candidate, batch: int) -> float:
        # The one with other bytes is slow in large batches only.
        return plain_cost(candidate, batch) * (9 if batch == MAIN and candidate == split[-1] else 1)

    bench.verdict, bench.timer.cost = verdict, cost
    tune("--layers", "pyannet.lstm")
    chosen = {e.batch: e.candidate for e in read(tune_file(tmp_path)).entries}
    assert set(chosen.values()) == {split[-2].name}


def test_what_does_not_compile_or_fit_is_a_failure(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    best = [c for c in candidates("pyannet.lstm") if c.evidence][-1]
    bench.broken = [best.name]
    bench.memory_windows = 32
    content = json.loads(tune("--json").out)
    own = [t for t in content["trials"] if t["layer"] == "pyannet.lstm"]
    failures = {(t["candidate"], t["batch"]): t["failure"]["kind"] for t in own if t["failure"]}
    assert failures[best.name, 16] == "does not compile"
    assert {kind for (name, batch), kind in failures.items() if batch == MAIN and name != best.name} == {
        "out of memory"
    }
    # The largest batch size that fits decides instead of the pipeline's own.
    assert {e.batch for e in read(tune_file(tmp_path)).entries if e.layer == "pyannet.lstm"} == set(BATCHES)


def test_a_candidate_that_does_not_launch(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    best = [c for c in candidates("pyannet.lstm") if c.evidence][-1]
    bench.timer.refused = lambda candidate: candidate == best
    assert tune("--layers", "pyannet.lstm").code == 0
    assert best.name not in {e.candidate for e in read(tune_file(tmp_path)).entries}


def test_a_device_that_fails_ends_it_and_the_log_stays(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    def fault(candidate: Candidate, batch: int) -> None:
        if candidate.layer == "pyannet.conv1":
            bench.lost = True
            raise BackendError("CUDA driver error CUDA_ERROR_LAUNCH_FAILED (719)")

    bench.before_verify = fault
    done = tune("--log", tmp_path / "log")
    assert done.code == 1
    assert done.errors()[0].startswith("diarize: error: pyannet.conv1 pairs made the device fail: CUDA driver error")
    assert bench.closed
    assert not tune_file(tmp_path).exists()
    assert parse((tmp_path / "log").read_text(), "log").trials


@pytest.mark.parametrize("when", [0, 40])
def test_an_interrupt_leaves_nothing(tune: Tune, bench: FakeBench, tmp_path: Path, when: int) -> None:
    seen: list[str] = []

    def interrupt(candidate: Candidate, batch: int) -> None:
        seen.append(candidate.name)
        if len(seen) == when + 1:
            os.kill(os.getpid(), signal.SIGINT)

    bench.before_verify = interrupt
    done = tune("--log", tmp_path / "log", "-o", tmp_path / "mine.json")
    assert done.code == 130
    assert done.err[-1] == "diarize: interrupted"
    assert bench.closed
    assert bench.open_sites == 0
    assert [path.name for path in tmp_path.iterdir()] == []


def test_an_interrupt_while_writing_leaves_the_old_file(
    tune: Tune, bench: FakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune()
    before = tune_file(tmp_path).read_bytes()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("diarize.recipe.os.replace", interrupt)
    assert tune("--force").code == 130
    assert tune_file(tmp_path).read_bytes() == before
    assert len(list(tune_file(tmp_path).parent.iterdir())) == 1


def test_without_a_gpu(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_devices, "discover", lambda: Discovery(problem="no NVIDIA driver is installed"))
    done = tune()
    assert done.code == 1
    assert done.err == ["diarize: error: there is nothing to tune: no NVIDIA driver is installed; see diarize devices"]


@pytest.mark.parametrize("option", ["--layers", "--precision"])
def test_wrong_names_are_wrong_usage_without_a_gpu_too(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(cuda_devices, "discover", lambda: Discovery(problem="no NVIDIA driver is installed"))
    done = tune(option, "nonsense")
    assert (done.code, done.out) == (2, "")
    assert "'nonsense' is unknown; allowed are " in done.errors()[0]


def test_what_is_no_recording_is_found_first(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    path = tmp_path / "notes.wav"
    path.write_text("hello")
    done = tune("--validate", path)
    assert (done.code, bench.timer.rounds) == (1, 0)
    assert str(path) in done.errors()[0]


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "0"])
def test_a_gpu_by_any_of_its_names(tune: Tune, bench: FakeBench, device: str) -> None:
    assert tune("--device", device, "--dry-run", "--layers", "fbank.mean").code == 0


@pytest.mark.parametrize("device", ["cpu", "auto", "cuda0", "cuda:", "-1", ""])
def test_what_names_no_gpu(tune: Tune, bench: FakeBench, device: str) -> None:
    done = tune("--device", device)
    assert done.code == 2
    assert done.errors()[0].endswith(f"device is {device!r}; allowed are cuda, cuda:N and N (N = GPU number from 0)")


@pytest.mark.parametrize("device", [3, "cuda:3"])
def test_a_number_beyond_the_last_gpu(tune: Tune, bench: FakeBench, device: Any) -> None:
    done = tune("--device", device)
    assert done.code == 1
    assert "there is no GPU 3; there is one, cuda:0" in done.err[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--layers", "resnet34.conv1"], ["layer 'resnet34.conv1' is none of this model's", "pyannet.lstm"]),
        (["--layers", "lstm"], ["'lstm' is unknown", "allowed are fbank, pyannet, resnet34, campplus, fbank.log_mel"]),
        (["--layers", " , "], ["--layers is given without a name"]),
        (["--precision", ""], ["--precision is given without a name"]),
        (["--precision", "tf32"], ["precision tf32 is ResNet34's, which this model does not have"]),
        (["--precision", "fp8"], ["precision 'fp8' is unknown", "fp16, tf32, fp32", "split, wxsplit", "pyannet.fp16"]),
        (["--precision", "wxsplit"], ["precision wxsplit", "add --validate AUDIO"]),
        (["--precision", "pyannet.fp16"], ["precision fp16", "add --validate AUDIO"]),
        (["--reference", "README.md"], ["--reference goes with --validate"]),
    ],
)
def test_wrong_usage_says_what_is_allowed(tune: Tune, bench: FakeBench, arguments: list[str], words: list[str]) -> None:
    done = tune(*arguments)
    assert done.code == 2
    (line,) = done.errors()
    for word in words:
        assert word in line
    assert bench.timer.rounds == 0


def test_a_place_that_cannot_be_written_is_found_first(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = tune("-o", tmp_path / "file" / "tune.json")
    assert done.code == 1
    assert bench.timer.rounds == 0


@pytest.mark.parametrize("content", ["Call me Ishmael.", '{"kind": "recipe"}', "[1]", "[" * 100_000])
def test_a_named_file_that_is_something_else_is_replaced_by_force_alone(
    tune: Tune, bench: FakeBench, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "novel.txt"
    path.write_text(content)
    done = tune("--layers", "fbank", "-o", path)
    assert (done.code, path.read_text(), bench.timer.rounds) == (1, content, 0)
    assert done.errors() == [f"diarize: error: {path} exists already and is no tune file; --force replaces it"]
    assert tune("--layers", "fbank", "-o", path, "--force").code == 0
    assert read(path).kind == "tune"


def test_a_named_file_that_is_empty_or_an_older_tune_file_is_replaced(
    tune: Tune, bench: FakeBench, tmp_path: Path
) -> None:
    for content in ("", '{"format": 0, "kind": "tune"}'):
        path = tmp_path / "tune.json"
        path.write_text(content)
        assert tune("--layers", "fbank", "-o", path).code == 0
        assert read(path).kind == "tune"


def test_the_log_replaces_nothing_unasked(tune: Tune, bench: FakeBench, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("of yesterday")
    done = tune("--layers", "fbank", "--log", log)
    assert (done.code, log.read_text(), bench.timer.rounds) == (1, "of yesterday", 0)
    assert done.errors() == [f"diarize: error: {log} exists already; --force replaces it"]
    assert tune("--layers", "fbank", "--log", log, "--force").code == 0
    assert parse(log.read_text(), "log").trials
    done = tune("--layers", "fbank", "--log", tmp_path / "x", "-o", tmp_path / "x")
    assert (done.code, (tmp_path / "x").exists()) == (2, False)


def test_standard_output_is_no_place_for_the_file(tune: Tune, bench: FakeBench) -> None:
    done = tune("-o", "-")
    assert (done.code, bench.timer.rounds) == (2, 0)
    assert "--output is '-'; name a file" in done.errors()[0]


TURNS = (Turn(0.0, 10.0, "A"), Turn(10.0, 20.0, "B"))


def diarizers(monkeypatch: pytest.MonkeyPatch, tuned: tuple[Turn, ...], exact: tuple[Turn, ...]) -> list[Any]:
    """Let the pipelines of a validation give these turns; returns the recipes that they were opened with."""
    opened: list[Any] = []

    def opener(recipe: Any, path: Path, model: str, device: str) -> whole.Diarizer:
        whole.write(path, recipe)
        opened.append(recipe)
        turns = tuned if recipe.kind == "tune" else exact
        return lambda recording: SimpleNamespace(turns=turns, duration=20.0)  # type: ignore[return-value]

    monkeypatch.setattr(whole, "opener", opener)
    return opened


def test_validation_is_recorded(
    tune: Tune, bench: FakeBench, tmp_path: Path, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = diarizers(monkeypatch, TURNS, (Turn(0.0, 10.01, "A"), Turn(10.01, 20.0, "B")))
    done = tune("--validate", cut, "--precision", "wxsplit")
    assert done.code == 0, done.err
    recipe = read(tune_file(tmp_path))
    (record,) = recipe.provenance["validation"]
    assert record == {
        "recording": str(cut), "seconds": 20.0, "der_change": 0.05, "limit": 0.1, "against": "float32",
    }  # fmt: skip
    assert {e.precision for e in recipe.entries if e.layer == "pyannet.lstm"} == {"wxsplit"}
    tuned, exact = opened
    assert tuned.entries == recipe.entries
    assert {e.precision for e in exact.entries if e.layer == "resnet34.layer2.conv1"} == {"fp32"}


def test_turns_that_differ_are_not_written(
    tune: Tune, bench: FakeBench, tmp_path: Path, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diarizers(monkeypatch, (Turn(0.0, 9.9, "A"), Turn(9.9, 20.0, "B")), TURNS)
    done = tune("--validate", cut)
    assert done.code == 1
    (line,) = done.errors()
    assert f"nothing written: {cut}: its turns differ from float32's by a diarization error rate of 0.50 %" in line
    assert "0.1 points are allowed" in line
    assert not tune_file(tmp_path).exists()


def test_with_a_reference_the_change_of_the_error_rate_counts(
    tune: Tune, bench: FakeBench, tmp_path: Path, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = tmp_path / "cut.rttm"
    reference.write_text(
        "".join(f"SPEAKER cut 1 {t.start} {t.end - t.start} <NA> <NA> {t.speaker} <NA> <NA>\n" for t in TURNS)
    )
    # Both are as far from the reference, on different sides.
    early, late = ((Turn(0.0, 10 + d, "A"), Turn(10 + d, 20.0, "B")) for d in (-0.5, 0.5))
    diarizers(monkeypatch, early, late)
    assert tune("--validate", cut, "--reference", reference).code == 0
    assert read(tune_file(tmp_path)).provenance["validation"][0]["against"] == "reference"
    diarizers(monkeypatch, early, TURNS)
    done = tune("--validate", cut, "--reference", reference, "--force")
    assert done.code == 1
    assert "its diarization error rate is 2.50 %, with float32 0.00 %" in done.errors()[0]


def test_a_recording_without_its_reference(tune: Tune, bench: FakeBench, tmp_path: Path, cut: Path) -> None:
    reference = tmp_path / "two.rttm"
    reference.write_text("SPEAKER a 1 0 1 <NA> <NA> x <NA> <NA>\nSPEAKER b 1 0 1 <NA> <NA> x <NA> <NA>\n")
    done = tune("--validate", cut, "--reference", reference)
    assert done.code == 2
    assert "no turns of 'cut' in the references, which hold a, b" in done.errors()[0]
