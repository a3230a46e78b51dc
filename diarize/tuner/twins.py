"""What the CPU computes of the recording that ships with the package, in a thread while kernels compile.

The CPU's own functions may have to be compiled too, which takes as long.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ..backend.cpu import CpuBackend
from ..model.fbank import Filterbank
from ..model.resnet34 import ResNet34Embedder
from ..model.segmentation import segmentation_layers
from ..model.weights import EmbeddingNetwork, ModelWeights
from .activations import SLOTS, demo_speech, example_features, example_masks
from .stack_twin import StackTwin


class CpuTwins:
    """Starts computing when it is made; each method waits for its part.

    `samples` (num_samples,) float32 hold `windows` windows.
    """

    def __init__(self, weights: ModelWeights, windows: int) -> None:
        self._weights = weights
        self.samples = demo_speech(windows)
        self.has_trunk = weights.network is EmbeddingNetwork.RESNET34
        self.analysis_window = "hamming" if self.has_trunk else "povey"
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="twins")
        self._stack = self._pool.submit(self._compute_stack)
        self._bank = self._pool.submit(self._compute_bank)
        self._trunk: Future[tuple[np.ndarray, np.ndarray]] | None = None
        if self.has_trunk:
            self._trunk = self._pool.submit(self._compute_trunk)

    def stack(self) -> StackTwin:
        """The segmentation network."""
        return self._stack.result()

    def bank(self) -> Filterbank:
        """The filterbank."""
        return self._bank.result()

    def trunk(self) -> tuple[np.ndarray, np.ndarray]:
        """Features (CONTENTS, 998, 80), and the embeddings (SLOTS, 256) of the first window; both float32."""
        assert self._trunk is not None
        return self._trunk.result()

    def close(self) -> None:
        """Compute no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compute_stack(self) -> StackTwin:
        twin = StackTwin(segmentation_layers(self._weights.segmentation), self.samples)
        twin.window(0)
        return twin

    def _compute_bank(self) -> Filterbank:
        bank = Filterbank(self.analysis_window)
        bank.features(self.samples[:4000])
        return bank

    def _compute_trunk(self) -> tuple[np.ndarray, np.ndarray]:
        features = example_features(self.analysis_window)
        embedder = ResNet34Embedder(self._weights.embedding, CpuBackend())
        centred = features[0] - features[0].mean(0, dtype=np.float64).astype(np.float32)
        return features, embedder.project(embedder.statistics(centred, example_masks()[:SLOTS]))
