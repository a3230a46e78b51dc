"""Downloads from a server on loopback that cuts, lies and refuses; archives that are damaged or malicious."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tools.file_server import Files, serving

from diarize.dataset import download, unpack
from diarize.dataset.download import fetch
from diarize.dataset.load import load_dataset, load_folder
from diarize.dataset.lock import read_lock
from diarize.dataset.manifest import Download, Manifest, Member
from diarize.dataset.pull import DownloadSize, download_size, pull, verify
from diarize.errors import DatasetError, OptionError
from diarize.score.der import Protocol

DATA = bytes(range(256)) * 4000
SUM = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def files() -> Iterator[Files]:
    """A server with one file."""
    with serving(Files({"/a.bin": DATA})) as running:
        yield running


def get(files: Files, target: Path, path: str = "/a.bin", **options: object) -> download.Fetched:
    """Fetch without waiting between attempts."""
    return fetch(files.url(path), target, wait=lambda seconds: None, **options)  # type: ignore[arg-type]


def test_a_file_arrives_whole(files: Files, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    fetched = get(files, tmp_path / "a", sha256=SUM, size=len(DATA), progress=lambda *state: seen.append(state))
    assert fetched == download.Fetched(len(DATA), SUM)
    assert seen[-1] == ("a", len(DATA), len(DATA))
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_cut_connection_is_resumed_where_it_stopped(files: Files, tmp_path: Path) -> None:
    files.cut_after, files.cuts = 300_000, 3
    assert get(files, tmp_path / "a").sha256 == SUM
    assert [wanted for _, wanted in files.requests] == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_a_later_call_resumes(files: Files, tmp_path: Path) -> None:
    files.cut_after, files.cuts = 100_000, 1

    def give_up(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(files.url("/a.bin"), tmp_path / "a", wait=give_up)
    assert (tmp_path / "a.part").stat().st_size == 100_000
    assert not (tmp_path / "a").exists()
    assert get(files, tmp_path / "a").sha256 == SUM
    assert files.requests[-1] == ("/a.bin", "bytes=100000-")


def test_a_part_of_another_version_is_not_continued(files: Files, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(b"x" * 1000)
    (tmp_path / "a.part.json").write_text(json.dumps({"url": files.url("/a.bin"), "validator": '"0"'}))
    assert get(files, tmp_path / "a").sha256 == SUM
    (tmp_path / "b.part").write_bytes(b"x" * 1000)
    assert get(files, tmp_path / "b").sha256 == SUM


@pytest.mark.parametrize("ranges", [True, False])
def test_a_part_that_is_complete_or_cannot_be_resumed(files: Files, tmp_path: Path, ranges: bool) -> None:
    files.ranges = ranges
    (tmp_path / "a.part").write_bytes(DATA)
    (tmp_path / "a.part.json").write_text(json.dumps({"url": files.url("/a.bin"), "validator": files.tag}))
    assert get(files, tmp_path / "a").sha256 == SUM


def test_a_server_that_always_cuts_at_once_is_given_up(files: Files, tmp_path: Path) -> None:
    files.cut_after, files.cuts = 0, 100
    with pytest.raises(DatasetError, match=r"connection was cut.*tried 5 times; run the command again to go on"):
        get(files, tmp_path / "a")
    assert len(files.requests) == 5


def test_a_busy_server_is_asked_again(files: Files, tmp_path: Path) -> None:
    files.status["/a.bin"] = [503, 429]
    assert get(files, tmp_path / "a").sha256 == SUM


@pytest.mark.parametrize("status", [404, 403])
def test_a_refusal_is_final(files: Files, tmp_path: Path, status: int) -> None:
    files.status["/a.bin"] = [status]
    with pytest.raises(DatasetError, match=f"the server says {status} .*; the address may have moved"):
        get(files, tmp_path / "a")
    assert len(files.requests) == 1


def test_a_wrong_checksum_deletes_the_file(files: Files, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"not the expected file: {len(DATA)} bytes, sha256 {SUM}, expected"):
        get(files, tmp_path / "a", sha256="0" * 64)
    assert os.listdir(tmp_path) == []


def test_a_wrong_size_is_refused_before_the_download(files: Files, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"has {len(DATA)} bytes, expected 5; it has changed"):
        get(files, tmp_path / "a", size=5)
    assert not (tmp_path / "a").exists()


def test_room_is_checked_first(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 1000, 1000))
    with pytest.raises(DatasetError, match=r"a needs 1.0 MB in .*, but 0.0 MB are free"):
        get(files, tmp_path / "a")
    assert not (tmp_path / "a.part").exists()


def test_a_disk_that_fills_up_keeps_the_part(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = download._copy

    def fill(answer: io.BytesIO, file: io.BytesIO, *rest: object) -> int:
        file.write(answer.read(5000))
        file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(download, "_copy", fill)
    with pytest.raises(DatasetError, match="is full; free some space, then run the command again to go on"):
        get(files, tmp_path / "a")
    monkeypatch.setattr(download, "_copy", copy)
    assert get(files, tmp_path / "a").sha256 == SUM
    assert files.requests[-1] == ("/a.bin", "bytes=5000-")


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot be fetched .*refused"):
        fetch("http://127.0.0.1:9/a", tmp_path / "a", wait=lambda seconds: None)


def zipped(content: dict[str, bytes]) -> bytes:
    """A zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as package:
        for name, data in content.items():
            package.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def tarred(content: dict[str, bytes], edit: Callable[[tarfile.TarInfo], None] | None = None) -> bytes:
    """A tar.gz archive, each header changed by `edit`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as package:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if edit:
                edit(info)
            package.addfile(info, io.BytesIO(data))
    return out.getvalue()


def linked(info: tarfile.TarInfo) -> None:
    """Make a symbolic link of it."""
    info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0


def hard_linked(info: tarfile.TarInfo) -> None:
    """Make a hard link of it."""
    info.type, info.linkname, info.size = tarfile.LNKTYPE, "../../etc/passwd", 0


def device(info: tarfile.TarInfo) -> None:
    """Make a device of it."""
    info.type, info.size = tarfile.CHRTYPE, 0


def zip_link() -> bytes:
    """A zip archive with a symbolic link."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as package:
        info = zipfile.ZipInfo("set/x.wav")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        package.writestr(info, "/etc/passwd")
    return out.getvalue()


