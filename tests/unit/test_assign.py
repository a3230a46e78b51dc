"""Assignment is the exact optimum, with the lowest clusters among equals."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from diarize.cluster.assign import UNASSIGNED, assign_best, assign_constrained


@pytest.mark.parametrize("num_clusters", [1, 2, 3, 4, 10, 200])
def test_total_is_the_hungarian_optimum(num_clusters: int) -> None:
    scores = np.random.default_rng(num_clusters).normal(size=(300, 3, num_clusters))
    labels = assign_constrained(scores)
    for window, score in enumerate(scores):
        expected = np.full(3, UNASSIGNED)
        rows, columns = linear_sum_assignment(score, maximize=True)
        expected[rows] = columns
        assert labels[window].tolist() == expected.tolist()


@pytest.mark.parametrize("num_clusters", [1, 2, 3, 5])
def test_lowest_clusters_among_equal_totals(num_clusters: int) -> None:
    # Small whole numbers: totals are exact and often equal.
    scores = np.random.default_rng(0).integers(0, 3, (200, 3, num_clusters)).astype(np.float64)
    columns = [*range(num_clusters), *[num_clusters + k for k in range(max(0, 3 - num_clusters))]]
    labels = assign_constrained(scores)
    for window, score in enumerate(scores):
        padded = np.pad(score, ((0, 0), (0, len(columns) - num_clusters)))
        # `permutations` is in lexicographic order and `max` keeps the first.
        best = max(permutations(columns, 3), key=lambda p: sum(padded[local, p[local]] for local in range(3)))
        assert labels[window].tolist() == [k if k < num_clusters else UNASSIGNED for k in best]


def test_blocks_do_not_matter() -> None:
    scores = np.random.default_rng(1).normal(size=(5000, 3, 4))
    labels = assign_constrained(scores)
    assert np.array_equal(labels[4000:], assign_constrained(scores[4000:]))


def test_more_than_127_clusters_do_not_overflow() -> None:
    scores = np.zeros((1, 3, 300))
    scores[0, 0, 299], scores[0, 1, 255], scores[0, 2, 128] = 1, 1, 1
    assert assign_constrained(scores).tolist() == [[299, 255, 128]]
    assert assign_best(scores).tolist() == [[299, 255, 128]]


def test_best_takes_the_lowest_of_equals() -> None:
    assert assign_best(np.array([[[1.0, 1.0], [0.0, 2.0], [0.0, 0.0]]])).tolist() == [[0, 1, 0]]


def test_no_windows() -> None:
    assert assign_constrained(np.zeros((0, 3, 4))).shape == (0, 3)
