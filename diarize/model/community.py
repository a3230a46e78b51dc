"""From pyannote's original files to a model folder: names, the sinc bank, checks.

The speaker network is a ResNet34 of WeSpeaker, the PLDA comes with pyannote/speaker-diarization-community-1. Nothing
here downloads; see `hub.py`.

References
----------
M. Ravanelli and Y. Bengio, "Speaker recognition from raw waveform with SincNet", 2018: the sinc filters.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ModelError
from .checkpoint import read_tensors
from .convert import read_npz
from .folder import write_folder
from .shapes import community_plda_shapes, resnet34_shapes, segmentation_shapes, select
from .weights import EmbeddingNetwork

_log = logging.getLogger(__name__)

# Digests of the published files; they do not depend on who downloads them.
EMBEDDING_SHA256 = "366edf44f4c80889a3eb7a9d7bdf02c4aede3127f7dd15e274dcdb826b143c56"
PLDA_SHA256 = {
    "xvec_transform.npz": "325f1ce8e48f7e55e9c8aa47e05d2766b7c48c4b25b8de8dd751e7a4cc5fbe8f",
    "plda.npz": "9b77bcd840692710dd3496f62ecfeed8d8e5f002fd991b785079b244eab7d255",
}

EMBEDDING_LICENCE = "embedding: CC BY 4.0, WeSpeaker voxceleb ResNet34-LM, distributed by pyannote"
PLDA_LICENCE = "plda: CC BY 4.0, pyannote/speaker-diarization-community-1, trained by BUT Speech@FIT"
SEGMENTATION_LICENCE = "segmentation: CC BY 4.0, pyannote/speaker-diarization-community-1"

_SUFFIXES = (".safetensors", ".bin", ".pt", ".ckpt")
_STEMS = ("pytorch_model", "model", "avg_model")

# Original name to ours; the LSTM keeps its names.
_SEGMENTATION_NAMES = {
    "sincnet.wav_norm1d": "wav_norm",
    "sincnet.norm1d.0": "norm0",
    "sincnet.norm1d.1": "norm1",
    "sincnet.norm1d.2": "norm2",
    "sincnet.conv1d.1": "conv1",
    "sincnet.conv1d.2": "conv2",
    "linear.0": "lin0",
    "linear.1": "lin1",
    "classifier": "cls",
}


@dataclass(frozen=True)
class SourceFile:
    """One original file: the `part` it is for ("embedding", "segmentation", "plda"), where it lies and its `origin`."""

    part: str
    path: Path
    origin: str


def sinc_bank(low_hz: np.ndarray, band_hz: np.ndarray) -> np.ndarray:
    """Sinc filters (80, 1, 251) float32 from learnt cut-offs: 40 even ones, then 40 odd ones.

    `low_hz` and `band_hz` (40, 1) are in hertz before the lower limits of 50 Hz each are added.
    """
    low = 50.0 + np.abs(low_hz.astype(np.float64).reshape(40, 1))
    high = np.clip(low + 50.0 + np.abs(band_hz.astype(np.float64).reshape(40, 1)), 50.0, 8000.0)
    t = 2 * np.pi * np.arange(-125, 0)[None, :] / 16000
    window = np.hamming(251)[:125]
    even = (np.sin(high * t) - np.sin(low * t)) / (t / 2) * window
    odd = (np.cos(low * t) - np.cos(high * t)) / (t / 2) * window
    width = 2 * (high - low)
    even_bank = np.concatenate([even, width, even[:, ::-1]], axis=1) / width
    odd_bank = np.concatenate([odd, np.zeros_like(width), -odd[:, ::-1]], axis=1) / width
    return np.concatenate([even_bank, odd_bank])[:, None, :].astype(np.float32)


def rename_segmentation(tensors: Mapping[str, np.ndarray], source: str, remedy: str) -> dict[str, np.ndarray]:
    """Tensors of the segmentation network under our names, from a checkpoint under the original or our names.

    Raises
    ------
    ModelError
        A tensor is missing, of another shape or not finite.
    """
    renamed = dict(tensors)
    for original, ours in _SEGMENTATION_NAMES.items():
        for part in ("weight", "bias"):
            if f"{original}.{part}" in tensors:
                renamed[f"{ours}.{part}"] = tensors[f"{original}.{part}"]
    cut_offs = {f"sincnet.conv1d.0.filterbank.{name}": (40, 1) for name in ("low_hz_", "band_hz_")}
    if "conv0.weight" not in tensors:
        low_hz, band_hz = select(tensors, dict(cut_offs), source, remedy).values()
        renamed["conv0.weight"] = sinc_bank(low_hz, band_hz)
    chosen = select(renamed, segmentation_shapes(), source, remedy)
    _check_values(chosen, source, remedy)
    return chosen


def rename_resnet34(tensors: Mapping[str, np.ndarray], source: str, remedy: str) -> dict[str, np.ndarray]:
    """Tensors of the ResNet34 under our names, from pyannote's checkpoint (`resnet.` before each) or WeSpeaker's.

    What is not part of the network, such as WeSpeaker's projection head, is left out.

    Raises
    ------
    ModelError
        A tensor is missing, of another shape or not finite, or a running variance is negative.
    """
    renamed = {name.removeprefix("resnet."): tensor for name, tensor in tensors.items()}
    chosen = select(renamed, resnet34_shapes(), source, remedy)
    _check_values(chosen, source, remedy)
    return chosen


def find_files(folder: Path) -> list[SourceFile]:
    """The original files in a folder laid out as pyannote/speaker-diarization-community-1.

    `embedding/pytorch_model.bin`, `plda/xvec_transform.npz`, `plda/plda.npz` and, where it is there,
    `segmentation/pytorch_model.bin`. Other usual names and `.safetensors`, `.pt` and `.ckpt` are accepted, and the
    embedding network in the folder itself.

    Raises
    ------
    ModelError
        A file that is needed is not there; the message says where it was looked for.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder; give one with embedding/pytorch_model.bin and plda/*.npz")
    embedding = _first_network(folder / "embedding") or _first_network(folder)
    if embedding is None:
        raise ModelError(
            f"{folder} holds no embedding network; put it at {folder / 'embedding' / 'pytorch_model.bin'} "
            f"(or {', '.join(_SUFFIXES)} under the names {', '.join(_STEMS)})"
        )
    files = [SourceFile("embedding", embedding, str(embedding))]
    for name in PLDA_SHA256:
        path = next((place for place in (folder / "plda" / name, folder / name) if place.is_file()), None)
        if path is None:
            raise ModelError(
                f"{folder / 'plda' / name} is missing; take it from pyannote/speaker-diarization-community-1"
            )
        files.append(SourceFile("plda", path, str(path)))
    if segmentation := _first_network(folder / "segmentation"):
        files.append(SourceFile("segmentation", segmentation, str(segmentation)))
    return files


def install(files: Sequence[SourceFile], target: Path, remedy: str) -> str:
    """Convert the original files to a model folder at `target` and give the sha256 of its weights.

    Everything is read and checked before anything is written.

    Raises
    ------
    ModelError
        A file is missing, damaged, refused or not the published one, or the folder cannot be written.
    """
    sources: list[dict[str, str]] = []
    plda: dict[str, np.ndarray] = {}
    networks: dict[str, dict[str, np.ndarray]] = {}
    for file in files:
        if file.part == "plda":
            arrays, digest = _read_plda(file.path, remedy)
            plda |= arrays
        else:
            tensors, data = read_tensors(file.path, remedy)
            rename = rename_resnet34 if file.part == "embedding" else rename_segmentation
            networks[file.part] = rename(tensors, str(file.path), remedy)
            digest = hashlib.sha256(data).hexdigest()
            if file.part == "embedding" and digest != EMBEDDING_SHA256:
                _log.warning(
                    "%s is not the published embedding network (sha256 %s..., expected %s...); it is used as it is",
                    file.path.name,
                    digest[:12],
                    EMBEDDING_SHA256[:12],
                )
        sources.append({"part": file.part, "origin": file.origin, "sha256": digest})
    plda = select(plda, community_plda_shapes(), "PLDA", remedy)
    licences = [EMBEDDING_LICENCE, PLDA_LICENCE]
    if "segmentation" in networks:
        licences.append(SEGMENTATION_LICENCE)
    return write_folder(
        target, EmbeddingNetwork.RESNET34, networks["embedding"], plda, networks.get("segmentation"), sources, licences
    )


def _first_network(folder: Path) -> Path | None:
    candidates = (folder / f"{stem}{suffix}" for suffix in _SUFFIXES for stem in _STEMS)
    return next((path for path in candidates if path.is_file()), None)


def _read_plda(path: Path, remedy: str) -> tuple[dict[str, np.ndarray], str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); {remedy}") from error
    digest, expected = hashlib.sha256(data).hexdigest(), PLDA_SHA256[path.name]
    if digest != expected:
        raise ModelError(f"{path} has sha256 {digest[:12]}..., expected {expected[:12]}...; {remedy}")
    return read_npz(data, str(path), remedy), digest


def _check_values(tensors: Mapping[str, np.ndarray], source: str, remedy: str) -> None:
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise ModelError(f"{source}: tensor {name} holds NaN or infinite values; {remedy}")
        if name.endswith("running_var") and (tensor < 0).any():
            raise ModelError(f"{source}: tensor {name} holds a negative variance {tensor.min()}; {remedy}")
