"""Labels of every local speaker: edge cases of both clusterings, and numbers of speakers that were asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from diarize.activity import active, speaker_count
from diarize.cluster import campplus, community1
from diarize.cluster.assign import UNASSIGNED
from diarize.cluster.plda import Plda
from diarize.framing import FRAMES_PER_WINDOW, Framing
from diarize.rows import Rows
from diarize.stitch import stitch
from diarize.types import Clustering, SpeakerBounds

SIZE, RANK = 24, 16
Cluster = Callable[[np.ndarray, np.ndarray, SpeakerBounds], Clustering]


def plda() -> Plda:
    """A PLDA that keeps the first dimensions, in which the speakers below differ, and expects them to differ a lot."""
    phi = np.full(RANK, 20.0)
    return Plda(np.zeros(SIZE), np.eye(SIZE, RANK), np.zeros(RANK), np.zeros(RANK), 5 * np.eye(RANK), phi)


def run_community1(classes: np.ndarray, embeddings: np.ndarray, bounds: SpeakerBounds) -> Clustering:
    return community1.cluster(Rows.of(classes, embeddings), embeddings, plda(), bounds)


def run_campplus(classes: np.ndarray, embeddings: np.ndarray, bounds: SpeakerBounds) -> Clustering:
    framing = Framing(16_000, len(classes))
    return campplus.cluster(Rows.of(classes, embeddings), embeddings, 10.0 + len(classes), plda(), bounds, framing)


BOTH = pytest.mark.parametrize("run", [run_community1, run_campplus])


def conversation(num_windows: int, speakers: int, frames_each: int = 150) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Classes (C, 589), embeddings (C, 3, 24) and true speakers (C, 3); two people in each window take turns."""
    rng = np.random.default_rng(speakers)
    classes = np.zeros((num_windows, FRAMES_PER_WINDOW), np.uint8)
    classes[:, 20 : 20 + frames_each] = 1
    classes[:, 300 : 300 + frames_each] = 2
    truth = np.full((num_windows, 3), UNASSIGNED)
    for window in range(num_windows):
        truth[window, :2] = [window % speakers, (window + 1) % speakers]
    voices = 5 * np.eye(speakers, SIZE)
    embeddings = np.full((num_windows, 3, SIZE), np.nan, np.float32)
    embeddings[:, :2] = voices[truth[:, :2]] + 0.1 * rng.normal(size=(num_windows, 2, SIZE))
    return classes, embeddings, truth


def same_people(labels: np.ndarray, truth: np.ndarray) -> bool:
    """Whether `labels` and `truth` group the local speakers alike."""
    pairs = set(zip(labels.ravel().tolist(), truth.ravel().tolist(), strict=True))
    return len(pairs) == len(set(labels.ravel().tolist())) == len(set(truth.ravel().tolist()))


@BOTH
@pytest.mark.parametrize("speakers", [2, 3, 5])
def test_people_are_told_apart(run: Cluster, speakers: int) -> None:
    classes, embeddings, truth = conversation(40, speakers)
    found = run(classes, embeddings, SpeakerBounds())
    assert found.labels.dtype == np.int32
    assert found.centroids.shape == (speakers, SIZE)
    assert same_people(found.labels, truth)
    assert found.warnings == ()


@BOTH
def test_all_silent(run: Cluster) -> None:
    classes = np.zeros((4, FRAMES_PER_WINDOW), np.uint8)
    found = run(classes, np.full((4, 3, SIZE), np.nan, np.float32), SpeakerBounds())
    assert (found.labels == UNASSIGNED).all()
    assert found.centroids.shape == (1, SIZE)


@BOTH
def test_speech_without_any_embedding_is_one_speaker(run: Cluster) -> None:
    classes = conversation(3, 2)[0]
    found = run(classes, np.full((3, 3, SIZE), np.nan, np.float32), SpeakerBounds())
    assert np.array_equal(found.labels == 0, active(classes))


@BOTH
def test_one_embedding_is_one_speaker(run: Cluster) -> None:
    classes, embeddings, _ = conversation(1, 2)
    embeddings[0, 1] = np.nan
    found = run(classes, embeddings, SpeakerBounds())
    assert found.labels.tolist() == [[0, 0, UNASSIGNED]]
    np.testing.assert_array_equal(found.centroids, embeddings[0, :1])


