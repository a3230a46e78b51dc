"""From masks to what a lane computes and back, with a lane that is arithmetic and an overflow that reaches the CPU."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tools.host_gpu import STEP, lane_of, sequence_of, stretch

from diarize.backend.cuda_lane import Limits
from diarize.cuda_embeddings import SlotEmbedding, embed_frames, embed_grid, embed_slots
from diarize.engine_cuda import CudaEngine, Session
from diarize.hardware import Device
from diarize.model.campplus import FRAME_OF
from diarize.model.campplus_grid import PIECE_FRAMES, CampPlusGridEmbedder
from diarize.stretches import Stretch

WINDOWS = 4
FEATURES = np.random.default_rng(5).standard_normal(((WINDOWS - 1) * 100 + 998, 80)).astype(np.float32)


class Lane:
    """Embeds arrays of frame numbers; those that hold `bad` are flagged."""

    def __init__(self, bad: int = -1) -> None:
        self.bad = bad

    def embed(self, active: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.active, self.weights = active, weights
        return np.zeros((*active.shape, 256), np.float32), np.zeros(len(active), bool)

    def embed_sequences(self, numbers: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        assert all(own.dtype == np.int32 for own in numbers)
        rows = np.stack([sequence_of(FEATURES[own]) for own in numbers])
        return rows, np.array([self.bad in own for own in numbers])


def masks() -> np.ndarray:
    """One speaker all the time, one now and then, and one for too few frames."""
    found = np.zeros((WINDOWS, 3, 589), bool)
    found[:, 0] = True
    found[1, 1, 100:300] = True
    found[:, 2, 50:55] = True
    return found


def test_resnet34_gets_every_slot_with_a_frame() -> None:
    lane = Lane()
    embed_slots(lane, masks(), STEP)
    assert lane.active.tolist() == [[True, window == 1, True] for window in range(WINDOWS)]
    assert lane.weights.shape == (WINDOWS, 3, 125)


def test_frames_of_each_slot_are_gathered() -> None:
    found, beyond = embed_frames(Lane(), masks(), STEP)
    assert np.isfinite(found[..., 0]).tolist() == [[True, window == 1, False] for window in range(WINDOWS)]
    np.testing.assert_array_equal(found[2, 0], sequence_of(FEATURES[200 : 200 + 998]))
    frames = 100 + np.flatnonzero(masks()[1, 1][FRAME_OF])
    # 200 frames of the mask are 339 of the filterbank.
    assert abs(len(frames) - 200 * 998 / 589) < 2
    np.testing.assert_array_equal(found[1, 1], sequence_of(FEATURES[frames]))
    assert not beyond.any()


def test_flagged_sequences_mark_their_windows() -> None:
    # Frame 150 is in the first two windows, frame 1290 in the last only.
    assert embed_frames(Lane(150), masks(), STEP)[1].tolist() == [True, True, False, False]
    assert embed_frames(Lane(1290), masks(), STEP)[1].tolist() == [False, False, False, True]


class Network:
    """In place of CAM++ on the CPU: the same arithmetic."""

    def features(self, samples: np.ndarray) -> np.ndarray:
        return FEATURES

    def embed_many(self, sequences: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([sequence_of(own) for own in sequences])


def test_the_grid_is_that_of_the_cpu() -> None:
    cpu = object.__new__(CampPlusGridEmbedder)
    cpu._network = Network()  # type: ignore[assignment]
    expected = cpu.embed(np.zeros(0, np.float32), WINDOWS, STEP, masks())
    found, beyond = embed_grid(Lane(), masks(), STEP)
    assert np.isfinite(expected[..., 0]).sum() == WINDOWS + 1
    np.testing.assert_array_equal(found, expected)
    assert not beyond.any()
    # The last piece of the second window is also the last but two of the third, and so on.
    assert embed_grid(Lane(100 + 850 + PIECE_FRAMES - 1), masks(), STEP)[1].tolist() == [False, True, True, True]


@pytest.mark.parametrize("embed", [embed_frames, embed_grid])
def test_silence_reaches_no_network(embed: SlotEmbedding) -> None:
    found, beyond = embed(Lane(), np.zeros((2, 3, 589), bool), STEP)
    assert np.isnan(found).all()
    assert found.shape == (2, 3, 192)
    assert not beyond.any()


class CpuEmbedder:
    """Says embeddings of fives where a slot has any frame."""

    def __init__(self) -> None:
        self.calls = 0

    def embed(self, samples: np.ndarray, num_windows: int, step_samples: int, masks: np.ndarray) -> np.ndarray:
        self.calls += 1
        found = np.full((num_windows, 3, 192), np.nan, np.float32)
        found[masks.any(axis=2)] = 5.0
        return found


def engine_of(limits: Limits, embed: SlotEmbedding, repair: Callable[[], CpuEmbedder]) -> CudaEngine:
    def start() -> Session:
        lane = lane_of(limits, campplus=True)
        waiting: queue.LifoQueue = queue.LifoQueue()
        waiting.put(lane)
        return Session(waiting, [lane])

    device = Device("cuda", "fake", 0, (9, 0))
    return CudaEngine(device, start, None, repair, None, embed, 192)  # type: ignore[arg-type]


@pytest.mark.parametrize("embed", [embed_frames, embed_grid])
def test_planted_overflow_of_campplus_is_computed_again_on_the_cpu(embed: SlotEmbedding) -> None:
    # Class 1 in every frame.
    samples = 0.0015 + 1e-5 * stretch(6)
    # At the beginning of the last frame of the last window: features above ten raise the flag of the driver's networks.
    samples[5 * STEP + 997 * 160] = 50.0
    cpu = CpuEmbedder()
    # Batches of about two windows.
    engine = engine_of(Limits(256, 2), embed, lambda: cpu)
    result = engine.analyse(Stretch(0, 6, samples), STEP)
    repaired = np.isclose(result.embeddings, 5.0).all(axis=2)
    assert repaired[5].any()
    assert not repaired[0].any()
    assert 1 <= cpu.calls == int(repaired.any(axis=1).sum()) < 6
    clean = engine.analyse(Stretch(0, 3, samples[: 2 * STEP + 160_000]), STEP)
    # What was not flagged is what it is without the overflow.
    same = ~repaired[:3] & np.isfinite(clean.embeddings[..., 0])
    assert same.any()
    np.testing.assert_array_equal(result.embeddings[:3][same], clean.embeddings[same])
