"""Manifests: the shipped ones, what none may say, and one's own recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soundfile

from diarize.dataset.load import load_dataset, load_folder
from diarize.dataset.manifest import find_manifest, manifests, read_manifest
from diarize.errors import DatasetError, FormatError, OptionError
from diarize.score.der import Protocol

MANIFESTS = manifests()
EXPECTED = {
    "aishell-4", "alimeeting", "ami-ihm", "ami-ihm-34", "ami-sdm", "ami-sdm-34", "ava-avd", "earnings-21", "icsi",
    "mini", "msdwild", "voxconverse-dev", "voxconverse-test",
}  # fmt: skip
LEAST = {
    "schema": "diarize-dataset/1",
    "name": "own",
    "title": "",
    "licence": "",
    "homepage": "",
    "protocol": {"collar_each_side": 0.25, "skip_overlap": True, "uem": False},
    "by_hand": "put it there",
}


def test_the_sets_of_the_field_are_there() -> None:
    assert set(MANIFESTS) == EXPECTED
    assert find_manifest("voxconverse").name == "voxconverse-test"
    with pytest.raises(OptionError, match="unknown data set 'vox'; known are aishell-4, "):
        find_manifest("vox")


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=list(MANIFESTS))
def test_each_says_what_it_must(manifest: object) -> None:
    found = MANIFESTS[manifest.name]  # type: ignore[attr-defined]
    assert found.licence
    assert found.title
    assert found.reference
    assert not found.ids or len(found.ids) == found.files
    assert found.ids or found.id_rule or found.recordings
    assert all(0 < item.der < 100 and item.source for item in found.published)
    # pyannote's numbers have no collar and score overlap; ours must be comparable.
    assert found.protocol == Protocol(0.0, False)
    assert found.use_uem == found.name.startswith(("ami", "mini"))


def test_references_come_before_the_audio() -> None:
    for manifest in MANIFESTS.values():
        kinds = [
            {member.to for member in download.members} or {str(download.to).partition("/")[0]}
            for download in manifest.downloads
        ]
        if kinds:
            assert kinds[0] & {"rttm", "textgrid"}
            assert "audio" in kinds[-1]


def test_the_mini_set_is_whole() -> None:
    dataset = load_dataset("mini")
    assert [r.file_id for r in dataset.recordings] == ["alone", "dialogue", "five", "noise", "overlap", "phone"]
    seconds = 0.0
    for recording in dataset.recordings:
        about = soundfile.info(recording.audio)
        assert (about.samplerate, about.channels, about.format) == (16_000, 1, "FLAC")
        seconds += about.duration
        assert recording.regions is not None
        assert recording.regions == ((0.0, pytest.approx(about.duration, abs=1e-3)),)
        assert max(turn.end for turn in recording.reference) < about.duration
    assert 240 < seconds < 300
    speakers = {r.file_id: len({turn.speaker for turn in r.reference}) for r in dataset.recordings}
    assert speakers == {"alone": 1, "dialogue": 3, "five": 5, "noise": 3, "overlap": 3, "phone": 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": "diarize-dataset/9"}, "schema is 'diarize-dataset/9'; allowed is 'diarize-dataset/1'"),
        ({"licence": None, "protocol": {}}, "'collar_each_side' is missing"),
        ({"protocol": {"collar_each_side": -1, "skip_overlap": False, "uem": False}}, "collar is -1.0"),
        ({"name": "../x"}, "name '../x' is not allowed"),
        ({"ids": ["a", "a"]}, "listed twice"),
        ({"ids": ["a/b"]}, "name 'a/b' is not allowed"),
        ({"by_hand": ""}, "has neither downloads, by_hand nor recordings"),
        ({"channel": 0}, "channel is 0"),
        ({"downloads": [{"url": "file:///etc/passwd", "to": "audio/{id}.wav"}], "ids": ["a"]}, "must start with http"),
        ({"downloads": [{"url": "http://x/{id}", "to": "../{id}.wav"}], "ids": ["a"]}, "to is '../{id}.wav'"),
        ({"downloads": [{"url": "http://x/{id}", "to": "audio/{id}.wav"}]}, "ids in the manifest"),
        ({"downloads": [{"url": "http://x/y"}]}, "give either members"),
        ({"downloads": [{"url": "http://x/y", "members": [{"match": "*", "to": "/etc"}]}]}, "members go to '/etc'"),
        ({"downloads": [{"url": "http://x/y", "members": [{"match": "*", "to": "audio", "id": "x"}]}]}, "with a group"),
        ({"downloads": [{"url": "http://x/y", "members": [{"match": "*", "to": "rttm"}], "sha256": "1"}]}, "64 hexa"),
        ({"downloads": 3}, "of the wrong kind"),
    ],
)
def test_what_no_manifest_may_say(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(LEAST))
    assert read_manifest(path).protocol == Protocol(0.25, True)
    path.write_text(json.dumps(LEAST | change))
    with pytest.raises(DatasetError) as error:
        read_manifest(path)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_a_manifest_that_is_no_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(DatasetError):
        read_manifest(path)


def rttm(name: str) -> str:
    """A reference of one turn."""
    return f"SPEAKER {name} 1 0 1 <NA> <NA> a <NA> <NA>\n"


@pytest.mark.parametrize("flat", [True, False])
def test_a_folder_of_ones_own(tmp_path: Path, flat: bool) -> None:
    folders = {name: tmp_path if flat else tmp_path / name for name in ("audio", "rttm", "uem")}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    for name in ("b.flac", "a.wav", "without.wav"):
        (folders["audio"] / name).touch()
    (folders["rttm"] / "a.rttm").write_text(rttm("another id"[:7]))
    (folders["rttm"] / "all.rttm").write_text(rttm("b") + rttm("nobody"))
    dataset = load_dataset(str(tmp_path))
    assert [r.file_id for r in dataset.recordings] == ["a", "b"]
    assert dataset.protocol == Protocol()
    (folders["uem"] / "a.uem").write_text("a 1 0 5\n")
    with pytest.raises(DatasetError, match="a UEM for some recordings, but not for b"):
        load_folder(tmp_path)
    (folders["uem"] / "b.uem").write_text("b 1 0 5\n")
    assert load_folder(tmp_path).recordings[1].regions == ((0.0, 5.0),)
    (folders["audio"] / "a.mp3").touch()
    with pytest.raises(DatasetError, match="have the same file id"):
        load_folder(tmp_path)


def test_a_pulled_folder_keeps_the_rules_of_its_set(tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_text('{"dataset": "aishell-4"}')
    for folder, name in (("audio", "m.flac"), ("rttm", "m.rttm")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(rttm("m"))
    dataset = load_dataset(str(tmp_path))
    assert (dataset.name, dataset.channel) == ("aishell-4", 1)
    assert dataset.published
    (tmp_path / "lock.json").write_text("damaged")
    assert load_dataset(str(tmp_path)).channel is None


def test_a_folder_without_references(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    with pytest.raises(DatasetError, match="no recording with a reference: 1 recordings, 0 references"):
        load_folder(tmp_path)


def test_a_manifest_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "x.wav").touch()
    (tmp_path / "x.rttm").write_text(rttm("x") + rttm("y"))
    path = tmp_path / "own.json"
    own = LEAST | {"channel": 2, "recordings": [{"id": "x", "audio": "x.wav", "rttm": "x.rttm"}]}
    path.write_text(json.dumps(own))
    dataset = load_dataset(str(path))
    assert (dataset.name, dataset.channel, dataset.protocol) == ("own", 2, Protocol(0.25, True))
    (tmp_path / "x.rttm").write_text(rttm("z") + rttm("y"))
    with pytest.raises(FormatError, match="has no line for x; it has y, z"):
        load_dataset(str(path))
    (tmp_path / "x.wav").unlink()
    with pytest.raises(DatasetError, match=r"x.wav is missing"):
        load_dataset(str(path))


def test_a_protocol_with_uem_wants_one_for_each_recording(tmp_path: Path) -> None:
    (tmp_path / "x.wav").touch()
    (tmp_path / "x.rttm").write_text("SPEAKER x 1 0 1 <NA> <NA> A <NA> <NA>\n")
    (tmp_path / "x.uem").write_text("x 1 0 5\n")
    recording = {"id": "x", "audio": "x.wav", "rttm": "x.rttm"}
    own = LEAST | {"protocol": {"collar_each_side": 0, "skip_overlap": False, "uem": True}, "recordings": [recording]}
    (tmp_path / "own.json").write_text(json.dumps(own))
    with pytest.raises(DatasetError, match="scores within UEM files, but x has none"):
        load_dataset(str(tmp_path / "own.json"))
    recording["uem"] = "x.uem"
    (tmp_path / "own.json").write_text(json.dumps(own))
    assert load_dataset(str(tmp_path / "own.json")).recordings[0].regions == ((0.0, 5.0),)
