"""Manifests: what a data set is, where it comes from and how it is scored, as JSON.

Schema history
--------------
diarize-dataset/1: name, title, licence, homepage, files, hours, ids, id_rule, channel, channel_rule, reference,
protocol, downloads, by_hand, recordings, published, aliases.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import DatasetError, OptionError
from ..resources import data_dir
from ..score.der import Protocol

SCHEMA = "diarize-dataset/1"
FOLDERS = ("audio", "rttm", "uem", "textgrid")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Member:
    """Which files of an archive are taken: `match` is a shell pattern for the whole path, `to` one of `FOLDERS`.

    A TextGrid becomes an RTTM after it was unpacked.

    `id_pattern`: regular expression whose first group is the file id in the file's name; None takes the whole stem.
    """

    match: str
    to: str
    id_pattern: str | None = None


@dataclass(frozen=True)
class Download:
    """One address, or with `{id}` in it one for each file id.

    An archive has `members`; a plain file has `to`, a path with `{id}`. `size` in bytes and `sha256` where known.
    `about_bytes`: roughly what it comes to, all ids together, where only that is known; for people.
    """

    url: str
    to: str | None = None
    members: tuple[Member, ...] = ()
    size: int | None = None
    sha256: str | None = None
    about_bytes: int | None = None


@dataclass(frozen=True)
class LocalRecording:
    """A recording on this machine: paths relative to the manifest's folder; `uem` may be absent."""

    file_id: str
    audio: str
    rttm: str
    uem: str | None = None


@dataclass(frozen=True)
class Published:
    """A DER that somebody published for this set, in percent."""

    system: str
    der: float
    source: str
    note: str = ""