RULES = (Member("*.wav", "audio"), Member("*/dev/*.rttm", "rttm"))


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_only_what_is_wanted_is_taken(tmp_path: Path, pack: Callable[[dict[str, bytes]], bytes]) -> None:
    archive = tmp_path / "x"
    archive.write_bytes(
        pack({
            "set/deep/one.WAV": b"no: patterns mind case",
            "set/deep/two.wav": b"2",
            "set/dev/two.rttm": b"r",
            "set/test/two.rttm": b"no",
            "__MACOSX/deep/._two.wav": b"no",
            "README": b"no",
        })
    )  # fmt: skip
    found = unpack.unpack(archive, RULES, tmp_path / "out")
    assert [(item.file_id, item.path) for item in found] == [("two", "audio/two.wav"), ("two", "rttm/two.rttm")]
    assert sorted(p.name for p in (tmp_path / "out").rglob("*") if p.is_file()) == ["two.rttm", "two.wav"]
    assert unpack.unpack(archive, RULES, tmp_path / "none", ids={"three"}) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (zipped({"../evil.wav": b"x"}), "a path out of its folder"),
        (zipped({"ok.wav": b"x", "a/../../evil.txt": b"x"}), "a path out of its folder"),
        (zipped({"/etc/evil.wav": b"x"}), "a path out of its folder"),
        (zipped({"C:/evil.wav": b"x"}), "a path out of its folder"),
        (zipped({"..\\evil.wav": b"x"}), "a path out of its folder"),
        (tarred({"../evil.wav": b"x"}), "a path out of its folder"),
        (tarred({"/tmp/evil.wav": b"x"}), "a path out of its folder"),
        (tarred({"set/x.wav": b""}, linked), "a link or device"),
        (tarred({"set/x.wav": b""}, hard_linked), "a link or device"),
        (tarred({"set/x.wav": b""}, device), "a link or device"),
        (zip_link(), "a link or device"),
        (zipped({"set/a b.wav": b"x"}), "no file id can be made"),
        (zipped({"set/-rf.wav": b"x"}), "no file id can be made"),
        (zipped({"a/x.wav": b"1", "b/x.wav": b"2"}), "holds audio/x.wav twice"),
        (zipped({"set/x.wav": bytes(101_000_000)}), "unpacks to more than 100 MB"),
        (zipped({"set/x.wav": DATA})[:-2000], "damaged or cut short"),
        (tarred({"set/x.wav": os.urandom(100_000)})[:-20_000], "damaged or cut short"),
        (b"<html>sorry</html>", "damaged or cut short"),
    ],
    ids=range(18),
)
def test_a_bad_archive_writes_nothing(tmp_path: Path, data: bytes, reason: str) -> None:
    archive = tmp_path / "bad"
    archive.write_bytes(data)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(DatasetError, match=reason):
        unpack.unpack(archive, RULES, out)
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size] == [archive]


