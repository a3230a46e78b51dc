"""One worker's share of a GPU: a stream, memory, and the launches of the batch sizes that it has seen.

A stretch is uploaded once and serves both networks. Batches have exactly the size that is left; plans of all sizes
share one block of memory, since those of one lane never run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ..framing import FRAMES_PER_WINDOW, LOCAL_SPEAKERS, WINDOW_SAMPLES
from .cuda_campplus import DIMENSION as CAMPPLUS_DIMENSION
from .cuda_campplus import CampPlusPlan, columns_for
from .cuda_driver import DeviceArray, Launch, MemoryPool
from .cuda_fbank import FRAME_STEP, FilterbankPlan
from .cuda_memory import Arena, ArenaFullError, HostBlock, clear, copy_samples, download, free_with, upload
from .cuda_networks import CudaNetworks, with_memory
from .cuda_pyannet import PyanNetPlan
from .cuda_resnet34 import DIMENSION, FRAMES, MELS, ResNet34Kernels, ResNet34Plan

TRUNK_STEPS = 125
_MIB = 1 << 20
# Bytes a window of a plan, from the shapes that the networks' plans hold; growth covers what they miss.
_SEGMENTATION_BYTES = 7 * _MIB
_TRUNK_BYTES = 30 * _MIB
# CAM++: bytes a column (10 ms) of a plan, and the columns that stand for a window of the limit.
_COLUMN_BYTES = 44_000
_WINDOW_COLUMNS = 1024
# Columns and sequences are rounded up to these, for the same reason as slots.
_COLUMN_STEP, _SEQUENCE_STEP = 4096, 32
# Slots are rounded up to this part of the windows, so that few plans serve many batches.
_SLOT_PARTS = 4

Made = TypeVar("Made")


@dataclass(frozen=True)
class Limits:
    """The most windows of one batch of each network."""

    segmentation: int
    embedding: int

    def halved(self) -> Limits:
        """Half of each, at least one window."""
        return Limits(max(1, self.segmentation // 2), max(1, self.embedding // 2))


def even_parts(count: int, most: int) -> list[tuple[int, int]]:
    """(first, size) of the fewest parts of `count` with at most `most` each, as even as can be.

    >>> even_parts(7, 3)
    [(0, 3), (3, 2), (5, 2)]
    """
    parts = -(-count // most)
    sizes = [count // parts + (part < count % parts) for part in range(parts)]
    return [(sum(sizes[:part]), size) for part, size in enumerate(sizes)]


@dataclass
class _SequenceBatch:
    """A plan of CAM++, and the bytes that it takes from the beginning of the block."""

    plan: CampPlusPlan
    nbytes: int


@dataclass
class _TrunkBatch:
    """A plan of ResNet34 and what fills its inputs from a stretch."""

    plan: ResNet34Plan
    chosen: DeviceArray


class CudaLane:
    """Runs both networks on stretches, one stretch at a time; for one thread at a time.

    `limits` may be lowered between stretches.
    """

    def __init__(self, networks: CudaNetworks, limits: Limits) -> None:
        self.gpu = networks.gpu
        self.limits = limits
        self._networks = networks
        self.gpu.use()
        self._stream = self.gpu.stream()
        self._pool = MemoryPool(self.gpu)
        self._held = Arena(self._pool)
        self._work = Arena(self._pool)
        self._host = HostBlock(self.gpu)
        self._memory = free_with(self, self.gpu, [self._held, self._work, self._pool])
        self._segmentations: dict[tuple[int, int], PyanNetPlan] = {}
        self._trunks: dict[tuple[str, int, int], _TrunkBatch] = {}
        self._sequences: dict[tuple[int, int, int], _SequenceBatch] = {}
        self._samples: DeviceArray | None = None
        self._features: FilterbankPlan | None = None
        self._step = 0

    @property
    def peak_bytes(self) -> int:
        """The most device memory that this lane has held."""
        return self._pool.peak_bytes + self._held.peak_bytes + self._work.peak_bytes

    def release(self) -> None:
        """Give back the blocks, after all work has ended; the next stretch takes new ones."""
        self._stream.synchronize()
        self._forget()
        self._held.release()
        self._work.release()

    def abandon(self) -> None:
        """Leave the memory alone from now on: its context has ended."""
        self._memory.detach()

    def segment(self, samples: np.ndarray, num_windows: int, step_samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Upload a stretch and classify its frames.

        Parameters
        ----------
        samples
            ((num_windows - 1) * step_samples + 160000,) float32 or longer.
        num_windows, step_samples
            Window w starts at sample w * step_samples, a multiple of 160.

        Returns
        -------
        tuple[np.ndarray, np.ndarray]
            Classes (num_windows, 589) uint8; and per window whether a score of its batch was not finite, bool.
        """
        self.gpu.use()
        self._load(samples, num_windows, step_samples)
        batches = even_parts(num_windows, self.limits.segmentation)
        self._host.rewind(num_windows * FRAMES_PER_WINDOW + 128 * (len(batches) + 2))
        classes = self._host.take((num_windows, FRAMES_PER_WINDOW), np.uint8)
        flags = self._host.take((len(batches), 16), np.int32)
        for number, (first, count) in enumerate(batches):
            plan = self._segmentation(count, step_samples)
            assert self._samples is not None
            clear(self._stream, plan.flag)
            copy_samples(self._stream, plan.samples, self._samples, first * step_samples)
            plan.run(self._stream)
            download(self._stream, classes[first : first + count], plan.classes)
            download(self._stream, flags[number, :1], plan.flag)
        self._stream.synchronize()
        flagged = np.repeat(flags[:, 0] != 0, [count for _, count in batches])
        return classes.copy(), flagged

    def embed(self, active: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Embeddings of the stretch that was segmented last, with ResNet34.

        Parameters
        ----------
        active
            (num_windows, 3) bool: the slots to embed; windows without any are left out.
        weights
            (num_windows, 3, 125) float32, weights of the trunk's steps.

        Returns
        -------
        tuple[np.ndarray, np.ndarray]
            (num_windows, 3, 256) float32, NaN where not active; and per window whether an activation left the range of
            every kernel here, bool.
        """
        self.gpu.use()
        out = np.full((*active.shape, DIMENSION), np.nan, np.float32)
        beyond = np.zeros(len(active), bool)
        windows = np.flatnonzero(active.any(axis=1))
        if len(windows):
            beyond[self._embed_windows(windows, active, weights, out)] = True
        return out, beyond

    def embed_sequences(self, numbers: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Embeddings of sequences of frames of the stretch that was segmented last, with CAM++.

        Parameters
        ----------
        numbers
            For each sequence its frames, int32, at least one, frame t at sample 160 t of the stretch.

        Returns
        -------
        tuple[np.ndarray, np.ndarray]
            (len(numbers), 192) float32; and per sequence whether an activation of its batch left the range of the
            kernels, bool.
        """
        self.gpu.use()
        batches = self._sequence_batches([len(own) for own in numbers])
        self._host.rewind(len(numbers) * 4 * CAMPPLUS_DIMENSION + 256 * (len(batches) + 2))
        flags = self._host.take((len(batches), 16), np.int32)
        found = self._host.take((len(numbers), CAMPPLUS_DIMENSION), np.float32)
        for number, (first, last) in enumerate(batches):
            made = self._sequence_plan(numbers[first:last])
            clear(self._stream, made.plan.flag)
            # Free places are read, and what another plan left there need not be finite.
            self._work.zero(self._stream, made.nbytes)
            made.plan.load(numbers[first:last], self._stream)
            made.plan.run(self._stream)
            download(self._stream, found[first:last], made.plan.embeddings)
            download(self._stream, flags[number, :1], made.plan.flag)
        self._stream.synchronize()
        return found.copy(), np.repeat(flags[:, 0] != 0, [last - first for first, last in batches])

    def _embed_windows(
        self, windows: np.ndarray, active: np.ndarray, weights: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Fill `out` with ResNet34; gives the windows whose activations leave even float32's range."""
        networks, most = self._networks, self.limits.embedding
        fewer = max(1, most // 2)
        flagged = self._run_trunk(networks.trunk, most if networks.half_trunk else fewer, windows, active, weights, out)
        if not len(flagged):
            return flagged
        # Activations left float16's range: these batches once more, where the range is float32's.
        return self._run_trunk(lambda _: networks.exact(), fewer, flagged, active, weights, out)

    def _sequence_batches(self, lengths: list[int]) -> list[tuple[int, int]]:
        """(first, last) of batches of neighbouring sequences that fit the columns of the limit."""
        most = self.limits.embedding * _WINDOW_COLUMNS
        batches, first, held = [], 0, columns_for([])
        for index, length in enumerate(lengths):
            own = columns_for([length]) - columns_for([])
            if index > first and held + own > most:
                batches.append((first, index))
                first, held = index, columns_for([])
            held += own
        return [*batches, (first, len(lengths))]

    def _sequence_plan(self, numbers: Sequence[np.ndarray]) -> _SequenceBatch:
        kernels, features = self._networks.campplus, self._features
        assert kernels is not None
        assert features is not None
        columns = -(-columns_for([len(own) for own in numbers]) // _COLUMN_STEP) * _COLUMN_STEP
        count = -(-len(numbers) // _SEQUENCE_STEP) * _SEQUENCE_STEP
        # The address too: the plan's launches hold it.
        key = (features.features.address, columns, count)
        if key not in self._sequences:
            bound = with_memory(kernels, self._work)

            def make() -> _SequenceBatch:
                plan = bound.plan(features.features, columns, count)
                return _SequenceBatch(plan, self._work.used_bytes)

            self._sequences[key] = self._fit(columns * _COLUMN_BYTES, make)
        return self._sequences[key]

    def _run_trunk(
        self,
        kernels_for: Callable[[int], ResNet34Kernels],
        most: int,
        windows: np.ndarray,
        active: np.ndarray,
        weights: np.ndarray,
        out: np.ndarray,
    ) -> np.ndarray:
        """Fill `out` for the active slots of `windows`; gives the windows of batches that raised the flag."""
        batches = [windows[first : first + count] for first, count in even_parts(len(windows), most)]
        slots = sum(self._slots(int(active[batch].sum()), len(batch)) for batch in batches)
        per_slot = 4 * (TRUNK_STEPS + 1 + DIMENSION)
        self._host.rewind(slots * per_slot + 4 * len(windows) + 512 * (len(batches) + 2))
        flags = self._host.take((len(batches), 16), np.int32)
        results = []
        for number, batch in enumerate(batches):
            place, local = np.nonzero(active[batch])
            room = self._slots(len(place), len(batch))
            masks = self._host.take((room, TRUNK_STEPS), np.float32)
            masks[: len(place)] = weights[batch[place], local]
            masks[len(place) :] = 0.0
            slot_window = self._host.take((room,), np.int32)
            slot_window[: len(place)] = place
            slot_window[len(place) :] = 0
            chosen = self._host.take((len(batch),), np.int32)
            chosen[:] = batch
            found = self._host.take((len(place), DIMENSION), np.float32)
            self._launch_trunk(kernels_for(len(batch)), chosen, masks, slot_window, found, flags[number, :1])
            results.append((batch[place], local, found))
        self._stream.synchronize()
        for rows, local, found in results:
            out[rows, local] = found
        raised = [batch for batch, flag in zip(batches, flags[:, 0], strict=True) if flag]
        return np.concatenate(raised) if raised else np.zeros(0, np.int64)

    def _launch_trunk(
        self,
        kernels: ResNet34Kernels,
        chosen: np.ndarray,
        masks: np.ndarray,
        slot_window: np.ndarray,
        found: np.ndarray,
        flag: np.ndarray,
    ) -> None:
        made = self._trunk(kernels, len(chosen), len(masks))
        plan, stream = made.plan, self._stream
        clear(stream, plan.flag)
        upload(stream, made.chosen, chosen)
        upload(stream, plan.masks, masks)
        upload(stream, plan.slot_window, slot_window)
        self._gather(made, len(chosen))(stream)
        plan.run(stream)
        download(stream, found, plan.embeddings)
        download(stream, flag, plan.flag)

    def _gather(self, made: _TrunkBatch, count: int) -> Launch:
        features = self._features
        assert features is not None
        step = self._step // FRAME_STEP * MELS
        values = (features.features, features.mean, made.chosen, made.plan.features, made.plan.mean)
        return self._networks.gather.bind((8, count, 1), *values, step, FRAMES * MELS)

    @staticmethod
    def _slots(active: int, windows: int) -> int:
        """Slots of the plan for a batch: rounded up, but never more than there can be."""
        part = -(-windows // _SLOT_PARTS)
        return min(-(-active // part) * part, windows * LOCAL_SPEAKERS)

    def _load(self, samples: np.ndarray, num_windows: int, step_samples: int) -> None:
        """Put a stretch on the device, and its features where the GPU embeds."""
        self._step = step_samples
        length = (num_windows - 1) * step_samples + WINDOW_SAMPLES
        frames = length // FRAME_STEP
        needed = 4 * length + 4 * MELS * (frames + num_windows) + 16 * 512
        self._held.reserve(needed)
        self._held.rewind()
        self._samples = self._held.empty((length,), np.float32)
        upload(self._stream, self._samples, np.ascontiguousarray(samples[:length], np.float32))
        if self._networks.filterbank is not None:
            kernels = with_memory(self._networks.filterbank, self._held)
            self._features = kernels.plan(self._samples, num_windows, step_samples)
            self._features.run(self._stream)

    def _segmentation(self, count: int, step_samples: int) -> PyanNetPlan:
        key = (count, step_samples)
        if key not in self._segmentations:
            bound = with_memory(self._networks.pyannet(count), self._work)
            self._segmentations[key] = self._fit(count * _SEGMENTATION_BYTES, lambda: bound.plan(count, step_samples))
        return self._segmentations[key]

    def _trunk(self, kernels: ResNet34Kernels, windows: int, slots: int) -> _TrunkBatch:
        storage = kernels.choice.storage
        key = (storage, windows, slots)
        if key not in self._trunks:
            bound = with_memory(kernels, self._work)
            size = _TRUNK_BYTES if storage == "half" else 2 * _TRUNK_BYTES

            def make() -> _TrunkBatch:
                chosen = self._work.empty((windows,), np.int32)
                return _TrunkBatch(bound.plan(windows, slots), chosen)

            self._trunks[key] = self._fit(windows * size, make)
        return self._trunks[key]

    def _fit(self, expected: int, make: Callable[[], Made]) -> Made:
        """What `make` makes from the beginning of the block, which grows where it is too small."""
        self._grow(expected)
        while True:
            self._work.rewind()
            try:
                return make()
            except ArenaFullError as full:
                self._grow(full.needed + full.needed // 4)

    def _grow(self, nbytes: int) -> None:
        if nbytes > self._work.held_bytes:
            self._stream.synchronize()
            self._forget()
            self._work.reserve(nbytes)

    def _forget(self) -> None:
        """Drop all plans, which point into the block."""
        self._segmentations.clear()
        self._trunks.clear()
        self._sequences.clear()

    def shrink(self) -> bool:
        """Give back memory and halve the batches; false where they are of one window already."""
        smaller = self.limits.halved()
        if smaller == self.limits:
            return False
        self.limits = replace(smaller)
        self.release()
        return True
