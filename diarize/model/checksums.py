"""Checksums of a model's weights network by network, as tune files name them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from .weights import ModelWeights


def weights_checksum(tensors: Mapping[str, np.ndarray]) -> str:
    """sha256 over the name, type, shape and bytes of every tensor; the order given does not matter."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}\n".encode())
        digest.update(tensor.data)
    return digest.hexdigest()


def network_checksums(weights: ModelWeights) -> dict[str, str]:
    """Checksum of each network of a model: "pyannet", and "resnet34" or "campplus"."""
    return {
        "pyannet": weights_checksum(weights.segmentation),
        weights.network.value: weights_checksum(weights.embedding),
    }
