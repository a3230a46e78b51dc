"""Compiled sums over the windows that cover each frame, in the order of windows.

Windows overlap: a frame of the recording gets what every window that covers it says. All functions release the
interpreter lock; importing this module imports numba.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numba import njit

from .cache import ensure_cache_folder

ensure_cache_folder(Path(__file__).parent)


@njit(cache=True, nogil=True)
def sum_values(
    classes: np.ndarray, firsts: np.ndarray, values: np.ndarray, total: np.ndarray, cover: np.ndarray
) -> None:
    """Add `values[classes]` to `total` (T,), and the number of windows to `cover` (T,).

    `classes` (C, F) uint8, `firsts` (C,) first frame of each window, `values` (7,) integers.
    """
    for window in range(len(classes)):
        first = firsts[window]
        for frame in range(classes.shape[1]):
            total[first + frame] += values[classes[window, frame]]
            cover[first + frame] += 1


@njit(cache=True, nogil=True)
def sum_votes(
    classes: np.ndarray, labels: np.ndarray, firsts: np.ndarray, table: np.ndarray, votes: np.ndarray
) -> None:
    """Add one to `votes` (K, T) for every window in which a cluster speaks in a frame.

    `classes` (C, F) uint8, `labels` (C, 3) clusters or negative, `table` (7, 3) who speaks in each class. Two local
    speakers of one cluster count once where they overlap.
    """
    for window in range(len(classes)):
        first = firsts[window]
        for local in range(labels.shape[1]):
            cluster = labels[window, local]
            if cluster < 0:
                continue
            for frame in range(classes.shape[1]):
                row = table[classes[window, frame]]
                counted = False
                for before in range(local):
                    counted |= labels[window, before] == cluster and row[before] != 0
                if row[local] != 0 and not counted:
                    votes[cluster, first + frame] += 1


@njit(cache=True, nogil=True)
def sum_margins(
    classes: np.ndarray,
    margins: np.ndarray,
    labels: np.ndarray,
    cluster: int,
    firsts: np.ndarray,
    table: np.ndarray,
    sums: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Add the margins of `cluster` where it speaks to `sums` (T,), and the number of them to `counts` (T,).

    `margins` (C, 3) float64, not finite where there is none; the rest as for `sum_votes`.
    """
    for window in range(len(classes)):
        first = firsts[window]
        for local in range(labels.shape[1]):
            margin = margins[window, local]
            if labels[window, local] != cluster or not np.isfinite(margin):
                continue
            for frame in range(classes.shape[1]):
                if table[classes[window, frame], local] != 0:
                    sums[first + frame] += margin
                    counts[first + frame] += 1.0
