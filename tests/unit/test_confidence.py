"""Embeddings of speakers, margins and confidence, on windows made by hand."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from diarize.confidence import CURVES, Curve, confidences, margins
from diarize.framing import FRAMES_PER_WINDOW, Framing, frame_middle
from diarize.rows import Rows, unit_rows
from diarize.types import Turn
from diarize.voiceprints import voiceprints, window_embeddings

F = FRAMES_PER_WINDOW
FRAMING = Framing(160_000, 2)
A, B = np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])


def bare(margin: float) -> float:
    """The margin itself instead of a curve."""
    return margin


@pytest.fixture
def two_windows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Classes, embeddings and labels: local 0 (cluster 5) then 1 (cluster 3), in the second window only 0."""
    classes = np.zeros((2, F), np.uint8)
    classes[0, :200] = 1
    classes[0, 300:400] = 2
    classes[1, :100] = 1
    embeddings = np.full((2, 3, 3), np.nan, np.float32)
    embeddings[0, 0], embeddings[0, 1] = 2 * A, 3 * B
    embeddings[1, 0] = 0.8 * A + 0.6 * B
    labels = np.array([[5, 3, -2], [5, -2, -2]], np.int32)
    return classes, embeddings, labels


def test_a_voiceprint_is_the_mean_direction_weighted_by_frames_alone(two_windows) -> None:
    classes, embeddings, labels = two_windows
    prints = voiceprints(Rows.of(classes, embeddings), labels, np.array([5, 3, 9]))
    expected = 200 * A + 100 * (0.8 * A + 0.6 * B)
    np.testing.assert_allclose(prints[0], expected / np.linalg.norm(expected), atol=1e-7)
    np.testing.assert_allclose(prints[1], B)
    assert prints[2].tolist() == [0, 0, 0]


def test_speech_that_is_never_alone_still_has_a_voiceprint() -> None:
    classes = np.full((1, F), 4, np.uint8)
    embeddings = np.full((1, 3, 3), np.nan, np.float32)
    embeddings[0, 0], embeddings[0, 1] = A, B
    prints = voiceprints(Rows.of(classes, embeddings), np.array([[0, 1, -2]]), np.array([0, 1]))
    np.testing.assert_allclose(prints, [A, B])


def test_windows_hold_times_speakers_and_embeddings(two_windows) -> None:
    classes, embeddings, labels = two_windows
    labels[1, 0] = 7
    found = window_embeddings(Rows.of(classes, embeddings), embeddings, labels, np.array([3, 5]), FRAMING, 100.0)
    assert found.starts.tolist() == [100.0, 100.0, 110.0]
    assert found.speakers.tolist() == [1, 0, -1]
    np.testing.assert_allclose(found.alone, np.array([200, 100, 100]) * 0.016875)
    np.testing.assert_array_equal(found.embeddings[0], 2 * A)


def test_a_turn_has_the_mean_margin_of_the_windows_that_carry_it(two_windows) -> None:
    classes, embeddings, labels = two_windows
    clusters, prints = np.array([5, 3]), np.stack([A, B])
    found = margins(Rows.of(classes, embeddings), labels, clusters, prints)
    np.testing.assert_allclose(found.values[:, 0], [1.0, 0.2], atol=1e-6)
    assert found.values[0, 1] == pytest.approx(1.0)
    assert np.isnan(found.values[1, 1])
    second = FRAMING.first_frame(1)

    def turn(first: int, end: int, speaker: str) -> Turn:
        return Turn(float(frame_middle(first)), float(frame_middle(end)), speaker)

    turns = [
        turn(0, 200, "A"),
        turn(150, second + 100, "A"),
        turn(300, 400, "B"),
        turn(450, 500, "B"),
        turn(second, second + 100, "A"),
    ]
    values = confidences(turns, {"A": 5, "B": 3}, classes, found, FRAMING, bare)  # type: ignore[arg-type]
    assert values[0] == pytest.approx(1.0)
    # 50 frames of the first window, 100 of the second.
    assert values[1] == pytest.approx((50 * 1.0 + 100 * 0.2) / 150, abs=1e-6)
    assert values[2] == pytest.approx(1.0)
    assert values[3] is None
    assert values[4] == pytest.approx(0.2, abs=1e-6)


def test_one_speaker_has_nobody_to_be_mistaken_for(two_windows) -> None:
    classes, embeddings, labels = two_windows
    found = margins(Rows.of(classes, embeddings), labels, np.array([5]), A[None])
    assert confidences([Turn(0.1, 3.0, "A")], {"A": 5}, classes, found, FRAMING, Curve(1, 0)) == [None]


@pytest.mark.parametrize("curve", CURVES.values())
def test_curves_rise_from_doubt_to_certainty(curve: Curve) -> None:
    values = [curve(margin) for margin in np.linspace(-2, 2, 41)]
    assert values == sorted(values)
    assert values[0] < 0.5
    assert values[-1] > 0.95
    assert all(0 <= value <= 1 and value == round(value, 3) for value in values)
    assert Curve(1000, 0)(-5) == 0
    assert Curve(1000, 0)(5) == 1


def test_zero_rows_stay_zero() -> None:
    assert unit_rows(np.array([[0.0, 0.0], [3.0, 4.0]], np.float32)).tolist() == [[0, 0], [0.6, 0.8]]


def test_blas_threads_change_no_bit_of_a_voiceprint() -> None:
    code = (
        "import numpy as np; from diarize.rows import Rows; from diarize.voiceprints import voiceprints; "
        "r = np.random.default_rng(0); "
        "c = r.integers(1, 4, (800, 589), dtype=np.uint8); e = r.standard_normal((800, 3, 192)).astype(np.float32); "
        "print(voiceprints(Rows.of(c, e), np.tile([0, 1, 2], (800, 1)), np.arange(3)).tobytes().hex()[:4000])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            env={"OPENBLAS_NUM_THREADS": threads, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for threads in ("1", "4")
    }
    assert len(outputs) == 1
