"""Votes, the loudest clusters, turns and labels, against direct definitions; ten hours in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarize.activity import speaker_count
from diarize.framing import FRAMES_PER_WINDOW, Framing, frame_middle
from diarize.powerset import to_local
from diarize.stitch import LabelOrder, Stitched, cluster_votes, loudest, reconstruct, stitch
from diarize.types import Clustering, SpeakerBounds


def random_recording(seed: int, num_windows: int, num_clusters: int) -> tuple[np.ndarray, np.ndarray, Framing]:
    """Classes (C, 589), labels (C, 3) and framing."""
    rng = np.random.default_rng(seed)
    runs = rng.integers(0, 7, (num_windows, 20)).astype(np.uint8)
    classes = np.repeat(runs, 30, axis=1)[:, :FRAMES_PER_WINDOW]
    labels = rng.integers(-2, num_clusters, (num_windows, 3)).astype(np.int32)
    labels[labels == -1] = -2
    return classes, labels, Framing(16_000, num_windows)


def clustering(labels: np.ndarray, num_clusters: int) -> Clustering:
    return Clustering(labels, np.arange(num_clusters * 4, dtype=np.float64).reshape(num_clusters, 4) + 1)


# The first example compiles what it calls.
@settings(deadline=None)
@given(seed=st.integers(0, 10**6), num_windows=st.integers(1, 12), num_clusters=st.integers(1, 12))
def test_reconstruct_is_the_definition(seed: int, num_windows: int, num_clusters: int) -> None:
    classes, labels, framing = random_recording(seed, num_windows, num_clusters)
    count = speaker_count(classes, framing)
    columns = max(num_clusters, int(count.max()))
    total = np.zeros((framing.num_frames, columns))
    for window in range(num_windows):
        local = to_local(classes[window])
        first = framing.first_frame(window)
        for cluster in range(num_clusters):
            mine = local[:, labels[window] == cluster]
            if mine.shape[1]:
                total[first : first + FRAMES_PER_WINDOW, cluster] += mine.max(axis=1)
    rank = np.argsort(np.argsort(-total, axis=1, kind="stable"), axis=1, kind="stable")
    frames = reconstruct(classes, labels, count, framing, num_clusters)
    assert np.array_equal(frames, rank < count[:, None])


def test_equal_votes_go_to_the_lowest_cluster_even_without_any() -> None:
    votes = np.array([[0, 2, 1, 0], [0, 2, 3, 0], [0, 2, 3, 0], [0, 0, 3, 0]], np.uint8)
    chosen = loudest(votes, np.array([0, 2, 2, 3], np.uint8))
    assert [np.flatnonzero(column).tolist() for column in chosen.T] == [[], [0, 1], [1, 2], [0, 1, 2]]


def one_window(runs: list[tuple[int, int, int]]) -> np.ndarray:
    """Classes (1, 589) of (first frame, end frame, class) runs."""
    classes = np.zeros((1, FRAMES_PER_WINDOW), np.uint8)
    for first, end, value in runs:
        classes[0, first:end] = value
    return classes


def stitch_window(classes: np.ndarray, labels: list[int], clusters: int, **options: object) -> Stitched:
    framing = Framing(16_000, len(classes))
    count = speaker_count(classes, framing)
    return stitch(classes, clustering(np.array([labels]), clusters), count, framing, **options)  # type: ignore[arg-type]


def test_turns_overlap_exclusive_and_first_appearance() -> None:
    classes = one_window([(10, 50, 2), (50, 60, 4), (60, 90, 1)])
    result = stitch_window(classes, [0, 1, -2], 2)
    t = [float(frame_middle(frame)) for frame in range(FRAMES_PER_WINDOW)]
    seen = [(turn.start, turn.end, turn.speaker) for turn in result.turns]
    # Cluster 1 is heard first.
    assert seen == [(t[10], t[60], "SPEAKER_00"), (t[50], t[90], "SPEAKER_01")]
    exclusive = [(turn.start, turn.end, turn.speaker) for turn in result.exclusive]
    assert exclusive == [(t[10], t[50], "SPEAKER_00"), (t[50], t[90], "SPEAKER_01")]
    assert result.speakers == ("SPEAKER_00", "SPEAKER_01")
    assert result.centroids.tolist() == [[5, 6, 7, 8], [1, 2, 3, 4]]


def test_parity_order_sorts_cluster_numbers_as_text() -> None:
    classes = np.concatenate([one_window([(100, 200, 1)])] * 12)
    labels = np.full((12, 3), -2)
    labels[:, 0] = np.arange(12)
    framing = Framing(160_000, 12)
    count = speaker_count(classes, framing)
    result = stitch(classes, clustering(labels, 12), count, framing, order=LabelOrder.PARITY)
    assert result.centroids[:, 0].tolist() == [1 + 4 * k for k in (0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9)]
    assert [turn.speaker for turn in result.turns][:3] == ["SPEAKER_00", "SPEAKER_01", "SPEAKER_04"]


def test_more_at_once_than_clusters_adds_a_speaker_without_embedding() -> None:
    result = stitch_window(one_window([(10, 50, 4)]), [0, -2, -2], 1)
    assert result.speakers == ("SPEAKER_00", "SPEAKER_01")
    assert result.centroids.tolist() == [[1, 2, 3, 4], [0, 0, 0, 0]]


def test_open_turn_ends_at_the_last_frame_and_a_lone_last_frame_is_no_turn() -> None:
    framing = Framing(16_000, 1)
    classes = one_window([(500, FRAMES_PER_WINDOW, 1)])
    count = np.zeros(framing.num_frames, np.uint8)
    count[500:] = 1
    result = stitch(classes, clustering(np.array([[0, -2, -2]]), 1), count, framing)
    assert [(turn.start, turn.end) for turn in result.turns] == [(frame_middle(500), frame_middle(593))]
    count[:593] = 0
    assert stitch(classes, clustering(np.array([[0, -2, -2]]), 1), count, framing).turns == ()


@pytest.mark.parametrize("maximum", [255, 256, 10**20])
def test_a_maximum_beyond_any_frame_changes_nothing(maximum: int) -> None:
    windows = one_window([(10, 50, 4)])
    plain = stitch_window(windows, [0, 1, -2], 1)
    assert stitch_window(windows, [0, 1, -2], 1, bounds=SpeakerBounds.of(maximum=maximum)).turns == plain.turns
    assert plain.turns


def test_maximum_bounds_every_frame() -> None:
    result = stitch_window(one_window([(10, 50, 4)]), [0, -2, -2], 1, bounds=SpeakerBounds.of(maximum=1))
    assert result.speakers == ("SPEAKER_00",)


@pytest.mark.parametrize("number", [2, 3])
def test_asked_for_speaker_that_never_wins_a_frame_is_kept(number: int) -> None:
    # Three windows agree on cluster 0; the one that hears cluster 1 (and 2) in the same frames is outvoted.
    classes = np.concatenate([one_window([(100, 500, 1)])] * 6)
    labels = np.full((6, 3), -2)
    labels[:, 0] = [0, 0, 0, 0, 1, number - 1]
    framing = Framing(16_000, 6)
    count = np.zeros(framing.num_frames, np.uint8)
    count[300:500] = 1
    free = stitch(classes, clustering(labels, number), count, framing)
    assert free.speakers == ("SPEAKER_00",)
    asked = stitch(classes, clustering(labels, number), count, framing, SpeakerBounds.of(num=number))
    assert len(asked.speakers) == number
    assert {turn.speaker for turn in asked.turns} == set(asked.speakers)
    assert {turn.speaker for turn in asked.exclusive} == set(asked.speakers)
    assert asked.warnings == ()


def test_asked_for_speaker_without_any_vote_is_reported() -> None:
    bounds = SpeakerBounds.of(num=2)
    result = stitch_window(one_window([(100, 200, 1)]), [0, -2, -2], 2, bounds=bounds)
    assert len(result.speakers) == 1
    assert result.warnings == ("asked for 2 speakers, only 1 have a turn: the others are never the ones who speak",)


def test_exclusive_has_no_speaker_of_its_own() -> None:
    # Cluster 1 only ever overlaps with 0, cluster 2 is outvoted everywhere; two speakers are asked for and there.
    classes = np.concatenate([one_window([(100, 500, 4)])] * 3 + [one_window([(100, 500, 3)])])
    labels = np.array([[0, 1, -2]] * 3 + [[-2, -2, 2]])
    framing = Framing(16_000, 4)
    count = np.zeros(framing.num_frames, np.uint8)
    count[300:450] = 2
    result = stitch(classes, clustering(labels, 3), count, framing, SpeakerBounds.of(minimum=2))
    assert result.speakers == ("SPEAKER_00", "SPEAKER_01")
    assert {turn.speaker for turn in result.exclusive} == set(result.speakers)


def test_ten_hours_in_little_memory() -> None:
    num_clusters = 8
    classes, labels, framing = random_recording(1, 36_000, num_clusters)
    tracemalloc.start()
    count = speaker_count(classes, framing)
    frames = loudest(cluster_votes(classes, labels, framing, num_clusters), count)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert frames.shape == (num_clusters, framing.num_frames)
    # 2.1 million frames x 8 clusters x (1 byte of votes + 1 of choice), and counts; a float array of windows x frames
    # x clusters would be 680 MB.
    assert peak < 64e6
