"""Known voices: which speaker gets which name, and where voices are read from."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diarize.errors import FormatError, OptionError
from diarize.outputs.npz import format_embeddings, read_embeddings
from diarize.types import Diarization, Turn, WindowEmbeddings
from diarize.voices import Clip, Voice, combined, from_embeddings, match, named, parse_clip, read_speakers_file


def direction(angle: float) -> np.ndarray:
    return np.array([np.cos(angle), np.sin(angle)])


@pytest.fixture
def result() -> Diarization:
    """Two speakers at right angles."""
    return Diarization(
        turns=(Turn(0, 2, "SPEAKER_00", 0.9), Turn(1, 3, "SPEAKER_01", 0.8)),
        exclusive=(Turn(0, 1.5, "SPEAKER_00"), Turn(1.5, 3, "SPEAKER_01")),
        speakers=("SPEAKER_00", "SPEAKER_01"),
        embeddings=np.stack([direction(0), direction(np.pi / 2)]),
        duration=3.0,
        model="campplus",
        device="cpu",
        mode="exact",
        checksum="abc",
        windows=WindowEmbeddings(np.zeros(1), np.ones(1), np.zeros(1, np.int32), np.ones((1, 2), np.float32)),
    )


def test_speakers_get_the_names_of_voices_they_sound_like(result: Diarization) -> None:
    found = named(result, [Voice("Zoe", direction(1.5), "abc"), Voice("Ann", direction(-1.5), "abc")], 0.5)
    assert found.speakers == ("SPEAKER_00", "Zoe")
    assert [turn.speaker for turn in found.turns] == ["SPEAKER_00", "Zoe"]
    assert [turn.speaker for turn in found.exclusive] == ["SPEAKER_00", "Zoe"]
    assert found.turns[1].confidence == 0.8


def test_each_voice_goes_to_one_speaker_and_the_total_decides() -> None:
    speakers = np.stack([direction(0.0), direction(0.3)])
    # Both are closest to the first voice, the second speaker more so; the first has nothing else.
    voices = np.stack([direction(0.2), direction(0.9)])
    assert match(speakers, voices, 0.5) == [0, 1]
    assert match(speakers, voices[:1], 0.5) == [None, 0]
    assert match(speakers, voices[:1], 0.999) == [None, None]
    assert match(speakers[:1], voices, 0.5) == [0]


def test_no_voices_and_no_speakers_change_nothing(result: Diarization) -> None:
    assert named(result, [], 0.5) is result
    nobody = replace(result, turns=(), exclusive=(), speakers=(), embeddings=np.zeros((0, 2)))
    assert named(nobody, [Voice("Ann", direction(0), "abc")], 0.5) is nobody


def test_voices_of_another_model_are_refused(result: Diarization) -> None:
    with pytest.raises(OptionError, match="Ann was made by another model than campplus"):
        named(result, [Voice("Ann", direction(0), "def")], 0.5)


def test_clips_of_one_name_make_one_voice() -> None:
    voices = combined([Voice("A", direction(0), "m"), Voice("B", direction(1), "m"), Voice("A", direction(1), "m")])
    assert [voice.name for voice in voices] == ["A", "B"]
    np.testing.assert_allclose(voices[0].embedding, direction(0.5))


@pytest.mark.parametrize("text", ["ann.wav", "=ann.wav", "Ann=", " = "])
def test_entries_that_name_no_voice(text: str) -> None:
    with pytest.raises(OptionError, match="write NAME=CLIP"):
        parse_clip(text)


@pytest.mark.parametrize("name", ["SPEAKER_00", "CH2_SPEAKER_01"])
def test_automatic_names_are_taken(name: str) -> None:
    with pytest.raises(OptionError, match=f"cannot be called {name}"):
        parse_clip(f"{name}=ann.wav")


def test_a_list_of_voices(tmp_path: Path) -> None:
    path = tmp_path / "voices.txt"
    path.write_text("# the board\n\nAnn Lee = clips/ann.wav\nBob=/x/bob=1.wav\n")
    clips, voices = read_speakers_file(path)
    assert clips == [Clip("Ann Lee", str(tmp_path / "clips/ann.wav")), Clip("Bob", "/x/bob=1.wav")]
    assert voices == []


def test_lists_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "voices.txt"
    with pytest.raises(OptionError, match="No such file"):
        read_speakers_file(path)
    path.write_text("# nobody\n")
    with pytest.raises(OptionError, match="holds no voice"):
        read_speakers_file(path)
    path.write_text("Ann=a.wav\nBob\n")
    with pytest.raises(OptionError, match=r"voices\.txt:2: 'Bob' names no voice"):
        read_speakers_file(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="not UTF-8"):
        read_speakers_file(path)


def test_embeddings_are_the_same_bytes_and_can_be_read_back(result: Diarization, tmp_path: Path) -> None:
    content = format_embeddings(result)
    assert format_embeddings(replace(result, timings={"total": 9.0})) == content
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    found = read_embeddings(path)
    assert found.speakers == result.speakers
    assert (found.model, found.checksum) == ("campplus", "abc")
    np.testing.assert_allclose(found.speaker_embeddings, result.embeddings, atol=1e-7)
    # NumPy alone can read it as well.
    with np.load(path) as arrays:
        assert arrays["window_embeddings"].shape == (1, 2)
        assert arrays["speakers"].tolist() == ["SPEAKER_00", "SPEAKER_01"]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_named_speakers_of_stored_embeddings_are_voices(result: Diarization, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(format_embeddings(replace(result, speakers=("Ann", "SPEAKER_01"))))
    clips, voices = read_speakers_file(path)
    assert clips == []
    assert [(voice.name, voice.model) for voice in voices] == [("Ann", "abc")]
    assert from_embeddings(read_embeddings(path))[0].name == "Ann"


def test_archives_of_another_kind(tmp_path: Path, result: Diarization) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(FormatError, match="cannot be read"):
        read_embeddings(path)
    path.write_bytes(b"no archive")
    with pytest.raises(FormatError, match="is no archive of embeddings"):
        read_embeddings(path)
    np.savez(path, a=np.zeros(1))
    with pytest.raises(FormatError, match="is no archive of embeddings"):
        read_embeddings(path)
    np.savez(path, schema=np.array("diarize-embeddings/9"))
    with pytest.raises(FormatError, match="diarize-embeddings/9"):
        read_embeddings(path)
    with pytest.raises(FormatError, match="keep_windows"):
        format_embeddings(replace(result, windows=None))
