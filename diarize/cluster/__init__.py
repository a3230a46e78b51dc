"""From embeddings to clusters: PLDA, linkage, VBx, assignment, k-means, and the two back-ends made of them."""

from pathlib import Path as _Path

from ..cache import ensure_cache_folder as _ensure

_ensure(_Path(__file__).parent)
