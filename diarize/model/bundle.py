"""Weights that ship inside the package: reads them and proves them undamaged; it never writes or downloads.

`diarize/weights/manifest.tsv` lists file, sha256, size in bytes, licence and origin of each. `convert.py` makes the
files and the manifest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ModelError
from .tensorfile import parse_tensors

FOLDER = Path(__file__).resolve().parents[1] / "weights"

REMEDY = "install the package again: pip install --force-reinstall --no-deps diarize-cuda"
"""What to do where a file of the package is missing or damaged."""


@dataclass(frozen=True)
class BundledFile:
    """One line of the manifest: `sha256` is the hexadecimal digest of the file `name`, `size` its bytes."""

    name: str
    sha256: str
    size: int
    licence: str
    origin: str


def read_manifest(folder: Path = FOLDER) -> dict[str, BundledFile]:
    """The bundled files by name.

    Raises
    ------
    ModelError
        The manifest is missing or damaged.
    """
    path = folder / "manifest.tsv"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[1:]
        entries = [BundledFile(row[0], row[1], int(row[2]), row[3], row[4]) for row in (x.split("\t") for x in lines)]
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"{path} cannot be read ({error}); {REMEDY}") from error
    return {entry.name: entry for entry in entries}


def read_bundled(name: str, folder: Path = FOLDER) -> dict[str, np.ndarray]:
    """Tensors of the bundled file `name`, in the dtypes they are stored in.

    Raises
    ------
    ModelError
        The file is missing, or its sha256 is not the manifest's.
    """
    data = _verified_bytes(name, folder)
    return parse_tensors(data, str(folder / name), REMEDY)


def verify_bundled(name: str, folder: Path = FOLDER) -> BundledFile:
    """The manifest's line for the file `name`, once its bytes have been checked against it.

    Raises
    ------
    ModelError
        The file is missing, or its sha256 is not the manifest's.
    """
    _verified_bytes(name, folder)
    return read_manifest(folder)[name]


def _verified_bytes(name: str, folder: Path) -> bytes:
    entry = read_manifest(folder).get(name)
    path = folder / name
    if entry is None:
        raise ModelError(f"{folder / 'manifest.tsv'} does not list {name}; {REMEDY}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); {REMEDY}") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry.sha256:
        raise ModelError(f"{path} is damaged: sha256 {digest[:12]}..., expected {entry.sha256[:12]}...; {REMEDY}")
    return data
