"""Everything after the embeddings equals pyannote community-1, stage by stage, on captured recordings.

Tolerances are those of a float64 chain on another BLAS and CPU; labels, counts, frames and text must be equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from diarize.activity import active, alone_frames, speaker_count
from diarize.cluster import community1
from diarize.cluster.ahc import centroid_clusters
from diarize.cluster.assign import UNASSIGNED
from diarize.cluster.plda import Plda, unit
from diarize.cluster.training import training_set
from diarize.cluster.vbx import vbx
from diarize.framing import Framing
from diarize.powerset import from_local
from diarize.rows import Rows
from diarize.stitch import LabelOrder, reconstruct, stitch
from diarize.types import SpeakerBounds, Turn

RECORDINGS = [
    "01_dialogue",
    "02_pyannote_sample",
    "03_dual_speaker",
    "04_three_speaker",
    "05_four_speaker",
    "06_long_recording",
]


@dataclass(frozen=True)
class Capture:
    """One recording's captured stages and our classes of it."""

    folder: Path
    classes: np.ndarray
    embeddings: np.ndarray
    framing: Framing

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """All arrays of one captured stage."""
        with np.load(self.folder / f"{name}.npz") as stage:
            return {key: stage[key] for key in stage.files}


@pytest.fixture(scope="module")
def plda(shared: Path) -> Plda:
    tables: dict[str, np.ndarray] = {}
    for name in ("xvec_transform", "plda"):
        with np.load(shared / "models" / "plda" / f"{name}.npz") as stored:
            tables |= {key: stored[key] for key in stored.files}
    return Plda.community1(tables)


@pytest.fixture(scope="module", params=RECORDINGS)
def capture(request: pytest.FixtureRequest, shared: Path) -> Capture:
    folder = shared / "fixtures" / request.param
    classes = from_local(np.load(folder / "segmentations.npz")["segmentations"])
    embeddings = np.load(folder / "raw_embeddings.npz")["embeddings"]
    return Capture(folder, classes, embeddings, Framing(16_000, len(classes)))


def rows_of(capture: Capture) -> Rows:
    return Rows.of(capture.classes, capture.embeddings)


def train_of(capture: Capture) -> np.ndarray:
    usable = np.isfinite(capture.embeddings).all(axis=2)
    return training_set(alone_frames(capture.classes), usable, 118).take(capture.embeddings)


def test_training_set(capture: Capture) -> None:
    stage = capture.arrays("plda_embeddings")
    chosen = training_set(alone_frames(capture.classes), np.isfinite(capture.embeddings).all(axis=2), 118)
    assert chosen.windows.tolist() == stage["train_chunk_idx"].tolist()
    assert chosen.locals_.tolist() == stage["train_speaker_idx"].tolist()


def test_initial_clusters(capture: Capture) -> None:
    expected = np.load(capture.folder / "ahc_init_labels.npy").tolist()
    points = unit(train_of(capture))
    assert centroid_clusters(points, community1.AHC_CUT).tolist() == expected
    # As for long recordings, by search.
    assert centroid_clusters(points, community1.AHC_CUT, matrix_limit=1).tolist() == expected


def test_plda_features(capture: Capture, plda: Plda) -> None:
    stage = capture.arrays("plda_embeddings")
    np.testing.assert_allclose(plda.phi, stage["phi"], rtol=1e-11)
    if "post_xvec" not in stage:
        return
    train = train_of(capture)
    np.testing.assert_allclose(plda.normalised(train), stage["post_xvec"], rtol=0, atol=1e-12)
    # The sign of each dimension is free.
    np.testing.assert_allclose(np.abs(plda.features(train)), np.abs(stage["post_plda"]), rtol=0, atol=1e-10)


def test_vbx(capture: Capture, plda: Plda) -> None:
    stage = capture.arrays("vbx_state")
    initial = np.load(capture.folder / "ahc_init_labels.npy")
    found = vbx(plda.features(train_of(capture)), plda.phi, initial, community1.FA, community1.FB, min_pi=-1.0)
    np.testing.assert_allclose(found.elbo, stage["elbo_trajectory"], rtol=1e-13)
    np.testing.assert_allclose(found.pi, stage["sp_final"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.gamma, stage["q_final"], rtol=0, atol=1e-12)


def test_clusters(capture: Capture, plda: Plda) -> None:
    stage = capture.arrays("clustering")
    found = community1.cluster(rows_of(capture), capture.embeddings, plda, SpeakerBounds())
    assert found.warnings == ()
    np.testing.assert_allclose(found.centroids, stage["centroids"], rtol=0, atol=1e-13)
    speaks = active(capture.classes)
    rows = rows_of(capture)
    scores = community1.similarity(rows.units, found.centroids)
    np.testing.assert_allclose(scores, stage["soft_clusters"][rows.usable], rtol=0, atol=1e-12)
    expected = np.where(speaks, stage["hard_clusters"], UNASSIGNED)
    assert found.labels.tolist() == expected.tolist()


def test_assignment_is_the_hungarian_choice(capture: Capture) -> None:
    from diarize.cluster.assign import assign_constrained

    scores = capture.arrays("clustering")["soft_clusters"]
    expected = np.full(scores.shape[:2], UNASSIGNED)
    for window, score in enumerate(scores):
        rows, columns = linear_sum_assignment(score, maximize=True)
        expected[window, rows] = columns
    assert assign_constrained(scores).tolist() == expected.tolist()


def test_count_and_frames(capture: Capture, plda: Plda) -> None:
    stage = capture.arrays("reconstruction")
    count = speaker_count(capture.classes, capture.framing)
    assert np.array_equal(count, stage["count"][:, 0])
    found = community1.cluster(rows_of(capture), capture.embeddings, plda, SpeakerBounds())
    frames = reconstruct(capture.classes, found.labels, count, capture.framing, len(found.centroids))
    assert np.array_equal(frames, stage["discrete_diarization"].astype(bool))


def test_rttm_text(capture: Capture, plda: Plda) -> None:
    count = speaker_count(capture.classes, capture.framing)
    found = community1.cluster(rows_of(capture), capture.embeddings, plda, SpeakerBounds())
    result = stitch(capture.classes, found, count, capture.framing, order=LabelOrder.PARITY)
    assert result.warnings == ()
    assert rttm(result.turns, "clip_16k") == (capture.folder / "reference.rttm").read_text()


def rttm(turns: tuple[Turn, ...], file_id: str) -> str:
    """RTTM text as pyannote.core writes it."""
    return "".join(
        f"SPEAKER {file_id} 1 {turn.start:.3f} {turn.duration:.3f} <NA> <NA> {turn.speaker} <NA> <NA>\n"
        for turn in turns
    )


@pytest.mark.parametrize("number", [1, 2, 3, 5, 12])
def test_asked_number_is_reached(capture: Capture, plda: Plda, number: int) -> None:
    bounds = SpeakerBounds.of(num=number)
    found = community1.cluster(rows_of(capture), capture.embeddings, plda, bounds)
    assert len(found.centroids) == number
    count = speaker_count(capture.classes, capture.framing)
    result = stitch(capture.classes, found, count, capture.framing, bounds)
    assert found.warnings == result.warnings == ()
    assert len(result.speakers) == len(result.centroids) == number
    assert {turn.speaker for turn in result.turns} == {turn.speaker for turn in result.exclusive}
    assert {turn.speaker for turn in result.turns} == set(result.speakers)
