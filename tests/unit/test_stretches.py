"""Stretches cover every window once, with the right samples, however the blocks fall."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarize.framing import WINDOW_SAMPLES, num_windows
from diarize.stretches import Room, Stretcher


@settings(max_examples=40, deadline=None)
@given(
    num_samples=st.integers(1, 600_000),
    step=st.sampled_from([16_000, 32_000]),
    max_windows=st.integers(1, 9),
    workers=st.integers(1, 4),
    first=st.integers(0, 5),
    seed=st.integers(0, 2**16),
)
def test_every_window_once(num_samples: int, step: int, max_windows: int, workers: int, first: int, seed: int) -> None:
    audio = np.arange(1, num_samples + 1, dtype=np.float32)
    cuts = np.sort(np.random.default_rng(seed).integers(0, num_samples + 1, 7))
    room = Room()
    # What another recording left must not show.
    room.give_back(np.full((max_windows + 9) * 32_000 + WINDOW_SAMPLES, np.nan, np.float32))
    stretcher = Stretcher(np.split(audio, cuts), step, max_windows, workers, first, room)
    seen = 0
    for stretch in stretcher:
        assert stretch.first_window == seen
        assert 1 <= stretch.num_windows <= max_windows
        assert len(stretch.samples) == (stretch.num_windows - 1) * step + WINDOW_SAMPLES
        wanted = audio[seen * step :][: len(stretch.samples)]
        np.testing.assert_array_equal(stretch.samples[: len(wanted)], wanted)
        assert not stretch.samples[len(wanted) :].any()
        seen += stretch.num_windows
        room.give_back(stretch.samples)
    assert seen == num_windows(num_samples, step) == stretcher.num_windows
    assert stretcher.num_samples == num_samples


@pytest.mark.parametrize("blocks", [[], [np.zeros(0, np.float32)]])
def test_no_samples_no_stretch(blocks: list[np.ndarray]) -> None:
    stretcher = Stretcher(blocks, 16_000, 8, 2)
    assert list(stretcher) == []
    assert stretcher.num_windows == 0


def test_the_end_is_shared_out_evenly() -> None:
    audio = np.zeros(WINDOW_SAMPLES + 20 * 16_000, np.float32)
    sizes = [stretch.num_windows for stretch in Stretcher([audio], 16_000, 16, 2)]
    assert sizes == [11, 10]


def test_the_first_stretches_may_be_small() -> None:
    blocks = np.zeros((60, 16_000), np.float32)
    sizes = [stretch.num_windows for stretch in Stretcher(blocks, 16_000, 8, 1, 2)]
    assert sizes == [2, 4, 8, 8, 8, 8, 7, 6]


def test_room_is_used_again_by_what_fits() -> None:
    room = Room(2)
    small, large = room.take(10), room.take(30)
    room.give_back(small)
    room.give_back(large)
    assert not np.shares_memory(small, large)
    assert np.shares_memory(room.take(11), large)
    assert np.shares_memory(room.take(3), small)
    assert not any(np.shares_memory(room.take(3), array) for array in (small, large))


def test_room_keeps_the_largest() -> None:
    room = Room(2)
    arrays = [np.empty(size, np.float32) for size in (8, 5, 9)]
    for array in arrays:
        room.give_back(array[:2])
    assert [len(room.take(1).base) for _ in range(2)] == [8, 9]  # type: ignore[arg-type]
    assert room.take(1).base is None
