"""`diarize datasets` as users call it; downloads come from loopback."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools.file_server import Files, serving

from .conftest import Finished

RTTM = "SPEAKER one 1 0 1 <NA> <NA> a <NA> <NA>\n"


@pytest.fixture
def files() -> Iterator[Files]:
    """A server with an archive of one recording."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as package:
        package.writestr("x/one.rttm", RTTM)
        package.writestr("x/one.wav", bytes(5_000))
    with serving(Files({"/x.zip": out.getvalue()})) as running:
        yield running


@pytest.fixture
def manifest(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest of one's own, and a cache of its own."""
    monkeypatch.setenv("DIARIZE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "own.json"
    members = [{"match": "*.rttm", "to": "rttm"}, {"match": "*.wav", "to": "audio"}]
    document = {
        "schema": "diarize-dataset/1",
        "name": "own",
        "title": "Own set",
        "licence": "CC0",
        "homepage": "http://example.org",
        "protocol": {"collar_each_side": 0, "skip_overlap": False, "uem": False},
        "downloads": [{"url": files.url("/x.zip"), "members": members}],
    }
    path.write_text(json.dumps(document))
    return path


def test_list_and_info(cli: Callable[..., Finished]) -> None:
    shown = cli("datasets", "list")
    assert (shown.code, shown.err) == (0, [])
    assert "voxconverse-test    232    43.5" in shown.out
    listed = json.loads(cli("datasets", "list", "--json").out)
    assert listed["schema"] == "diarize-datasets/1"
    mini = next(item for item in listed["datasets"] if item["name"] == "mini")
    assert (mini["state"], mini["files"]) == ("in package", 6)
    about = cli("datasets", "info", "voxconverse")
    assert "pyannote community-1: DER 11.2 %" in about.out
    assert "collar 0 s on each side, overlap scored, no UEM" in about.out
    assert json.loads(cli("datasets", "info", "mini", "--json").out)["protocol"]["uem"] is True


def test_names_of_groups_and_aliases(cli: Callable[..., Finished]) -> None:
    assert "\nvoxconverse stands for voxconverse-test\n" in cli("datasets", "list").out
    for verb in ("info", "pull", "verify"):
        shown = cli("datasets", verb, "ami")
        assert (shown.code, shown.out) == (2, "")
        names = "ami-ihm, ami-ihm-34, ami-sdm, ami-sdm-34"
        assert shown.err[0] == f"diarize: error: data set 'ami' comes in several forms; give one of {names}"


def test_the_set_that_ships_with_the_package(cli: Callable[..., Finished], tmp_path: Path) -> None:
    assert cli("datasets", "verify", "mini") == Finished(0, "mini: 6 recordings ship with the package: all there\n", [])
    about = json.loads(cli("datasets", "info", "mini", "--json").out)
    assert (Path(about["homepage"]).name, Path(about["homepage"]).is_file()) == ("README.md", True)
    folders = [
        line.split("  folder     ")[1] for line in cli("datasets", "info", "mini").out.splitlines() if "folder" in line
    ]
    assert folders == [f"{about['path']}/demo, {about['path']}/mini"]
    own = tmp_path / "own.json"
    source = Path(about["path"])
    listed = json.loads((source / "mini.json").read_text())["recordings"][:1]
    shutil.copytree(source / "mini", tmp_path / "mini")
    own.write_text(json.dumps(json.loads((source / "mini.json").read_text()) | {"name": "own", "recordings": listed}))
    shown = cli("datasets", "verify", own)
    assert shown == Finished(0, f"own: 1 recordings lie in {tmp_path}: all there\n", [])


def test_pull_says_size_and_licence_first(cli: Callable[..., Finished], manifest: Path, tmp_path: Path) -> None:
    before = cli("datasets", "verify", manifest)
    assert before.code == 1
    assert "run: diarize datasets pull own" in before.err[0]
    shown = cli("datasets", "pull", manifest)
    root = tmp_path / "cache" / "datasets" / "own"
    assert (shown.code, shown.out) == (0, "")
    assert shown.err == [
        "diarize: own: Own set; licence: CC0; http://example.org",
        f"diarize: fetching 0 MB into {root}",
        f"diarize: own: 1 recordings with references in {root}",
    ]
    assert (root / "audio" / "one.wav").stat().st_size == 5_000
    assert cli("datasets", "verify", manifest) == Finished(0, "own: ok\n", [])
    (root / "audio" / "one.wav").write_bytes(b"")
    damaged = cli("datasets", "verify", manifest)
    assert damaged.code == 1
    assert damaged.err == ["diarize: error: audio/one.wav is not what was pulled; delete it and pull again"]


def test_pull_to_a_folder_quietly(cli: Callable[..., Finished], manifest: Path, tmp_path: Path) -> None:
    assert cli("datasets", "pull", manifest, "--to", tmp_path / "to", "-q") == Finished(0, "", [])
    assert (tmp_path / "to" / "rttm" / "one.rttm").read_text() == RTTM


def test_offline_a_pull_is_refused_before_it_says_that_it_fetches(
    cli: Callable[..., Finished], manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIARIZE_OFFLINE", "1")
    shown = cli("datasets", "pull", manifest)
    assert (shown.code, len(shown.err)) == (1, 1)
    assert "cannot be fetched offline" in shown.err[0]


def test_a_refused_download_is_one_line(cli: Callable[..., Finished], manifest: Path, files: Files) -> None:
    files.content.clear()
    shown = cli("datasets", "pull", manifest)
    assert shown.code == 1
    assert [line for line in shown.errors() if "the server says 404" in line] == shown.errors()
    assert len(shown.errors()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["pull", "nosuch"], 2, "unknown data set 'nosuch'; known are aishell-4"),
        (["pull", "icsi"], 2, "icsi cannot be fetched: It is published as NXT XML"),
        (["info", "absent.json"], 1, "absent.json: cannot be read"),
    ],
)
def test_errors_are_one_line(cli: Callable[..., Finished], arguments: list[str], code: int, reason: str) -> None:
    shown = cli("datasets", *arguments)
    assert (shown.code, shown.out, len(shown.err)) == (code, "", 1)
    assert reason in shown.err[0]


def test_what_ships_needs_no_fetching(cli: Callable[..., Finished]) -> None:
    said = "diarize: mini ships with the package: there is nothing to fetch"
    assert cli("datasets", "pull", "mini") == Finished(0, "", [said])