@dataclass(frozen=True)
class Manifest:
    """One data set.

    `files` and `hours` as its authors state them. `ids` lists the file ids, or is empty where `id_rule` says which
    they are. `homepage`: an address, or the path of a file beside the manifest. `channel` counts from 1, None is the
    mean of all. `use_uem`: whether scoring is limited to a UEM. `by_hand`: how to lay out one's own copy, for sets that
    cannot be fetched. `folder`: where the manifest lies.
    """

    name: str
    title: str
    licence: str
    homepage: str
    protocol: Protocol
    use_uem: bool
    folder: Path
    files: int = 0
    hours: float = 0.0
    ids: tuple[str, ...] = ()
    id_rule: str = ""
    channel: int | None = None
    channel_rule: str = ""
    reference: str = ""
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    recordings: tuple[LocalRecording, ...] = ()
    published: tuple[Published, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def ships(self) -> bool:
        """Whether the recordings come with the package."""
        return bool(self.recordings) and self.folder == data_dir("datasets").resolve()


def manifests() -> dict[str, Manifest]:
    """Every data set that the package describes, by name, sorted.

    Raises
    ------
    DatasetError
        The folder is missing from this installation, or a manifest is damaged.
    """
    found = [read_manifest(path) for path in sorted(data_dir("datasets").glob("*.json"))]
    return {manifest.name: manifest for manifest in sorted(found, key=lambda item: item.name)}


def find_manifest(name: str) -> Manifest:
    """The manifest of a name or an alias.

    Raises
    ------
    OptionError
        Nothing has this name, or it is that of a group such as "ami".
    """
    known = manifests()
    for manifest in known.values():
        if name == manifest.name or name in manifest.aliases:
            return manifest
    group = [other for other in known if other.startswith(f"{name}-")]
    if group:
        raise OptionError(f"data set {name!r} comes in several forms; give one of {', '.join(group)}")
    raise OptionError(f"unknown data set {name!r}; known are {', '.join(known)}, a folder and a manifest (.json)")


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file.

    Raises
    ------
    DatasetError
        It cannot be read, or says something that a manifest cannot.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: is not JSON ({error}); give a manifest of schema {SCHEMA}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise DatasetError(f"{path}: schema is {schema!r}; allowed is {SCHEMA!r}")
    try:
        manifest = _manifest(document, path.resolve().parent)
    except KeyError as error:
        raise DatasetError(f"{path}: {error.args[0]!r} is missing; add it") from error
    except (TypeError, ValueError, AttributeError, re.error, OptionError) as error:
        raise DatasetError(f"{path}: a value is of the wrong kind ({error}); mend it") from error
    for problem in _problems(manifest):
        raise DatasetError(f"{path}: {problem}")
    return manifest


def _manifest(document: Mapping[str, Any], folder: Path) -> Manifest:
    protocol = document["protocol"]
    return Manifest(
        name=str(document["name"]),
        title=str(document["title"]),
        licence=str(document["licence"]),
        homepage=_homepage(str(document["homepage"]), folder),
        protocol=Protocol(float(protocol["collar_each_side"]), bool(protocol["skip_overlap"])),
        use_uem=bool(protocol["uem"]),
        folder=folder,
        files=int(document.get("files", 0)),
        hours=float(document.get("hours", 0.0)),
        ids=tuple(map(str, document.get("ids", ()))),
        id_rule=str(document.get("id_rule", "")),
        channel=None if document.get("channel") is None else int(document["channel"]),
        channel_rule=str(document.get("channel_rule", "")),
        reference=str(document.get("reference", "")),
        downloads=tuple(_download(item) for item in document.get("downloads", ())),
        by_hand=str(document.get("by_hand", "")),
        recordings=tuple(
            LocalRecording(str(item["id"]), str(item["audio"]), str(item["rttm"]), item.get("uem"))
            for item in document.get("recordings", ())
        ),
        published=tuple(
            Published(str(item["system"]), float(item["der"]), str(item["source"]), str(item.get("note", "")))
            for item in document.get("published", ())
        ),
        aliases=tuple(map(str, document.get("aliases", ()))),
    )


def _homepage(text: str, folder: Path) -> str:
    """An address as it is; a path relative to the manifest as one that can be opened from anywhere."""
    beside = os.path.join(folder, text)
    return beside if os.path.isfile(beside) else text


def _download(item: Mapping[str, Any]) -> Download:
    members = tuple(Member(str(m["match"]), str(m["to"]), m.get("id")) for m in item.get("members", ()))
    size, about = (None if item.get(key) is None else int(item[key]) for key in ("size", "about_bytes"))
    return Download(str(item["url"]), item.get("to"), members, size, item.get("sha256"), about)


def _problems(manifest: Manifest) -> Iterator[str]:
    """What no manifest may say; anything that names a file is checked, since files are written by it."""
    ids = [*manifest.ids, *(recording.file_id for recording in manifest.recordings)]
    for name in (manifest.name, *manifest.aliases, *ids):
        if not valid_id(name):
            yield f"name {name[:120]!r} is not allowed; letters, digits and ._+- are, not starting with one of these"
    if len(set(ids)) < len(ids):
        yield "a file id is listed twice; keep one"
    if not (manifest.downloads or manifest.by_hand or manifest.recordings):
        yield "has neither downloads, by_hand nor recordings; say where the recordings come from"
    if manifest.channel is not None and manifest.channel < 1:
        yield f"channel is {manifest.channel}; channels count from 1"
    for download in manifest.downloads:
        yield from _download_problems(download, manifest)


def _download_problems(download: Download, manifest: Manifest) -> Iterator[str]:
    url = urlsplit(download.url)
    if url.scheme not in ("http", "https") or not url.netloc:
        yield f"address {download.url!r} is not allowed; it must start with http:// or https://"
    if (download.to is None) == (not download.members):
        yield f"{download.url}: give either members, for an archive, or to, for a file"
    if download.to is not None and not re.fullmatch(r"(audio|rttm|uem)/\{id\}\.[a-z0-9]+", download.to):
        yield f"to is {download.to!r}; allowed is a folder of {', '.join(FOLDERS)}, then /{{id}}. and a suffix"
    if download.to is not None and ("{id}" not in download.url or not manifest.ids):
        yield f"{download.url}: a file for each id needs {{id}} in its address, and ids in the manifest"
    for member in download.members:
        if member.to not in FOLDERS:
            yield f"members go to {member.to!r}; allowed are {', '.join(FOLDERS)}"
        if member.id_pattern is not None and re.compile(member.id_pattern).groups < 1:
            yield f"id is {member.id_pattern!r}; it must be a regular expression with a group"
    if download.sha256 is not None and not _SHA256.fullmatch(download.sha256):
        yield f"sha256 is {download.sha256!r}; it must be 64 hexadecimal digits"


def valid_id(name: str) -> bool:
    """Whether `name` may become the name of a file: never a path, hidden or empty."""
    return _NAME.fullmatch(name) is not None
