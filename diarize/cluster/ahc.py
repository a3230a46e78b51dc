"""Agglomerative clustering: flat clusters of a dendrogram cut at a distance.

`centroid_clusters` is community-1's: centroid linkage with the flat clusters and the numbering of scipy, which decide
the order of speakers. `average_clusters` is for CAM++: average linkage on cosine distance. The inner loops are compiled
in `linkage.py`, `search.py` and `chain.py`, which are imported on first use.

References
----------
Muellner (2011), "Modern hierarchical, agglomerative clustering algorithms", arXiv:1109.2378.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .plda import unit

if TYPE_CHECKING:
    from .neighbours import Neighbours

# Above this many points distances are searched for instead of stored (8 N^2 bytes). Both give the same clusters, but
# only the matrix decides between equal distances other than zero exactly as scipy does.
MATRIX_LIMIT = 1500


def centroid_clusters(points: np.ndarray | Neighbours, cut: float, matrix_limit: int = MATRIX_LIMIT) -> np.ndarray:
    """Flat clusters (N,) int64 of centroid linkage on Euclidean distance, cut at `cut`.

    `points` (N, D), N at least 1, not normalised here. A cluster is a subtree in which no merge is farther than
    `cut`, so merges closer than those below them (inversions) are handled. Numbers follow the tree from the root:
    subtrees left before right, then single points, as scipy's `fcluster` numbers them. Instead of more than
    `matrix_limit` points, their neighbours may be given, which are used up.
    """
    if len(points) == 1:
        return np.zeros(1, dtype=np.int64)
    if isinstance(points, np.ndarray) and len(points) <= matrix_limit:
        from . import linkage

        distances = linkage.distances(np.ascontiguousarray(points, dtype=np.float64))
        merges, heights = linkage.centroid_by_matrix(distances)
    else:
        from . import search
        from .neighbours import Neighbours

        found = points if isinstance(points, Neighbours) else Neighbours(np.asarray(points, dtype=np.float64))
        merges, heights = search.centroid_by_search(found)
    return flat_clusters(merges, heights, cut)


def average_clusters(points: np.ndarray, cut: float) -> np.ndarray:
    """Flat clusters (N,) int64 of average linkage on cosine distance, cut at `cut`, numbered by first member.

    `points` (N, D), N at least 1. Memory N x D: the mean cosine of two clusters is the product of their means.
    """
    from . import chain

    rows = unit(np.asarray(points, dtype=np.float64))
    roots = chain.average_by_chain(rows, cut, *chain.project(rows))
    return np.unique(roots, return_inverse=True)[1].astype(np.int64)


def flat_clusters(merges: np.ndarray, heights: np.ndarray, cut: float) -> np.ndarray:
    """Flat clusters (N,) int64 of a dendrogram whose subtrees stay within `cut`.

    `merges` (N - 1, 2): the two nodes of each merge, smaller number first; points are 0 to N - 1, merge k is
    N + k. `heights` (N - 1,): distance of each merge.
    """
    from .compiled import number_subtrees

    merges, heights = np.asarray(merges, dtype=np.int64), np.asarray(heights, dtype=np.float64)
    return np.asarray(number_subtrees(merges, heights, cut))
