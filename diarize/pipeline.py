"""From a recording to turns: decode, analyse stretches on worker threads, cluster, stitch.

The pipeline owns no algorithm of its own; it says what runs in which order, keeps memory bounded, and reports progress.
It never prints and never touches the command line.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from . import audio
from .analysis import StretchResult
from .assembly import Analysis, assemble
from .audio import check_part
from .backend.cuda_wake import wake
from .backend.select import choose_device
from .channels import SPLIT, Channel, joined, parse_channel
from .clustering import Clusterer
from .early import EarlyWork
from .engine import Compiling, Engine, open_engine
from .errors import AudioError, OptionError
from .framing import FRAMES_PER_WINDOW, LOCAL_SPEAKERS, SAMPLE_RATE, Framing
from .model.registry import resolve
from .model.weights import ModelWeights, load_model
from .modes import Mode, plan
from .rehearsal import rehearse
from .spool import Source, seekable, stem
from .stitch import LabelOrder
from .stretches import Room, Stretch, Stretcher
from .types import Diarization, KernelChoices, SpeakerBounds
from .user_folders import expanded
from .values import whole_number
from .voices import THRESHOLDS, Voice, check_threshold, check_voices, named

if TYPE_CHECKING:
    from .batch import Outcome, Recording

logger = logging.getLogger(__name__)

# A recording of more than this is long: 15 min.
_LONG_SECONDS = 900.0

Progress = Callable[[str, float, float | None], None]
"""Called from the calling thread with the stage, the seconds of audio done and the total where known."""


@dataclass(frozen=True)
class Setup:
    """What a pipeline was made from, for making the same one in another process; fields as for `from_pretrained`."""

    model: str
    device: str
    mode: str
    threads: int | None
    tune_file: str | None = None

    def open(self) -> Pipeline:
        """The pipeline."""
        tune_file = self.tune_file
        return Pipeline.from_pretrained(self.model, self.device, self.mode, self.threads, tune_file=tune_file)


class Options(TypedDict, total=False):
    """What `Pipeline.diarize` and `Pipeline.diarize_many` may be told about recordings; see `diarize`."""

    bounds: SpeakerBounds | None
    num_speakers: int | None
    min_speakers: int | None
    max_speakers: int | None
    channel: Channel
    start: float
    end: float | None
    label_order: LabelOrder | str
    voices: Sequence[Voice]
    voice_threshold: float | None
    keep_windows: bool


class Cancelled(Exception):
    """The caller's `cancelled` function returned true; nothing was produced."""


