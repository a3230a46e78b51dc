"""Two k-means for a number of speakers that the automatic clustering did not find.

`euclidean_kmeans` follows community-1, which calls scikit-learn with seed 42: greedy k-means++ on numpy's Mersenne
twister, Lloyd iterations, the best of three starts. `spherical_kmeans` is for CAM++: cosine, one deterministic start.
Both return exactly the asked number of clusters wherever there are as many different points.
"""

from __future__ import annotations

import numpy as np

from .plda import unit

SEED = 42
NUM_STARTS = 3
MAX_ITERATIONS = 300
# Share of the points' mean variance below which a shift of all centres counts as converged.
RELATIVE_TOLERANCE = 1e-4
SPHERICAL_ITERATIONS = 100


def euclidean_kmeans(points: np.ndarray, num_clusters: int) -> np.ndarray:
    """Cluster of each of `points` (N, D), (N,) int64, 0 to `num_clusters` - 1; needs 1 <= `num_clusters` <= N.

    References
    ----------
    Arthur and Vassilvitskii (2007), "k-means++: the advantages of careful seeding"; the greedy variant, parameters
    and order of random draws are those of scikit-learn 1.9 `KMeans(n_init=3, random_state=42)`.
    """
    _check(points, num_clusters)
    data = np.asarray(points, dtype=np.float64)
    data = data - data.mean(axis=0)
    norms = np.einsum("nd,nd->n", data, data)
    tolerance = RELATIVE_TOLERANCE * float(data.var(axis=0).mean())
    random = np.random.RandomState(SEED)
    best_labels, best_inertia = np.zeros(len(data), dtype=np.int64), np.inf
    for start in range(NUM_STARTS):
        centres = data[_seed_greedily(data, norms, num_clusters, random)]
        labels, inertia = _lloyd(data, norms, centres, tolerance)
        if start == 0 or (inertia < best_inertia and not _same_partition(labels, best_labels)):
            best_labels, best_inertia = labels, inertia
    return _fill_empty(data, best_labels, num_clusters)


def spherical_kmeans(points: np.ndarray, num_clusters: int) -> np.ndarray:
    """Cluster of each of `points` (N, D) by cosine, (N,) int64; needs 1 <= `num_clusters` <= N.

    Starts at the point nearest to the overall direction, then always at the point farthest from those chosen.
    """
    _check(points, num_clusters)
    data = unit(np.asarray(points, dtype=np.float64))
    chosen = [int((data @ unit(data.mean(axis=0))).argmax())]
    nearest = data @ data[chosen[0]]
    while len(chosen) < num_clusters:
        chosen.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, data @ data[chosen[-1]])
    centres = data[chosen]
    labels = np.full(len(data), -1)
    for _ in range(SPHERICAL_ITERATIONS):
        new = (data @ centres.T).argmax(axis=1)
        if (new == labels).all():
            break
        labels = new
        sums = _sum_by_label(data, labels, num_clusters)
        used = np.bincount(labels, minlength=num_clusters) > 0
        centres = np.where(used[:, None], unit(sums), centres)
    return _fill_empty(data, labels, num_clusters)


def _check(points: np.ndarray, num_clusters: int) -> None:
    if not 1 <= num_clusters <= len(points):
        raise ValueError(f"{num_clusters} clusters of {len(points)} points; between 1 and {len(points)} are possible")


def _seed_greedily(data: np.ndarray, norms: np.ndarray, num_clusters: int, random: np.random.RandomState) -> list[int]:
    """Indices of the first centres: of a few candidates drawn by squared distance, the one that helps most."""
    num_trials = 2 + int(np.log(num_clusters))
    weights = np.ones(len(data))
    chosen = [int(random.choice(len(data), p=weights / weights.sum()))]
    closest = _squared_distances(data[chosen], data, norms)[0]
    potential = float(closest.sum())
    for _ in range(1, num_clusters):
        draws = random.uniform(size=num_trials) * potential
        candidates = np.minimum(np.searchsorted(np.cumsum(closest), draws), len(data) - 1)
        distances = np.minimum(closest, _squared_distances(data[candidates], data, norms))
        potentials = distances.sum(axis=1)
        best = int(potentials.argmin())
        potential, closest = float(potentials[best]), distances[best]
        chosen.append(int(candidates[best]))
    return chosen


def _lloyd(data: np.ndarray, norms: np.ndarray, centres: np.ndarray, tolerance: float) -> tuple[np.ndarray, float]:
    """Labels (N,) and inertia after Lloyd iterations from `centres` (K, D)."""
    labels = np.full(len(data), -1)
    for _ in range(MAX_ITERATIONS):
        new = _nearest(data, centres)
        moved = _means(data, new, centres)
        shift = float(((moved - centres) ** 2).sum())
        centres = moved
        if (new == labels).all():
            break
        labels = new
        if shift <= tolerance:
            labels = _nearest(data, centres)
            break
    else:
        labels = _nearest(data, centres)
    return labels, float(((data - centres[labels]) ** 2).sum())


def _nearest(data: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Nearest centre of each point, (N,); equal distances go to the lowest index."""
    return (np.einsum("kd,kd->k", centres, centres) - 2.0 * (data @ centres.T)).argmin(axis=1)


def _means(data: np.ndarray, labels: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Mean of each cluster's points; an empty one takes over the point farthest from its own centre."""
    sums = _sum_by_label(data, labels, len(centres))
    sizes = np.bincount(labels, minlength=len(centres)).astype(np.float64)
    empty = np.flatnonzero(sizes == 0)
    if len(empty):
        distances = ((data - centres[labels]) ** 2).sum(axis=1)
        if distances.max() > 0:
            for cluster, point in zip(empty, np.argsort(-distances, kind="stable"), strict=False):
                sums[labels[point]] -= data[point]
                sizes[labels[point]] -= 1
                sums[cluster], sizes[cluster] = data[point], 1
    return sums / np.maximum(sizes, 1.0)[:, None]


def _squared_distances(rows: np.ndarray, data: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Squared distances (M, N) of `rows` (M, D) to `data` (N, D), never negative."""
    squares = np.einsum("md,md->m", rows, rows)
    return np.maximum(squares[:, None] - 2.0 * (rows @ data.T) + norms, 0.0)


def _sum_by_label(data: np.ndarray, labels: np.ndarray, num_clusters: int) -> np.ndarray:
    """Sums (K, D) of the points of each cluster, zero for an empty one."""
    return (labels == np.arange(num_clusters)[:, None]).astype(np.float64) @ data


def _same_partition(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether every cluster of `first` lies in one cluster of `second`."""
    pairs = np.unique(np.stack([first, second]), axis=1)
    return len(np.unique(pairs[0])) == pairs.shape[1]


def _fill_empty(data: np.ndarray, labels: np.ndarray, num_clusters: int) -> np.ndarray:
    """`labels` with every cluster used: an empty one gets the point farthest from the mean of a larger cluster.

    Equal points can leave a cluster empty; a speaker that was asked for should exist even then.
    """
    labels = labels.astype(np.int64)
    for cluster in range(num_clusters):
        sizes = np.bincount(labels, minlength=num_clusters)
        if sizes[cluster]:
            continue
        means = _sum_by_label(data, labels, num_clusters) / np.maximum(sizes, 1)[:, None]
        distances = ((data - means[labels]) ** 2).sum(axis=1)
        distances[sizes[labels] < 2] = -1.0
        labels[distances.argmax()] = cluster
    return labels
