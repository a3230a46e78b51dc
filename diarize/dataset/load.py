"""Recordings with their references: from a shipped set, a pulled one, a manifest, or any folder with audio and RTTM."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ..errors import DatasetError, FormatError, OptionError
from ..model.registry import cache_folder
from ..score.der import Protocol
from ..score.inputs import read_regions, read_turns
from ..types import Turn
from ..user_folders import expanded
from .lock import FILE as LOCK_FILE
from .manifest import Manifest, Published, find_manifest, read_manifest

_Item = TypeVar("_Item")
_SHOWN_NAMES = 5

AUDIO_SUFFIXES = frozenset({".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".mp4", ".webm", ".aac", ".mkv", ".aiff"})


@dataclass(frozen=True)
class Recording:
    """One recording: its file, reference turns, and scored regions, (start, end) in seconds, where a UEM has them."""

    file_id: str
    audio: Path
    reference: tuple[Turn, ...]
    regions: tuple[tuple[float, float], ...] | None = None


@dataclass(frozen=True)
class Dataset:
    """Recordings, sorted by file id, and how they are scored.

    `channel` counts from 1, None is the mean of all. `left_out`: sentences on what of a folder is no part of the set.
    """

    name: str
    recordings: tuple[Recording, ...]
    protocol: Protocol
    channel: int | None = None
    published: tuple[Published, ...] = ()
    left_out: tuple[str, ...] = ()

    def first(self, number: int | None) -> Dataset:
        """The set with its first `number` recordings."""
        return replace(self, recordings=self.recordings[:number])


def pull_folder(manifest: Manifest) -> Path:
    """Where a set is pulled to by default."""
    return cache_folder() / "datasets" / manifest.name


def load_dataset(name: str) -> Dataset:
    """The data set of a known name, a folder, or a manifest's path; a known name wins over a folder of that name.

    Raises
    ------
    OptionError
        It is none of these.
    DatasetError
        A set was not pulled yet, or a folder has no recording with a reference.
    FormatError
        A reference or UEM is damaged.
    """
    path = expanded(name)
    if path.suffix == ".json" and path.is_file():
        return _from_manifest(read_manifest(path))
    if path.is_dir() and ("/" in name or not _known(name)):
        return load_folder(path, _manifest_of(path))
    return _from_manifest(find_manifest(name))


def load_folder(folder: Path, manifest: Manifest | None = None) -> Dataset:
    """A folder with `audio/`, `rttm/` and perhaps `uem/`, or with everything side by side.

    Without a manifest nothing is forgiven around boundaries and overlap is scored. A recording without a reference is
    left out; so is a reference without a recording.

    Raises
    ------
    DatasetError
        No recording has a reference.
    FormatError
        A reference or UEM is damaged.
    """
    audio = _audio_files(folder / "audio" if (folder / "audio").is_dir() else folder)
    rttm = folder / "rttm" if (folder / "rttm").is_dir() else folder
    uem = folder / "uem" if (folder / "uem").is_dir() else folder
    references = _by_id(sorted(rttm.glob("*.rttm")), read_turns, audio)
    regions = _by_id(sorted(uem.glob("*.uem")), read_regions, audio)
    if manifest is not None and not manifest.use_uem:
        regions = {}
    recordings = tuple(
        Recording(name, audio[name], tuple(sorted(references[name])), _tuple(regions.get(name)))
        for name in sorted(set(audio) & set(references))
    )
    name = manifest.name if manifest else folder.resolve().name
    if not recordings:
        raise DatasetError(
            f"{folder} has no recording with a reference: {len(audio)} recordings, {len(references)} references; "
            "a recording ID.wav needs a reference ID.rttm, or one with this id in its lines"
        )
    without = [recording.file_id for recording in recordings if recording.regions is None]
    if (without and len(without) < len(recordings)) or (without and manifest and manifest.use_uem):
        raise DatasetError(f"{folder} has a UEM for some recordings, but not for {', '.join(without[:5])}; add it")
    left_out = (
        *_without("recording", "reference", sorted(set(audio) - set(references))),
        *_without("reference", "recording", sorted(set(references) - set(audio))),
    )
    if manifest is None:
        return Dataset(name, recordings, Protocol(), left_out=left_out)
    return Dataset(name, recordings, manifest.protocol, manifest.channel, manifest.published, left_out)


def _without(what: str, partner: str, names: Sequence[str]) -> tuple[str, ...]:
    """A sentence on the `names` of what was left out for want of a partner; none without any."""
    if not names:
        return ()
    shown = ", ".join(names[:_SHOWN_NAMES]) + (f" and {len(names) - _SHOWN_NAMES} more" * (len(names) > _SHOWN_NAMES))
    plural = "s" * (len(names) > 1)
    return (f"{len(names)} {what}{plural} without a {partner} left out: {shown}",)


def _manifest_of(folder: Path) -> Manifest | None:
    """The manifest of a set that was pulled into a folder of the user's choice."""
    try:
        return find_manifest(str(json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))["dataset"]))
    except (OSError, ValueError, KeyError, TypeError, OptionError):
        return None


