"""The whole engine on GPUs of every generation, on a driver that does nothing: choices fit together and bind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA bindings are not installed: pip install 'diarize-cuda[cuda]'")

from tools.null_gpu import null_gpu
from tools.random_resnet34 import random_resnet34

from diarize.backend.cuda_lane import CudaLane
from diarize.engine import open_engine
from diarize.framing import WINDOW_SAMPLES
from diarize.model.weights import EmbeddingNetwork, ModelWeights, load_model
from diarize.stretches import Stretch

# Name, compute capability, multiprocessors; the last is newer than all defaults.
GPUS = [
    ("Tesla T4", (7, 5), 40),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 108),
    ("NVIDIA A10", (8, 6), 72),
    ("NVIDIA GeForce RTX 4090", (8, 9), 128),
    ("NVIDIA H100 PCIe", (9, 0), 114),
    ("NVIDIA H200", (9, 0), 132),
    ("NVIDIA B200", (10, 0), 148),
    ("NVIDIA GeForce RTX 5090", (12, 0), 170),
    ("NVIDIA Next", (13, 0), 160),
]
STEP = 16_000


@pytest.fixture(scope="module")
def resnet34() -> ModelWeights:
    plain = load_model("campplus")
    return ModelWeights("random", EmbeddingNetwork.RESNET34, "", (), plain.segmentation, random_resnet34(0, ""), {})


@pytest.mark.parametrize(("name", "capability", "multiprocessors"), GPUS, ids=[name for name, _, _ in GPUS])
@pytest.mark.parametrize("model", ["resnet34", "campplus", "campplus grid"])
def test_every_generation_gets_kernels_that_bind(
    model: str,
    name: str,
    capability: tuple[int, int],
    multiprocessors: int,
    resnet34: ModelWeights,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    weights = resnet34 if model == "resnet34" else load_model("campplus")
    segment = CudaLane.segment

    def speaking(lane: CudaLane, samples: np.ndarray, count: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        classes, flagged = segment(lane, samples, count, step)
        # The first speaker all the time, and the second in every other window.
        classes[:] = 1
        classes[::2, 300:] = 2
        return classes, flagged

    monkeypatch.setattr(CudaLane, "segment", speaking)
    with null_gpu(capability, multiprocessors, name) as driver:
        engine = open_engine("cuda", weights, grid=model.endswith("grid"), threads=1)
        assert engine.choices is not None
        assert not engine.choices.missing
        assert not engine.choices.warnings
        assert (engine.choices.source == "recipe nvidia-h200") == (name == "NVIDIA H200")
        for count in (1, 70):
            before = driver.launches
            samples = np.zeros((count - 1) * STEP + WINDOW_SAMPLES, np.float32)
            result = engine.analyse(Stretch(0, count, samples), STEP)
            assert driver.launches > before + 40
            assert result.embeddings.shape == (count, 3, engine.dimension)
            found = np.isfinite(result.embeddings).all(axis=2)
            assert found[:, 0].all()
            assert not found[:, 2].any()
