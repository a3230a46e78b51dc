"""Batches: who gets what, and outcomes in order; worker processes that answer, fail and die."""

from __future__ import annotations

import inspect
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import diarize
from diarize import AudioError, Cancelled, ModelError, OptionError, Pipeline, resources
from diarize.batch import Outcome, longest_first, ordered, run_in_processes, seconds_of, share_out
from diarize.pipeline import Options, Setup

RATE = 16_000


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """The first 12 s of the dialogue."""
    return soundfile.read(resources.demo_recording(), frames=12 * RATE)[0]


@pytest.fixture(scope="module")
def recordings(speech: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """4, 12 and 8 s of it, and before the last one a file that is no recording."""
    folder = tmp_path_factory.mktemp("batch")
    for name, seconds in (("a", 4), ("b", 12), ("d", 8)):
        soundfile.write(folder / f"{name}.wav", speech[: seconds * RATE], RATE, "PCM_16")
    (folder / "c.wav").write_text("hello\n")
    return [folder / f"{name}.wav" for name in "abcd"]


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return Pipeline.from_pretrained("campplus", "cpu", threads=2)


def turns(outcomes: list[Outcome]) -> list[object]:
    return [outcome.result.turns if outcome.result else type(outcome.error) for outcome in outcomes]


def test_threads_are_shared_out() -> None:
    setup = Setup("auto", "cpu", "exact", 8)
    assert [s.threads for s in share_out(setup, 3, ())] == [3, 3, 2]
    assert [s.threads for s in share_out(setup, 12, ())] == [1] * 12
    two = share_out(setup, 1, ("cuda:0", "cuda:1"))
    assert [(s.device, s.threads) for s in two] == [("cuda:0", 4), ("cuda:1", 4)]
    with pytest.raises(OptionError, match="jobs is 0"):
        share_out(setup, 0, ())
    with pytest.raises(OptionError, match="both set the number of workers"):
        share_out(setup, 2, ("cpu",))


def test_the_longest_recordings_come_first(recordings: list[Path]) -> None:
    assert [seconds_of(path) for path in recordings] == [4.0, 12.0, 0.0, 8.0]
    assert longest_first(recordings) == [1, 3, 0, 2]


def test_outcomes_are_put_in_order_as_early_as_they_can() -> None:
    asked: list[int] = []

    def finishing() -> Iterator[Outcome]:
        for position in (2, 0, 1, 3):
            asked.append(position)
            yield Outcome(str(position), position, None, ValueError())

    found = ordered(finishing())  # type: ignore[arg-type]
    assert next(found).position == 0
    assert asked == [2, 0]
    assert [outcome.position for outcome in found] == [1, 2, 3]


def test_here_and_in_processes_everything_is_the_same(pipeline: Pipeline, recordings: list[Path]) -> None:
    here = list(pipeline.diarize_many(recordings))
    assert [outcome.path for outcome in here] == recordings
    assert isinstance(here[2].error, AudioError)
    with pytest.raises(AudioError, match=r"c\.wav: is a text file"):
        here[2].get()
    assert here[1].get().name == "b"
    seen: list[tuple[object, str]] = []
    there = list(
        pipeline.diarize_many(
            recordings, devices=["cpu", "cpu"], progress=lambda path, stage, *_: seen.append((path, stage))
        )
    )
    assert turns(there) == turns(here)
    assert [outcome.position for outcome in there] == [0, 1, 2, 3]
    assert str(there[2].error) == str(here[2].error)
    assert {(recordings[1], "analyse"), (recordings[1], "cluster")} <= set(seen)


def test_options_reach_the_workers(pipeline: Pipeline, recordings: list[Path]) -> None:
    options = {"start": 6.0, "num_speakers": 1, "keep_windows": True}
    (outcome,) = pipeline.diarize_many(recordings[1:2], devices=["cpu"], **options)
    result = outcome.get()
    assert result.offset == 6.0
    assert result.speakers == ("SPEAKER_00",)
    assert result.windows is not None
    with pytest.raises(OptionError, match="label-order is 'size'"):
        list(pipeline.diarize_many(recordings[:1], devices=["cpu"], label_order="size"))


def test_a_pipeline_that_cannot_be_made_ends_the_batch(recordings: list[Path], tmp_path: Path) -> None:
    setup = Setup(str(tmp_path), "cpu", "exact", 1)
    with pytest.raises(ModelError):
        list(run_in_processes(setup, recordings, {}, jobs=2))


def test_standard_input_has_one_reader(pipeline: Pipeline, recordings: list[Path]) -> None:
    with pytest.raises(OptionError, match="standard input can only be read by one process"):
        list(pipeline.diarize_many(["-", recordings[0]], jobs=2))


def children() -> set[int]:
    """Processes that this one has started and that still run."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid() and fields[0] != "Z":
                found.add(int(entry.name))
    return found


def test_a_worker_killed_at_work_loses_nothing(pipeline: Pipeline, recordings: list[Path]) -> None:
    before = children()
    killed: list[int] = []

    def kill(path: object, stage: str, done: float, total: float | None) -> None:
        if path == recordings[1] and not killed:
            (worker,) = children() - before
            killed.append(worker)
            os.kill(worker, signal.SIGKILL)

    found = list(pipeline.diarize_many(recordings, devices=["cpu"], progress=kill))
    assert killed
    assert turns(found) == turns(list(pipeline.diarize_many(recordings)))
    assert children() == before


def test_a_recording_that_kills_every_worker_is_given_up(pipeline: Pipeline, recordings: list[Path]) -> None:
    before = children()

    def kill(path: object, *_: object) -> None:
        if path == recordings[1]:
            for worker in children() - before:
                os.kill(worker, signal.SIGKILL)

    found = list(pipeline.diarize_many(recordings[:2], devices=["cpu"], progress=kill))
    assert found[0].result is not None
    assert isinstance(found[1].error, diarize.BackendError)
    assert "the worker process died on it 2 times (signal 9)" in str(found[1].error)


def test_leaving_early_and_cancelling_end_the_workers(pipeline: Pipeline, recordings: list[Path]) -> None:
    before = children()
    iterator = pipeline.diarize_many(recordings, devices=["cpu", "cpu"], in_order=False)
    next(iterator)
    iterator.close()
    assert children() == before
    with pytest.raises(Cancelled):
        list(pipeline.diarize_many(recordings, devices=["cpu", "cpu"], cancelled=lambda: True))
    assert children() == before


def test_cancelling_within_a_recording(pipeline: Pipeline, recordings: list[Path]) -> None:
    calls = []

    def cancelled() -> bool:
        calls.append(1)
        return len(calls) > 1

    with pytest.raises(Cancelled):
        pipeline.diarize(recordings[1], cancelled=cancelled)
    # The pipeline is still of use.
    assert pipeline.diarize(recordings[0]).speakers == ("SPEAKER_00",)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("callback", ["progress", "cancelled"])
def test_what_a_callback_raises_reaches_the_caller(
    pipeline: Pipeline, recordings: list[Path], jobs: int, callback: str
) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError("the caller's own")

    given: dict[str, Any] = {callback: fail}
    with pytest.raises(ZeroDivisionError, match="the caller's own"):
        list(pipeline.diarize_many(recordings, jobs=jobs, **given))
    # The pipeline is as good as before.
    assert all(outcome.error is None for outcome in pipeline.diarize_many(recordings[:1]))


@pytest.mark.parametrize("callback", ["progress", "cancelled"])
def test_what_a_callback_raises_beside_other_recordings(
    pipeline: Pipeline, recordings: list[Path], monkeypatch: pytest.MonkeyPatch, callback: str
) -> None:
    monkeypatch.setattr(pipeline.engine, "recordings", 2)
    monkeypatch.setattr(pipeline, "_turns", threading.BoundedSemaphore(2))
    whole = turns(list(pipeline.diarize_many(recordings)))
    calls: list[int] = []

    def fail(*_: object) -> bool:
        calls.append(1)
        if len(calls) > 2:
            raise ZeroDivisionError("the caller's own")
        return False

    given: dict[str, Any] = {callback: fail}
    with pytest.raises(ZeroDivisionError, match="the caller's own"):
        list(pipeline.diarize_many(recordings, **given))
    assert turns(list(pipeline.diarize_many(recordings))) == whole


def test_a_pipeline_is_not_called_from_its_own_callback(pipeline: Pipeline, recordings: list[Path]) -> None:
    said: list[str] = []

    def again(*_: object) -> None:
        with pytest.raises(OptionError) as caught:
            pipeline.diarize(recordings[0])
        said.append(str(caught.value))

    pipeline.diarize(recordings[0], progress=again)
    assert set(said) == {"the pipeline was called from a callback of its own; use it after it has returned"}
    # Between the outcomes of an iteration it may be used.
    for outcome in pipeline.diarize_many(recordings[:2]):
        assert pipeline.diarize(outcome.path).turns == outcome.get().turns


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_speakers": "3"}, "num-speakers is '3'; give a whole number"),
        ({"max_speakers": 2.5}, "max-speakers is 2.5; give a whole number"),
        ({"min_speakers": True}, "min-speakers is True; give a whole number"),
        ({"start": "a"}, "start is 'a'; it must be a number of seconds"),
        ({"end": float("nan")}, "end is nan; it must be a number of seconds"),
        ({"channel": 1.9}, "channel is 1.9; allowed are a number from 1, mix and split"),
        ({"voices": ["Ann"]}, "'Ann' is no voice; Pipeline.enrol makes one"),
        ({"voice_threshold": "high"}, "voice-threshold is 'high'; it is a cosine, allowed are -1 to 1"),
    ],
)
def test_values_of_the_wrong_type(
    pipeline: Pipeline, recordings: list[Path], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as caught:
        pipeline.diarize(recordings[0], **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jobs": 1.5}, "jobs is 1.5; give a whole number"),
        ({"devices": ["cpu", "bogus"]}, "device is 'bogus'; allowed are auto, cpu"),
    ],
)
def test_workers_that_there_cannot_be(
    pipeline: Pipeline, recordings: list[Path], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        list(pipeline.diarize_many(recordings[:1], **options))


@pytest.mark.parametrize(("rate", "error"), [(0, AudioError), (16000.5, OptionError), ("16000", OptionError)])
def test_rates_that_no_array_has(pipeline: Pipeline, rate: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="sample_rate is "):
        pipeline.diarize(np.zeros(16_000, np.float32), sample_rate=rate)


def test_threads_take_turns_on_one_pipeline(pipeline: Pipeline, recordings: list[Path]) -> None:
    inside: list[int] = []
    most: list[int] = []

    def progress(stage: str, done: float, total: float | None) -> None:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()

    results: dict[int, object] = {}

    def work(number: int) -> None:
        results[number] = pipeline.diarize(recordings[3], progress=progress).turns

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert len({str(value) for value in results.values()}) == 1
    assert max(most) == 1


def test_parts_channels_and_streams_of_a_recording(
    pipeline: Pipeline, speech: np.ndarray, recordings: list[Path]
) -> None:
    whole = pipeline.diarize(speech, sample_rate=RATE)
    part = pipeline.diarize(speech, sample_rate=RATE, start=6.5)
    # The tail of the first voice may show; the second one starts where it did.
    assert any(turn.start == pytest.approx(whole.turns[1].start, abs=0.1) for turn in part.turns)
    assert all(6.5 <= turn.start < turn.end <= 12.1 for turn in part.turns)
    assert (part.offset, part.duration) == (6.5, 5.5)
    with open(recordings[1], "rb") as stream:
        streamed = pipeline.diarize(stream)
    assert streamed.name == "b"
    assert streamed.turns == pipeline.diarize(recordings[1], channel="mix").turns
    # One speaker on each side, talking at the same time.
    right = speech[round(7.1 * RATE) :]
    left = speech[: len(right)]
    call = pipeline.diarize(np.stack([left, right], axis=1), sample_rate=RATE, channel="split", keep_windows=True)
    assert call.speakers == ("CH1_SPEAKER_00", "CH2_SPEAKER_00")
    assert call.windows is not None
    assert set(call.windows.speakers.tolist()) == {0, 1}
    assert call.to_annotation().get_overlap().duration() > 2
    assert call.to_annotation(exclusive=True).get_overlap().duration() == 0


def test_progress_of_channels_goes_on_and_on(pipeline: Pipeline, speech: np.ndarray) -> None:
    seen: list[tuple[float, float | None]] = []
    pipeline.diarize(
        np.stack([speech[: 5 * RATE]] * 2, axis=1),
        sample_rate=RATE,
        channel="split",
        progress=lambda stage, done, total: seen.append((done, total)),
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (10.0, 10.0)
    assert {total for _, total in seen} == {10.0}


def test_a_known_voice_is_named(pipeline: Pipeline, speech: np.ndarray) -> None:
    voice = pipeline.enrol("Rms", speech[round(7.2 * RATE) :], sample_rate=RATE)
    assert voice.embedding.shape == (192,)
    result = pipeline.diarize(speech, sample_rate=RATE, voices=[voice])
    assert result.speakers == ("SPEAKER_00", "Rms")
    assert pipeline.diarize(speech, sample_rate=RATE, voices=[voice], voice_threshold=1.0).speakers == (
        "SPEAKER_00",
        "SPEAKER_01",
    )
    with pytest.raises(AudioError, match="Nobody: holds no speech"):
        pipeline.enrol("Nobody", np.zeros(RATE), sample_rate=RATE)


def test_options_of_many_are_those_of_one() -> None:
    parameters = set(inspect.signature(Pipeline.diarize).parameters)
    about_the_call = {"self", "source", "sample_rate", "progress", "cancelled"}
    assert set(Options.__annotations__) == parameters - about_the_call


def test_numbers_of_speakers_are_given_once(pipeline: Pipeline, speech: np.ndarray) -> None:
    with pytest.raises(OptionError, match="given twice"):
        pipeline.diarize(speech, sample_rate=RATE, bounds=diarize.SpeakerBounds(2, 2), num_speakers=2)
    assert len(pipeline.diarize(speech, sample_rate=RATE, max_speakers=1).speakers) == 1
