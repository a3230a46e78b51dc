"""From what the networks said about a whole recording to its result: cluster, stitch, speakers' embeddings, confidence.

Everything here happens once a recording, after the last stretch; nothing knows of files, threads or devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .activity import speaker_count
from .clustering import Clusterer
from .confidence import CURVES, Margins, margins, with_confidence
from .framing import SAMPLE_RATE, Framing
from .stitch import LabelOrder, stitch
from .types import SpeakerBounds, Turn, WindowEmbeddings
from .voiceprints import voiceprints, window_embeddings


@dataclass(frozen=True)
class Analysis:
    """What the networks said: `classes` (C, 589) uint8, `embeddings` (C, 3, D) float32, and the samples they cover.

    The two durations are seconds of worker threads.
    """

    classes: np.ndarray
    embeddings: np.ndarray
    num_samples: int
    segmentation_seconds: float
    embedding_seconds: float

    @property
    def duration(self) -> float:
        """Seconds of audio."""
        return self.num_samples / SAMPLE_RATE


@dataclass(frozen=True)
class Assembled:
    """The parts of a `Diarization` that follow from an analysis; see there."""

    turns: tuple[Turn, ...]
    exclusive: tuple[Turn, ...]
    speakers: tuple[str, ...]
    embeddings: np.ndarray
    windows: WindowEmbeddings | None
    warnings: tuple[str, ...]


def assemble(
    analysis: Analysis,
    clusterer: Clusterer,
    framing: Framing,
    bounds: SpeakerBounds,
    order: LabelOrder,
    offset: float,
    keep_windows: bool,
) -> Assembled:
    """The result of an analysis; its times begin at `offset` seconds."""
    classes, embeddings = analysis.classes, analysis.embeddings
    count = speaker_count(classes, framing) if len(classes) else np.zeros(0, np.uint8)
    if not count.any():
        asked = f"asked for at least {bounds.minimum} speakers, found 0: there is no speech"
        windows = None
        if keep_windows:
            labels = np.full(embeddings.shape[:2], -1)
            windows = window_embeddings(classes, embeddings, labels, np.zeros(0, np.int64), framing, offset)
        nobody = np.zeros((0, embeddings.shape[2]))
        return Assembled((), (), (), nobody, windows, (asked,) if bounds.minimum > 1 else ())
    clustering = clusterer(classes, embeddings, analysis.duration, bounds, framing)
    stitched = stitch(classes, clustering, count, framing, bounds, order)
    # Windows are padded past the end; pyannote.audio lets turns run on there, which parity keeps.
    limit = np.inf if order is LabelOrder.PARITY else analysis.duration
    # Whoever is first heard past the end comes last by first appearance.
    speakers = stitched.speakers[: len({turn.speaker for turn in stitched.turns if turn.start < limit})]
    labels, clusters = clustering.labels, stitched.clusters[: len(speakers)]
    prints = voiceprints(classes, embeddings, labels, clusters)
    names = dict(zip(speakers, clusters.tolist(), strict=True))
    found: Margins = margins(classes, embeddings, labels, clusters, prints)
    curve = CURVES[clusterer.network.value]

    def finished(turns: Sequence[Turn]) -> tuple[Turn, ...]:
        within = [turn for turn in turns if turn.start < limit]
        sure = with_confidence(within, names, classes, found, framing, curve)
        return tuple(replace(t, start=t.start + offset, end=min(t.end, limit) + offset) for t in sure)

    return Assembled(
        finished(stitched.turns),
        finished(stitched.exclusive),
        speakers,
        prints,
        window_embeddings(classes, embeddings, labels, clusters, framing, offset) if keep_windows else None,
        (*clustering.warnings, *stitched.warnings),
    )
