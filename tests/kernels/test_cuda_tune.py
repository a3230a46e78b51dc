"""A full tune on a GPU: every candidate right, the file read back and used, turns and embeddings unchanged."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.random_resnet34 import random_resnet34

from diarize.backend.cuda_devices import discover
from diarize.backend.cuda_key import choices, present_key
from diarize.hardware import Device
from diarize.model.checksums import network_checksums
from diarize.model.weights import EmbeddingNetwork, ModelWeights, load_model, load_segmentation
from diarize.pipeline import Pipeline
from diarize.recipe import Recipe, tune_path, write
from diarize.registry import LAYERS
from diarize.resources import demo_recording
from diarize.tuner.log import Session, parse, replay
from diarize.tuner.run import tune
from diarize.tuner.search import Outcome
from diarize.tuner.site import FailureKind
from diarize.tuner.tunefile import compose
from diarize.tuner.wish import wish_for

pytestmark = pytest.mark.cuda
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'diarize-cuda[cuda]'")


@pytest.fixture(scope="module")
def gpu() -> Device:
    found = discover()
    if not found.gpus:
        pytest.skip(found.problem)
    return found.gpus[0]


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DIARIZE_TUNE_FILE", raising=False)


def tuned(gpu: Device, weights: ModelWeights, batches: tuple[int, ...]) -> tuple[Outcome, Session, Recipe]:
    from diarize.tuner.device import DeviceBench

    wish = replace(wish_for(weights.network.value, gpu.compute_capability or (0, 0)), batches=batches)
    session = Session(wish.rules)
    bench = DeviceBench(gpu.index, weights, max(batch for _, batch in wish.tasks()), gpu)
    try:
        outcome = tune(bench, wish, session)
    finally:
        bench.close()
    key = present_key(gpu, network_checksums(weights))
    recipe = compose(outcome, key, None, {"what": "test"})
    if folder := os.environ.get("OUT"):
        # For a look at the times on the machine that has the GPU.
        session.write(Path(folder) / f"tune-{weights.network.value}.jsonl")
        (Path(folder) / f"tune-{weights.network.value}.json").write_text(json.dumps(session.seconds))
    return outcome, session, recipe


def check(outcome: Outcome, session: Session, network: str) -> None:
    """Every candidate is right or not for this GPU, every layer has a choice, and the law holds."""
    assert [t for t in session.trials if t.failure and t.failure.kind is not FailureKind.UNSUPPORTED] == []
    assert set(outcome.decisions) == {
        layer.id for layer in LAYERS.values() if layer.network in ("fbank", "pyannet", network)
    }
    for by_batch in outcome.decisions.values():
        assert len({decision.trial.digest for decision in by_batch.values()}) == 1
    # A candidate gives the same bytes for a window in every batch.
    digests: dict[tuple[str, str], set[str]] = {}
    for trial in session.trials:
        if trial.failure is None:
            digests.setdefault((trial.layer, trial.candidate), set()).add(trial.digest)
    assert {key for key, found in digests.items() if len(found) > 1} == set()
    assert replay(parse(session.to_text(), "log")) == outcome


def test_turns_stay_with_the_bundled_model(gpu: Device) -> None:
    before = Pipeline.from_pretrained("campplus", str(gpu)).diarize(demo_recording())
    outcome, session, recipe = tuned(gpu, load_model("campplus"), (1, 8))
    check(outcome, session, "campplus")
    write(tune_path(gpu), recipe)
    pipeline = Pipeline.from_pretrained("campplus", str(gpu))
    assert pipeline.recipe is not None
    assert pipeline.recipe.source == f"tune file {tune_path(gpu)}"
    after = pipeline.diarize(demo_recording())
    assert after.turns == before.turns


@pytest.fixture(scope="module")
def random_model() -> ModelWeights:
    embedding = {name.removeprefix("resnet."): tensor for name, tensor in random_resnet34(0).items()}
    segmentation = load_segmentation()
    return ModelWeights("random", EmbeddingNetwork.RESNET34, "0" * 64, (), segmentation, embedding, {})


def test_embeddings_stay_with_resnet34(gpu: Device, random_model: ModelWeights) -> None:
    from diarize.backend.cuda_driver import Gpu, MemoryPool
    from diarize.backend.cuda_resnet34 import ResNet34Kernels, TrunkChoice, float32_choice
    from diarize.model.resnet34 import resnet34_layers
    from diarize.tuner.activations import example_features

    outcome, session, recipe = tuned(gpu, random_model, (1, 8, 32))
    check(outcome, session, "resnet34")
    write(tune_path(gpu), recipe)
    models = network_checksums(random_model)
    found = choices(gpu, ("fbank", "pyannet", "resnet34"), lambda: models)
    assert not found.refused
    for layer, by_batch in outcome.decisions.items():
        assert {b: c.name for b, c in found.selection.choices[layer].items()} == {
            b: d.candidate.name for b, d in by_batch.items()
        }
    device = Gpu(gpu.index)
    memory = MemoryPool(device)
    layers, features = resnet34_layers(random_model.embedding), example_features()

    def embed(choice: Any) -> np.ndarray:
        plan = ResNet34Kernels(device, memory, layers, choice).plan(3, 3)
        stream = device.stream()
        values = (features, features.mean(1), np.ones((3, 125), np.float32), np.arange(3, dtype=np.int32))
        for array, value in zip((plan.features, plan.mean, plan.masks, plan.slot_window), values, strict=True):
            device.driver.cuMemcpyHtoD(array.address, np.ascontiguousarray(value).ctypes.data, value.nbytes)
        plan.run(stream)
        stream.synchronize()
        result = memory.get(plan.embeddings)
        assert int(memory.get(plan.flag)[0]) == 0
        plan.close()
        return result

    exact = embed(float32_choice())
    first, *others = [embed(TrunkChoice.of(found.selection.at(batch))) for batch in (64, 32, 8, 1)]
    assert np.linalg.norm(first - exact) / np.linalg.norm(exact) < 1.5e-3
    # The law: the choices of other batch sizes give the same bytes.
    assert all((other == first).all() for other in others)
    memory.close()
