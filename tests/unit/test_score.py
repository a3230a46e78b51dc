"""DER, JER and counts: made-up cases worked out by hand, and two independent scorers on real recordings."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path

import pytest

from diarize.errors import FormatError, OptionError
from diarize.score.der import Protocol, score_file
from diarize.score.inputs import read_regions, read_turns
from diarize.score.parts import DerParts, JerParts, sum_parts
from diarize.score.report import as_json, score_files
from diarize.types import Turn

# A speaker alone, an overlap of 2 s, and a speaker whom the hypothesis gives to another's label.
REFERENCE = [Turn(0, 10, "a"), Turn(8, 14, "b"), Turn(20, 25, "c")]
HYPOTHESIS = [Turn(0.5, 9.5, "x"), Turn(9.5, 15.5, "y"), Turn(19, 23, "x")]
RECORDINGS = {
    "ami30": ["dev00", "dev01", "trn00", "trn03", "trn05", "trn07"],
    "voxconverse": ["aepyx"],
    "libri_sim": ["to_4spk_05_clean"],
    "pyannote_sample": ["sample"],
}


def test_parts_of_a_case_worked_out_by_hand() -> None:
    score = score_file("f", REFERENCE, HYPOTHESIS, [(0, 30)])
    # Missed: 0-0.5 and 23-25, and one of the two during 8-10. False alarm: 14-15.5, 19-20. Confusion: 20-23 as x.
    assert score.der == DerParts(21.0, 4.5, 2.5, 3.0)
    assert score.der.der == pytest.approx(10 / 21)
    assert (score.speakers, score.reference_speakers) == (2, 3)
    # Speaker a is x: 9 of 10 s shared, 4 more are x alone: 1 - 9/14. b is y: 4.5 shared, 7.5 in all. c has nobody.
    assert score.jer.speakers == 3
    assert score.jer.error == pytest.approx((1 - 9 / 14) + (1 - 4.5 / 7.5) + 1)


def test_the_collar_is_seconds_on_each_side() -> None:
    reference, hypothesis = [Turn(10, 20, "a")], [Turn(10.2, 19.8, "x")]
    assert score_file("f", reference, hypothesis).der.missed == pytest.approx(0.4)
    inside = score_file("f", reference, hypothesis, protocol=Protocol(collar=0.2))
    assert inside.der.missed == pytest.approx(0, abs=1e-6)
    # 0.2 s inside of each boundary are gone from the 10 s.
    assert inside.der.total == pytest.approx(9.6)
    half = score_file("f", reference, hypothesis, protocol=Protocol(collar=0.1))
    assert half.der.missed == pytest.approx(0.2)


def test_overlap_is_scored_unless_skipped() -> None:
    hypothesis = [Turn(0, 14, "x")]
    reference = [Turn(0, 10, "a"), Turn(8, 14, "b")]
    assert score_file("f", reference, hypothesis).der == DerParts(16.0, 2.0, 0.0, 4.0)
    assert score_file("f", reference, hypothesis, protocol=Protocol(skip_overlap=True)).der == DerParts(12, 0, 0, 4)


def test_regions_limit_what_is_scored_and_may_overlap() -> None:
    score = score_file("f", REFERENCE, HYPOTHESIS, [(0, 4), (2, 5), (5, 5)])
    assert score.der == DerParts(5.0, 0.5, 0.0, 0.0)
    assert score.regions == ((0.0, 5.0),)
    assert (score.speakers, score.reference_speakers) == (1, 1)


def test_without_regions_the_extent_of_both_sides_is_scored() -> None:
    score = score_file("f", [Turn(5, 10, "a")], [Turn(1, 10, "x"), Turn(12, 13, "x")])
    assert score.regions == ((1.0, 13.0),)
    assert score.der.false_alarm == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "der"),
    [([], [], 0.0), ([], [Turn(0, 1, "x")], 1.0), ([Turn(0, 1, "a")], [], 1.0), ([Turn(0, 1, "a")], None, 1.0)],
)
def test_empty_sides(reference: list[Turn], hypothesis: list[Turn] | None, der: float) -> None:
    score = score_file("f", reference, hypothesis)
    assert score.der.der == der
    assert score.missing == (hypothesis is None)


def test_pooling_divides_once() -> None:
    long = score_file("long", [Turn(0, 90, "a")], [Turn(0, 81, "x")])
    short = score_file("short", [Turn(0, 10, "a")], [])
    der, jer, count = sum_parts([long, short])
    # The mean of the rates would be 0.55.
    assert der.der == pytest.approx((9 + 10) / 100)
    assert der == long.der + short.der
    assert jer == long.jer + short.jer == JerParts(2, pytest.approx(1.1))
    assert (count.files, count.exact, count.difference) == (2, 1, 1)
    assert count == long.count + short.count


def test_missing_and_unknown_files_are_named() -> None:
    turns = {"one": [Turn(0, 4, "a")], "two": [Turn(0, 6, "a")]}
    report = score_files(turns, {"one": turns["one"], "three": turns["two"]})
    assert (report.missing, report.unknown) == (("two",), ("three",))
    assert report.pooled[0].der == 0.6
    assert [text.split(":")[0] for text in report.warnings] == [
        "no hypothesis for two",
        "not in the reference, so not scored",
    ]
    document = as_json(report)
    assert next(iter(document)) == "schema"
    assert (document["schema"], document["der"]) == ("diarize-score/1", 0.6)
    assert document["files"]["two"]["missing"] is True


def test_a_speaker_who_overlaps_itself_is_warned_of() -> None:
    twice = {"f": [Turn(0, 4, "a"), Turn(3, 5, "a"), Turn(6, 7, "a")]}
    once = {"f": [Turn(0, 5, "a"), Turn(5, 7, "b")]}
    assert score_files(twice, once).pooled[0].total == 7.0
    assert score_files(twice, once).warnings[0].startswith("overlap themselves, which counts twice: reference f a;")
    assert "hypothesis f a" in score_files(once, twice).warnings[0]
    assert score_files(once, once).warnings == ()


def test_a_uem_must_know_every_file() -> None:
    turns = {"one": [Turn(0, 4, "a")]}
    with pytest.raises(FormatError, match="no region for one; add them"):
        score_files(turns, turns, {"other": [(0, 1)]})


@pytest.mark.parametrize("collar", [-0.1, math.nan, math.inf])
def test_a_collar_is_a_length(collar: float) -> None:
    with pytest.raises(OptionError, match="0 or more seconds, on each side"):
        Protocol(collar)


def test_folders_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "a.rttm").write_text("SPEAKER a 1 0.5 1.25 <NA> <NA> s <NA> <NA>\n")
    (tmp_path / "no speech.rttm").write_text("")
    (tmp_path / "notes.txt").write_text("not RTTM")
    assert read_turns(tmp_path) == {"a": [Turn(0.5, 1.75, "s")], "no_speech": []}
    (tmp_path / "b.rttm").write_text("SPEAKER a 1 2 1 <NA> <NA> s <NA> <NA>\n")
    with pytest.raises(FormatError, match=r"file id a is in .*a.rttm as well"):
        read_turns(tmp_path)
    with pytest.raises(FormatError, match=r"holds no \*.uem file"):
        read_regions(tmp_path)


def test_times_have_an_end(tmp_path: Path) -> None:
    path = tmp_path / "a.rttm"
    path.write_text("SPEAKER a 1 0.5 1e999 <NA> <NA> s <NA> <NA>\n")
    with pytest.raises(FormatError, match="allowed are times up to 315576000 s"):
        read_turns(path)


def _disturbed(turns: list[Turn], seed: int) -> list[Turn]:
    """A hypothesis with errors of every kind: moved edges, lost and swapped turns, an invented speaker."""
    draw = random.Random(seed)
    labels = sorted({turn.speaker for turn in turns})
    out = [Turn(0.2, 1.7, "nobody")]
    for turn in turns:
        if draw.random() < 0.1:
            continue
        start = max(0.0, turn.start + draw.uniform(-0.4, 0.4))
        speaker = draw.choice(labels) if draw.random() < 0.2 else turn.speaker
        out.append(Turn(round(start, 3), round(max(start, turn.end + draw.uniform(-0.4, 0.4)), 3), speaker))
    return _without_self_overlap(out)


def _without_self_overlap(turns: list[Turn]) -> list[Turn]:
    """The same speech with each speaker's overlapping turns merged: pyannote.metrics counts them twice, NIST once."""
    merged: list[Turn] = []
    for turn in sorted(turns, key=lambda turn: (turn.speaker, turn.start)):
        if merged and merged[-1].speaker == turn.speaker and turn.start <= merged[-1].end:
            merged[-1] = Turn(merged[-1].start, max(merged[-1].end, turn.end), turn.speaker)
        else:
            merged.append(turn)
    return sorted(merged)


