"""Counts, active local speakers and masks, against direct float definitions."""

from __future__ import annotations

import numpy as np
import pytest

from diarize.activity import active, alone_frames, embedding_masks, speaker_count
from diarize.framing import FRAMES_PER_WINDOW, Framing
from diarize.powerset import to_local


def random_classes(seed: int, num_windows: int) -> np.ndarray:
    """Classes (num_windows, 589) in runs, as speech has."""
    rng = np.random.default_rng(seed)
    runs = rng.integers(0, 7, (num_windows, 40)).astype(np.uint8)
    return np.repeat(runs, 15, axis=1)[:, :FRAMES_PER_WINDOW]


@pytest.mark.parametrize("step", [16_000, 32_000, 8_000])
@pytest.mark.parametrize("num_windows", [1, 2, 23])
def test_count_is_the_rounded_average(step: int, num_windows: int) -> None:
    classes = random_classes(num_windows, num_windows)
    framing = Framing(step, num_windows)
    total = np.zeros(framing.num_frames, np.float64)
    cover = np.zeros(framing.num_frames, np.float64)
    for window in range(num_windows):
        first = framing.first_frame(window)
        total[first : first + FRAMES_PER_WINDOW] += to_local(classes[window]).sum(axis=1)
        cover[first : first + FRAMES_PER_WINDOW] += 1
    expected = np.rint(np.divide(total, cover, out=np.zeros_like(total), where=cover > 0))
    count = speaker_count(classes, framing)
    assert count.dtype == np.uint8
    assert np.array_equal(count, expected)


def test_half_rounds_to_even() -> None:
    # Two windows: where both cover a frame, one speaker in one of them averages to 0.5, three to 1.5.
    classes = np.zeros((2, FRAMES_PER_WINDOW), np.uint8)
    classes[0, 300] = 1
    classes[0, 310], classes[1, 310 - 59] = 4, 1
    count = speaker_count(classes, Framing(16_000, 2))
    assert count[300] == 0
    assert count[310] == 2
    assert count.sum() == 2


def test_active_and_alone() -> None:
    classes = random_classes(3, 50)
    classes[7] = 0
    local = to_local(classes)
    assert np.array_equal(active(classes), local.any(axis=1))
    only = local * (local.sum(axis=2, keepdims=True) == 1)
    assert np.array_equal(alone_frames(classes), only.sum(axis=1))


def test_mask_is_clean_only_with_more_than_two_frames() -> None:
    classes = np.zeros((2, FRAMES_PER_WINDOW), np.uint8)
    # Local speaker 0 overlaps with 1 for ten frames; alone for two frames in the first window, three in the second.
    classes[:, 100:110] = 4
    classes[0, 200:202] = 1
    classes[1, 200:203] = 1
    masks = embedding_masks(classes)
    assert masks.shape == (2, 3, FRAMES_PER_WINDOW)
    assert np.flatnonzero(masks[0, 0]).tolist() == [*range(100, 110), 200, 201]
    assert np.flatnonzero(masks[1, 0]).tolist() == [200, 201, 202]
    # Never alone: the whole of its speech.
    assert masks[:, 1].sum(axis=1).tolist() == [10, 10]
    assert not masks[:, 2].any()


def test_masks_cover_active_speakers_and_nothing_else() -> None:
    classes = random_classes(5, 40)
    masks = embedding_masks(classes)
    speech = to_local(classes).transpose(0, 2, 1).astype(bool)
    assert np.array_equal(masks.any(axis=2), active(classes))
    assert not (masks & ~speech).any()
    assert np.array_equal(embedding_masks(classes[3:5]), masks[3:5])
