"""Model folders: one folder, two files, everything that a pipeline needs.

- `weights.safetensors`: tensors named `embedding.NAME` and `plda.NAME`, and `segmentation.NAME` where the folder brings
  its own segmentation network (else the bundled one is used). NAME is as in `shapes.py`: the ResNet34's without the
  `resnet.` prefix, batch norms not folded. Embedding and segmentation float32 (float16 is accepted), PLDA float64.
- `model.json`: `{"schema": 1, "network": "resnet34" or "campplus", "segmentation": "own" or "bundled", "sha256": DIGEST
  of weights.safetensors, "sources": [{"part", "origin", "sha256"}...], "licences": [SENTENCE...]}`.

A folder is written file by file, each whole or not at all, `model.json` last: a folder with a fitting `model.json` is
complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ModelError
from .shapes import (
    Shapes,
    campplus_plda_shapes,
    campplus_shapes,
    community_plda_shapes,
    resnet34_shapes,
    segmentation_shapes,
    select,
)
from .tensorfile import parse_tensors, tensor_bytes, write_atomically
from .weights import (
    SEGMENTATION_FILE,
    EmbeddingNetwork,
    ModelWeights,
    bundled_licence,
    combined_checksum,
    load_segmentation,
)

SCHEMA = 1
DESCRIPTION_FILE = "model.json"
WEIGHTS_FILE = "weights.safetensors"


@dataclass(frozen=True)
class Description:
    """What `model.json` says.

    `own_segmentation`: the folder brings its own segmentation network. `sha256` is that of the weights file; `sources`
    has one mapping per part, `licences` one sentence per part.
    """

    network: EmbeddingNetwork
    own_segmentation: bool
    sha256: str
    sources: tuple[Mapping[str, str], ...]
    licences: tuple[str, ...]

    @property
    def checksum(self) -> str:
        """Sha256 over everything that a result depends on, the bundled segmentation included where it is used."""
        parts = {WEIGHTS_FILE: self.sha256}
        if not self.own_segmentation:
            parts[SEGMENTATION_FILE] = bundled_licence(SEGMENTATION_FILE)[1]
        return combined_checksum(parts)


def embedding_shapes(network: EmbeddingNetwork) -> tuple[Shapes, Shapes]:
    """Expected shapes of the embedding network and of its PLDA."""
    if network is EmbeddingNetwork.RESNET34:
        return resnet34_shapes(), community_plda_shapes()
    return campplus_shapes(), campplus_plda_shapes()


def write_folder(
    folder: Path,
    network: EmbeddingNetwork,
    embedding: Mapping[str, np.ndarray],
    plda: Mapping[str, np.ndarray],
    segmentation: Mapping[str, np.ndarray] | None,
    sources: Sequence[Mapping[str, str]],
    licences: Sequence[str],
) -> str:
    """Write a model folder and give the sha256 of its weights; tensors are checked against the expected shapes.

    Raises
    ------
    ModelError
        A tensor is missing or of another shape, or the folder cannot be written.
    """
    remedy = "nothing was written"
    network_shapes, plda_shapes = embedding_shapes(network)
    parts = {
        "embedding": select(embedding, network_shapes, "embedding network", remedy),
        "plda": select(plda, plda_shapes, "PLDA", remedy),
    }
    if segmentation is not None:
        parts["segmentation"] = select(segmentation, segmentation_shapes(), "segmentation network", remedy)
    tensors = {
        f"{part}.{name}": tensor.astype(np.float64 if part == "plda" else np.float32)
        for part, members in parts.items()
        for name, tensor in members.items()
    }
    data = tensor_bytes(tensors, f"diarize model folder, {network.value}")
    digest = hashlib.sha256(data).hexdigest()
    description = {
        "schema": SCHEMA,
        "network": network.value,
        "segmentation": "bundled" if segmentation is None else "own",
        "sha256": digest,
        "sources": [dict(source) for source in sources],
        "licences": list(licences),
    }
    write_atomically(folder / WEIGHTS_FILE, data)
    write_atomically(folder / DESCRIPTION_FILE, (json.dumps(description, indent=2) + "\n").encode())
    return digest


def read_description(folder: Path, remedy: str) -> Description:
    """What `folder/model.json` says; `remedy` ends the message of an error.

    Raises
    ------
    ModelError
        The file is missing, damaged or of another schema.
    """
    path = folder / DESCRIPTION_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ModelError(f"{path} has schema {content['schema']!r}, this version reads {SCHEMA}; {remedy}")
        return Description(
            network=EmbeddingNetwork(content["network"]),
            own_segmentation=content["segmentation"] == "own",
            sha256=str(content["sha256"]),
            sources=tuple({str(k): str(v) for k, v in source.items()} for source in content.get("sources", ())),
            licences=tuple(str(sentence) for sentence in content.get("licences", ())),
        )
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); {remedy}") from error
    # A file that is JSON but not ours fails in one of these ways.
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is damaged ({type(error).__name__}: {error}); {remedy}") from error


def read_folder(folder: Path, name: str, remedy: str) -> ModelWeights:
    """The model in `folder`, its weights checked against the sha256 in `model.json`.

    Raises
    ------
    ModelError
        A file is missing or damaged; the message names it and ends with `remedy`.
    """
    description = read_description(folder, remedy)
    path = folder / WEIGHTS_FILE
    tensors = parse_tensors(_checked_bytes(path, description.sha256, remedy), str(path), remedy)
    parts: dict[str, dict[str, np.ndarray]] = {"embedding": {}, "plda": {}, "segmentation": {}}
    for key, tensor in tensors.items():
        part, _, rest = key.partition(".")
        parts.setdefault(part, {})[rest] = tensor
    network_shapes, plda_shapes = embedding_shapes(description.network)
    embedding = _as(np.float32, select(parts["embedding"], network_shapes, f"{path}: embedding", remedy))
    plda = _as(np.float64, select(parts["plda"], plda_shapes, f"{path}: plda", remedy))
    if description.own_segmentation:
        chosen = select(parts["segmentation"], segmentation_shapes(), f"{path}: segmentation", remedy)
        segmentation, licences = _as(np.float32, chosen), description.licences
    else:
        segmentation = load_segmentation()
        licences = (f"{SEGMENTATION_FILE}: {bundled_licence(SEGMENTATION_FILE)[0]}", *description.licences)
    return ModelWeights(
        name=name,
        network=description.network,
        checksum=description.checksum,
        licences=licences,
        segmentation=segmentation,
        embedding=embedding,
        plda=plda,
    )


def verify_folder(folder: Path, remedy: str) -> Description:
    """What `model.json` says, once the weights have been checked against it.

    Raises
    ------
    ModelError
        A file is missing or damaged.
    """
    description = read_description(folder, remedy)
    _checked_bytes(folder / WEIGHTS_FILE, description.sha256, remedy)
    return description


def _checked_bytes(path: Path, sha256: str, remedy: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); {remedy}") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise ModelError(f"{path} is damaged: sha256 {digest[:12]}..., expected {sha256[:12]}...; {remedy}")
    return data


def _as(dtype: type[np.floating], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(tensor, dtype) for name, tensor in tensors.items()}
