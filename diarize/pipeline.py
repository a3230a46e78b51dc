"""From a recording to turns: decode, analyse stretches on worker threads, cluster, stitch.

The pipeline owns no algorithm of its own; it says what runs in which order, keeps memory bounded, and reports progress.
It never prints and never touches the command line.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np

from . import audio
from .activity import speaker_count
from .analysis import Embedder, Segmenter, StretchResult, analyse
from .backend.base import Backend
from .backend.select import open_backend
from .clustering import Clusterer
from .errors import OptionError
from .framing import FRAMES_PER_WINDOW, LOCAL_SPEAKERS, SAMPLE_RATE, Framing
from .hardware import Device
from .model.weights import EmbeddingNetwork, ModelWeights, load_model
from .stitch import LabelOrder, stitch
from .stretches import Stretch, Stretcher
from .types import Diarization, SpeakerBounds

Progress = Callable[[str, float, float | None], None]
"""Called from the calling thread with the stage, the seconds of audio done and the total where known."""

# Windows a stretch: two groups of the segmentation network, whose recurrent layers fill their register tiles with 12,
MAX_WINDOWS = 24


class Mode(Enum):
    """How densely windows are laid: the value is the step in samples."""

    EXACT = 16_000
    FAST = 32_000


class Cancelled(Exception):
    """The caller's `cancelled` function returned true; nothing was produced."""


@dataclass(frozen=True)
class _Analysis:
    classes: np.ndarray
    embeddings: np.ndarray
    num_samples: int
    segmentation_seconds: float
    embedding_seconds: float


