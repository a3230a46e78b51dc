"""What the clustering of community-1 can do before the last window has come: PLDA features, nearest neighbours.

Once there are so many embeddings to learn from that neighbours are searched instead of all distances stored, each new
one is searched as it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..rows import Rows
from .ahc import MATRIX_LIMIT
from .community1 import initial_training_set
from .features import GrowingTerms
from .plda import Plda
from .vbx import Terms

if TYPE_CHECKING:
    from .neighbours import Neighbours

# Points searched at once: a search among all that are there costs little more for a few new ones than for one.
_AT_ONCE = 256


@dataclass(frozen=True)
class Prepared:
    """Of the embeddings of `initial_training_set`: their VBx `terms`; `neighbours` among them, None where few."""

    terms: Terms
    neighbours: Neighbours | None


class Preparation:
    """Takes the windows of a recording in their order; `threads` may search at once.

    What it finds is the same as if everything were done at the end.
    """

    def __init__(self, plda: Plda, threads: int) -> None:
        self._threads = threads
        self._terms = GrowingTerms(plda)
        self._waiting: list[np.ndarray] = []
        self._number = 0
        self._neighbours: Neighbours | None = None

    def add(self, rows: Rows, embeddings: np.ndarray) -> None:
        """Begin with the next windows: their `rows` and `embeddings` (C, 3, D)."""
        train = initial_training_set(rows)
        if not len(train):
            return
        chosen = np.zeros(rows.usable.shape, dtype=bool)
        chosen[train.windows, train.locals_] = True
        self._number += len(train)
        self._terms.add(train.take(embeddings))
        self._waiting.append(rows.units[chosen[rows.usable]])
        self._search(_AT_ONCE)

    def finish(self) -> Prepared | None:
        """What was found; None where there is nothing to learn from."""
        if not self._number:
            return None
        self._search(1)
        return Prepared(self._terms.finish(), self._neighbours)

    def _search(self, least: int) -> None:
        """Search among what is waiting, unless it is too little."""
        number = sum(len(points) for points in self._waiting)
        if number < least or (self._neighbours is None and number <= MATRIX_LIMIT):
            return
        points, self._waiting = np.concatenate(self._waiting), []
        if self._neighbours is None:
            from .neighbours import Neighbours
            from .search import centroid_by_search

            self._neighbours = Neighbours(points, self._threads)
            # Loads the compiled code of what follows.
            centroid_by_search(Neighbours(points[:3], threads=1))
        else:
            self._neighbours.add(points)
