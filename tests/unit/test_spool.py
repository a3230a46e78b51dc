"""Pipes and streams become files that can be read more than once, and nothing of them stays."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diarize import spool
from diarize.errors import AudioError, OptionError
from diarize.spool import seekable, stem


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies lie."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


class _Stdin:
    def __init__(self, content: bytes, terminal: bool = False) -> None:
        self.buffer = io.BytesIO(content)
        self.closed = False
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_files_and_samples_pass_as_they_are(tmp_path: Path, scratch: Path) -> None:
    samples = np.zeros(3)
    with seekable(samples) as found:
        assert found.source is samples
    with seekable(tmp_path / "a.wav") as found:
        assert (found.source, found.name) == (str(tmp_path / "a.wav"), "")
    assert os.listdir(scratch) == []


def test_standard_input_is_copied(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    monkeypatch.setattr(sys, "stdin", _Stdin(b"abc" * 1_000_000))
    with seekable("-") as found:
        assert found.name == "standard input"
        assert isinstance(found.source, str)
        assert os.readlink(found.source).startswith(str(scratch))
        # A process that is killed leaves nothing.
        assert os.listdir(scratch) == []
        for _ in range(2):
            assert Path(found.source).read_bytes() == b"abc" * 1_000_000


def test_without_a_folder_of_descriptors_the_copy_has_a_name(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    monkeypatch.setattr(spool, "_DESCRIPTORS", str(scratch / "absent"))
    with seekable(io.BytesIO(b"abc")) as found:
        assert isinstance(found.source, str)
        assert Path(found.source).parent == scratch
        assert Path(found.source).read_bytes() == b"abc"
    assert os.listdir(scratch) == []


def test_a_terminal_or_nothing_at_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", _Stdin(b"", terminal=True))
    with pytest.raises(AudioError, match="standard input: is a terminal"), seekable("-"):
        pass
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(AudioError, match="standard input: is closed"), seekable("-"):
        pass


def test_named_pipes_are_read_to_their_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.wav"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"hello" * 100_000,))
    writer.start()
    with seekable(pipe) as found:
        assert found.name == str(pipe)
        assert isinstance(found.source, str)
        assert Path(found.source).read_bytes() == b"hello" * 100_000
    writer.join()


def test_streams_are_copied_also_when_the_body_fails(scratch: Path) -> None:
    def body() -> None:
        with seekable(io.BytesIO(b"abc")) as found:
            assert isinstance(found.source, str)
            assert Path(found.source).read_bytes() == b"abc"
            raise RuntimeError("in the body")

    with pytest.raises(RuntimeError, match="in the body"):
        body()
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("source", [3, None, [0.0, 1.0], b"a.wav"])
def test_what_is_no_recording_at_all_is_refused(source: Any) -> None:
    allowed = "give a path, '-' for standard input, a binary stream, or a NumPy array with its sample_rate"
    with pytest.raises(OptionError) as caught, seekable(source):
        pass
    assert str(caught.value) == f"source is of type {type(source).__name__}; {allowed}"


def test_a_stream_of_text_is_refused(scratch: Path) -> None:
    source: Any = io.StringIO("text")
    message = 'stream: gives text, not bytes; open it in binary mode, "rb"'
    with pytest.raises(AudioError, match=message), seekable(source):
        pass
    assert os.listdir(scratch) == []


def test_no_room_for_the_copy_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Broken(io.RawIOBase):
        name = "call.wav"

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            raise OSError(28, "No space left on device")

    reason = r"call\.wav: cannot be copied to .*No space left on device.*TMPDIR"
    with pytest.raises(AudioError, match=reason), seekable(_Broken()):  # type: ignore[arg-type]
        pass


def test_names() -> None:
    stream = io.BytesIO()
    stream.name = "calls/monday.wav"  # type: ignore[attr-defined]
    assert [stem(source) for source in ("-", Path("a/b.c.flac"), np.zeros(1), io.BytesIO(), stream)] == [
        "stdin", "b.c", "", "", "monday",
    ]  # fmt: skip
