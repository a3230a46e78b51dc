"""Original files of community-1 for tests: the real PLDA from the test material and a random ResNet34."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from diarize.model.community import PLDA_SHA256
from diarize.model.hub import EMBEDDING_REPOSITORY, EMBEDDING_REVISION, PIPELINE_REPOSITORY, PIPELINE_REVISION

from .hub_server import Hub
from .random_resnet34 import random_resnet34
from .torch_zip import checkpoint

TOKEN = "hf_right"


@cache
def embedding_bytes() -> bytes:
    """A checkpoint in pyannote's layout with a random ResNet34."""
    return checkpoint(random_resnet34(0), lightning=True)


def original_folder(folder: Path, plda: Path) -> Path:
    """Write a folder laid out as pyannote's repository; `plda` holds the real PLDA files."""
    (folder / "embedding").mkdir(parents=True)
    (folder / "embedding" / "pytorch_model.bin").write_bytes(embedding_bytes())
    (folder / "plda").mkdir()
    for name in PLDA_SHA256:
        (folder / "plda" / name).write_bytes((plda / name).read_bytes())
    return folder


def community_hub(plda: Path) -> Hub:
    """A hub that holds both repositories; the PLDA's is open to TOKEN only."""
    hub = Hub(gated={PIPELINE_REPOSITORY: TOKEN})
    hub.files[EMBEDDING_REPOSITORY, EMBEDDING_REVISION, "pytorch_model.bin"] = embedding_bytes()
    for name in PLDA_SHA256:
        hub.files[PIPELINE_REPOSITORY, PIPELINE_REVISION, f"plda/{name}"] = (plda / name).read_bytes()
    return hub
