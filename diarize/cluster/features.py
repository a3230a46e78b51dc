"""PLDA features as VBx takes them, of embeddings that arrive in parts: the same blocks of rows however they come."""

from __future__ import annotations

import numpy as np

from .plda import Plda
from .vbx import Terms

# Fixed, so that products of matrices are the same whatever the parts were.
_BLOCK_ROWS = 512


class GrowingTerms:
    """The VBx terms of raw embeddings."""

    def __init__(self, plda: Plda) -> None:
        self._plda = plda
        self._done: list[Terms] = []
        self._left: np.ndarray | None = None

    def add(self, embeddings: np.ndarray) -> None:
        """Take raw `embeddings` (n, D) float64, which follow those before."""
        left = embeddings if self._left is None else np.concatenate([self._left, embeddings])
        whole = len(left) - len(left) % _BLOCK_ROWS
        for first in range(0, whole, _BLOCK_ROWS):
            self._compute(left[first : first + _BLOCK_ROWS])
        self._left = left[whole:]

    def finish(self) -> Terms:
        """The terms of all; at least one embedding must have come."""
        if self._left is not None and len(self._left):
            self._compute(self._left)
            self._left = None
        done = self._done
        return Terms(np.concatenate([t.rho for t in done]), np.concatenate([t.G for t in done]), self._plda.phi)

    def _compute(self, rows: np.ndarray) -> None:
        self._done.append(Terms.of(self._plda.features(rows), self._plda.phi))
