"""Binary heap of cluster numbers ordered by a lower bound, smallest at the top, for compiled code.

`heap` holds keys by position, `place` positions by key, `bound` the value of each key. Equal values keep their order
as far as a heap does: which of them is on top decides between equally close clusters, so these rules are part of the
clustering's result.
"""

from __future__ import annotations

import numpy as np

from ..cache import njit


@njit(cache=True, nogil=True)
def sift_up(heap: np.ndarray, place: np.ndarray, bound: np.ndarray, at: int) -> None:
    """Move the key at position `at` towards the top of the heap of lower bounds."""
    key = heap[at]
    while at > 0:
        parent = (at - 1) >> 1
        if not bound[heap[parent]] > bound[key]:
            break
        heap[at] = heap[parent]
        place[heap[at]] = at
        at = parent
    heap[at] = key
    place[key] = at


@njit(cache=True, nogil=True)
def sift_down(heap: np.ndarray, place: np.ndarray, bound: np.ndarray, at: int, length: int) -> None:
    """Move the key at position `at` away from the top of the heap of lower bounds."""
    key = heap[at]
    while 2 * at + 1 < length:
        child = 2 * at + 1
        if child + 1 < length and bound[heap[child + 1]] < bound[heap[child]]:
            child += 1
        if not bound[key] > bound[heap[child]]:
            break
        heap[at] = heap[child]
        place[heap[at]] = at
        at = child
    heap[at] = key
    place[key] = at
