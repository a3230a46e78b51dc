"""One file scored with pyannote.metrics: the place where our collar becomes theirs.

Our collar is seconds on each side of a reference boundary, as in NIST's md-eval; the one of pyannote.metrics is the
total width around it, so it is doubled here and nowhere else. Speakers are mapped by the Hungarian algorithm.

References
----------
H. Bredin, "pyannote.metrics: a toolkit for reproducible evaluation, diagnostic, and error analysis of speaker
diarization systems", Interspeech 2017. NIST, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import OptionError
from ..types import Turn
from .parts import DerParts, FileScore, JerParts

if TYPE_CHECKING:
    from pyannote.core import Annotation, Timeline

Regions = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Protocol:
    """What counts as an error.

    `collar`: seconds on each side of every reference boundary that are not scored. `skip_overlap`: leave out what the
    reference says is spoken by two or more.
    """

    collar: float = 0.0
    skip_overlap: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.collar) and self.collar >= 0):
            raise OptionError(f"collar is {self.collar}; it must be 0 or more seconds, on each side of a boundary")


def score_file(
    file_id: str,
    reference: Iterable[Turn],
    hypothesis: Iterable[Turn] | None,
    regions: Regions | None = None,
    protocol: Protocol | None = None,
) -> FileScore:
    """The score of one file; a `hypothesis` of None is missing, which misses everything.

    `regions`: what is scored, (start, end) in seconds. Without them it is one region from the first to the last moment
    that any turn of reference or hypothesis covers.
    """
    # Slow to import (pandas), so only when something is scored.
    from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate

    protocol = protocol or Protocol()
    truth = _annotation(reference, file_id)
    found = _annotation(hypothesis or (), file_id)
    scored = _timeline(_extent(truth, found) if regions is None else regions, file_id)
    width, skip = 2 * protocol.collar, protocol.skip_overlap
    with warnings.catch_warnings():
        # It warns of its own defaults; ours are stated in the result.
        warnings.simplefilter("ignore")
        der = DiarizationErrorRate(collar=width, skip_overlap=skip).compute_components(truth, found, uem=scored)
        jer = JaccardErrorRate(collar=width, skip_overlap=skip).compute_components(truth, found, uem=scored)
    return FileScore(
        file_id=file_id,
        der=DerParts(
            float(der["total"]), float(der["missed detection"]), float(der["false alarm"]), float(der["confusion"])
        ),
        jer=JerParts(int(jer["speaker count"]), float(jer["speaker error"])),
        reference_speakers=_speakers_within(truth, scored),
        speakers=_speakers_within(found, scored),
        missing=hypothesis is None,
        regions=tuple((float(region.start), float(region.end)) for region in scored),
    )


def _annotation(turns: Iterable[Turn], file_id: str) -> Annotation:
    from pyannote.core import Annotation, Segment

    annotation = Annotation(uri=file_id)
    for track, turn in enumerate(turns):
        # Turns of no length say nothing, and an annotation cannot hold them.
        if turn.end > turn.start:
            annotation[Segment(turn.start, turn.end), track] = turn.speaker
    return annotation


def _extent(reference: Annotation, hypothesis: Annotation) -> Regions:
    extents = [a.get_timeline().extent() for a in (reference, hypothesis) if a]
    if not extents:
        return ()
    return ((min(extent.start for extent in extents), max(extent.end for extent in extents)),)


def _timeline(regions: Regions, file_id: str) -> Timeline:
    from pyannote.core import Segment, Timeline

    # The support, so that regions that overlap are not counted twice.
    return Timeline([Segment(start, end) for start, end in regions if end > start], uri=file_id).support()


def _speakers_within(annotation: Annotation, regions: Timeline) -> int:
    return len(annotation.crop(regions, mode="intersection").labels())
