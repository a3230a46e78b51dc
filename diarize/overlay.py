"""Compiled sums over the windows that cover each frame, in the order of windows.

Windows overlap: a frame of the recording gets what every window that covers it says. All functions release the
interpreter lock; importing this module imports numba.
"""

from __future__ import annotations

import numpy as np

from .cache import njit


@njit(cache=True, nogil=True)
def sum_values(
    classes: np.ndarray, firsts: np.ndarray, values: np.ndarray, total: np.ndarray, cover: np.ndarray
) -> None:
    """Add `values[classes]` to `total` (T,), and the number of windows to `cover` (T,).

    `classes` (C, F) uint8, `firsts` (C,) first frame of each window, `values` (7,) integers from 0 to 15.
    """
    # Four bits for each class: shifts fill vector registers, looking up does not.
    packed, length = np.int32(0), classes.shape[1]
    for number in range(len(values)):
        packed |= np.int32(values[number]) << np.int32(4 * number)
    for window in range(len(classes)):
        of, first = classes[window], firsts[window]
        sums, windows = total[first : first + length], cover[first : first + length]
        for frame in range(length):
            sums[frame] += np.uint16((packed >> (np.int32(of[frame]) * 4)) & 15)
            windows[frame] += np.uint16(1)


@njit(cache=True, nogil=True)
def sum_votes(
    classes: np.ndarray, labels: np.ndarray, firsts: np.ndarray, table: np.ndarray, votes: np.ndarray
) -> None:
    """Add one to `votes` (K, T) for every window in which a cluster speaks in a frame.

    `classes` (C, F) uint8, `labels` (C, 3) clusters or negative, `table` (7, 3) who speaks in each class. Two local
    speakers of one cluster count once where they overlap.
    """
    num_local, length = labels.shape[1], classes.shape[1]
    for window in range(len(classes)):
        for local in range(num_local):
            cluster = labels[window, local]
            seen = cluster < 0
            for before in range(local):
                seen |= labels[window, before] == cluster
            if seen:
                continue
            wanted = np.int32(0)
            for other in range(local, num_local):
                if labels[window, other] == cluster:
                    wanted |= _classes_of(table, other)
            # A bit for each class.
            row, of = votes[cluster, firsts[window] : firsts[window] + length], classes[window]
            for frame in range(length):
                row[frame] += np.uint8((wanted >> np.int32(of[frame])) & 1)


@njit(cache=True, nogil=True)
def _classes_of(table: np.ndarray, local: int) -> np.int32:
    """The classes in which a local speaker speaks, one bit each."""
    bits = np.int32(0)
    for number in range(len(table)):
        if table[number, local] != 0:
            bits |= np.int32(1 << number)
    return bits


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
    """Running sums over frames of the margins of `cluster` where it speaks, and of the number of them.

    `sums` and `counts` (T + 1,) float64 begin at zero, so that differences are sums over frames. `margins` (C, 3)
    float64, not finite where there is none; the rest as for `sum_votes`.
    """
    length = classes.shape[1]
    sums[:], counts[:] = 0.0, 0.0
    for window in range(len(classes)):
        for local in range(labels.shape[1]):
            margin = margins[window, local]
            if labels[window, local] != cluster or not np.isfinite(margin):
                continue
            first, wanted, of = firsts[window] + 1, _classes_of(table, local), classes[window]
            total, number = sums[first : first + length], counts[first : first + length]
            for frame in range(length):
                speaks = np.float64((wanted >> np.int32(of[frame])) & 1)
                total[frame] += margin * speaks
                number[frame] += speaks
    for frame in range(1, len(sums)):
        sums[frame] += sums[frame - 1]
        counts[frame] += counts[frame - 1]


@njit(cache=True, nogil=True)
def sum_rows(rows: np.ndarray, chosen: np.ndarray, weights: np.ndarray, total: np.ndarray) -> None:
    """Add the `chosen` (n,) of `rows` (N, D), times their `weights` (n,), to `total` (D,), in order."""
    for at in range(len(chosen)):
        row, weight = rows[chosen[at]], weights[at]
        for k in range(len(total)):
            total[k] += row[k] * weight


@njit(cache=True, nogil=True)
def choose_loudest(votes: np.ndarray, count: np.ndarray, chosen: np.ndarray) -> None:
    """Set `chosen` (K, T) bool for the `count[t]` largest of `votes` (K, T) in each frame; the lowest of equals."""
    for frame in range(len(count)):
        for _ in range(count[frame]):
            best, most = -1, -1
            for cluster in range(len(votes)):
                if votes[cluster, frame] > most and not chosen[cluster, frame]:
                    best, most = cluster, int(votes[cluster, frame])
            chosen[best, frame] = True


@njit(cache=True, nogil=True)
def runs(frames: np.ndarray, found: np.ndarray) -> int:
    """Cluster, first frame and frame after the last of every run, written to `found` (n, 3); their number.

    `frames` (K, T) bool. Runs beyond the room in `found` are counted only.
    """
    number = 0
    for cluster in range(len(frames)):
        row, begin, frame = frames[cluster], -1, 0
        last = len(row)
        while frame <= last:
            on = frame < last and row[frame]
            if on and begin < 0:
                begin = frame
            elif not on and begin >= 0:
                if number < len(found):
                    found[number, 0], found[number, 1], found[number, 2] = cluster, begin, frame
                number, begin = number + 1, -1
            frame += 1
            # Most frames are like the one before: eight at a time.
            while frame + 8 <= last and _alike(row, frame, on):
                frame += 8
    return number


@njit(cache=True, nogil=True)
def _alike(row: np.ndarray, frame: int, on: bool) -> bool:
    total = 0
    for k in range(8):
        total += row[frame + k]
    return total == (8 if on else 0)
