"""Frozen values that cross module borders; their shapes, dtypes and units are documented here once.

Letters used in shapes: C windows, F = 589 frames a window, L = 3 local speakers, D embedding size,
N training embeddings, K clusters, T frames of the whole recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas
    from pyannote.core import Annotation


@dataclass(frozen=True, order=True)
class Turn:
    """One speaker's stretch: `start` and `end` in seconds from the recording's start, `speaker` its label.

    `confidence`, from 0 to 1, says how sure the label is (diarize/confidence.py); None where there is nothing to go by,
    as with a single speaker. It plays no part in comparisons.

    >>> Turn(0.5, 2.0, "SPEAKER_00").duration
    1.5
    """

    start: float
    end: float
    speaker: str
    confidence: float | None = field(default=None, compare=False)

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
        from .values import whole_number

        for name, value in (("num-speakers", num), ("min-speakers", minimum), ("max-speakers", maximum)):
            if value is not None and whole_number(name, value) < 1:
                raise OptionError(f"{name} is {value}; it must be at least 1")
        if num is not None:
            for name, bound, contradicts in (
                ("min-speakers", minimum, minimum is not None and minimum > num),
                ("max-speakers", maximum, maximum is not None and maximum < num),
            ):
                if contradicts:
                    raise OptionError(f"num-speakers {num} contradicts {name} {bound}; give num-speakers alone")
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
class WindowEmbeddings:
    """The embeddings that a result was clustered from, one row for each local speaker of a window that has one.

    `starts` (N,) float64, seconds from the recording's start; each window lasts 10 s. `alone` (N,) float64, seconds in
    which the local speaker talks alone in its window. `speakers` (N,) int32, index into the result's speakers, -1 for
    none. `embeddings` (N, D) float32.
    """

    starts: np.ndarray
    alone: np.ndarray
    speakers: np.ndarray
    embeddings: np.ndarray


@dataclass(frozen=True)
class KernelChoices:
    """Which candidate of `diarize cuda candidates` computed each layer on a GPU, by the layer's id.

    Where candidates differ by batch size (windows), both stand there, as in "1: a, 32: b". `source` is what decided
    first: a tune file, a recipe, a default, or "portable".

    >>> KernelChoices("recipe nvidia-h200", {"resnet34.conv1": "stem"}).layers["resnet34.conv1"]
    'stem'
    """

    source: str
    layers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Diarization:
    """Who spoke when in one recording.

    `turns` and `exclusive` (one speaker at a time) are sorted by start, end and speaker. `speakers` lists the labels
    in the order of `embeddings` (num_speakers, D) float64, rows of unit length, zero for a speaker without any.
    `duration` is the decoded length in seconds, which began at `offset` seconds of the recording: all times count from
    the recording's own start. `name` is the recording's file name without suffix, "" for samples. `windows` is there
    when it was asked for. `warnings`: one sentence each. `checksum` is the model's, `recipe` says which kernels
    computed the networks, None on the CPU.
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
    recipe: KernelChoices | None = None
    name: str = ""
    offset: float = 0.0
    windows: WindowEmbeddings | None = field(default=None, repr=False)

    def to_rttm(self, file_id: str | None = None, exclusive: bool = False) -> str:
        r"""RTTM text, one line for each turn; `file_id` is `name` unless given.

        >>> result = Diarization((Turn(0.5, 2.0, "A"),), (), ("A",), np.zeros((1, 0)), 2.0, "m", "cpu", "exact")
        >>> result.to_rttm("talk")
        'SPEAKER talk 1 0.500 1.500 <NA> <NA> A <NA> <NA>\n'
        """
        from .outputs.rttm import format_rttm

        return format_rttm(self._chosen(exclusive), self._file_id(file_id))

    def to_json(self, file_id: str | None = None) -> str:
        """The versioned JSON document of diarize/outputs/json.py."""
        from .outputs.json import format_json

        return format_json(self, self._file_id(file_id))

    def to_annotation(self, exclusive: bool = False) -> Annotation:
        """The turns as a `pyannote.core.Annotation`, one track each, named by its number.

        >>> result = Diarization((Turn(0.5, 2.0, "A"),), (), ("A",), np.zeros((1, 0)), 2.0, "m", "cpu", "exact")
        >>> result.to_annotation().labels()
        ['A']
        """
        from pyannote.core import Annotation, Segment

        annotation = Annotation(uri=self.name or None)
        for track, turn in enumerate(self._chosen(exclusive)):
            annotation[Segment(turn.start, turn.end), track] = turn.speaker
        return annotation

    def to_dataframe(self, exclusive: bool = False) -> pandas.DataFrame:
        """The turns as a pandas data frame: columns start, end, duration (seconds), speaker, confidence (NaN for none).

        Raises
        ------
        OptionError
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            from .errors import OptionError

            raise OptionError("a data frame needs pandas, which is not installed: pip install pandas") from error
        turns = self._chosen(exclusive)
        columns: dict[str, list[Any]] = {
            "start": [turn.start for turn in turns],
            "end": [turn.end for turn in turns],
            "duration": [turn.duration for turn in turns],
            "speaker": [turn.speaker for turn in turns],
        }
        frame = pandas.DataFrame(columns)
        # An empty column would else be one of objects.
        frame["confidence"] = np.array([turn.confidence for turn in turns], dtype=np.float64)
        return frame

    def _chosen(self, exclusive: bool) -> tuple[Turn, ...]:
        return self.exclusive if exclusive else self.turns

    def _file_id(self, given: str | None) -> str:
        return given or self.name or "recording"
