"""Binds a model to the clustering that belongs to its embeddings.

The ResNet34 of community-1 goes with its PLDA and centroid linkage; CAM++ with ours and average linkage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .cluster.plda import Plda
from .framing import Framing
from .model.weights import EmbeddingNetwork, ModelWeights
from .rows import Rows
from .types import Clustering, SpeakerBounds

if TYPE_CHECKING:
    from .cluster.preparation import Preparation, Prepared


@dataclass(frozen=True)
class Clusterer:
    """Clusters the embeddings of one recording with the back-end of `network`."""

    network: EmbeddingNetwork
    plda: Plda
    grid: bool = False

    @classmethod
    def of(cls, weights: ModelWeights, grid: bool = False) -> Clusterer:
        """The clusterer that belongs to a model's embeddings; `grid` as in `modes.Plan`."""
        if weights.network is EmbeddingNetwork.CAMPPLUS:
            return cls(weights.network, Plda.campplus(weights.plda), grid)
        return cls(weights.network, Plda.community1(weights.plda))

    def preparation(self, threads: int) -> Preparation | None:
        """What begins while embeddings arrive, with so many `threads`; None where nothing can."""
        if self.network is EmbeddingNetwork.CAMPPLUS:
            return None
        from .cluster.preparation import Preparation

        return Preparation(self.plda, threads)

    def __call__(
        self,
        classes: np.ndarray,
        embeddings: np.ndarray,
        duration: float,
        bounds: SpeakerBounds,
        framing: Framing,
        rows: Rows | None = None,
        prepared: Prepared | None = None,
    ) -> Clustering:
        """Clusters of the local speakers: `classes` (C, 589) uint8, `embeddings` (C, 3, D), `duration` in seconds.

        `rows` and `prepared` are what was found early, see `early.Early`.
        """
        rows = rows or Rows.of(classes, embeddings)
        if self.network is EmbeddingNetwork.CAMPPLUS:
            from .cluster import campplus

            cut = campplus.GRID_CUT if self.grid else campplus.AHC_CUT
            return campplus.cluster(rows, embeddings, duration, self.plda, bounds, framing, cut)
        from .cluster import community1

        return community1.cluster(rows, embeddings, self.plda, bounds, prepared)