class Pipeline:
    """A model on a device, ready to diarize recordings one after another.

    One recording at a time may use a pipeline; its worker threads are started and ended within `diarize`.
    """

    def __init__(
        self,
        model: ModelWeights,
        segmenter: Segmenter,
        embedder: Embedder,
        clusterer: Clusterer,
        device: Device,
        mode: Mode,
        threads: int,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._segmenter = segmenter
        self._embedder = embedder
        self._clusterer = clusterer
        self.model = model
        self.model_name = model.name
        self.device = device
        self.mode = mode
        self.threads = threads
        self.notes = notes

    @classmethod
    def from_pretrained(
        cls, model: str | Path = "auto", device: str = "auto", mode: str = "exact", threads: int | None = None
    ) -> Pipeline:
        """Load a model onto a device.

        `model`: "auto" (community-1 when installed, else campplus), "campplus", "community-1" or a model folder.
        `device`: "auto", "cpu", "cuda" or "cuda:N". `mode`: "exact" (1 s step) or "fast" (2 s step). `threads`: worker
        threads on the CPU, by default one for each processor that this process may use.

        Raises
        ------
        OptionError
            A value is not one of those allowed.
        ModelError
            The model is missing or damaged.
        BackendError
            The device cannot be used.
        """
        by_name = {item.name.lower(): item for item in Mode}
        if mode not in by_name:
            raise OptionError(f"mode is {mode!r}; allowed are {' and '.join(by_name)}")
        if threads is not None and threads < 1:
            raise OptionError(f"threads is {threads}; it must be at least 1")
        backend, notes = open_backend(device)
        weights = load_model(model)
        if str(model) == "auto":
            notes = (f"model {weights.name} (automatic)", *notes)
        from .model.segmentation import SegmentationNetwork

        return cls(
            weights,
            SegmentationNetwork(weights.segmentation, backend),
            _embedder(weights, backend),
            Clusterer.of(weights),
            backend.device,
            by_name[mode],
            threads or len(os.sched_getaffinity(0)),
            notes,
        )

    def diarize(
        self,
        source: str | Path | np.ndarray,
        *,
        sample_rate: int | None = None,
        bounds: SpeakerBounds | None = None,
        channel: int | None = None,
        label_order: LabelOrder = LabelOrder.FIRST_APPEARANCE,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Diarization:
        """Who spoke when in `source`: a file, or samples (num_samples,) or (num_samples, channels) at `sample_rate`.

        `channel` counts from 1; by default all channels are averaged. `cancelled` is asked between stretches.

        Raises
        ------
        AudioError
            The recording cannot be opened, decoded or used.
        Cancelled
            `cancelled` returned true.
        """
        started = time.perf_counter()
        with audio.open_audio(source, sample_rate=sample_rate, channel=channel) as reader:
            analysis = self._analyse(reader, progress, cancelled)
            warnings = tuple(reader.warnings)
        analysed = time.perf_counter()
        if progress is not None:
            progress("cluster", analysis.num_samples / SAMPLE_RATE, analysis.num_samples / SAMPLE_RATE)
        framing = Framing(self.mode.value, len(analysis.classes))
        duration = analysis.num_samples / SAMPLE_RATE
        bounds = bounds or SpeakerBounds()
        count = speaker_count(analysis.classes, framing) if len(analysis.classes) else np.zeros(0, np.uint8)
        if not count.any():
            stitched = None
            centroids = np.zeros((0, self._embedder.dimension))
            if bounds.minimum > 1:
                warnings += (f"asked for at least {bounds.minimum} speakers, found 0: there is no speech",)
        else:
            clustering = self._clusterer(analysis.classes, analysis.embeddings, duration, bounds, framing)
            warnings += clustering.warnings
            stitched = stitch(analysis.classes, clustering, count, framing, bounds, label_order)
            warnings += stitched.warnings
            centroids = stitched.centroids
        finished = time.perf_counter()
        return Diarization(
            turns=stitched.turns if stitched else (),
            exclusive=stitched.exclusive if stitched else (),
            speakers=stitched.speakers if stitched else (),
            embeddings=centroids,
            duration=duration,
            model=self.model_name,
            device=str(self.device),
            mode=self.mode.name.lower(),
            timings={
                "analysis": analysed - started,
                "segmentation_threads": analysis.segmentation_seconds,
                "embedding_threads": analysis.embedding_seconds,
                "clustering": finished - analysed,
                "total": finished - started,
            },
            warnings=warnings,
            checksum=self.model.checksum,
        )

    def _analyse(
        self, reader: audio.AudioReader, progress: Progress | None, cancelled: Callable[[], bool] | None
    ) -> _Analysis:
        step = self.mode.value
        stretcher = Stretcher(reader, step, MAX_WINDOWS, self.threads)
        results: list[StretchResult] = []
        done = 0
        for result in self._in_order(iter(stretcher), cancelled):
            results.append(result)
            done += len(result.classes)
            if progress is not None:
                total = reader.total_seconds
                seconds = done * step / SAMPLE_RATE
                progress("analyse", seconds if total is None else min(seconds, total), total)
        size = self._embedder.dimension
        return _Analysis(
            np.concatenate([r.classes for r in results] or [np.zeros((0, FRAMES_PER_WINDOW), np.uint8)]),
            np.concatenate([r.embeddings for r in results] or [np.zeros((0, LOCAL_SPEAKERS, size), np.float32)]),
            stretcher.num_samples,
            sum(r.segmentation_seconds for r in results),
            sum(r.embedding_seconds for r in results),
        )

    def _in_order(self, stretches: Iterator[Stretch], cancelled: Callable[[], bool] | None) -> Iterator[StretchResult]:
        """Results in the order of the stretches; at most one more stretch is waiting than there are workers."""
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="diarize")
        waiting: deque[Future[StretchResult]] = deque()
        try:
            for stretch in stretches:
                if cancelled is not None and cancelled():
                    raise Cancelled
                waiting.append(pool.submit(analyse, stretch, self.mode.value, self._segmenter, self._embedder))
                if len(waiting) > self.threads + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
                if cancelled is not None and cancelled():
                    raise Cancelled
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _embedder(weights: ModelWeights, backend: Backend) -> Embedder:
    if weights.network is EmbeddingNetwork.CAMPPLUS:
        from .model.campplus import CampPlusEmbedder

        return CampPlusEmbedder(weights.embedding, backend)
    from .model.resnet34 import ResNet34Embedder

    return ResNet34Embedder(weights.embedding, backend)
