"""From what the networks said about a whole recording to its result: cluster, stitch, speakers' embeddings, confidence.

Everything here happens once a recording, after the last stretch; nothing knows of files, threads or devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .activity import speaker_count
from .backend.blas import one_blas_thread
from .clustering import Clusterer
from .confidence import CURVES, confidences, margins
from .framing import SAMPLE_RATE, Framing
from .rows import Rows
from .stitch import LabelOrder, stitch
from .types import SpeakerBounds, Turn, WindowEmbeddings
from .voiceprints import voiceprints, window_embeddings

if TYPE_CHECKING:
    from .cluster.preparation import Prepared
    from .early import Early


@dataclass(frozen=True)
class Analysis:
    """What the networks said: `classes` (C, 589) uint8, `embeddings` (C, 3, D) float32, and the samples they cover.

    The two durations are seconds of worker threads. `early` is what was found before the last stretch was
    done.
    """

    classes: np.ndarray
    embeddings: np.ndarray
    num_samples: int
    segmentation_seconds: float
    embedding_seconds: float
    early: Early | None = None

    @cached_property
    def rows(self) -> Rows:
        """The embeddings as rows."""
        return Rows.of(self.classes, self.embeddings) if self.early is None else self.early.rows

    @property
    def prepared(self) -> Prepared | None:
        """What the clustering has prepared, None where nothing."""
        return None if self.early is None else self.early.prepared

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


@one_blas_thread()
def assemble(
    analysis: Analysis,
    clusterer: Clusterer,
    framing: Framing,
    bounds: SpeakerBounds,
    order: LabelOrder,
    offset: float,
    keep_windows: bool,
) -> Assembled:
    """The result of an analysis; its times begin at `offset` seconds.

    Products of matrices run in one thread: what is summed in which order must not depend on the machine's load.
    """
    classes, embeddings, rows = analysis.classes, analysis.embeddings, analysis.rows
    count = speaker_count(classes, framing) if len(classes) else np.zeros(0, np.uint8)
    if not count.any():
        asked = f"asked for at least {bounds.minimum} speakers, found 0: there is no speech"
        windows = None
        if keep_windows:
            labels = np.full(embeddings.shape[:2], -1)
            windows = window_embeddings(rows, embeddings, labels, np.zeros(0, np.int64), framing, offset)
        nobody = np.zeros((0, embeddings.shape[2]))
        return Assembled((), (), (), nobody, windows, (asked,) if bounds.minimum > 1 else ())
    clustering = clusterer(classes, embeddings, analysis.duration, bounds, framing, rows, analysis.prepared)
    stitched = stitch(classes, clustering, count, framing, bounds, order)
    # Windows are padded past the end; pyannote.audio lets turns run on there, which parity keeps.
    limit = np.inf if order is LabelOrder.PARITY else analysis.duration
    # Whoever is first heard past the end comes last by first appearance.
    speakers = stitched.speakers[: len({turn.speaker for turn in stitched.turns if turn.start < limit})]
    labels, clusters = clustering.labels, stitched.clusters[: len(speakers)]
    prints = voiceprints(rows, labels, clusters)
    names = dict(zip(speakers, clusters.tolist(), strict=True))
    found = margins(rows, labels, clusters, prints)
    turns, exclusive = (
        [turn for turn in listed if turn.start < limit and turn.speaker in names]
        for listed in (stitched.turns, stitched.exclusive)
    )
    sure = confidences([*turns, *exclusive], names, classes, found, framing, CURVES[clusterer.network.value])
    finished = tuple(
        Turn(turn.start + offset, min(turn.end, limit) + offset, turn.speaker, value)
        for turn, value in zip([*turns, *exclusive], sure, strict=True)
    )
    return Assembled(
        finished[: len(turns)],
        finished[len(turns) :],
        speakers,
        prints,
        window_embeddings(rows, embeddings, labels, clusters, framing, offset) if keep_windows else None,
        (*clustering.warnings, *stitched.warnings),
    )
