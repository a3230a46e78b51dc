"""`diarize models`: full output, exit codes, and the way from nothing to a mended model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools.community_files import TOKEN, community_hub, original_folder
from tools.hub_server import Hub, serve

from diarize.errors import ModelError
from diarize.model import bundle, registry, weights

from .conftest import spawn

PULL = "run: diarize models pull community-1"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no tokens of whoever runs the tests."""
    monkeypatch.setenv("DIARIZE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "2")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path / "cache"


def test_list_on_a_fresh_machine(cli: Callable[..., Any]) -> None:
    result = cli("models", "list")
    assert (result.code, result.err) == (0, [])
    manifest = bundle.read_manifest()
    licences = "".join(f"  {name}: {manifest[name].licence}\n" for name in weights.BUNDLED_FILES)
    assert result.out == (
        "campplus (used by --model auto)\n"
        f"  installed, 20.4 MB, sha256 {weights.bundled_checksum()}\n"
        f"  {bundle.FOLDER}\n{licences}"
        "community-1\n"
        f"  not installed; {PULL}\n"
    )


def test_list_for_machines(cli: Callable[..., Any], cache: Path) -> None:
    content = json.loads(cli("models", "list", "--json").out)
    assert content["schema"] == 1
    assert content["auto"] == "campplus"
    assert content["models"][0]["sha256"] == weights.bundled_checksum()
    assert content["models"][1] == {
        "name": "community-1",
        "installed": False,
        "path": str(cache / "models" / "community-1"),
        "bytes": 0,
        "sha256": None,
        "licences": [],
    }


def test_list_goes_on_after_a_damaged_model(cli: Callable[..., Any], cache: Path) -> None:
    path = cache / "models" / "community-1" / "model.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    result = cli("models", "list")
    assert result.code == 1
    assert result.out.startswith("campplus\n  installed, ")
    assert result.err == [f"diarize: error: {path} is damaged (KeyError: 'schema'); {PULL}"]


def test_path_prints_one_line(cli: Callable[..., Any], cache: Path) -> None:
    assert cli("models", "path", "campplus").out == f"{bundle.FOLDER}\n"
    assert cli("models", "path", "community-1").out == f"{cache / 'models' / 'community-1'}\n"


def test_verify_checks_what_is_installed(cli: Callable[..., Any], cache: Path) -> None:
    result = cli("models", "verify")
    assert (result.code, result.out, result.err) == (0, "campplus: ok\n", [])
    result = cli("models", "verify", "community-1", "campplus")
    assert (result.code, result.out) == (1, "campplus: ok\n")
    where = cache / "models" / "community-1"
    assert result.err == [f"diarize: error: model community-1 is not installed in {where}; {PULL}"]


@pytest.mark.parametrize("verb", ["path", "verify", "pull"])
def test_unknown_name_is_wrong_usage(cli: Callable[..., Any], verb: str) -> None:
    result = cli("models", verb, "comunity-1")
    assert (result.code, result.out) == (2, "")
    assert result.err == ["diarize: error: unknown model 'comunity-1'; known are campplus, community-1"]


def test_bundled_model_needs_no_pull(cli: Callable[..., Any]) -> None:
    result = cli("models", "pull", "campplus")
    assert (result.code, result.out) == (0, "")
    assert result.err == ["diarize: campplus is part of the package; nothing to do"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the bundled weights, as a copy that may be damaged."""
    copy = tmp_path / "weights"
    shutil.copytree(bundle.FOLDER, copy)
    monkeypatch.setattr(bundle, "FOLDER", copy)
    for function in (bundle.read_manifest, bundle.read_bundled, bundle.verify_bundled):
        monkeypatch.setattr(function, "__defaults__", (copy,))
    return copy


@pytest.mark.parametrize("name", weights.BUNDLED_FILES)
def test_a_missing_file_of_the_package_is_never_pulled(cli: Callable[..., Any], package: Path, name: str) -> None:
    (package / name).unlink()
    remedy = "install the package again: pip install --force-reinstall --no-deps diarize-cuda"
    for verb in (["verify"], ["verify", "campplus"], ["pull", "campplus"]):
        result = cli("models", *verb)
        unreadable = f"diarize: error: {package / name} cannot be read (No such file or directory); {remedy}"
        assert (result.code, result.out, result.err) == (1, "", [unreadable])
    listed = cli("models", "list")
    assert (listed.code, listed.err) == (1, [f"diarize: error: {package / name} is missing; {remedy}"])
    assert "pull campplus" not in listed.out
    with pytest.raises(ModelError, match="install the package again"):
        registry.resolve("campplus")
    assert cli("models", "licences", "campplus").code == 0


def test_a_damaged_file_of_the_package_is_found_by_pull(cli: Callable[..., Any], package: Path) -> None:
    path = package / weights.CAMPPLUS_FILE
    path.write_bytes(path.read_bytes()[:-1])
    result = cli("models", "pull", "campplus")
    assert (result.code, result.out, len(result.err)) == (1, "", 1)
    assert "is damaged" in result.err[0]
    assert "install the package again" in result.err[0]


def test_pull_from_the_hub_verify_damage_and_mend(
    shared: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Any]
) -> None:
    model = cache / "models" / "community-1"
    with serve(community_hub(shared / "models" / "plda")) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        result = spawn("models", "pull", "community-1")
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.splitlines()[1:] == [
            "diarize: error: plda/xvec_transform.npz of pyannote/speaker-diarization-community-1 cannot be downloaded: "
            "access denied; accept the conditions at https://huggingface.co/pyannote/speaker-diarization-community-1, "
            "then pass a token (--token or HF_TOKEN)"
        ]
        assert not model.exists()

        monkeypatch.setenv("HF_TOKEN", TOKEN)
        result = spawn("models", "pull", "community-1")
        assert (result.returncode, result.stdout) == (0, "")
        lines = result.stderr.splitlines()
        assert lines[0] == "diarize: fetching community-1, 27 MB"
        assert "is not the published embedding network" in lines[1]
        assert lines[2:] == [f"diarize: community-1 is installed in {model}"]
        assert TOKEN not in result.stderr

        listed = cli("models", "list").out
        size = sum(path.stat().st_size for path in model.iterdir())
        checksum = weights.load_model("auto").checksum
        assert f"community-1 (used by --model auto)\n  installed, {size / 1e6:.1f} MB, sha256 {checksum}\n" in listed
        assert "CC BY 4.0" in listed
        assert cli("models", "verify").out == "campplus: ok\ncommunity-1: ok\n"

        weights_file = model / "weights.safetensors"
        good = weights_file.read_bytes()
        weights_file.write_bytes(good[:-1])
        result = cli("models", "verify", "community-1")
        assert (result.code, result.out) == (1, "")
        assert len(result.err) == 1
        assert result.err[0].startswith(f"diarize: error: {weights_file} is damaged: sha256 ")
        assert result.err[0].endswith(f"; {PULL}")

        assert spawn("models", "pull", "community-1", "--token", TOKEN).returncode == 0
        assert weights_file.read_bytes() == good
        assert cli("models", "verify", "community-1").out == "community-1: ok\n"


def test_offline_is_one_line(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    # An unreachable address is tried in tests/unit/test_hub.py, where the waiting between attempts is left out.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = spawn("models", "pull", "community-1", "--token", TOKEN)
    assert (result.returncode, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 2
    assert "the hub cannot be reached; go online" in result.stderr
    assert list(cache.rglob("*")) == [cache / "models"]


def test_nothing_is_downloaded_offline(cli: Callable[..., Any], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(Hub()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        refusal = [
            "diarize: error: community-1 cannot be downloaded offline; leave out --offline and unset DIARIZE_OFFLINE, "
            "or convert a clone: diarize models pull community-1 --from DIR"
        ]
        for options in (("models", "pull", "community-1", "--offline"), ("--offline", "models", "pull", "community-1")):
            result = spawn(*options)
            assert (result.returncode, result.stderr.splitlines()) == (1, refusal)
        monkeypatch.setenv("DIARIZE_OFFLINE", "1")
        result = cli("models", "pull", "community-1")
        assert (result.code, result.err) == (1, refusal)
        assert cli("models", "list").code == 0
        assert hub.requests == []
        monkeypatch.setenv("DIARIZE_OFFLINE", "0")
        assert "cannot be downloaded:" in spawn("models", "pull", "community-1").stderr
        assert hub.requests
    assert not (cache / "models" / "community-1").exists()


def test_licences_are_named_before_and_after_the_pull(cli: Callable[..., Any]) -> None:
    every = cli("models", "licences").out.splitlines()
    assert [line.split(": ")[0] for line in every] == ["campplus"] * 3 + ["community-1"] * 3
    assert sum("CC BY 4.0" in line for line in every[3:]) == 2
    own = cli("models", "licences", "campplus", "--full").out
    assert own.startswith("\n".join(every[:3]))
    for name in ("campplus", "campplus-plda", "segmentation-3.0"):
        assert (bundle.FOLDER / f"LICENSE-{name}.txt").read_text().strip() in own
    unknown = cli("models", "licences", "nothing")
    assert (unknown.code, unknown.out) == (2, "")


def test_a_missing_model_gives_the_command_that_mends_it(cli: Callable[..., Any], tmp_path: Path) -> None:
    result = cli("run", tmp_path / "any.wav", "--model", "community-1")
    assert (result.code, result.out, len(result.err)) == (1, "", 1)
    assert result.err[0].endswith(f"; {PULL}")


def test_pull_from_a_folder_to_a_folder(shared: Path, tmp_path: Path, cache: Path, cli: Callable[..., Any]) -> None:
    source = original_folder(tmp_path / "a clone", shared / "models" / "plda")
    result = cli("models", "pull", "community-1", "--from", source, "--to", tmp_path / "mine")
    assert (result.code, result.out) == (0, "")
    assert result.err[0] == f"diarize: converting community-1 from {source}"
    assert result.err[-1] == f"diarize: community-1 is installed in {tmp_path / 'mine'}"
    assert weights.load_model(tmp_path / "mine").name == "mine"
    assert not cache.exists()


def test_pull_from_a_wrong_folder_is_one_line(cli: Callable[..., Any], tmp_path: Path) -> None:
    result = cli("models", "pull", "community-1", "--from", tmp_path)
    assert result.code == 1
    assert len(result.errors()) == 1
    assert f"{tmp_path} holds no embedding network" in result.errors()[0]


def test_help_names_the_environment(cli: Callable[..., Any]) -> None:
    text = cli("models", "pull", "--help").out
    assert "HF_TOKEN" in text
    assert "DIARIZE_CACHE" in text
