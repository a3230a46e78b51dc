"""The bundled clustering equals our numpy reference, stage by stage, from given classes and embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diarize.activity import alone_frames, speaker_count
from diarize.cluster import campplus
from diarize.cluster.ahc import average_clusters
from diarize.cluster.plda import Plda
from diarize.cluster.training import widened
from diarize.cluster.vbx import vbx
from diarize.framing import Framing
from diarize.powerset import from_local
from diarize.rows import Rows
from diarize.stitch import LabelOrder, reconstruct, stitch
from diarize.types import SpeakerBounds

Golden = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def plda(shared: Path) -> Plda:
    with np.load(shared / "models" / "campplus-plda.npz") as tables:
        return Plda.campplus({key: tables[key] for key in tables.files})


@pytest.fixture(scope="module", params=["sample", "aepyx"])
def golden(request: pytest.FixtureRequest, shared: Path) -> Golden:
    with np.load(shared / "fixtures" / "campplus" / f"golden_{request.param}.npz") as stages:
        arrays = {key: stages[key] for key in stages.files}
    text = (shared / "fixtures" / "campplus" / f"golden_{request.param}.rttm").read_text()
    return arrays | {
        "classes": from_local(arrays["segmentation"]),
        "rttm": np.array(text),
        "id": np.array(request.param),
    }


def test_training_set_features_and_initial_clusters(golden: Golden, plda: Plda) -> None:
    usable = np.asarray(np.isfinite(golden["embeddings"]).all(axis=2))
    train = widened(alone_frames(golden["classes"]), usable, 2)
    assert train.windows.tolist() == golden["train_window"].tolist()
    assert train.locals_.tolist() == golden["train_local"].tolist()
    rows = train.take(golden["embeddings"])
    np.testing.assert_allclose(plda.normalised(rows), golden["xvec"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(plda.features(rows), golden["plda"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(plda.phi, golden["phi"], rtol=1e-12)
    assert average_clusters(rows, campplus.AHC_CUT).tolist() == golden["ahc"].tolist()


def test_vbx(golden: Golden, plda: Plda) -> None:
    found = vbx(golden["plda"], plda.phi, golden["ahc"], float(golden["Fa"]), campplus.FB, min_pi=-1.0)
    largest_first = np.argsort(-found.pi, kind="stable")
    np.testing.assert_allclose(found.elbo, golden["elbo"], rtol=1e-12)
    # Speakers on their way out differ by rounding of their exponent; nothing else depends on them.
    np.testing.assert_allclose(np.sort(found.pi)[::-1], golden["pi"], rtol=0, atol=1e-9)
    strong = golden["pi"] > 1e-7
    np.testing.assert_allclose(found.gamma[:, largest_first][:, strong], golden["q"][:, strong], rtol=0, atol=1e-9)


def test_labels_counts_and_turns(golden: Golden, plda: Plda) -> None:
    classes = golden["classes"]
    framing = Framing(16_000, len(classes))
    count = speaker_count(classes, framing)
    assert count.tolist() == golden["count"].tolist()
    found = campplus.cluster(
        Rows.of(classes, golden["embeddings"]),
        golden["embeddings"],
        float(golden["duration"]),
        plda,
        SpeakerBounds(),
        framing,
    )
    assert found.warnings == ()
    assert found.labels.tolist() == golden["hard"].tolist()
    np.testing.assert_allclose(found.centroids, golden["centroids"], rtol=0, atol=1e-9)
    frames = reconstruct(classes, found.labels, count, framing, len(found.centroids))
    assert np.array_equal(frames, golden["discrete"].astype(bool))
    result = stitch(classes, found, count, framing, order=LabelOrder.PARITY)
    assert [turn.speaker for turn in result.turns] == [f"SPEAKER_{int(k):02d}" for k in golden["turns"][:, 2]]
    times = [(turn.start, turn.end) for turn in result.turns]
    # The reference adds half a receptive field to the frame's start, which differs in the last bits.
    np.testing.assert_allclose(times, golden["turns"][:, :2], rtol=0, atol=1e-9)
    text = "".join(
        f"SPEAKER {golden['id']} 1 {turn.start:.3f} {turn.duration:.3f} <NA> <NA> {turn.speaker} <NA> <NA>\n"
        for turn in result.turns
    )
    assert text == str(golden["rttm"])


@pytest.mark.parametrize("number", [1, 2, 3, 6])
def test_asked_number_is_reached(golden: Golden, plda: Plda, number: int) -> None:
    classes = golden["classes"]
    framing = Framing(16_000, len(classes))
    bounds = SpeakerBounds.of(num=number)
    found = campplus.cluster(
        Rows.of(classes, golden["embeddings"]), golden["embeddings"], float(golden["duration"]), plda, bounds, framing
    )
    assert len(found.centroids) == number
    assert found.warnings == ()
    result = stitch(classes, found, speaker_count(classes, framing), framing, bounds)
    assert result.warnings == ()
    assert len(result.speakers) == len(result.centroids) == number
    assert {turn.speaker for turn in result.turns} == set(result.speakers)
