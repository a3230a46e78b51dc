"""k-means: scikit-learn's labels where it is installed, and always as many clusters as asked for."""

from __future__ import annotations

import numpy as np
import pytest

from diarize.cluster.kmeans import euclidean_kmeans, spherical_kmeans
from diarize.cluster.plda import unit

BOTH = pytest.mark.parametrize("kmeans", [euclidean_kmeans, spherical_kmeans])


def points_of(rng: np.random.Generator, num_points: int, width: int, speakers: int) -> np.ndarray:
    centres = 3 * rng.normal(size=(speakers, width))
    return unit(centres[rng.integers(0, speakers, num_points)] + rng.normal(size=(num_points, width)))


def test_labels_of_scikit_learn() -> None:
    cluster = pytest.importorskip("sklearn.cluster", reason="scikit-learn is not installed")
    rng = np.random.default_rng(0)
    for trial in range(60):
        number = int(rng.integers(1, 9))
        num_points = int(rng.integers(number, 150))
        points = points_of(rng, num_points, int(rng.integers(2, 100)), 1 + trial % 6)
        expected = cluster.KMeans(number, n_init=3, random_state=42).fit_predict(points)
        assert euclidean_kmeans(points, number).tolist() == expected.tolist()


def test_labels_recorded_from_scikit_learn() -> None:
    # scikit-learn 1.9.1, KMeans(4, n_init=3, random_state=42).fit_predict on these points.
    points = np.random.RandomState(7).standard_normal((24, 5))
    expected = [0, 2, 1, 1, 0, 2, 2, 3, 0, 1, 0, 1, 3, 2, 0, 0, 1, 3, 0, 1, 1, 0, 0, 1]
    assert euclidean_kmeans(points, 4).tolist() == expected


@BOTH
def test_every_asked_for_cluster_exists(kmeans: object) -> None:
    rng = np.random.default_rng(1)
    for number in range(1, 31):
        points = points_of(rng, 30, 8, 2)
        assert sorted(set(kmeans(points, number).tolist())) == list(range(number))  # type: ignore[operator]
        same = np.ones((30, 8))
        assert sorted(set(kmeans(same, number).tolist())) == list(range(number))  # type: ignore[operator]


@BOTH
def test_finds_well_separated_speakers(kmeans: object) -> None:
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 5, 200)
    points = unit(np.eye(5, 16)[truth] + 0.05 * rng.normal(size=(200, 16)))
    labels = kmeans(points, 5)  # type: ignore[operator]
    assert len(set(zip(truth.tolist(), labels.tolist(), strict=True))) == 5


@BOTH
@pytest.mark.parametrize("number", [0, 4])
def test_impossible_number_is_refused(kmeans: object, number: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 3"):
        kmeans(np.eye(3), number)  # type: ignore[operator]


@BOTH
def test_same_bytes_twice(kmeans: object) -> None:
    points = points_of(np.random.default_rng(3), 300, 20, 4)
    assert np.array_equal(kmeans(points, 6), kmeans(points.copy(), 6))  # type: ignore[operator]
