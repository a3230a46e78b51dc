"""`diarize cuda candidates` and `recipes`, `devices` with tune files, what `run` says of kernels; all without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recipe_support import H200, KEY, entry, tuned

from diarize import engine, pipeline, registry, resources
from diarize.backend import cuda_devices
from diarize.backend.cuda_devices import Discovery
from diarize.backend.cuda_key import present_key
from diarize.backend.select import Choice
from diarize.bench.systems import our_system
from diarize.errors import BackendError
from diarize.model import registry as models
from diarize.model.checksums import network_checksums
from diarize.model.weights import load_campplus_model
from diarize.pipeline import Pipeline, Setup
from diarize.recipe import Key, Recipe, to_text
from diarize.recipe_lookup import Lookup, look_up

from .conftest import Finished

Cli = Callable[..., Finished]
BLOCK = ("resnet34.layer1.block", "block32_g3")


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without models and tune files of their own; the folder where theirs would lie."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("DIARIZE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DIARIZE_TUNE_FILE", raising=False)
    (tmp_path / "config" / "diarize").mkdir(parents=True)
    return tmp_path / "config" / "diarize"


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one H200, as its driver would tell."""
    monkeypatch.setattr(cuda_devices, "discover", lambda: Discovery((H200,), "580.159.04", "13.0"))
    monkeypatch.setattr(cuda_devices, "missing_packages", tuple)


def put(path: Path, recipe: Recipe) -> Path:
    path.write_text(to_text(recipe))
    return path


def test_candidates_in_json_are_the_registry(cli: Cli) -> None:
    done = cli("cuda", "candidates", "--json")
    content = json.loads(done.out)
    assert (done.code, done.err, content["schema"]) == (0, [], "diarize-candidates/1")
    named = [(item["layer"], item["candidate"]) for item in content["candidates"]]
    assert named == [(c.layer, c.name) for c in registry.candidates()]
    assert len(named) >= 30
    assert {item["layer"] for item in content["candidates"]} == set(registry.LAYERS)


def test_a_candidate_in_json(cli: Cli) -> None:
    content = json.loads(cli("cuda", "candidates", "--layer", "resnet34.layer1.block", "--json").out)
    assert [item["candidate"] for item in content["candidates"]][:2] == ["separate", "block32_g3"]
    separate, block = content["candidates"][:2]
    assert separate["parts"] == ["resnet34.layer1.conv1", "resnet34.layer1.conv2"]
    assert block == {
        "layer": "resnet34.layer1.block",
        "operation": "block",
        "what": "both convolutions of a block",
        "candidate": "block32_g3",
        "version": 1,
        "precision": "fp16",
        "storage": "half",
        "parameters": {"groups": 3},
        "capability": [9, 0],
        "exactly": True,
        "parts": [],
        "kernels": ["block32:make_block32"],
        "evidence": "turns of ten recordings as in float32, RECORD-cuda.md",
    }


def test_candidates_as_a_table(cli: Cli) -> None:
    done = cli("cuda", "candidates", "--layer", "fbank.mean", "--layer", "pyannet.lstm_input")
    lines = done.out.splitlines()
    assert lines[0].split() == ["layer", "candidate", "version", "precision", "parameters", "needs", "evidence"]
    assert lines[2].split() == ["fbank.mean", "window_mean", "1", "fp32", *lines[2].split()[4:]]
    rows = [line for line in lines if line.startswith("pyannet.lstm_input ")]
    assert len(rows) == len(registry.candidates("pyannet.lstm_input"))
    assert any(row.split()[1] == "wgmma_split" and " 9.0 " in row for row in rows)
    assert any(row.endswith("  none") for row in rows)
    assert lines[-1] == f"{len(rows) + 1} candidates of 2 layers"


def test_candidates_of_a_network(cli: Cli) -> None:
    content = json.loads(cli("cuda", "candidates", "--layer", "campplus", "--json").out)
    assert {item["layer"].split(".")[0] for item in content["candidates"]} == {"campplus"}


def test_names_of_layers_may_have_commas_between_them(cli: Cli) -> None:
    content = json.loads(cli("cuda", "candidates", "--layer", "fbank, campplus", "--layer", "pyannet", "--json").out)
    assert {item["layer"].split(".")[0] for item in content["candidates"]} == {"fbank", "campplus", "pyannet"}
    assert cli("cuda", "candidates", "--layer", "").code == 2


def test_an_unknown_layer_is_wrong_usage(cli: Cli) -> None:
    done = cli("cuda", "candidates", "--layer", "resnet34.layer9")
    assert (done.code, done.out) == (2, "")
    (error,) = done.errors()
    assert error.startswith("diarize: error: unknown layer 'resnet34.layer9'; allowed are fbank, pyannet, resnet34, ")
    assert error.endswith(", ".join(registry.LAYERS))


