"""Window and frame arithmetic: integers that the specification states, and times as pyannote.core computes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarize.framing import (
    FRAME_STEP,
    FRAMES_PER_WINDOW,
    RECEPTIVE_FIELD,
    Framing,
    frame_middle,
    num_windows,
)


@pytest.mark.parametrize(("windows", "frames"), [(1, 594), (2, 653), (5, 831), (30, 2312)])
def test_number_of_frames(windows: int, frames: int) -> None:
    assert Framing(16_000, windows).num_frames == frames


def test_first_frames_are_rounded_multiples_of_the_step() -> None:
    framing = Framing(16_000, 2000)
    # c x 16,000 / 270 = c x 1600 / 27 is never halfway between integers, so integer rounding is exact.
    assert framing.first_frames.tolist() == [(2 * 1600 * c + 27) // 54 for c in range(2000)]
    assert [framing.first_frame(c) for c in (0, 1, 1999)] == framing.first_frames[[0, 1, 1999]].tolist()


@given(step=st.integers(1_600, 160_000), windows=st.integers(1, 40_000))
def test_every_window_lies_within_the_recording(step: int, windows: int) -> None:
    framing = Framing(step, windows)
    assert framing.first_frame(windows - 1) + FRAMES_PER_WINDOW <= framing.num_frames


@given(samples=st.integers(0, 10**7), step=st.sampled_from([16_000, 32_000]))
def test_windows_cover_the_recording_and_no_more(samples: int, step: int) -> None:
    windows = num_windows(samples, step)
    end_of_last = (windows - 1) * step + 160_000
    assert end_of_last >= samples
    assert windows == 1 or end_of_last - step < samples


def test_middle_is_half_of_start_and_end() -> None:
    frames = np.arange(100_000)
    starts = frames * FRAME_STEP
    # Bit for bit: durations such as 67.5 ms round one way or the other with the last bit.
    assert np.array_equal(frame_middle(frames), 0.5 * (starts + (starts + RECEPTIVE_FIELD)))
    assert frame_middle(0) == 0.03096875