def _real(shared: Path) -> list[tuple[str, list[Turn], list[tuple[float, float]]]]:
    found = []
    for folder, names in RECORDINGS.items():
        for name in names:
            path = shared / "data" / folder / name
            turns = read_turns(path.with_suffix(".rttm"))
            regions = read_regions(path.with_suffix(".uem"))
            found.append((name, *turns.values(), *regions.values()))
    return found


@pytest.mark.parametrize(("collar", "skip"), [(0.0, False), (0.25, False), (0.25, True)])
def test_real_references_agree_with_pyannote_metrics(shared: Path, collar: float, skip: bool) -> None:
    from pyannote.core import Annotation, Segment, Timeline
    from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate

    def annotation(turns: list[Turn]) -> Annotation:
        out = Annotation()
        for track, turn in enumerate(turns):
            out[Segment(turn.start, turn.end), track] = turn.speaker
        return out

    der = DiarizationErrorRate(collar=2 * collar, skip_overlap=skip)
    jer = JaccardErrorRate(collar=2 * collar, skip_overlap=skip)
    scores = []
    for seed, (name, turns, regions) in enumerate(_real(shared)):
        hypothesis = _disturbed(turns, seed)
        uem = Timeline([Segment(*region) for region in regions])
        alone = der(annotation(turns), annotation(hypothesis), uem=uem)
        jer(annotation(turns), annotation(hypothesis), uem=uem)
        scores.append(score_file(name, turns, hypothesis, regions, Protocol(collar, skip)))
        assert scores[-1].der.der == pytest.approx(alone, abs=1e-9)
    pooled, jaccard, _ = sum_parts(scores)
    assert 0.05 < pooled.der < 0.9
    assert pooled.der == pytest.approx(abs(der), abs=1e-9)
    assert jaccard.jer == pytest.approx(abs(jer), abs=1e-9)


