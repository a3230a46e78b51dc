"""A lane of the GPU engine: what reaches the networks and where their results go, on a driver that is host memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from tools.host_gpu import STEP, classes_of, features_of, lane_of, sequence_of, stretch, trunk_of

from diarize.backend.cuda_driver import OutOfMemoryError
from diarize.backend.cuda_lane import Limits


def trunk_work(windows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(windows)
    active = rng.random((windows, 3)) < 0.4
    active[1] = False
    return active, rng.random((windows, 3, 125)).astype(np.float32)


def expected_trunk(samples: np.ndarray, active: np.ndarray, weights: np.ndarray) -> np.ndarray:
    out = np.full((*active.shape, 256), np.nan, np.float32)
    features = features_of(samples, (len(active) - 1) * 100 + 998)
    for window, local in np.argwhere(active):
        own = features[window * 100 :][:998]
        out[window, local] = trunk_of(own, own.mean(0), weights[window, local])
    return out


@pytest.mark.parametrize("limits", [Limits(256, 64), Limits(3, 2), Limits(1, 1)], ids=str)
def test_classes_and_embeddings_in_batches_of_any_size(limits: Limits) -> None:
    lane = lane_of(limits)
    # A longer stretch, a shorter one, and the first again: plans come from the cache, and the block moves.
    for windows, seed in ((3, 1), (7, 2), (3, 1)):
        samples = stretch(windows, seed)
        classes, flagged = lane.segment(samples, windows, STEP)
        assert np.array_equal(classes, [classes_of(samples[w * STEP :]) for w in range(windows)])
        assert not flagged.any()
        active, weights = trunk_work(windows)
        embeddings, beyond = lane.embed(active, weights)
        np.testing.assert_allclose(embeddings, expected_trunk(samples, active, weights), rtol=1e-4, atol=1e-4)
        assert not beyond.any()


def test_only_batches_with_a_flag_are_marked() -> None:
    lane = lane_of(Limits(2, 64))
    samples = stretch(5)
    samples[-10] = 1000.0
    flagged = lane.segment(samples, 5, STEP)[1]
    # Batches of two, two and one window: only the last window reaches the end.
    assert flagged.tolist() == [False, False, False, False, True]


def test_overflow_takes_the_exact_kernels_for_that_batch() -> None:
    lane = lane_of(Limits(256, 2))
    samples = stretch(6)
    # The beginning of the last frame of the last window.
    samples[5 * STEP + 997 * 160] = 50.0
    lane.segment(samples, 6, STEP)
    active, weights = trunk_work(6)
    active[:, 0] = True
    embeddings, beyond = lane.embed(active, weights)
    np.testing.assert_allclose(embeddings, expected_trunk(samples, active, weights), rtol=1e-3, atol=1e-3)
    assert not beyond.any()
    # One batch of two windows, in halves, since float32 takes twice the memory.
    sizes = lane._networks.exact().sizes
    assert [windows for windows, _ in sizes] == [1, 1]


def test_silence_needs_no_network() -> None:
    lane = lane_of(Limits(256, 64))
    lane.segment(stretch(2), 2, STEP)
    embeddings, _ = lane.embed(np.zeros((2, 3), bool), np.zeros((2, 3, 125), np.float32))
    assert np.isnan(embeddings).all()
    assert lane._networks.trunk(2).sizes == []


@pytest.mark.parametrize("limits", [Limits(256, 64), Limits(4, 2)], ids=str)
def test_campplus_gets_the_frames_of_each_sequence(limits: Limits) -> None:
    lane = lane_of(limits, campplus=True)
    for windows, seed in ((5, 1), (2, 2), (5, 3)):
        samples = stretch(windows, seed)
        lane.segment(samples, windows, STEP)
        rng = np.random.default_rng(seed)
        features = features_of(samples, (windows - 1) * 100 + 998)
        numbers = [np.sort(rng.choice(len(features), size, replace=False)).astype(np.int32) for size in (20, 998, 401)]
        embeddings, flagged = lane.embed_sequences(numbers)
        np.testing.assert_allclose(embeddings, [sequence_of(features[own]) for own in numbers], rtol=1e-5, atol=1e-6)
        assert not flagged.any()


def test_campplus_names_the_sequences_of_a_batch_with_a_flag() -> None:
    lane = lane_of(Limits(256, 1), campplus=True)
    samples = stretch(4)
    samples[3 * STEP + 997 * 160] = 50.0
    lane.segment(samples, 4, STEP)
    numbers = [np.arange(100 * window, 100 * window + 998, dtype=np.int32) for window in range(4)]
    assert lane.embed_sequences(numbers)[1].tolist() == [False, False, False, True]


def test_memory_that_is_too_small_is_said_and_less_of_it_is_enough() -> None:
    lane = lane_of(Limits(64, 64), capacity=200 << 20)
    samples = stretch(40)
    with pytest.raises(OutOfMemoryError):
        lane.segment(samples, 40, STEP)
    while True:
        assert lane.shrink()
        try:
            classes, _ = lane.segment(samples, 40, STEP)
            break
        except OutOfMemoryError:
            pass
    assert lane.limits.segmentation < 40
    assert np.array_equal(classes[-1], classes_of(samples[39 * STEP :]))
    assert 0 < lane.peak_bytes <= 200 << 20


def test_one_window_is_the_end_of_shrinking() -> None:
    lane = lane_of(Limits(2, 1))
    assert lane.shrink()
    assert not lane.shrink()


def test_memory_goes_back_with_the_lane() -> None:
    lane = lane_of(Limits(8, 8))
    driver = lane.gpu.driver
    shared = len(driver.blocks)
    lane.segment(stretch(3), 3, STEP)
    assert len(driver.blocks) > shared
    del lane
    gc.collect()
    assert len(driver.blocks) == shared


def test_memory_of_an_ended_context_is_left_alone() -> None:
    lane = lane_of(Limits(8, 8))
    driver = lane.gpu.driver
    lane.segment(stretch(3), 3, STEP)
    held = len(driver.blocks)
    lane.abandon()
    del lane
    gc.collect()
    assert len(driver.blocks) == held
