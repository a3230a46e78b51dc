"""Tensor files in the safetensors format: parses bytes, writes whole files or nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..errors import ModelError


def parse_tensors(data: bytes, source: str, remedy: str) -> dict[str, np.ndarray]:
    """Tensors by name from the bytes of a safetensors file; read-only views into `data` where possible.

    `source` names the file and `remedy` says what the user can do: both end up in the message.

    Raises
    ------
    ModelError
        The bytes are no safetensors file, or hold a type that numpy lacks.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(data)
    # KeyError: a type without a numpy counterpart, such as bfloat16.
    except (SafetensorError, KeyError, ValueError) as error:
        raise ModelError(f"{source} is not a usable safetensors file ({error}); {remedy}") from error


def tensor_bytes(tensors: Mapping[str, np.ndarray], note: str) -> bytes:
    """Bytes of a safetensors file; equal tensors and notes give equal bytes.

    `note` is stored under the metadata key "source". One key only: the order of several is not fixed.
    """
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, metadata={"source": note})


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that the file is either whole or untouched, also when two processes write it.

    Raises
    ------
    ModelError
        The folder cannot be written to, or the disk is full.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only the owner can read; a cache may be shared within a group.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        message = f"{path} cannot be written ({error.strerror or error})"
        raise ModelError(f"{message}; free some space or set DIARIZE_CACHE to a writable folder") from error