@pytest.mark.parametrize(("collar", "skip"), [(0.0, False), (0.25, False), (0.0, True)])
def test_real_references_agree_with_meeteval(shared: Path, collar: float, skip: bool) -> None:
    meeteval = pytest.importorskip("meeteval")
    # meeteval fetches NIST's script where it is absent; tests use no network.
    if shutil.which("md-eval-22.pl") is None:
        pytest.skip("md-eval-22.pl is not on the path")

    def lines(turns: list[Turn], name: str) -> object:
        text = "".join(
            f"SPEAKER {name} 1 {turn.start:.3f} {turn.duration:.3f} <NA> <NA> {turn.speaker} <NA> <NA>\n"
            for turn in turns
        )
        return meeteval.io.RTTM.parse(text)

    for seed, (name, turns, regions) in enumerate(_real(shared)):
        hypothesis = _disturbed(turns, seed)
        uem = meeteval.io.UEM.parse("".join(f"{name} 1 {start:.3f} {end:.3f}\n" for start, end in regions))
        scored = "nooverlap" if skip else "all"
        theirs = meeteval.der.md_eval_22(
            lines(turns, name), lines(hypothesis, name), collar=collar, regions=scored, uem=uem
        )
        ours = score_file(name, turns, hypothesis, regions, Protocol(collar, skip))
        # 0.01 point.
        assert ours.der.der == pytest.approx(float(theirs[name].error_rate), abs=1e-4)