def _from_manifest(manifest: Manifest) -> Dataset:
    if manifest.recordings:
        return _local(manifest)
    folder = pull_folder(manifest)
    if not (folder / LOCK_FILE).exists() and not (folder / "audio").is_dir():
        how = manifest.by_hand or f"run: diarize datasets pull {manifest.name}"
        raise DatasetError(f"the data set {manifest.name} is not in {folder}; {how}")
    return load_folder(folder, manifest)


def _local(manifest: Manifest) -> Dataset:
    recordings = []
    for item in manifest.recordings:
        audio = manifest.folder / item.audio
        if not audio.is_file():
            raise DatasetError(f"{manifest.name}: the recording {audio} is missing; mend the manifest")
        turns = _only(read_turns(manifest.folder / item.rttm), item.file_id, item.rttm)
        regions = None
        if item.uem is None and manifest.use_uem:
            raise DatasetError(
                f"{manifest.name}: its protocol scores within UEM files, but {item.file_id} has none; add it, or set "
                "uem to false"
            )
        if item.uem is not None and manifest.use_uem:
            regions = _tuple(_only(read_regions(manifest.folder / item.uem), item.file_id, item.uem))
        recordings.append(Recording(item.file_id, audio, tuple(sorted(turns)), regions))
    recordings.sort(key=lambda recording: recording.file_id)
    return Dataset(manifest.name, tuple(recordings), manifest.protocol, manifest.channel, manifest.published)


def _audio_files(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in AUDIO_SUFFIXES and path.is_file() and not path.name.startswith("."):
            if path.stem in found:
                raise DatasetError(f"{path} and {found[path.stem].name} have the same file id; keep one of them")
            found[path.stem] = path
    return found


def _by_id(
    files: Sequence[Path], read: Callable[[Path], dict[str, list[_Item]]], audio: Mapping[str, Path]
) -> dict[str, list[_Item]]:
    """Items by file id; a file with one id that no recording has goes by its own name."""
    found: dict[str, list[_Item]] = {}
    for file in files:
        content = read(file)
        if len(content) == 1 and next(iter(content)) not in audio and file.stem in audio:
            content = {file.stem: next(iter(content.values()))}
        for name, items in content.items():
            if name in found:
                raise FormatError(f"file id {name} is in another file of the folder as well; keep one", str(file))
            found[name] = items
    return found


def _only(content: Mapping[str, list[_Item]], name: str, path: str) -> list[_Item]:
    """The items of one id, or of the only one in the file."""
    if name in content:
        return content[name]
    if len(content) == 1:
        return next(iter(content.values()))
    raise FormatError(f"has no line for {name}; it has {', '.join(sorted(content)[:5])}", path)


def _known(name: str) -> bool:
    try:
        find_manifest(name)
    except OptionError:
        return False
    return True


def _tuple(regions: Sequence[tuple[float, float]] | None) -> tuple[tuple[float, float], ...] | None:
    return None if regions is None else tuple(regions)
