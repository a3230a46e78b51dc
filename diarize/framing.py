"""Window, step and frame arithmetic in integer samples; the only place that converts seconds and frames.

A *window* is 10 s of audio (160,000 samples), the input span of the networks. A *step* is the distance
between window starts. A *frame* is one output position of the segmentation network: 589 frames a window,
one every 270 samples, each seeing 991 samples (pyannote.audio 4.0.7, `utils/receptive_field.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SAMPLE_RATE = 16_000
WINDOW_SAMPLES = 160_000  # 10 s
FRAMES_PER_WINDOW = 589
LOCAL_SPEAKERS = 3
FRAME_STEP = 0.016875  # 270 / 16,000 s
RECEPTIVE_FIELD = 0.0619375  # 991 / 16,000 s
WINDOW_SECONDS = 10.0


@dataclass(frozen=True)
class Framing:
    """Where the windows of one recording lie on the common frame grid.

    `step_samples` is the distance between window starts in samples (16,000: exact mode, 32,000: fast mode),
    `num_windows` the number of windows.

    >>> Framing(16_000, 5).num_frames
    831
    """

    step_samples: int
    num_windows: int

    @property
    def step_seconds(self) -> float:
        """Distance between window starts in seconds."""
        return self.step_samples / SAMPLE_RATE

    @property
    def num_frames(self) -> int:
        """Number of frames of the whole recording: rint((10 + (C - 1) step) / 0.016875) + 1."""
        seconds = WINDOW_SECONDS + (self.num_windows - 1) * self.step_seconds
        return int(np.rint(seconds / FRAME_STEP)) + 1

    def first_frame(self, window: int) -> int:
        """First frame of the recording that `window` covers, rounded half to even in float64."""
        return int(np.rint(window * self.step_seconds / FRAME_STEP))

    @property
    def first_frames(self) -> np.ndarray:
        """First frame of every window, (num_windows,) int64."""
        return np.rint(np.arange(self.num_windows) * self.step_seconds / FRAME_STEP).astype(np.int64)


def num_windows(num_samples: int, step_samples: int) -> int:
    """Number of windows for `num_samples` samples: all full ones, and a zero-padded one for a remainder.

    A recording shorter than a window has exactly one, padded (pyannote.audio 4.0.7, `core/inference.py`).

    >>> [num_windows(n, 16_000) for n in (0, 159_999, 160_000, 160_001, 176_000)]
    [1, 1, 1, 2, 2]
    """
    if num_samples < WINDOW_SAMPLES:
        return 1
    full, rest = divmod(num_samples - WINDOW_SAMPLES, step_samples)
    return full + 1 + (rest > 0)


def frame_middle(frame: int | np.ndarray) -> float | np.ndarray:
    """Time in seconds of the middle of a frame's receptive field.

    >>> frame_middle(0)
    0.03096875
    """
    # Half the sum of the field's start and end, as pyannote.core computes it: durations such as 67.5 ms are printed
    # with three decimals, and any other order of operations rounds some of them the other way.
    start = frame * FRAME_STEP
    return 0.5 * (start + (start + RECEPTIVE_FIELD))
