"""A result is whole or absent, whatever goes wrong while it is written."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from diarize.errors import OutputError
from diarize.outputs import files
from diarize.outputs.files import check_writable, write_bytes, write_text


@pytest.fixture(params=["nameless", "renamed"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of writing: where the file system has files without names, and where it has not."""
    if request.param == "renamed":
        monkeypatch.setattr(files, "_open_nameless", lambda folder: None)


def refused(path: str | Path, text: str = "new") -> str:
    """The one-line message of the error that writing ends with."""
    with pytest.raises(OutputError) as caught:
        write_text(path, text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(folder: Path) -> list[str]:
    """What is in a folder, hidden files too."""
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("name", ["a.rttm", "Ünï cödé 日本.json", "x" * 250, ".hidden"])
def test_written_and_replaced(tmp_path, name):
    path = tmp_path / name
    write_text(path, "first ü\n")
    write_text(path, "second\r\n")
    assert path.read_bytes() == b"second\r\n"
    assert names(tmp_path) == [name]


def test_relative_path_and_empty_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text("a.rttm", "")
    assert names(tmp_path) == ["a.rttm"]


def test_broken_characters_become_question_marks(tmp_path):
    write_text(tmp_path / "a", "caf\udce9")
    assert (tmp_path / "a").read_bytes() == b"caf?"


def test_permissions(tmp_path):
    old = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    (tmp_path / "new").chmod(0o604)
    write_text(tmp_path / "new", "y")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o604


def test_links_are_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "a.rttm")
    write_text(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "a.rttm").read_text() == "x"


def test_devices_are_written_to_and_stay(tmp_path):
    write_text("/dev/null", "x")
    assert Path("/dev/null").is_char_device()
    assert "/dev/full: cannot be written (No space left on device)" in refused("/dev/full")
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    write_text(tmp_path / "pipe", "through the pipe")
    assert reader.communicate(timeout=10)[0] == b"through the pipe"
    check_writable("/dev/null")
    check_writable(tmp_path / "pipe")
    assert names(tmp_path) == ["pipe"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none/a.rttm", "(No such file or directory); make the folder first"),
        ("folder", "(Is a directory); name a file, not a directory"),
        ("file/a.rttm", "(Not a directory); a part of the path is a file"),
        ("x" * 300, "(File name too long); choose a shorter name"),
        ("a\0b", "choose another name"),
        ("loop", "choose another place"),
    ],
)
def test_paths_that_cannot_be_written(tmp_path, name, text):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = names(tmp_path)
    path = f"{tmp_path}/{name}"
    assert text in refused(path)
    with pytest.raises(OutputError) as caught:
        check_writable(path)
    assert text in str(caught.value)
    assert names(tmp_path) == before
    assert names(tmp_path / "folder") == []


def test_empty_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "cannot be written" in refused("")
    assert names(tmp_path) == []


def test_check_leaves_everything_as_it_was(tmp_path):
    check_writable(tmp_path / "a.rttm")
    assert names(tmp_path) == []
    write_text(tmp_path / "a.rttm", "x")
    check_writable(tmp_path / "a.rttm")
    assert (tmp_path / "a.rttm").read_text() == "x"


def test_folder_that_may_not_be_written(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    if os.geteuid() != 0:
        assert "(Permission denied)" in refused(folder / "a.rttm")
        with pytest.raises(OutputError, match="Permission denied"):
            check_writable(folder / "a.rttm")
        return
    # Root may write everywhere but to the kernel's own folders.
    text = refused("/proc/a.rttm")
    assert text.startswith("/proc/a.rttm: cannot be written (")
    with pytest.raises(OutputError):
        check_writable("/proc/a.rttm")


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 64 KiB; the test is skipped where it may not be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a small file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(small_disk):
    write_text(small_disk / "a.rttm", "old")
    text = refused(small_disk / "a.rttm", "x" * 200_000)
    assert "(No space left on device); free some space or choose another place" in text
    assert (small_disk / "a.rttm").read_text() == "old"
    assert names(small_disk) == ["a.rttm"]


def test_limit_on_file_sizes(tmp_path):
    write_text(tmp_path / "a.rttm", "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        text = refused(tmp_path / "a.rttm", "x" * 200_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "(File too large)" in text
    assert (tmp_path / "a.rttm").read_text() == "old"
    assert names(tmp_path) == ["a.rttm"]


@pytest.mark.parametrize("step", ["write", "fsync", "fchmod", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()])
def test_whatever_fails_nothing_is_left(tmp_path, monkeypatch, step, error):
    path = tmp_path / "a.rttm"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OutputError if isinstance(error, OSError) else type(error)):
        write_text(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.rttm"]


def test_writes_that_take_a_part_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
    write_bytes(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"
