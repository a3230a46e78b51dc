"""The key of this moment, as tune files name it: GPU, driver, build and weights; and the choices that go with it."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from .. import __version__
from ..hardware import Device
from ..recipe import Key, tune_path
from ..recipe_lookup import Lookup, look_up
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


def choices(
    device: Device,
    networks: Collection[str],
    models: Callable[[], Mapping[str, str]],
    tune_file: Path | None = None,
    forced: Mapping[str, str] | None = None,
) -> Lookup:
    """Which candidate computes each layer of `networks` on `device`, and why.

    `models` is called where there is a tune file, whose model is compared. `tune_file` names one that must fit;
    without it the user's own is looked for (`recipe.tune_path`). `forced` as in `recipe_lookup.look_up`.

    Raises
    ------
    RecipeError
        The file that was named does not fit.
    """
    own = tune_path(device)
    compared = models() if tune_file is not None or os.path.isfile(own) else {}
    return look_up(present_key(device, compared), networks, tune_file, own, forced=forced)
