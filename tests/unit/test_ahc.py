"""Flat clusters equal scipy's, number for number: random, clustered, duplicated and tied points."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

from diarize.cluster.ahc import average_clusters, centroid_clusters, flat_clusters
from diarize.cluster.plda import unit

KINDS = ["noise", "speakers", "duplicates", "unit duplicates", "repeated", "one cloud"]


def random_points(rng: np.random.Generator, kind: str, num_points: int) -> np.ndarray:
    """Points (num_points, D) whose distances are rarely equal, except to copies of themselves."""
    points = rng.normal(size=(num_points, int(rng.integers(2, 60))))
    if kind == "speakers":
        points = 0.2 * points + rng.normal(size=(5, points.shape[1]))[rng.integers(0, 5, num_points)]
    if "duplicates" in kind:
        points = points[rng.integers(0, num_points, num_points)]
    if kind == "one cloud":
        # One cluster takes in the others, one by one.
        points = 1.0 + points * np.exp(-np.arange(points.shape[1]) / 10)
    if kind == "repeated":
        # The same few minutes again and again, some of them not quite.
        points = np.tile(points[: num_points // 6 + 1], (6, 1))[:num_points]
        points = points + 1e-3 * (rng.random(points.shape[0]) < 0.1)[:, None] * rng.normal(size=points.shape)
    return unit(points) if "unit" in kind else points


def cuts(heights: np.ndarray) -> list[float]:
    """Distances to cut at, none within rounding of a merge."""
    candidates = [*np.quantile(heights, [0.2, 0.5, 0.8, 0.95]), 0.6]
    return [cut for cut in candidates if np.abs(heights - cut).min() > 1e-9]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("matrix_limit", [10**9, 1], ids=["matrix", "search"])
def test_centroid_linkage_equals_scipy(kind: str, matrix_limit: int) -> None:
    rng = np.random.default_rng(KINDS.index(kind))
    checked = 0
    for _ in range(150):
        points = random_points(rng, kind, int(rng.integers(2, 120)))
        tree = linkage(points, "centroid")
        for cut in cuts(tree[:, 2]):
            expected = fcluster(tree, cut, "distance") - 1
            assert centroid_clusters(points, cut, matrix_limit).tolist() == expected.tolist()
            checked += 1
    assert checked > 100


def test_ties_are_broken_as_scipy_does() -> None:
    # Integer points have many equal distances; only the matrix follows scipy there.
    rng = np.random.default_rng(7)
    for _ in range(300):
        points = rng.integers(0, 4, (int(rng.integers(2, 80)), int(rng.integers(1, 8)))).astype(np.float64)
        tree = linkage(points, "centroid")
        for cut in (0.5, 1.1, 1.3, 2.05):
            expected = fcluster(tree, cut, "distance") - 1
            assert centroid_clusters(points, cut).tolist() == expected.tolist()


def test_many_copies_are_joined_as_scipy_does() -> None:
    rng = np.random.default_rng(11)
    for _ in range(150):
        points = rng.normal(size=(int(rng.integers(1, 25)), 40))
        points = points[rng.integers(0, len(points), 6 * len(points))]
        tree = linkage(points, "centroid")
        for cut in (1e-6, *cuts(tree[:, 2])):
            expected = fcluster(tree, cut, "distance") - 1
            assert centroid_clusters(points, cut, matrix_limit=1).tolist() == expected.tolist()


def test_inversions_count_for_the_whole_subtree() -> None:
    # The two lower points are 1.0 apart; their centroid is only 0.9 from the third: a cut at 0.95 must not join it.
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.9]])
    assert linkage(points, "centroid")[:, 2].round(9).tolist() == [1.0, 0.9]
    assert centroid_clusters(points, 0.95).tolist() == [0, 1, 2]
    assert centroid_clusters(points, 1.0).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("num_points", "speakers"), [(1000, 6), (3000, 6), (2000, 1)])
def test_both_ways_agree_with_scipy_on_many_points(num_points: int, speakers: int) -> None:
    rng = np.random.default_rng(num_points)
    axes = np.exp(-np.arange(64) / 10)
    points = unit(
        rng.normal(size=(speakers, 64))[rng.integers(0, speakers, num_points)] * axes
        + 0.5 * rng.normal(size=(num_points, 64)) * axes
    )
    tree = linkage(points, "centroid")
    for cut in cuts(tree[:, 2]):
        expected = (fcluster(tree, cut, "distance") - 1).tolist()
        assert centroid_clusters(points, cut).tolist() == expected
        assert centroid_clusters(points, cut, matrix_limit=1).tolist() == expected


def test_average_linkage_gives_scipys_partition() -> None:
    rng = np.random.default_rng(5)
    for trial in range(150):
        points = random_points(rng, KINDS[trial % len(KINDS)], int(rng.integers(2, 150)))
        tree = linkage(unit(points), "average", metric="cosine")
        for cut in (0.1, 0.3, 0.7, 1.0):
            if np.abs(tree[:, 2] - cut).min() < 1e-9:
                continue
            expected = fcluster(tree, cut, "distance")
            found = average_clusters(points, cut)
            pairs = {(int(a), int(b)) for a, b in zip(expected, found, strict=True)}
            assert len(pairs) == len(set(expected)) == len(set(found.tolist()))
            first_members = [int(np.flatnonzero(found == k)[0]) for k in range(found.max() + 1)]
            assert first_members == sorted(first_members)


def test_one_point() -> None:
    assert centroid_clusters(np.ones((1, 4)), 0.6).tolist() == [0]
    assert average_clusters(np.ones((1, 4)), 0.3).tolist() == [0]


def test_numbers_follow_the_tree() -> None:
    # ((0 1) (2 3)) 4: subtrees left before right, then the single point.
    merges = np.array([[2, 3], [0, 1], [5, 6], [4, 7]])
    heights = np.array([0.1, 0.2, 1.0, 2.0])
    assert flat_clusters(merges, heights, 0.5).tolist() == [1, 1, 0, 0, 2]
    assert flat_clusters(merges, heights, 1.5).tolist() == [0, 0, 0, 0, 1]
    assert flat_clusters(merges, heights, 0.15).tolist() == [1, 2, 0, 0, 3]