def line(name: str) -> bytes:
    """An RTTM of one turn."""
    return f"SPEAKER {name} 1 0 1 <NA> <NA> a <NA> <NA>\n".encode()


@pytest.fixture
def tiny(files: Files, tmp_path: Path) -> Manifest:
    """A set of two recordings, its references in one archive and its audio in another."""
    files.content["/refs.zip"] = zipped({"v/dev/one.rttm": line("one"), "v/dev/two.rttm": line("two")})
    files.content["/wav.tar.gz"] = tarred({"w/one.wav": b"11", "w/two.wav": b"222", "w/three.wav": b"no reference"})
    return Manifest(
        name="tiny",
        title="Tiny",
        licence="none",
        homepage="",
        protocol=Protocol(),
        use_uem=False,
        folder=tmp_path,
        downloads=(
            Download(files.url("/refs.zip"), members=(RULES[1],)),
            Download(files.url("/wav.tar.gz"), members=(RULES[0],)),
        ),
    )


def test_a_set_is_laid_out_locked_and_verified(files: Files, tiny: Manifest, tmp_path: Path) -> None:
    root = tmp_path / "set"
    size = len(files.content["/refs.zip"]) + len(files.content["/wav.tar.gz"])
    assert download_size(tiny) == DownloadSize(size)
    done = pull(tiny, root)
    assert (done.complete, done.incomplete) == (("one", "two"), ())
    assert sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()) == [
        "audio/one.wav", "audio/two.wav", "lock.json", "rttm/one.rttm", "rttm/two.rttm",
    ]  # fmt: skip
    locked = read_lock(root, "tiny").downloads[files.url("/refs.zip")]
    assert locked.sha256 == hashlib.sha256(files.content["/refs.zip"]).hexdigest()
    assert verify(root, tiny) == []
    assert [r.file_id for r in load_folder(root, tiny).recordings] == ["one", "two"]
    before = len(files.requests)
    assert pull(tiny, root) == done
    assert len(files.requests) == before
    (root / "audio/one.wav").write_bytes(b"xx")
    (root / "rttm/two.rttm").unlink()
    assert verify(root, tiny) == [
        "audio/one.wav is not what was pulled; delete it and pull again",
        "rttm/two.rttm is missing; pull again",
    ]
    (root / "audio/one.wav").unlink()
    assert pull(tiny, root) == done
    assert verify(root, tiny) == []


def test_a_limit_takes_the_first_ids_and_can_be_raised(files: Files, tiny: Manifest, tmp_path: Path) -> None:
    root = tmp_path / "set"
    assert pull(tiny, root, limit=1).complete == ("one",)
    assert not (root / "audio/two.wav").exists()
    before = len(files.requests)
    assert pull(tiny, root, limit=2).complete == ("one", "two")
    # The archives were kept for this.
    assert len(files.requests) == before
    assert pull(tiny, root).complete == ("one", "two")
    assert list((root / "archives").iterdir()) == []
    with pytest.raises(OptionError, match="limit is 0"):
        pull(tiny, root, limit=0)


def test_a_download_that_has_changed_is_refused(files: Files, tiny: Manifest, tmp_path: Path) -> None:
    root = tmp_path / "set"
    pull(tiny, root)
    (root / "rttm/one.rttm").unlink()
    files.content["/refs.zip"] = zipped({"v/dev/one.rttm": line("one"), "v/dev/two.rttm": line("three")})
    with pytest.raises(DatasetError, match=r"has changed: sha256 .*, first seen on"):
        pull(tiny, root)


