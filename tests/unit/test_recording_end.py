"""Turns end with the recording, though its last window is padded with silence."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile

from diarize.framing import SAMPLE_RATE
from diarize.pipeline import Pipeline
from diarize.resources import demo_recording


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return Pipeline.from_pretrained("campplus", "cpu", "fast")


@pytest.mark.parametrize("seconds", [3.3, 8.0, 9.374, 11.3])
def test_no_turn_passes_the_end(seconds: float, pipeline: Pipeline) -> None:
    samples, rate = soundfile.read(demo_recording(), dtype="float32", frames=int(seconds * SAMPLE_RATE))
    result = pipeline.diarize(samples, sample_rate=rate)
    assert result.turns
    assert max(turn.end for turn in (*result.turns, *result.exclusive)) <= result.duration
    assert all(turn.duration > 0 for turn in (*result.turns, *result.exclusive))
    assert set(result.speakers) == {turn.speaker for turn in result.turns}


def test_no_turn_passes_the_end_of_a_part(pipeline: Pipeline) -> None:
    result = pipeline.diarize(Path(demo_recording()), start=2.0, end=5.5)
    assert min(turn.start for turn in result.turns) >= 2.0
    assert max(turn.end for turn in result.turns) == 5.5


def test_parity_order_keeps_what_pyannote_gives(pipeline: Pipeline) -> None:
    samples, rate = soundfile.read(demo_recording(), dtype="float32", frames=8 * SAMPLE_RATE)
    result = pipeline.diarize(samples, sample_rate=rate, label_order="parity")
    assert max(turn.end for turn in result.turns) > result.duration
