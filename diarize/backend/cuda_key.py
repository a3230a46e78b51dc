"""The key of this moment: the GPU, its driver, this build and the weights in use, as tune files name them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

from .. import __version__
from ..hardware import Device
from ..recipe import Key
from .cuda_compile import source_digest


def present_key(device: Device, models: Mapping[str, str]) -> Key:
    """The key of `device` now; `models` as from `diarize.model.checksums.network_checksums`."""
    try:
        numba_cuda = importlib.metadata.version("numba-cuda")
    except importlib.metadata.PackageNotFoundError:
        numba_cuda = "none"
    return Key(
        device=device.name,
        capability=device.compute_capability or (0, 0),
        multiprocessors=device.multiprocessors,
        driver=device.driver,
        cuda=device.runtime,
        numba_cuda=numba_cuda,
        diarize=__version__,
        kernels=source_digest(),
        models=dict(models),
    )
