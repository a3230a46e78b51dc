"""From clusters per window to turns: overlap-added votes, the loudest clusters of each frame, times and labels.

Votes are summed in place, frames x clusters small integers; windows x frames x clusters is never built.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from .framing import Framing, frame_middle
from .powerset import CLASS_TABLE
from .types import Clustering, SpeakerBounds, Turn

_NO_BOUNDS = SpeakerBounds()


class LabelOrder(Enum):
    """How clusters are numbered as SPEAKER_00, SPEAKER_01, ..."""

    FIRST_APPEARANCE = "first-appearance"
    PARITY = "parity"
    """As pyannote.audio does: cluster numbers sorted as text (0, 1, 10, 11, 2, ...)."""


@dataclass(frozen=True)
class Stitched:
    """Turns of one recording.

    `turns` and `exclusive` (one speaker at a time) are sorted by start, end and speaker. `speakers` are the labels in
    order, `clusters` (num_speakers,) int64 their clusters, `centroids` (num_speakers, D) float64 their centroids,
    zero where the clustering has none.
    `warnings`: what the caller should tell the user, one sentence each.
    """

    turns: tuple[Turn, ...]
    exclusive: tuple[Turn, ...]
    speakers: tuple[str, ...]
    clusters: np.ndarray
    centroids: np.ndarray
    warnings: tuple[str, ...] = ()


def stitch(
    classes: np.ndarray,
    clustering: Clustering,
    count: np.ndarray,
    framing: Framing,
    bounds: SpeakerBounds = _NO_BOUNDS,
    order: LabelOrder = LabelOrder.FIRST_APPEARANCE,
) -> Stitched:
    """Turns of all clusters, with overlap and exclusive.

    `classes` (C, F) uint8 powerset classes, `count` (T,) uint8 speakers per frame. No frame has more speakers than
    `bounds` allow. Where fewer speakers than `bounds` ask for would have a turn, a cluster that is never among the
    loudest of a frame still gets the frames where its own vote is highest.
    """
    if bounds.maximum is not None:
        count = np.minimum(count, min(bounds.maximum, np.iinfo(count.dtype).max))
    votes = cluster_votes(classes, clustering.labels, framing, _num_columns(count, len(clustering.centroids)))
    frames = loudest(votes, count)
    single = loudest(votes, np.minimum(count, 1))
    if 1 < bounds.minimum > _with_turn(frames).sum():
        _keep(frames, votes, np.ones(len(votes), dtype=bool))
    if 1 < bounds.minimum > _with_turn(single).sum():
        # Exclusive turns have no speaker of their own.
        _keep(single, votes, _with_turn(frames))
    stretches = _stretches(frames)
    clusters = _ordered(stretches, order)
    names = {int(cluster): f"SPEAKER_{index:02d}" for index, cluster in enumerate(clusters)}
    return Stitched(
        _turns(stretches, names),
        _turns(_stretches(single), names),
        tuple(names.values()),
        clusters,
        _in_order(clustering.centroids, clusters),
        _silent(bounds, len(clusters), len(clustering.centroids)),
    )


def cluster_votes(classes: np.ndarray, labels: np.ndarray, framing: Framing, num_clusters: int) -> np.ndarray:
    """Number of windows in which each cluster speaks in each frame, (num_clusters, T) uint8.

    `classes` (C, F) uint8 powerset classes, `labels` (C, 3) clusters, negative for none.
    """
    from .overlay import sum_votes

    votes = np.zeros((num_clusters, framing.num_frames), dtype=np.uint8)
    sum_votes(np.ascontiguousarray(classes), np.ascontiguousarray(labels), framing.first_frames, CLASS_TABLE, votes)
    return votes


def loudest(votes: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The `count[t]` clusters with the most votes in each frame, (K, T) bool; equal votes go to the lowest cluster.

    `votes` (K, T) uint8; `count` (T,) at most K. A cluster may be chosen with no vote at all.
    """
    from .overlay import choose_loudest

    chosen = np.zeros(votes.shape, dtype=bool)
    choose_loudest(votes, count, chosen)
    return chosen


