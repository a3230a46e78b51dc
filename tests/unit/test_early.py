"""Work done before the last stretch gives what it gives at the end, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest

import diarize.cluster.preparation as module
from diarize.analysis import StretchResult
from diarize.cluster import community1
from diarize.cluster.plda import Plda
from diarize.cluster.preparation import Preparation
from diarize.cluster.vbx import Terms
from diarize.early import Early, EarlyWork
from diarize.framing import FRAMES_PER_WINDOW
from diarize.rows import Rows
from diarize.types import SpeakerBounds


def recording(num_windows: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes and embeddings of four people, with silence, overlap and missing embeddings."""
    rng = np.random.default_rng(num_windows)
    classes = np.repeat(rng.integers(0, 7, (num_windows, 19), np.uint8), 31, axis=1)
    assert classes.shape[1] == FRAMES_PER_WINDOW
    speakers = rng.normal(size=(4, 24))
    embeddings = speakers[rng.integers(0, 4, (num_windows, 3))] + 0.3 * rng.normal(size=(num_windows, 3, 24))
    embeddings[rng.random((num_windows, 3)) < 0.1] = np.nan
    return classes, embeddings.astype(np.float32)


def collected(classes: np.ndarray, embeddings: np.ndarray, size: int, preparation: Preparation | None = None) -> Early:
    with EarlyWork(preparation) as early:
        for first in range(0, len(classes), size):
            part = slice(first, first + size)
            early.add(StretchResult(first, classes[part], embeddings[part], 0.0, 0.0))
        found = early.finish()
    assert found is not None
    return found


@pytest.fixture
def plda() -> Plda:
    rng = np.random.default_rng(0)
    return Plda(np.zeros(24), rng.normal(size=(24, 8)), np.zeros(8), np.zeros(8), np.eye(8), np.linspace(9, 1, 8))


@pytest.mark.parametrize("size", [1, 24, 500])
def test_rows_are_those_of_the_whole(size: int) -> None:
    classes, embeddings = recording(130)
    found, whole = collected(classes, embeddings, size).rows, Rows.of(classes, embeddings)
    for name in ("speaks", "alone", "usable", "units"):
        assert getattr(found, name).tobytes() == getattr(whole, name).tobytes()


@pytest.mark.parametrize(("size", "threads"), [(24, 1), (200, 1), (200, 3)])
def test_clusters_are_those_of_the_whole(size: int, threads: int, plda: Plda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MATRIX_LIMIT", 100)
    monkeypatch.setattr("diarize.cluster.neighbours._PAIRS_PER_THREAD", 1000)
    classes, embeddings = recording(700)
    found = collected(classes, embeddings, size, Preparation(plda, threads))
    assert found.prepared is not None
    assert found.prepared.neighbours is not None
    train = community1.initial_training_set(found.rows).take(embeddings)
    assert len(train) > 512
    assert found.prepared.neighbours.points.tobytes() == community1.unit(train).tobytes()
    np.testing.assert_allclose(found.prepared.terms.rho, Terms.of(plda.features(train), plda.phi).rho, rtol=1e-12)
    early = community1.cluster(found.rows, embeddings, plda, SpeakerBounds(), found.prepared)
    late = community1.cluster(found.rows, embeddings, plda, SpeakerBounds())
    assert len(set(late.labels.ravel())) > 2
    assert early.labels.tobytes() == late.labels.tobytes()
    assert early.centroids.tobytes() == late.centroids.tobytes()


def test_few_embeddings_are_not_searched(plda: Plda) -> None:
    classes, embeddings = recording(50)
    found = collected(classes, embeddings, 24, Preparation(plda, 1))
    assert found.prepared is not None
    assert found.prepared.neighbours is None
    early = community1.cluster(found.rows, embeddings, plda, SpeakerBounds(), found.prepared)
    late = community1.cluster(found.rows, embeddings, plda, SpeakerBounds())
    assert early.labels.tobytes() == late.labels.tobytes()
    assert early.centroids.tobytes() == late.centroids.tobytes()


def test_nothing_to_learn_from_is_not_prepared(plda: Plda) -> None:
    classes, embeddings = recording(50)
    assert collected(classes, np.full_like(embeddings, np.nan), 24, Preparation(plda, 1)).prepared is None


def test_an_error_reaches_whoever_asks() -> None:
    with EarlyWork() as early:
        early.add(StretchResult(0, np.zeros((2, 5), np.uint8), np.zeros((3, 3, 4), np.float32), 0.0, 0.0))
        with pytest.raises(ValueError, match="broadcast"):
            early.finish()


def test_nothing_gives_nothing(plda: Plda) -> None:
    with EarlyWork(Preparation(plda, 1)) as early:
        assert early.finish() is None
