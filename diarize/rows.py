"""The embeddings of a recording as rows of unit length, and what its classes say about the local speakers they are of.

Everything is per window, so rows may be made stretch by stretch, and in an order of operations that does not depend on
the number of threads: sums run without BLAS.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .activity import active, alone_frames


@dataclass(frozen=True)
class Rows:
    """Local speakers of C windows and the N usable embeddings among them.

    `speaks` (C, 3) bool: talks at all; `alone` (C, 3) int64: frames in which it is the only one; `usable` (C, 3) bool:
    talks and has an embedding. `units` (N, D) float64: usable embeddings of length 1, in the order of windows.
    """

    speaks: np.ndarray
    alone: np.ndarray
    usable: np.ndarray
    units: np.ndarray

    @classmethod
    def of(cls, classes: np.ndarray, embeddings: np.ndarray) -> Rows:
        """Rows of `classes` (C, 589) uint8 and `embeddings` (C, 3, D) float32, NaN where there is none."""
        speaks = active(classes)
        usable = np.asarray(np.isfinite(embeddings).all(axis=2) & speaks)
        return cls(speaks, alone_frames(classes), usable, unit_rows(embeddings[usable]))


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """`rows` (N, D) as float64 of length 1; rows of zeros stay."""
    values = rows.astype(np.float64)
    lengths = np.sqrt(np.square(values).sum(axis=1, keepdims=True))
    values /= np.where(lengths > 0, lengths, 1.0)
    return values