def reconstruct(
    classes: np.ndarray, labels: np.ndarray, count: np.ndarray, framing: Framing, num_clusters: int
) -> np.ndarray:
    """Who speaks in each frame, (T, K) bool, K the larger of `num_clusters` and the largest count.

    `classes` (C, F) uint8 powerset classes, `labels` (C, 3) clusters or negative, `count` (T,) speakers per frame.
    """
    return loudest(cluster_votes(classes, labels, framing, _num_columns(count, num_clusters)), count).T


def _num_columns(count: np.ndarray, num_clusters: int) -> int:
    """Columns of the frames: more than there are clusters where more people speak at once."""
    return max(num_clusters, int(count.max(initial=0)))


def _in_order(centroids: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """`centroids` (K, D) in the order of `clusters`; zero for a cluster that the clustering does not know."""
    rows = np.zeros((len(clusters), centroids.shape[1]))
    known = clusters < len(centroids)
    rows[known] = centroids[clusters[known]]
    return rows


def _silent(bounds: SpeakerBounds, appearing: int, clustered: int) -> tuple[str, ...]:
    """One sentence if speakers that were found have no turn and fewer than asked for appear."""
    if appearing >= min(bounds.minimum, clustered):
        return ()
    asked = str(bounds.minimum) if bounds.exact else f"at least {bounds.minimum}"
    return (f"asked for {asked} speakers, only {appearing} have a turn: the others are never the ones who speak",)


def _with_turn(frames: np.ndarray) -> np.ndarray:
    """Whether each cluster has a turn, (K,) bool: the last frame alone makes none."""
    return np.asarray(frames[:, :-1].any(axis=1))


def _keep(frames: np.ndarray, votes: np.ndarray, wanted: np.ndarray) -> None:
    """Give `wanted` clusters without a turn the frames where their vote peaks, in place of the weakest there.

    `frames` (K, T) bool, changed in place; `votes` (K, T) uint8; `wanted` (K,) bool.
    """
    sizes = frames.sum(axis=1)
    for cluster in np.flatnonzero(wanted & ~_with_turn(frames)):
        peak = int(votes[cluster, :-1].max(initial=0))
        for frame in np.flatnonzero((votes[cluster] == peak) & (peak > 0)):
            # Nobody else may lose a last frame to this.
            present = [k for k in np.flatnonzero(frames[:, frame]) if sizes[k] > 2 and k != cluster]
            if present:
                weakest = min(reversed(present), key=lambda k: votes[k, frame])
                frames[weakest, frame] = False
                sizes[weakest] -= 1
            frames[cluster, frame] = True
            sizes[cluster] += 1


def _stretches(frames: np.ndarray) -> list[tuple[float, float, int]]:
    """Start, end (seconds) and cluster of every run of frames, sorted; `frames` (K, T) bool.

    A run lasts from the middle of its first frame to the middle of the frame after it, or of the recording's last.
    """
    from .overlay import runs

    found = np.empty((1024, 3), dtype=np.int64)
    number = runs(frames, found)
    if number > len(found):
        found = np.empty((number, 3), dtype=np.int64)
        runs(frames, found)
    clusters, begins, ends = found[:number].T
    ends = np.minimum(ends, frames.shape[1] - 1)
    # A run of the last frame alone has no length.
    longer = ends > begins
    clusters = clusters[longer]
    starts, stops = np.asarray(frame_middle(begins[longer])), np.asarray(frame_middle(ends[longer]))
    order = np.lexsort((clusters, stops, starts))
    return list(zip(starts[order].tolist(), stops[order].tolist(), clusters[order].tolist(), strict=True))


def _ordered(stretches: list[tuple[float, float, int]], order: LabelOrder) -> np.ndarray:
    """Clusters that have a stretch, in the order of their labels."""
    seen = list(dict.fromkeys(cluster for _, _, cluster in stretches))
    return np.array(sorted(seen, key=str) if order is LabelOrder.PARITY else seen, dtype=np.int64)


def _turns(stretches: list[tuple[float, float, int]], names: dict[int, str]) -> tuple[Turn, ...]:
    # Sorted before they are turns, which take far longer to compare.
    return tuple(Turn(*stretch) for stretch in sorted((start, end, names[at]) for start, end, at in stretches))