@pytest.mark.parametrize("arguments", [("candidates", "--json"), ("recipes",), ("recipes", "show", "default-sm90")])
def test_neither_numba_nor_numpy_is_imported(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys, diarize.cli.main as command\n"
        "command.leave = lambda code, *rest: sys.exit(code)\n"
        "try:\n    command.main()\n"
        "except SystemExit as stop:\n"
        "    print(stop.code or 0, {'numba', 'numpy', 'cuda'} & set(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "cuda", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == "0 set()\n"


def test_recipes_are_listed(cli: Cli) -> None:
    done = cli("cuda", "recipes")
    lines = done.out.splitlines()
    assert (done.code, lines[0].split()) == (0, ["name", "kind", "for", "layers", "measured"])
    names = [line.split()[0] for line in lines[2:]]
    assert sorted(names) == sorted(path.stem for path in resources.data_dir("recipes").glob("*.json"))
    assert names[-7:] == [f"default-sm{n}" for n in (75, 80, 86, 89, 90, 100, 120)]
    (line,) = (line for line in lines if line.startswith("default-sm86"))
    assert line.split("  ")[0] == "default-sm86"
    assert "from compute capability 8.6 on" in line
    assert line.endswith("not measured")


def test_recipes_in_json(cli: Cli) -> None:
    content = json.loads(cli("cuda", "recipes", "--json").out)
    assert content["schema"] == "diarize-recipes/1"
    by_name = {item["name"]: item for item in content["recipes"]}
    hopper = by_name["default-sm90"]
    assert (hopper["kind"], hopper["key"]) == ("default", {"capability": [9, 0]})
    assert "resnet34.layer1.block" in hopper["layers"]


def test_a_default_is_shown(cli: Cli) -> None:
    done = cli("cuda", "recipes", "show", "default-sm90")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[:4] == ["default-sm90: default from compute capability 9.0 on", "", "key", "  capability: [9, 0]"]
    assert "  measured: by hand on an NVIDIA H200" in lines
    assert any(
        line.split() == ["resnet34.layer1.block", "1", "block32_g3", "1", "fp16", "-", "-", "-", "-"] for line in lines
    )


def test_a_tune_file_is_shown_by_its_path(cli: Cli, tmp_path: Path) -> None:
    path = put(tmp_path / "mine.json", tuned([entry(*BLOCK, 32)], note="a test"))
    lines = cli("cuda", "recipes", "show", path).out.splitlines()
    assert lines[0] == "mine: tune file for NVIDIA H200, 132 multiprocessors, compute capability 9.0"
    for line in ("  driver: 580.159.04", "  capability: [9, 0]", "  policy: turns-1", "  note: a test"):
        assert line in lines
    assert lines[-1].split() == [BLOCK[0], "32", BLOCK[1], "1", "fp16", "10.50", "3", "1.0e-04", "other", "12.00", "us"]
    content = json.loads(cli("cuda", "recipes", "show", path, "--json").out)
    assert content["entries"][0]["samples_us"] == [10.0, 10.5, 11.5]
    assert content["key"]["models"] == KEY.models


def test_showing_what_is_not_there_is_wrong_usage(cli: Cli) -> None:
    done = cli("cuda", "recipes", "show", "gtx-280")
    assert done.code == 2
    assert done.errors()[0].startswith("diarize: error: 'gtx-280' is neither a recipe nor a file; recipes are ")


def test_showing_a_damaged_file_fails(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"format": 3}')
    done = cli("cuda", "recipes", "show", path)
    assert (done.code, done.out) == (1, "")
    assert done.errors() == [f"diarize: error: {path}: format is 3, wanted 1; run: diarize cuda tune"]


@pytest.mark.parametrize("arguments", [(), ("candidates",), ("recipes",), ("recipes", "show")])
def test_help(cli: Cli, arguments: tuple[str, ...]) -> None:
    done = cli("cuda", *arguments, "--help")
    assert done.code == 0
    assert done.out.startswith("Usage: diarize cuda ")


def test_devices_without_a_tune_file(cli: Cli, h200: None, user: Path) -> None:
    done = cli("devices")
    default = look_up(replace(KEY, models={}), ("fbank", "pyannet", "campplus"))
    assert done.out.splitlines() == [
        "cuda:0  NVIDIA H200",
        "  compute capability 9.0, 132 multiprocessors, 150.8 GB, driver 580.159.04 (CUDA 13.0)",
        f"  kernels: {default.summary()}",
        f"  tune file: none in {user / 'nvidia-h200-sm90-132.json'}",
    ]
    (gpu,) = json.loads(cli("devices", "--json").out)["gpus"]
    assert (gpu["tune_file"], gpu["tune_file_refused"]) == (None, None)
    assert gpu["tune_file_path"] == str(user / "nvidia-h200-sm90-132.json")
    assert gpu["source"] == default.source
    assert gpu["layers"]["pyannet.lstm"] == {"candidate": "resident8_split", "from": "recipe nvidia-h200"}


def test_devices_name_the_layers_of_the_model_that_is_taken(
    cli: Cli, h200: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "resolve", lambda name: models.COMMUNITY)
    (gpu,) = json.loads(cli("devices", "--json").out)["gpus"]
    networks = {layer.split(".")[0] for layer in gpu["layers"]}
    assert networks == {"fbank", "pyannet", "resnet34"}


def own_key() -> Key:
    return present_key(H200, network_checksums(load_campplus_model()))


def test_devices_with_a_tune_file(cli: Cli, h200: None, user: Path) -> None:
    path = put(user / "nvidia-h200-sm90-132.json", tuned([entry("pyannet.lstm", "resident8_split")], own_key()))
    done = cli("devices")
    assert f"  tune file: {path}\n" in done.out
    assert f"  kernels: 1 layer from tune file {path}, " in done.out
    (gpu,) = json.loads(cli("devices", "--json").out)["gpus"]
    assert gpu["tune_file"] == gpu["tune_file_path"] == str(path)
    assert gpu["layers"]["pyannet.lstm"] == {"candidate": "resident8_split", "from": f"tune file {path}"}


def test_devices_with_a_tune_file_that_does_not_fit(
    cli: Cli, h200: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = replace(own_key(), driver="570.1")
    path = put(tmp_path / "old.json", tuned([entry("pyannet.lstm", "resident8_split")], old))
    monkeypatch.setenv("DIARIZE_TUNE_FILE", str(path))
    reason = f"{path}: key.driver is '570.1', wanted '580.159.04' of this GPU; run: diarize cuda tune"
    done = cli("devices")
    assert done.code == 0
    assert done.out.endswith(f"  tune file: {path}, which is not used\n  tune file not used: {reason}\n")
    (gpu,) = json.loads(cli("devices", "--json").out)["gpus"]
    assert (gpu["tune_file"], gpu["tune_file_refused"]) == (None, reason)
    assert gpu["layers"]["pyannet.lstm"]["from"] != f"tune file {path}"


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Lookup:
    """The CPU engine, which claims that a GPU's choices came from the default of Hopper and a refused tune file."""
    found = replace(look_up(KEY, ("fbank", "pyannet", "campplus")), warnings=("tune file not used: x",))
    real = pipeline.open_engine

    def open_engine(*arguments: Any) -> Any:
        opened = real(*arguments)
        opened.choices = found
        return opened

    monkeypatch.setattr(pipeline, "open_engine", open_engine)
    return found


def test_run_says_what_chose_the_kernels(cli: Cli, chosen: Lookup, cut: Path) -> None:
    options = ("run", cut, "--model", "campplus", "--device", "cpu", "--format", "json")
    done = cli(*options, "-vv")
    assert f"diarize: choices: {chosen.summary()}" in done.err
    assert "diarize: choice: pyannet.lstm: resident8_split (recipe nvidia-h200)" in done.err
    assert done.err.count("diarize: WARNING: tune file not used: x") == 1
    assert json.loads(done.out)["recipe"] == {"source": chosen.source, "layers": chosen.layers}
    quieter = cli(*options, "-v")
    assert f"diarize: choices: {chosen.summary()}" in quieter.err
    assert not any(line.startswith("diarize: choice: ") for line in quieter.err)
    assert not any("choice" in line for line in cli(*options).err)


def test_a_tune_file_is_refused_on_the_cpu(cli: Cli, cut: Path, tmp_path: Path) -> None:
    done = cli("run", cut, "--model", "campplus", "--device", "cpu", "--tune-file", tmp_path / "x.json")
    assert (done.code, done.out) == (2, "")
    assert done.errors() == [
        f"diarize: error: tune file {tmp_path / 'x.json'} is for a GPU, but this is device cpu; leave it out, or give "
        "--device cuda"
    ]


def test_a_named_tune_file_that_does_not_fit_fails_before_the_gpu_is_touched(
    cli: Cli, h200: None, cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "wake", lambda name: None)
    for module in (pipeline, engine):
        monkeypatch.setattr(module, "choose_device", lambda name: Choice(H200))
    path = put(
        tmp_path / "old.json", tuned([entry("pyannet.lstm", "resident8_split")], replace(own_key(), cuda="12.8"))
    )
    done = cli("run", cut, "--model", "campplus", "--device", "cuda", "--tune-file", path)
    assert (done.code, done.out) == (1, "")
    assert done.errors() == [
        f"diarize: error: {path}: key.cuda is '12.8', wanted '13.0' of this GPU; run: diarize cuda tune"
    ]


def test_a_tune_file_reaches_the_library_and_its_workers(
    cli: Cli, cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def from_pretrained(*arguments: Any, **named: Any) -> Any:
        seen.append(named.get("tune_file", arguments[-1]))
        raise BackendError("as far as it goes")

    monkeypatch.setattr(Pipeline, "from_pretrained", from_pretrained)
    monkeypatch.chdir(tmp_path)
    assert cli("run", cut, "--tune-file", "x.json").code == 1
    with pytest.raises(BackendError):
        Setup("campplus", "cpu", "exact", 1, "/a/y.json").open()
    assert seen == [str(tmp_path / "x.json"), "/a/y.json"]


def test_a_tune_file_reaches_the_worker_of_a_benchmark(tmp_path: Path) -> None:
    command = our_system("campplus", "cuda", "exact", None, tmp_path / "x.json").command
    assert command[-2:] == ("--tune-file", str(tmp_path / "x.json"))
    assert "--tune-file" not in our_system("campplus", "cuda", "exact", 2).command
