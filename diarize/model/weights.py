"""What a network is built from: `load_model` gives every tensor of a model, checked, as numpy arrays.

Three kinds of name are understood: "campplus" (inside the package), "community-1" (in the cache, put there by
`diarize models pull`) and a folder. See `folder.py` for what a folder holds.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np

from . import bundle
from .shapes import campplus_plda_shapes, campplus_shapes, segmentation_shapes, select

_log = logging.getLogger(__name__)

SEGMENTATION_FILE = "segmentation-3.0.safetensors"
CAMPPLUS_FILE = "campplus.safetensors"
CAMPPLUS_PLDA_FILE = "campplus-plda.safetensors"
BUNDLED_FILES = (SEGMENTATION_FILE, CAMPPLUS_FILE, CAMPPLUS_PLDA_FILE)

_REMEDY = "install the package again: pip install --force-reinstall --no-deps diarize-cuda"


class EmbeddingNetwork(Enum):
    """Which network turns speech into embeddings; it also decides the clustering that goes with it."""

    CAMPPLUS = "campplus"
    RESNET34 = "resnet34"


@dataclass(frozen=True)
class ModelWeights:
    """Every tensor of one model.

    `name` is "campplus", "community-1" or a folder's name. `segmentation` and `embedding` are float32 by tensor name,
    the ResNet34's without the `resnet.` prefix; batch norms are not folded. `plda` is float64: m1, lda, m2, tr, phi
    for CAM++; mean1, mean2, lda, mu, tr, psi for the ResNet34. `checksum` is a sha256 over the files, `licences` one
    sentence for each part.
    """

    name: str
    network: EmbeddingNetwork
    checksum: str
    licences: tuple[str, ...]
    segmentation: Mapping[str, np.ndarray] = field(repr=False, compare=False)
    embedding: Mapping[str, np.ndarray] = field(repr=False, compare=False)
    plda: Mapping[str, np.ndarray] = field(repr=False, compare=False)


def load_segmentation() -> dict[str, np.ndarray]:
    """Tensors of the bundled segmentation network, float32 by name (see `segmentation_shapes`).

    Raises
    ------
    ModelError
        The bundled file is missing or damaged.
    """
    return _bundled(SEGMENTATION_FILE, segmentation_shapes(), np.float32)


def load_campplus() -> dict[str, np.ndarray]:
    """Tensors of the bundled CAM++ network, float32 by original name, batch norms not folded.

    Raises
    ------
    ModelError
        The bundled file is missing or damaged.
    """
    return _bundled(CAMPPLUS_FILE, campplus_shapes(), np.float32)


def load_campplus_plda() -> dict[str, np.ndarray]:
    """Bundled PLDA for CAM++ embeddings: m1 (192), lda (192, 128), m2 (128), tr (128, 128), phi (128), float64.

    Raises
    ------
    ModelError
        The bundled file is missing or damaged.
    """
    return _bundled(CAMPPLUS_PLDA_FILE, campplus_plda_shapes(), np.float64)


def combined_checksum(parts: Mapping[str, str]) -> str:
    """One sha256 for several files, from the sha256 of each by name; the order given does not matter."""
    listing = "".join(f"{name} {parts[name]}\n" for name in sorted(parts))
    return hashlib.sha256(listing.encode()).hexdigest()


def bundled_checksum() -> str:
    """Checksum of the model "campplus" as the manifest states it.

    Raises
    ------
    ModelError
        The manifest is missing or damaged.
    """
    manifest = bundle.read_manifest()
    return combined_checksum({name: manifest[name].sha256 for name in BUNDLED_FILES})


def bundled_licence(name: str) -> tuple[str, str]:
    """Licence and sha256 of the bundled file `name`, as the manifest states them.

    Raises
    ------
    ModelError
        The manifest is missing or damaged.
    """
    entry = bundle.read_manifest()[name]
    return entry.licence, entry.sha256


def load_campplus_model() -> ModelWeights:
    """The model "campplus": bundled segmentation, CAM++ and PLDA.

    Raises
    ------
    ModelError
        A bundled file is missing or damaged.
    """
    return ModelWeights(
        name="campplus",
        network=EmbeddingNetwork.CAMPPLUS,
        checksum=bundled_checksum(),
        licences=tuple(f"{name}: {bundled_licence(name)[0]}" for name in BUNDLED_FILES),
        segmentation=load_segmentation(),
        embedding=load_campplus(),
        plda=load_campplus_plda(),
    )


def load_model(name: str | Path) -> ModelWeights:
    """Every tensor of the model `name`: "auto", "campplus", "community-1" or a folder.

    Raises
    ------
    ModelError
        The model is unknown, not installed or damaged; the message names the file and the command that mends it.
    """
    from . import registry

    model = registry.load(name)
    _log.info("model %s, checksum %s", model.name, model.checksum)
    return model


def _bundled(name: str, shapes: dict[str, tuple[int, ...]], dtype: type[np.floating]) -> dict[str, np.ndarray]:
    tensors = select(bundle.read_bundled(name), shapes, str(bundle.FOLDER / name), _REMEDY)
    return {key: np.ascontiguousarray(tensor, dtype) for key, tensor in tensors.items()}