def test_an_archive_that_is_cut_short_is_fetched_anew(files: Files, tiny: Manifest, tmp_path: Path) -> None:
    whole = files.content["/wav.tar.gz"]
    files.content["/wav.tar.gz"] = whole[:60]
    root = tmp_path / "set"
    with pytest.raises(DatasetError, match=r"wav.tar.gz is damaged or cut short"):
        pull(tiny, root)
    assert not (root / "archives/wav.tar.gz").exists()
    assert not (root / "audio").exists()


def test_a_file_for_each_id(files: Files, tiny: Manifest, tmp_path: Path) -> None:
    files.content |= {"/w/one.wav": b"1", "/w/two.wav": b"2", "/r/one": line("one"), "/r/two": line("two")}
    manifest = replace(
        tiny,
        ids=("two", "one"),
        downloads=(
            Download(files.url("/r/{id}"), to="rttm/{id}.rttm"),
            Download(files.url("/w/{id}.wav"), to="audio/{id}.wav"),
        ),
    )
    assert pull(manifest, tmp_path / "s", limit=1).complete == ("one",)
    assert [path for path, _ in files.requests] == ["/r/one", "/w/one.wav"]
    assert pull(manifest, tmp_path / "s").complete == ("one", "two")
    assert download_size(manifest, 1) == DownloadSize(unknown=2)
    roughly = replace(manifest, downloads=(replace(manifest.downloads[0], about_bytes=1000), manifest.downloads[1]))
    assert download_size(roughly, 1) == DownloadSize(about=500, unknown=1)
    del files.content["/w/two.wav"]
    (tmp_path / "s/audio/two.wav").unlink()
    with pytest.raises(DatasetError, match="404"):
        pull(manifest, tmp_path / "s")


def test_a_folder_keeps_one_set(tiny: Manifest, tmp_path: Path) -> None:
    pull(tiny, tmp_path / "s")
    with pytest.raises(DatasetError, match="holds the data set tiny, not other"):
        pull(replace(tiny, name="other"), tmp_path / "s")
    with pytest.raises(OptionError, match="cannot be fetched: ask its authors"):
        pull(replace(tiny, downloads=(), by_hand="ask its authors"), tmp_path / "s")
    with pytest.raises(DatasetError, match="run: diarize datasets pull tiny"):
        verify(tmp_path / "nothing", tiny)
    with pytest.raises(DatasetError, match="nothing to verify it against"):
        verify(tmp_path / "nothing", replace(tiny, downloads=(), by_hand="ask its authors"))


def test_a_textgrid_becomes_a_reference(files: Files, tiny: Manifest, tmp_path: Path) -> None:
    grid = """File type = "ooTextFile"
Object class = "TextGrid"
xmin = 0
xmax = 9.5
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "N S1"
        intervals: size = 2
        intervals [1]:
            xmin = 0
            xmax = 2.5
            text = ""
        intervals [2]:
            xmin = 2.5
            xmax = 4.25
            text = "he said ""no"" twice"
    item [2]:
        class = "IntervalTier"
        name = "S2"
        intervals: size = 1
        intervals [1]:
            xmin = 3.0
            xmax = 9.5
            text = "嗯"
"""
    files.content["/g.zip"] = zipped({"g/R1_M2.TextGrid": grid.encode(), "a/R1_M2_MS3.wav": b"1"})
    rules = (Member("g/*.TextGrid", "textgrid", "(R.*_M[0-9]+)"), Member("a/*", "audio", "(R[0-9]+_M[0-9]+)"))
    manifest = replace(tiny, downloads=(Download(files.url("/g.zip"), members=rules),))
    assert pull(manifest, tmp_path / "s", limit=1).complete == ("R1_M2",)
    assert (tmp_path / "s/rttm/R1_M2.rttm").read_text() == (
        "SPEAKER R1_M2 1 2.500 1.750 <NA> <NA> N_S1 <NA> <NA>\nSPEAKER R1_M2 1 3.000 6.500 <NA> <NA> S2 <NA> <NA>\n"
    )


def test_a_set_that_was_not_pulled_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIARIZE_CACHE", str(tmp_path))
    with pytest.raises(DatasetError, match="run: diarize datasets pull voxconverse-test"):
        load_dataset("voxconverse")
    with pytest.raises(DatasetError, match=r"is not in .*; It is published as"):
        load_dataset("icsi")
