"""What analyses stretches: both networks of a model on one device, and how the pipeline should feed them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .analysis import Embedder, Segmenter, StretchResult, analyse
from .backend.select import Choice, check_tune_file, choose_device
from .errors import BackendError
from .hardware import Device
from .model.weights import EmbeddingNetwork, ModelWeights
from .stretches import Stretch

if TYPE_CHECKING:
    from .recipe_lookup import Lookup

Compiling = Callable[[int, int], None]
"""Called from the calling thread with the number of GPU kernels that are compiled and of those wanted in all."""

# Windows a stretch: two groups of the segmentation network, whose recurrent layers fill their register tiles with 12.
CPU_WINDOWS = 24


class Engine(Protocol):
    """Networks bound to a device.

    `dimension` of the embeddings; `max_windows` of a stretch, `first_windows` of the first one of a long recording, 0
    for as many; `workers` threads that should call `analyse` at once; `shares` parts into which the end of a recording
    is cut; `recordings` to work on at once; `spare_threads` that may cluster meanwhile; `notes` on what was chosen
    automatically. `choices`: what computes each layer on a GPU and why, None on the CPU.
    """

    device: Device
    dimension: int
    max_windows: int
    first_windows: int
    workers: int
    shares: int
    recordings: int
    spare_threads: int
    notes: tuple[str, ...]
    choices: Lookup | None

    def analyse(self, stretch: Stretch, step_samples: int) -> StretchResult:
        """Classes and embeddings of a stretch; may be called from several threads.

        Raises
        ------
        BackendError
            The device failed.
        """

    def peak_device_bytes(self) -> int:
        """The most memory of a GPU that was held, 0 on the CPU."""


class CpuEngine:
    """Both networks on the CPU; see `Engine`."""

    def __init__(
        self, segmenter: Segmenter, embedder: Embedder, device: Device, threads: int, notes: tuple[str, ...] = ()
    ) -> None:
        self._segmenter = segmenter
        self._embedder = embedder
        self.device = device
        self.dimension = embedder.dimension
        self.max_windows = CPU_WINDOWS
        self.first_windows = 0
        self.workers = self.shares = threads
        self.recordings = self.spare_threads = 1
        self.notes = notes
        self.choices: Lookup | None = None

    def analyse(self, stretch: Stretch, step_samples: int) -> StretchResult:
        """Classes and embeddings of a stretch."""
        return analyse(stretch, step_samples, self._segmenter, self._embedder)

    def peak_device_bytes(self) -> int:
        """0: the CPU has no memory of its own."""
        return 0


def open_engine(
    name: str,
    weights: ModelWeights,
    grid: bool = False,
    threads: int | None = None,
    compiling: Compiling | None = None,
    tune_file: Path | None = None,
) -> Engine:
    """The networks of a model on the device that `name` asks for; `grid` as in `modes.Plan`.

    `tune_file` is one that must fit the GPU.

    Raises
    ------
    OptionError
        The name is not one that is allowed, or a tune file is named for the CPU.
    BackendError
        The device asked for cannot be used.
    RecipeError
        The tune file does not fit.
    """
    count = threads or len(os.sched_getaffinity(0))
    choice = choose_device(name)
    if choice.gpu is not None:
        from .engine_cuda import open_cuda

        try:
            return open_cuda(choice.gpu, weights, grid, count, choice.notes, compiling, tune_file)
        except BackendError as error:
            if name != "auto" or tune_file is not None:
                raise
            # Seen only now: no memory left, a driver that fails, or weights that its kernels cannot hold.
            choice = Choice(None, (f"device cpu (automatic: {choice.gpu} cannot be used: {error})",))
    check_tune_file(tune_file, choice)
    from .backend.cpu import CpuBackend
    from .model.segmentation import SegmentationNetwork

    backend = CpuBackend()
    segmenter = SegmentationNetwork(weights.segmentation, backend)
    return CpuEngine(segmenter, cpu_embedder(weights, grid), backend.device, count, choice.notes)


def cpu_embedder(weights: ModelWeights, grid: bool = False) -> Embedder:
    """The embedding network of a model on the CPU; `grid` as in `modes.Plan`."""
    from .backend.cpu import CpuBackend

    if weights.network is EmbeddingNetwork.CAMPPLUS:
        from .model.campplus import CampPlusEmbedder
        from .model.campplus_grid import CampPlusGridEmbedder

        return (CampPlusGridEmbedder if grid else CampPlusEmbedder)(weights.embedding, CpuBackend())
    from .model.resnet34 import ResNet34Embedder

    return ResNet34Embedder(weights.embedding, CpuBackend())
