"""The nearest point above each point: the same whatever the sizes in which points arrive, the threads and the axes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

from diarize.cluster.ahc import flat_clusters
from diarize.cluster.neighbours import Neighbours
from diarize.cluster.plda import unit
from diarize.cluster.search import centroid_by_search
from diarize.cluster.sketch import HEAD, principal_axes


def conversation(rng: np.random.Generator, num_points: int, width: int, copies: bool) -> np.ndarray:
    """Unit rows of five speakers; with `copies` a third of the rows are exact copies of others."""
    speakers = rng.normal(size=(5, width))
    points = speakers[rng.integers(0, 5, num_points)] + 0.5 * rng.normal(size=(num_points, width))
    if copies:
        points[rng.integers(0, num_points, num_points // 3)] = points[rng.integers(0, num_points, num_points // 3)]
    return unit(points)


def grown(points: np.ndarray, sizes: list[int], threads: int) -> Neighbours:
    found = Neighbours(points[: sizes[0]], threads)
    for first, last in zip(np.cumsum(sizes)[:-1], np.cumsum(sizes)[1:], strict=True):
        found.add(points[first:last])
    return found


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("width", [3, 40, 256])
def test_equals_all_distances(width: int, copies: bool) -> None:
    points = conversation(np.random.default_rng(width), 700, width, copies)
    squares = np.square(points[:, None] - points).sum(axis=2)
    squares[np.tril_indices(700)] = np.inf
    for found in (Neighbours(points, 1), grown(points, [1, 2, 300, 7, 390], 1)):
        np.testing.assert_allclose(found.squares[:-1], squares.min(axis=1)[:-1], rtol=1e-12, atol=1e-15)
        assert found.neighbour[:-1].tolist() == squares.argmin(axis=1)[:-1].tolist()
        assert found.squares[-1] == np.inf


def test_sizes_threads_and_axes_do_not_change_a_byte() -> None:
    points = conversation(np.random.default_rng(1), 2600, 64, copies=True)
    alone = Neighbours(points, 1)
    # Axes of other points bound badly, never wrongly.
    poor = principal_axes(np.random.default_rng(2).normal(size=(200, 64)))
    for found in (Neighbours(points, 4), grown(points, [1100, 1100, 400], 3), Neighbours(points, 1, poor)):
        assert found.neighbour.tobytes() == alone.neighbour.tobytes()
        assert found.squares.tobytes() == alone.squares.tobytes()


@pytest.mark.parametrize("copies", [False, True])
def test_clusters_of_points_that_arrived_in_parts_are_scipys(copies: bool) -> None:
    rng = np.random.default_rng(3)
    for width in (5, HEAD, 150):
        points = conversation(rng, 500, width, copies)
        tree = linkage(points, "centroid")
        merges, heights = centroid_by_search(grown(points, [100, 1, 399], 2))
        for cut in (0.3, 0.6, 0.8):
            assert flat_clusters(merges, heights, cut).tolist() == (fcluster(tree, cut, "distance") - 1).tolist()