@BOTH
@pytest.mark.parametrize("number", [1, 2, 3, 4, 6, 9])
def test_asked_for_number_is_reached_in_labels_and_turns(run: Cluster, number: int) -> None:
    classes, embeddings, _ = conversation(30, 3)
    bounds = SpeakerBounds.of(num=number)
    found = run(classes, embeddings, bounds)
    assert len(found.centroids) == number
    assert found.warnings == ()
    framing = Framing(16_000, len(classes))
    result = stitch(classes, found, speaker_count(classes, framing), framing, bounds)
    assert result.warnings == ()
    assert {turn.speaker for turn in result.turns} == {f"SPEAKER_{k:02d}" for k in range(number)}


@BOTH
def test_bounds_only_bind_where_they_must(run: Cluster) -> None:
    classes, embeddings, truth = conversation(40, 3)
    assert same_people(run(classes, embeddings, SpeakerBounds.of(minimum=2, maximum=5)).labels, truth)
    assert len(run(classes, embeddings, SpeakerBounds.of(minimum=4)).centroids) == 4
    assert len(run(classes, embeddings, SpeakerBounds.of(maximum=2)).centroids) == 2


@BOTH
@pytest.mark.parametrize("frames_each", [60, 20, 5])
def test_short_speech_is_used_where_a_number_is_asked_for(run: Cluster, frames_each: int) -> None:
    # Fewer than 118 frames alone: too little for the usual training set.
    classes, embeddings, truth = conversation(10, 2, frames_each)
    found = run(classes, embeddings, SpeakerBounds.of(num=2))
    assert same_people(found.labels, truth)
    assert found.warnings == ()


@BOTH
def test_too_few_embeddings_give_what_there_is_and_say_so(run: Cluster) -> None:
    classes, embeddings, _ = conversation(1, 2)
    found = run(classes, embeddings, SpeakerBounds.of(num=5))
    assert sorted(set(found.labels[0, :2].tolist())) == [0, 1]
    assert len(found.centroids) == 2
    (warning,) = found.warnings
    assert warning == (
        "asked for 5 speakers, found 2: too little speech, only 2 stretches of one speaker in a window can be compared"
    )


@BOTH
def test_no_embedding_and_a_number_asked_for_is_reported(run: Cluster) -> None:
    classes = conversation(2, 2)[0]
    found = run(classes, np.full((2, 3, SIZE), np.nan, np.float32), SpeakerBounds.of(minimum=2))
    assert np.array_equal(found.labels == 0, active(classes))
    (warning,) = found.warnings
    assert warning.startswith("asked for at least 2 speakers, found 1: too little speech, only 0 stretches")


@BOTH
def test_more_than_127_clusters(run: Cluster) -> None:
    rng = np.random.default_rng(0)
    classes = conversation(100, 2)[0]
    embeddings = np.full((100, 3, SIZE), np.nan, np.float32)
    embeddings[:, :2] = rng.normal(size=(100, 2, SIZE))
    found = run(classes, embeddings, SpeakerBounds.of(num=150))
    assert len(found.centroids) == 150
    assert found.labels.max() > 127
    assert (found.labels[:, :2] >= 0).all()


def test_local_speaker_left_over_is_dropped_by_community1_and_kept_by_campplus() -> None:
    classes, embeddings, _ = conversation(30, 2)
    # A third local speaker with the first one's voice, in one window.
    classes[7, 520:560] = 3
    embeddings[7, 2] = embeddings[7, 0] + 0.5
    dropped = run_community1(classes, embeddings, SpeakerBounds())
    kept = run_campplus(classes, embeddings, SpeakerBounds())
    assert len(dropped.centroids) == len(kept.centroids) == 2
    assert dropped.labels[7, 2] == UNASSIGNED
    assert kept.labels[7, 2] == kept.labels[7, 0]


def test_campplus_counts_speakers_by_size() -> None:
    classes, embeddings, _ = conversation(30, 2)
    # The second voice is heard three times as often.
    embeddings[::2, 0] = embeddings[::2, 1]
    classes[::2, 20:170] = 0
    labels = run_campplus(classes, embeddings, SpeakerBounds()).labels
    sizes = np.bincount(labels[labels >= 0])
    assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)