class Pipeline:
    """A model on a device, ready to diarize recordings one after another.

    A pipeline may be used from several threads. On the CPU calls take turns, since each uses all of its worker threads,
    which are started and ended within the call; a GPU has a few recordings in work at once, whose decoding and
    clustering it need not wait for. Results are values that never change and may be shared freely.
    """

    def __init__(
        self,
        model: ModelWeights,
        engine: Engine,
        clusterer: Clusterer,
        mode: Mode,
        threads: int | None = None,
        notes: tuple[str, ...] = (),
        origin: str = "auto",
        tune_file: str | None = None,
    ) -> None:
        self.engine = engine
        choices = engine.choices
        self.recipe = None if choices is None else KernelChoices(choices.source, choices.layers)
        self._clusterer = clusterer
        self.model = model
        self.model_name = model.name
        self.device = engine.device
        self.mode = mode
        self.step_samples = plan(model.network, mode).step_samples
        self.threads = engine.workers
        self.notes = notes
        self.setup = Setup(origin, str(engine.device), mode.value, threads, tune_file)
        self._room = Room()
        self._inside = threading.local()
        self._turns = threading.BoundedSemaphore(engine.recordings)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path = "auto",
        device: str = "auto",
        mode: str = "exact",
        threads: int | None = None,
        compiling: Compiling | None = None,
        tune_file: str | Path | None = None,
    ) -> Pipeline:
        """Load a model onto a device.

        `model`: "auto" (community-1 when installed, else campplus), "campplus", "community-1" or a model folder.
        `device`: "auto", "cpu", "cuda" or "cuda:N". `mode`: "exact" or "fast" (see `modes`). `threads`: worker
        threads on the CPU, by default one for each processor that this process may use. `compiling` hears how many of
        the GPU's kernels are compiled, and how many must be, where the cache lacks some. `tune_file`: a recipe or tune
        file that chooses the GPU's kernels and must fit; by default the one that `diarize cuda tune` has written for
        this GPU, where there is one that fits.

        Raises
        ------
        OptionError
            A value is not one of those allowed.
        ModelError
            The model is missing or damaged.
        BackendError
            The device cannot be used.
        RecipeError
            The tune file that was named does not fit.
        """
        by_name = {item.value: item for item in Mode}
        if mode not in by_name:
            raise OptionError(f"mode is {mode!r}; allowed are {' and '.join(by_name)}")
        if threads is not None and whole_number("threads", threads) < 1:
            raise OptionError(f"threads is {threads}; it must be at least 1")
        # Before the weights, which take longer to load than it takes to see that there is no GPU.
        gpu = choose_device(device).gpu
        if gpu is not None:
            wake(str(gpu))
        weights = load_model(model)
        count = threads or len(os.sched_getaffinity(0))
        chosen = plan(weights.network, by_name[mode])
        clusterer = Clusterer.of(weights, chosen.grid)
        wanted = None if tune_file is None else expanded(tune_file)
        if gpu is not None:
            rehearse(clusterer, chosen.step_samples)
        engine = open_engine(device, weights, chosen.grid, count, compiling, wanted)
        if engine.choices is not None:
            for warning in engine.choices.warnings:
                logger.warning("%s", warning)
        notes = engine.notes
        if str(model) == "auto":
            notes = (f"model {weights.name} (automatic)", *notes)
        path = None if wanted is None else str(wanted.absolute())
        return cls(weights, engine, clusterer, by_name[mode], count, notes, str(resolve(model)), path)

    def diarize(
        self,
        source: Source,
        *,
        sample_rate: int | None = None,
        bounds: SpeakerBounds | None = None,
        num_speakers: int | None = None,
        min_speakers: int | None = None,
        max_speakers: int | None = None,
        channel: Channel = None,
        start: float = 0.0,
        end: float | None = None,
        label_order: LabelOrder | str = LabelOrder.FIRST_APPEARANCE,
        voices: Sequence[Voice] = (),
        voice_threshold: float | None = None,
        keep_windows: bool = False,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Diarization:
        """Who spoke when in `source`.

        Parameters
        ----------
        source
            A path, "-" for standard input, a binary stream, or samples (num_samples,) or (num_samples, channels) at
            `sample_rate` in Hz.
        bounds
            How many speakers there are; or give `num_speakers`, `min_speakers` and `max_speakers`.
        channel
            A number from 1; None or "mix" for the mean of all; "split" to diarize each channel on its own, where
            speakers are named CH1_SPEAKER_00 and so on and the number of speakers is that of each channel.
        start, end
            Only this part is decoded and diarized, in seconds; times in the result remain those of the recording.
        label_order
            How speakers are numbered: by first appearance, or "parity" as pyannote.audio does.
        voices, voice_threshold
            Known voices (see `enrol`), whose names replace the labels of speakers at least this similar (cosine).
        keep_windows
            Keep the embedding of every window in the result.
        progress
            Called from this thread with the stage, the seconds of audio done and those in all (None if unknown).
        cancelled
            Asked after each stretch, on the CPU after some 24 s of audio for each thread; true ends the work.

        Raises
        ------
        OptionError
            A value is out of range or of the wrong type, or values contradict each other.
        AudioError
            The recording cannot be opened, decoded or used.
        Cancelled
            `cancelled` returned true.
        """
        if bounds is not None and not num_speakers == min_speakers == max_speakers is None:
            raise OptionError("the number of speakers is given twice; give bounds or the numbers, not both")
        bounds = bounds or SpeakerBounds.of(num_speakers, min_speakers, max_speakers)
        wanted = parse_channel(channel)
        order = _label_order(label_order)
        check_part(start, end)
        threshold = THRESHOLDS[self.model.network.value] if voice_threshold is None else voice_threshold
        check_threshold(threshold)
        check_voices(voices, self.model.checksum, self.model_name)
        with self._turn(cancelled), seekable(source) as recording:

            def one(number: int | None, report: Progress | None) -> Diarization:
                reader = audio.open_audio(
                    recording.source, number, sample_rate=sample_rate, start=start, end=end, name=recording.name
                )
                return self._one(reader, bounds, order, keep_windows, report, cancelled)

            if wanted == SPLIT:
                with audio.open_audio(recording.source, sample_rate=sample_rate, name=recording.name) as reader:
                    number = reader.channels
                parts = [one(index + 1, _share(progress, index, number)) for index in range(number)]
                result = joined(parts)
            else:
                assert not isinstance(wanted, str)
                result = one(wanted, progress)
        return named(replace(result, name=stem(source)), voices, threshold)

    def enrol(self, name: str, source: Source, *, sample_rate: int | None = None) -> Voice:
        """The voice of whoever talks in `source`, a recording of one person, best 10 s or more of clean speech.

        Raises
        ------
        AudioError
            The recording cannot be used, or nobody talks in it.
        """
        result = self.diarize(source, sample_rate=sample_rate, num_speakers=1)
        if not result.speakers or not result.embeddings.any():
            raise AudioError(f"{source if isinstance(source, (str, Path)) else name}: holds no speech to learn from")
        return Voice(name, result.embeddings[0], self.model.checksum)

    def diarize_many(
        self,
        sources: Iterable[Recording],
        *,
        jobs: int = 1,
        devices: Sequence[str] = (),
        in_order: bool = True,
        progress: Callable[[Recording, str, float, float | None], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        **options: Unpack[Options],
    ) -> Generator[Outcome, None, None]:
        """The outcome of each recording: its result, or the error as a value; the others go on.

        With one job the recordings are done here, one after another. With `jobs` above one, or several `devices` (one
        process each, such as ["cuda:0", "cuda:1"]), worker processes share them, longest first, and the threads of this
        pipeline are shared out over them. A worker that dies is replaced and its recording tried once more.

        `in_order` gives outcomes in the order of `sources`, else as they finish. `progress` is called with the path
        before what `diarize` passes. `cancelled` ends the iteration with `Cancelled`; leaving the iteration early
        ends the workers. `options` are those of `diarize`.
        """
        from .batch import run_here, run_in_processes

        paths = list(sources)
        if jobs == 1 and not devices:
            return run_here(self, paths, dict(options), progress, cancelled)
        return run_in_processes(self.setup, paths, dict(options), jobs, devices, in_order, progress, cancelled)

    @contextmanager
    def _turn(self, cancelled: Callable[[], bool] | None) -> Iterator[None]:
        """Waits until as few other threads use this pipeline as its engine can serve besides.

        Raises
        ------
        OptionError
            This very thread uses it already: it would wait for itself.
        """
        if getattr(self._inside, "now", False):
            raise OptionError("the pipeline was called from a callback of its own; use it after it has returned")
        while not self._turns.acquire(timeout=0.1):
            if cancelled is not None and cancelled():
                raise Cancelled
        self._inside.now = True
        try:
            yield
        finally:
            self._inside.now = False
            self._turns.release()

    def _one(
        self,
        reader: audio.AudioReader,
        bounds: SpeakerBounds,
        order: LabelOrder,
        keep_windows: bool,
        progress: Progress | None,
        cancelled: Callable[[], bool] | None,
    ) -> Diarization:
        """The result of what `reader` delivers."""
        started = time.perf_counter()
        with reader, EarlyWork(self._clusterer.preparation(self.engine.spare_threads)) as early:
            analysis = self._analyse(reader, early, progress, cancelled)
            warnings = tuple(reader.warnings)
        analysed = time.perf_counter()
        if progress is not None:
            progress("cluster", analysis.duration, analysis.duration)
        framing = Framing(self.step_samples, len(analysis.classes))
        parts = assemble(analysis, self._clusterer, framing, bounds, order, reader.offset, keep_windows)
        if not parts.turns:
            warnings += reader.if_nobody
        finished = time.perf_counter()
        return Diarization(
            turns=parts.turns,
            exclusive=parts.exclusive,
            speakers=parts.speakers,
            embeddings=parts.embeddings,
            duration=analysis.duration,
            model=self.model_name,
            device=str(self.device),
            mode=self.mode.value,
            timings={
                "analysis": analysed - started,
                "segmentation_threads": analysis.segmentation_seconds,
                "embedding_threads": analysis.embedding_seconds,
                "clustering": finished - analysed,
                "total": finished - started,
            },
            warnings=(*warnings, *parts.warnings),
            checksum=self.model.checksum,
            recipe=self.recipe,
            offset=reader.offset,
            windows=parts.windows,
        )

    def _analyse(
        self,
        reader: audio.AudioReader,
        early: EarlyWork,
        progress: Progress | None,
        cancelled: Callable[[], bool] | None,
    ) -> Analysis:
        step = self.step_samples
        # Short recordings are decoded at once, and come several at a time; the GPU should not wait for a long one.
        seconds = reader.total_seconds
        first = self.engine.first_windows if seconds is None or seconds > _LONG_SECONDS else 0
        stretcher = Stretcher(reader, step, self.engine.max_windows, self.engine.shares, first, self._room)
        results: list[StretchResult] = []
        done = 0
        for result in self._in_order(iter(stretcher), cancelled):
            results.append(result)
            early.add(result)
            done += len(result.classes)
            if progress is not None:
                total = reader.total_seconds
                seconds = done * step / SAMPLE_RATE
                progress("analyse", seconds if total is None else min(seconds, total), total)
        size = self.engine.dimension
        return Analysis(
            np.concatenate([r.classes for r in results] or [np.zeros((0, FRAMES_PER_WINDOW), np.uint8)]),
            np.concatenate([r.embeddings for r in results] or [np.zeros((0, LOCAL_SPEAKERS, size), np.float32)]),
            stretcher.num_samples,
            sum(r.segmentation_seconds for r in results),
            sum(r.embedding_seconds for r in results),
            early.finish(),
        )

    def _in_order(self, stretches: Iterator[Stretch], cancelled: Callable[[], bool] | None) -> Iterator[StretchResult]:
        """Results in the order of the stretches; at most one more stretch is waiting than there are workers."""
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="diarize")
        waiting: deque[tuple[Stretch, Future[StretchResult]]] = deque()

        def oldest() -> StretchResult:
            stretch, future = waiting.popleft()
            result = future.result()
            self._room.give_back(stretch.samples)
            return result

        wait = True
        try:
            for stretch in stretches:
                if cancelled is not None and cancelled():
                    raise Cancelled
                waiting.append((stretch, pool.submit(self.engine.analyse, stretch, self.step_samples)))
                if len(waiting) > self.threads + 1:
                    yield oldest()
            while waiting:
                yield oldest()
                if cancelled is not None and cancelled():
                    raise Cancelled
        except (KeyboardInterrupt, GeneratorExit):
            # Threads finish their stretches for nothing, which takes seconds: whoever interrupts need not wait for it.
            wait = False
            raise
        finally:
            pool.shutdown(wait=wait, cancel_futures=True)


def _share(progress: Progress | None, index: int, number: int) -> Progress | None:
    """`progress` of all channels, as that of channel `index` of `number` reports it."""
    if progress is None:
        return None

    def report(stage: str, done: float, total: float | None) -> None:
        progress(stage, done + index * (total or done), None if total is None else number * total)

    return report


def _label_order(value: LabelOrder | str) -> LabelOrder:
    try:
        return LabelOrder(value)
    except ValueError:
        allowed = " and ".join(item.value for item in LabelOrder)
        raise OptionError(f"label-order is {value!r}; allowed are {allowed}") from None
