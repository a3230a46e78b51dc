"""Which models exist, where they lie and which one a name stands for; it never downloads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from ..user_folders import cache_home, expanded
from . import bundle, community, folder
from .weights import (
    BUNDLED_FILES,
    SEGMENTATION_FILE,
    ModelWeights,
    bundled_checksum,
    bundled_licence,
    load_campplus_model,
)

CAMPPLUS = "campplus"
COMMUNITY = "community-1"
AUTO = "auto"
NAMES = (CAMPPLUS, COMMUNITY)

_PULL = "run: diarize models pull community-1"
_FOLDER = "give a folder written by: diarize models pull community-1 --to DIR (with --from for a clone of the original)"


@dataclass(frozen=True)
class ModelState:
    """One line of `diarize models list`.

    `path` is where the model lies or would lie, `size` its bytes (0 when absent), `checksum` the sha256 that results
    made with it record ("" when absent), `licences` one sentence for each part.
    """

    name: str
    installed: bool
    path: Path
    size: int
    checksum: str
    licences: tuple[str, ...]


def cache_folder() -> Path:
    """Folder for downloaded models: DIARIZE_CACHE, else XDG_CACHE_HOME/diarize, else ~/.cache/diarize."""
    if own := os.environ.get("DIARIZE_CACHE"):
        return expanded(own)
    return cache_home() / "diarize"


def model_folder(name: str) -> Path:
    """Where the model `name` lies or would lie.

    Raises
    ------
    ModelError
        No model has this name.
    """
    if name == CAMPPLUS:
        return bundle.FOLDER
    if name == COMMUNITY:
        return cache_folder() / "models" / COMMUNITY
    raise ModelError(f"model {name!r} is unknown; known are {', '.join(NAMES)}")


def installed(name: str) -> bool:
    """Whether the model `name` can be used without a download; its checksum is not verified.

    Raises
    ------
    ModelError
        No model has this name.
    """
    files = BUNDLED_FILES if name == CAMPPLUS else (folder.DESCRIPTION_FILE,)
    return all((model_folder(name) / file).is_file() for file in files)


def resolve(name: str | Path) -> str | Path:
    """The model that `name` stands for: "campplus", "community-1" or a folder.

    "auto" is community-1 when it is installed, else campplus. A known name wins over a folder of that name; write
    `./campplus` for the folder.

    Raises
    ------
    ModelError
        Neither a known model nor a folder, or a known model that is not installed.
    """
    if name == AUTO:
        return COMMUNITY if installed(COMMUNITY) else CAMPPLUS
    if name in NAMES:
        if name == CAMPPLUS:
            _check_bundled()
        elif not installed(str(name)):
            raise ModelError(f"model {name} is not installed in {model_folder(str(name))}; {_PULL}")
        return name
    path = expanded(name)
    if path.is_dir():
        return path
    if path.exists():
        raise ModelError(f"model {str(name)!r} is a file; {_FOLDER} or one of auto, {', '.join(NAMES)}")
    raise ModelError(f"model {str(name)!r} is neither auto, {', '.join(NAMES)} nor a folder; see: diarize models list")


def load(name: str | Path) -> ModelWeights:
    """Every tensor of the model `name`: "auto", "campplus", "community-1" or a folder.

    Raises
    ------
    ModelError
        The model is unknown, not installed or damaged.
    """
    resolved = resolve(name)
    if resolved == CAMPPLUS:
        return load_campplus_model()
    if resolved == COMMUNITY:
        return folder.read_folder(model_folder(COMMUNITY), COMMUNITY, _PULL)
    path = Path(resolved)
    return folder.read_folder(path, path.resolve().name, _FOLDER)


def state(name: str) -> ModelState:
    """What is known of the model `name` without reading its weights.

    Raises
    ------
    ModelError
        No model has this name, its description is damaged, or a file of the package is missing.
    """
    path = model_folder(name)
    if name == CAMPPLUS:
        _check_bundled()
    if not installed(name):
        return ModelState(name, False, path, 0, "", ())
    if name == CAMPPLUS:
        manifest = bundle.read_manifest()
        entries = [manifest[file] for file in BUNDLED_FILES]
        return ModelState(name, True, path, sum(entry.size for entry in entries), bundled_checksum(), licences(name))
    description = folder.read_description(path, _PULL)
    files = [path / folder.WEIGHTS_FILE, path / folder.DESCRIPTION_FILE]
    size = sum(file.stat().st_size for file in files if file.is_file())
    return ModelState(name, True, path, size, description.checksum, description.licences)


def licences(name: str) -> tuple[str, ...]:
    """The licence of each part of the model `name`, one sentence each, also before it is installed.

    Raises
    ------
    ModelError
        No model has this name, or its description is damaged.
    """
    if name == CAMPPLUS:
        manifest = bundle.read_manifest()
        return tuple(f"{file}: {manifest[file].licence}" for file in BUNDLED_FILES)
    known = state(name).licences
    if known:
        return known
    own = f"{SEGMENTATION_FILE}: {bundled_licence(SEGMENTATION_FILE)[0]}"
    return (own, community.EMBEDDING_LICENCE, community.PLDA_LICENCE)


def licence_texts(name: str) -> Iterator[tuple[str, str]]:
    """File name and text of the licences in the package that concern the model `name`."""
    for path in sorted(bundle.FOLDER.glob("LICENSE-*.txt")):
        if name == CAMPPLUS or "segmentation" in path.name:
            yield path.name, path.read_text(encoding="utf-8")


def verify(name: str) -> None:
    """Read the files of the model `name` and check every checksum.

    Raises
    ------
    ModelError
        The model is not installed, or a file is missing or damaged.
    """
    if name == CAMPPLUS:
        for file in BUNDLED_FILES:
            bundle.verify_bundled(file)
        return
    resolve(name)
    folder.verify_folder(model_folder(name), _PULL)


def _check_bundled() -> None:
    """Raises `ModelError` where a file of the bundled model is missing: no pull can bring it back."""
    for file in BUNDLED_FILES:
        if not (bundle.FOLDER / file).is_file():
            raise ModelError(f"{bundle.FOLDER / file} is missing; {bundle.REMEDY}")
