"""Both networks on a GPU: lanes that take turns, batches that do not fit or overflow, and a GPU that fails.

Three lanes keep the GPU busy: one classifies its stretch, or waits for its host, while the others embed.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from .activity import embedding_masks
from .analysis import Embedder, Segmenter, StretchResult
from .backend.cuda_driver import OutOfMemoryError
from .backend.cuda_networks import MAIN_EMBEDDING, MAIN_SEGMENTATION
from .cuda_embeddings import EmbeddingLane, SlotEmbedding, embed_frames, embed_grid, embed_slots
from .errors import BackendError
from .hardware import Device
from .model.campplus import DIMENSION as CAMPPLUS_DIMENSION
from .model.campplus import campplus_layers
from .model.fbank import log_mel_layer
from .model.resnet34 import DIMENSION, each_resnet34_layer
from .model.segmentation import segmentation_layers
from .model.weights import EmbeddingNetwork, ModelWeights
from .stretches import Stretch

if TYPE_CHECKING:
    from .backend.cuda_networks import ModelLayers
    from .candidates import Selection
    from .engine import Compiling, Engine
    from .recipe_lookup import Lookup

logger = logging.getLogger(__name__)

LANES = 3
RECORDINGS = 6
"""Recordings in work at once: while some are on the GPU, others are decoded or clustered."""
# Windows a stretch: enough for the recurrent layers, which run 8 windows a multiprocessor, and for five minutes in one
# piece. Windows a batch of ResNet34: no faster above 32 on an H200.
STRETCH_WINDOWS = MAIN_SEGMENTATION
FIRST_WINDOWS = 64
BATCH_WINDOWS = MAIN_EMBEDDING
# Part of the free memory that the lanes may take, and what they need for each window of their batches.
_MEMORY_SHARE = 0.6
_SEGMENTATION_BYTES, _TRUNK_BYTES = 9 << 20, 32 << 20


Made = TypeVar("Made")


class Lane(EmbeddingLane, Protocol):
    """One stream on the GPU; `diarize.backend.cuda_lane.CudaLane` is the real one."""

    def segment(self, samples: np.ndarray, num_windows: int, step_samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Classes of a stretch, and which windows must be computed again elsewhere."""

    def shrink(self) -> bool:
        """Halve the batches; false where that is not possible."""

    def abandon(self) -> None:
        """Never free memory: its context has ended."""

    @property
    def peak_bytes(self) -> int:
        """Most device memory held."""


@dataclass
class Session:
    """Everything that lives in one context of the driver; a GPU that failed gets a new one."""

    lanes: queue.LifoQueue[Lane]
    all_lanes: list[Lane]
    shared_bytes: Callable[[], int] = field(default=lambda: 0)
    abandon: Callable[[], None] = field(default=lambda: None)


