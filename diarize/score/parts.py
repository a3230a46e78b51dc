"""Frozen scores that add up: sums of seconds and of speakers, divided only when a rate is asked for.

There is no way to average rates here: scores of several files are added with `+` or `sum_parts`, and the rate of the
sum is the pooled rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class DerParts:
    """The parts of a diarization error rate, all in seconds.

    `total`: scored speaker time of the reference, where two speakers at once count twice.

    >>> (DerParts(8.0, 1.0, 0.5, 0.5) + DerParts(2.0, 0.0, 0.0, 1.0)).der
    0.3
    """

    total: float
    missed: float
    false_alarm: float
    confusion: float

    def __add__(self, other: DerParts) -> DerParts:
        return DerParts(
            self.total + other.total,
            self.missed + other.missed,
            self.false_alarm + other.false_alarm,
            self.confusion + other.confusion,
        )

    @property
    def errors(self) -> float:
        """Missed, false alarm and confused seconds together."""
        return self.missed + self.false_alarm + self.confusion

    @property
    def is_defined(self) -> bool:
        """Whether any speech of the reference was scored."""
        return self.total > 0

    @property
    def der(self) -> float:
        """Diarization error rate as a fraction; it may exceed 1.

        Without scored speech it is 0 when there are no errors and 1 otherwise, as pyannote.metrics has it.
        """
        return _rate(self.errors, self.total)

    def share(self, seconds: float) -> float:
        """`seconds` of error as a fraction of the scored speaker time, so that the three parts add up to the DER."""
        return _rate(seconds, self.total)


@dataclass(frozen=True)
class JerParts:
    """The parts of a Jaccard error rate: reference speakers, and the sum of each one's error in [0, 1].

    >>> (JerParts(2, 0.5) + JerParts(3, 0.5)).jer
    0.2
    """

    speakers: int
    error: float

    def __add__(self, other: JerParts) -> JerParts:
        return JerParts(self.speakers + other.speakers, self.error + other.error)

    @property
    def is_defined(self) -> bool:
        """Whether any speaker of the reference was scored."""
        return self.speakers > 0

    @property
    def jer(self) -> float:
        """Jaccard error rate as a fraction; 1 without a reference speaker, as pyannote.metrics has it."""
        return self.error / self.speakers if self.speakers else 1.0


@dataclass(frozen=True)
class CountParts:
    """Speaker counts: `files`, how many of them have the `exact` number, and the sum of absolute differences."""

    files: int
    exact: int
    difference: int

    def __add__(self, other: CountParts) -> CountParts:
        return CountParts(self.files + other.files, self.exact + other.exact, self.difference + other.difference)


@dataclass(frozen=True)
class FileScore:
    """The score of one file.

    `speakers` and `reference_speakers`: labels with speech in the scored regions. `missing`: there was no hypothesis,
    so that everything counts as missed. `regions`: what was scored, (start, end) in seconds, before collars.
    """

    file_id: str
    der: DerParts
    jer: JerParts
    reference_speakers: int
    speakers: int
    missing: bool
    regions: tuple[tuple[float, float], ...]

    @property
    def count(self) -> CountParts:
        """The speaker count as parts that add up over files."""
        difference = abs(self.speakers - self.reference_speakers)
        return CountParts(1, int(difference == 0), difference)


def sum_parts(scores: Iterable[FileScore]) -> tuple[DerParts, JerParts, CountParts]:
    """The parts of all files together; exact sums, so that their order does not matter."""
    files = list(scores)
    der = DerParts(
        math.fsum(score.der.total for score in files),
        math.fsum(score.der.missed for score in files),
        math.fsum(score.der.false_alarm for score in files),
        math.fsum(score.der.confusion for score in files),
    )
    jer = JerParts(sum(score.jer.speakers for score in files), math.fsum(score.jer.error for score in files))
    counts = [score.count for score in files]
    count = CountParts(len(counts), sum(part.exact for part in counts), sum(part.difference for part in counts))
    return der, jer, count


def _rate(seconds: float, total: float) -> float:
    if total > 0:
        return seconds / total
    return 1.0 if seconds > 0 else 0.0
