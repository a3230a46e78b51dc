"""The bundled model on real recordings: DER limits, asked-for speaker numbers, segmentation frames.

Limits are a little above what the prototype of this back-end reached (collar 0, overlap scored, pooled over a set), so
that a loss of accuracy shows and a change in the last bits does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest
from pyannote.core import Annotation, Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate

from diarize.outputs.rttm import read_rttm
from diarize.outputs.uem import read_uem
from diarize.pipeline import Pipeline
from diarize.types import Diarization, SpeakerBounds, Turn

SETS = {
    "tts": (("tts/dialogue",), 2.5),
    "sample": (("pyannote_sample/sample",), 5.7),
    "voxconverse": (("voxconverse/aepyx",), 15.5),
    "ami": (tuple(f"ami30/{name}" for name in ("trn00", "trn03", "trn05", "trn07", "dev00", "dev01")), 31.5),
    "libri": (("libri_sim/to_4spk_05_clean",), 13.5),
}


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return Pipeline.from_pretrained("campplus", "cpu", "exact")


def annotation(turns: Sequence[Turn]) -> Annotation:
    result = Annotation()
    for track, turn in enumerate(turns):
        result[Segment(turn.start, turn.end), track] = turn.speaker
    return result


def reference(path: Path) -> list[Turn]:
    (turns,) = read_rttm(path).values()
    return [Turn(float(t.start), float(t.end), t.speaker) for t in turns]


@lru_cache
def diarized(pipeline: Pipeline, path: Path) -> Diarization:
    return pipeline.diarize(path)


@pytest.mark.parametrize("name", list(SETS))
def test_der_of_the_bundled_model(name: str, shared: Path, pipeline: Pipeline) -> None:
    recordings, limit = SETS[name]
    metric = DiarizationErrorRate(collar=0.0, skip_overlap=False)
    for recording in recordings:
        path = shared / "data" / recording
        (regions,) = read_uem(path.with_suffix(".uem")).values()
        metric(
            annotation(reference(path.with_suffix(".rttm"))),
            annotation(diarized(pipeline, path.with_suffix(".flac")).turns),
            uem=Timeline([Segment(float(r.start), float(r.end)) for r in regions]),
        )
    assert 100 * abs(metric) <= limit


@pytest.mark.parametrize("recording", [r for recordings, _ in SETS.values() for r in recordings if "aepyx" not in r])
def test_the_true_number_of_speakers_comes_out_when_asked_for(recording: str, shared: Path, pipeline: Pipeline) -> None:
    path = shared / "data" / recording
    wanted = len({turn.speaker for turn in reference(path.with_suffix(".rttm"))})
    result = pipeline.diarize(path.with_suffix(".flac"), bounds=SpeakerBounds.of(wanted))
    assert len(result.speakers) == wanted or any(f"asked for {wanted}" in warning for warning in result.warnings)


@pytest.mark.parametrize("recording", ["pyannote_sample/sample", "voxconverse/aepyx"])
def test_turns_of_the_reference_back_end(recording: str, shared: Path, pipeline: Pipeline) -> None:
    """From the recording itself, not from captured embeddings: the same turns to a frame, under some naming."""
    golden = shared / "fixtures" / "campplus" / f"golden_{Path(recording).name}.rttm"
    ours = diarized(pipeline, (shared / "data" / recording).with_suffix(".flac")).turns
    metric = DiarizationErrorRate(collar=0.0, skip_overlap=False)
    # Embeddings agree to about 2e-3 with the reference's float16 ones, which may move single frames between speakers.
    assert metric(annotation(reference(golden)), annotation(ours)) <= 0.01