class CudaEngine:
    """See `Engine`. `start` opens the GPU and gives its lanes; it is called again after the GPU has failed.

    `segmenter` and `repair` compute on the CPU what left the range of the GPU's kernels, `rescue` is the whole engine
    there. `embed` is how the model's embedding network uses a lane.
    """

    def __init__(
        self,
        device: Device,
        start: Callable[[], Session],
        segmenter: Callable[[], Segmenter],
        repair: Callable[[], Embedder],
        rescue: Callable[[], Engine],
        embed: SlotEmbedding,
        dimension: int,
        notes: tuple[str, ...] = (),
        choices: Lookup | None = None,
    ) -> None:
        self.device = device
        self.dimension = dimension
        self.notes = notes
        self.choices = choices
        self._start = start
        self._segmenter = segmenter
        self._repair = repair
        self._rescue = rescue
        self._embed = embed
        self._lost = False
        self._session: Session | None = start()
        self._failed: Session | None = None
        self._opening, self._state = threading.Lock(), threading.Lock()
        self._second_try = threading.Lock()
        self._peak = 0
        self.max_windows = STRETCH_WINDOWS
        self.first_windows = FIRST_WINDOWS
        self.workers = len(self._session.all_lanes)
        self.shares = 1
        self.recordings = RECORDINGS
        # The others decode and feed the GPU.
        self.spare_threads = max(1, len(os.sched_getaffinity(0)) // 4)

    def analyse(self, stretch: Stretch, step_samples: int) -> StretchResult:
        """Classes and embeddings of a stretch.

        One that the GPU fails on is tried once more, alone, after a restart, and then computed on the CPU. After some
        faults the driver serves this process no more: then the CPU computes all the rest.

        Raises
        ------
        OutOfMemoryError
            The GPU's memory is too small for one window.
        """
        for lock in (nullcontext(), self._second_try):
            if self._lost:
                break
            # Of the stretches that a failure hits all but one are innocent; alone, only that one fails again.
            with lock:
                try:
                    return self._attempt(stretch, step_samples)
                except OutOfMemoryError:
                    raise
                except BackendError as error:
                    logger.warning("%s failed: %s", self.device, error)
        return self._rescue().analyse(stretch, step_samples)

    def peak_device_bytes(self) -> int:
        """The most device memory that was held for weights and batches."""
        session = self._session
        if session is not None:
            held = session.shared_bytes() + sum(lane.peak_bytes for lane in session.all_lanes)
            self._peak = max(self._peak, held)
        return self._peak

    def _current(self) -> Session:
        """The session; after a failure a new one, once nobody uses the lanes of the old one any more."""
        with self._opening:
            with self._state:
                session, failed = self._session, self._failed
            if session is not None:
                return session
            assert failed is not None
            idle = [failed.lanes.get() for _ in failed.all_lanes]
            for lane in idle:
                lane.abandon()
            failed.abandon()
            try:
                session = self._start()
            except BackendError:
                if not self._lost:
                    logger.warning("%s cannot be started again: the CPU computes the rest, more slowly", self.device)
                self._lost = True
                raise
            finally:
                # Whoever waits for one of them sees that its session has ended.
                for lane in idle:
                    failed.lanes.put(lane)
            with self._state:
                self._session = session
            return session

    @contextmanager
    def _lane(self) -> Iterator[Lane]:
        """A lane for the caller alone; an error ends the session that the lane belongs to."""
        while True:
            session = self._current()
            lane = session.lanes.get()
            if self._session is session:
                break
            session.lanes.put(lane)
        try:
            yield lane
        except OutOfMemoryError:
            raise
        except BackendError:
            self.peak_device_bytes()
            with self._state:
                if self._session is session:
                    self._session, self._failed = None, session
            raise
        finally:
            session.lanes.put(lane)

    def _attempt(self, stretch: Stretch, step_samples: int) -> StretchResult:
        started = time.perf_counter()
        with self._lane() as lane:
            classes = self._classes(lane, stretch, step_samples)
            segmented = time.perf_counter()
            embeddings = self._embeddings(lane, stretch, step_samples, embedding_masks(classes))
        finished = time.perf_counter()
        return StretchResult(stretch.first_window, classes, embeddings, segmented - started, finished - segmented)

    def _classes(self, lane: Lane, stretch: Stretch, step_samples: int) -> np.ndarray:
        samples, count = stretch.samples, stretch.num_windows
        classes, flagged = self._fitting(lane, lambda: lane.segment(samples, count, step_samples))
        for window in np.flatnonzero(flagged):
            # The scores were not finite; the CPU computes in float32 throughout.
            classes[window] = self._segmenter().classes(samples[window * step_samples :], 1, step_samples)[0]
        return classes

    def _embeddings(self, lane: Lane, stretch: Stretch, step_samples: int, masks: np.ndarray) -> np.ndarray:
        def both() -> tuple[np.ndarray, np.ndarray]:
            # What the stretch had on the device has gone with the rest of the memory.
            lane.segment(stretch.samples, stretch.num_windows, step_samples)
            return self._embed(lane, masks, step_samples)

        try:
            embeddings, beyond = self._embed(lane, masks, step_samples)
        except OutOfMemoryError:
            self._smaller(lane)
            embeddings, beyond = self._fitting(lane, both)
        for window in np.flatnonzero(beyond):
            samples, own = stretch.samples[window * step_samples :], masks[window : window + 1]
            embeddings[window] = self._repair().embed(samples, 1, step_samples, own)[0]
        return embeddings

    def _fitting(self, lane: Lane, work: Callable[[], Made]) -> Made:
        """What `work` gives, with batches as small as they must be."""
        while True:
            try:
                return work()
            except OutOfMemoryError:
                self._smaller(lane)

    def _smaller(self, lane: Lane) -> None:
        if not lane.shrink():
            raise OutOfMemoryError(
                f"{self.device} has not enough free memory for one window; end other programs on it or use --device cpu"
            )
        logger.warning("%s is out of memory: going on with batches of half the size", self.device)


def open_cuda(
    gpu: Device,
    weights: ModelWeights,
    grid: bool,
    threads: int,
    notes: tuple[str, ...] = (),
    compiling: Compiling | None = None,
    tune_file: Path | None = None,
) -> CudaEngine:
    """The networks of a model on `gpu`; compiles the kernels that are not in the cache. `grid` as in `modes.Plan`.

    `tune_file` is one that must fit, instead of the user's own that may.

    Raises
    ------
    BackendError
        The GPU cannot be used.
    RecipeError
        The tune file that was named does not fit.
    """
    from .backend.cuda_build import build
    from .backend.cuda_driver import Gpu
    from .backend.cuda_key import choices
    from .backend.cuda_networks import STEM, ModelLayers, requests
    from .engine import cpu_embedder, open_engine
    from .model.checksums import network_checksums
    from .recipe_parse import ACTIVATIONS

    forced: dict[str, str] = {}
    segmentation = segmentation_layers(weights.segmentation)
    embed, dimension = embed_slots, DIMENSION
    if weights.network is EmbeddingNetwork.RESNET34:
        layers = ModelLayers(segmentation, log_mel_layer("hamming"), list(each_resnet34_layer(weights.embedding)))
        beyond = layers.beyond_half
        if STEM in beyond:
            forced[ACTIVATIONS] = "float"
        if beyond:
            what = "embeddings" if STEM in beyond else ", ".join(beyond)
            notes = (*notes, f"{what} not in float16: weights of {beyond[0]} exceed its range")
    else:
        layers = ModelLayers(segmentation, log_mel_layer("povey"), campplus=campplus_layers(weights.embedding))
        embed, dimension = embed_grid if grid else embed_frames, CAMPPLUS_DIMENSION
    networks = ("fbank", "pyannet", weights.network.value)
    found = choices(gpu, networks, lambda: network_checksums(weights), tune_file, forced)
    logger.info("%s: %s", gpu, found.summary())
    selection = found.selection
    driver = Gpu(gpu.index)
    build(requests(selection, layers, driver.capability), driver.capability, compiling=compiling)
    opened = 0

    def start() -> Session:
        nonlocal opened
        opened += 1
        return _session(gpu.index, layers, selection, restart=opened > 1)

    @cache
    def segmenter() -> Segmenter:
        from .backend.cpu import CpuBackend
        from .model.segmentation import SegmentationNetwork

        logger.warning("%s: scores that are not finite are computed again on the CPU", gpu)
        return SegmentationNetwork(weights.segmentation, CpuBackend())

    @cache
    def repair() -> Embedder:
        logger.warning("%s: embeddings beyond the range of its kernels are computed again on the CPU", gpu)
        return cpu_embedder(weights, grid)

    @cache
    def rescue() -> Engine:
        return open_engine("cpu", weights, grid, threads)

    return CudaEngine(gpu, start, segmenter, repair, rescue, embed, dimension, notes, found)


def _session(index: int, layers: ModelLayers, selection: Selection, restart: bool) -> Session:
    from .backend.cuda_driver import Gpu
    from .backend.cuda_lane import CudaLane, Limits
    from .backend.cuda_memory import reset
    from .backend.cuda_networks import CudaNetworks

    if restart:
        reset(index)
    networks = CudaNetworks(Gpu(index), layers, selection)
    budget = int(networks.gpu.free_bytes() * _MEMORY_SHARE) // LANES
    limits = Limits(
        max(1, min(STRETCH_WINDOWS, budget // _SEGMENTATION_BYTES)),
        max(1, min(BATCH_WINDOWS, budget // _TRUNK_BYTES)),
    )
    lanes: list[Lane] = [CudaLane(networks, limits) for _ in range(LANES)]
    waiting: queue.LifoQueue[Lane] = queue.LifoQueue()
    for lane in lanes:
        waiting.put(lane)
    return Session(waiting, lanes, lambda: networks.pool.peak_bytes, networks.abandon)
