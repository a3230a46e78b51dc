"""Frozen values that cross module borders; their shapes, dtypes and units are documented here once.

Letters used in shapes: C windows, F = 589 frames a window, L = 3 local speakers, D embedding size,
N training embeddings, K clusters, T frames of the whole recording.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, order=True)
class Turn:
    """One speaker's stretch: `start` and `end` in seconds from the recording's start, `speaker` its label.

    >>> Turn(0.5, 2.0, "SPEAKER_00").duration
    1.5
    """

    start: float
    end: float
    speaker: str

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return self.end - self.start


@dataclass(frozen=True)
class SpeakerBounds:
    """How many speakers the caller asks for; `num` sets both bounds.

    `minimum` at least 1, `maximum` None for no bound. Build it with `SpeakerBounds.of`, which checks the values.
    """

    minimum: int = 1
    maximum: int | None = None

    @classmethod
    def of(cls, num: int | None = None, minimum: int | None = None, maximum: int | None = None) -> SpeakerBounds:
        """Bounds from the three user options.

        Raises
        ------
        OptionError
            A value below 1, `num` together with a bound it contradicts, or `minimum` above `maximum`.
        """
        from .errors import OptionError

        for name, value in (("num-speakers", num), ("min-speakers", minimum), ("max-speakers", maximum)):
            if value is not None and value < 1:
                raise OptionError(f"{name} is {value}; it must be at least 1")
        if num is not None:
            if (minimum is not None and minimum > num) or (maximum is not None and maximum < num):
                raise OptionError(
                    f"num-speakers {num} contradicts min-speakers {minimum} or max-speakers {maximum}; give num alone"
                )
            return cls(num, num)
        low = 1 if minimum is None else minimum
        if maximum is not None and low > maximum:
            raise OptionError(f"min-speakers {low} is above max-speakers {maximum}; swap them")
        return cls(low, maximum)

    @property
    def exact(self) -> int | None:
        """The asked-for number, where both bounds agree."""
        return self.minimum if self.minimum == self.maximum else None

    def clamp(self, number: int) -> int:
        """The allowed number nearest to `number`."""
        return max(self.minimum, number if self.maximum is None else min(number, self.maximum))


@dataclass(frozen=True)
class Clustering:
    """Which cluster each local speaker of each window belongs to.

    `labels` (C, L) int32: cluster, or -2 for a silent or dropped local speaker.
    `centroids` (K, D) float64: one embedding per cluster, NaN where a cluster has none.
    `warnings`: what the caller should tell the user, one sentence each.
    """

    labels: np.ndarray
    centroids: np.ndarray
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diarization:
    """Who spoke when in one recording.

    `turns` and `exclusive` (one speaker at a time) are sorted by start, end and speaker. `speakers` lists the labels
    in the order of `embeddings` (num_speakers, D) float64. `duration` is the decoded length in seconds.
    `checksum` is the model's, `recipe` the name of the recipe that chose the kernels, "" where none did.
    """

    turns: tuple[Turn, ...]
    exclusive: tuple[Turn, ...]
    speakers: tuple[str, ...]
    embeddings: np.ndarray
    duration: float
    model: str
    device: str
    mode: str
    timings: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    checksum: str = ""
    recipe: str = ""
