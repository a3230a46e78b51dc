"""What is said of files that libsndfile refuses: damage is called damage, PyAV is named only where it may help."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from diarize.audio import load
from diarize.errors import AudioError

JUNK = b"\x9c" * 400


def sound(kind: str) -> bytearray:
    """Half a second of silence in a format of libsndfile."""
    out = io.BytesIO()
    soundfile.write(out, np.zeros(8000, np.int16), 16_000, format=kind)
    return bytearray(out.getvalue())


def patched(kind: str, offset: int, value: bytes) -> bytes:
    """The same with other bytes at one place."""
    content = sound(kind)
    content[offset : offset + len(value)] = value
    return bytes(content)


@pytest.fixture
def message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The message that loading some bytes ends with, where PyAV is not installed."""
    monkeypatch.setitem(sys.modules, "diarize.media", None)

    def of(content: bytes, name: str = "a.bin") -> str:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(AudioError) as caught:
            load(tmp_path / name)
        return str(caught.value).removeprefix(f"{tmp_path / name}: ")

    return of


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (patched("WAV", 22, b"\0\0"), "Channel count is zero"),
        (patched("WAV", 24, bytes(4)), "Internal error : SF_INFO struct incomplete"),
        (b"RIFF" + JUNK, "Format not recognised"),
        (b"fLaC" + JUNK, "Error : unknown error in flac decoder"),
        (patched("FLAC", 18, bytes(2)), None),
        (b"OggS" + JUNK, "File contains data in an unimplemented format"),
        (patched("OGG", 39, b"\0"), "Supported file format but file is malformed"),
        (b"FORM" + struct.pack(">I", 400) + b"AIFF" + JUNK, "Channel count is zero"),
    ],
)
def test_a_damaged_header_is_called_so(message, content, reason):
    text = message(content)
    assert text.startswith("its header is damaged (") or (reason is None and "sample rate is" in text)
    assert "PyAV" not in text
    assert reason is None or text == f"its header is damaged ({reason}); copy or record it again"


def test_random_bytes_are_not_said_to_need_pyav(message):
    text = message(np.random.default_rng(0).bytes(20_000), "a.wav")
    assert text == (
        "not a recording in a known format (Format not recognised); give a wav, flac, mp3, ogg, opus or m4a file"
    )


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"\0\0\0\x20ftypM4A " + JUNK, "a.bin"),
        (b"\x1aE\xdf\xa3" + JUNK, "a.bin"),
        (b"RIFF\0\0\1\0AVI LIST" + JUNK, "a.bin"),
        (patched("WAV", 20, struct.pack("<H", 0x161)), "a.wav"),
        (patched("OGG", 28, b"\x80theora"), "a.ogg"),
        (b"\xff\xf1" + JUNK, "a.bin"),
        (JUNK, "a.m4a"),
    ],
)
def test_other_media_are_said_to_need_pyav(message, content, name):
    assert "media need PyAV: pip install 'diarize-cuda[media]'" in message(content, name)
