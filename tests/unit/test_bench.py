"""Benchmarks with scripted systems: order, warm and whole times, crashes, going on, records, comparisons, advice."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from diarize.bench import advice
from diarize.bench.benchmark import Options, benchmark, prepared
from diarize.bench.compare import as_json, compare
from diarize.bench.environment import Load, environment
from diarize.bench.nvml import MemoryWatch
from diarize.bench.process import Worker
from diarize.bench.record import read_record
from diarize.bench.record_text import record_text
from diarize.bench.samples import FILE as JOURNAL
from diarize.bench.samples import Process, Sample, Samples
from diarize.bench.systems import System, by_peer, our_system, peer_system
from diarize.bench.table import comparison_table, result_table
from diarize.dataset.load import Dataset, Recording
from diarize.errors import BackendError, DatasetError, FormatError, OptionError, OutputError
from diarize.score.der import Protocol
from diarize.types import Turn

FAKE = str(Path(__file__).resolve().parents[1] / "tools" / "fake_worker.py")


def fake(name: str, *options: str) -> System:
    """A scripted system."""
    return System(name, (sys.executable, FAKE, *options))


def dataset(folder: Path, *names: str, seconds: float = 10.0) -> Dataset:
    """Recordings of which the first 8 s are speech."""
    recordings = []
    for name in names:
        (folder / name).write_text(str(seconds))
        recordings.append(Recording(name, folder / name, (Turn(0.0, 8.0, "a"),), ((0.0, seconds),)))
    return Dataset("made", tuple(recordings), Protocol())


def test_a_run_measures_scores_and_records(tmp_path: Path) -> None:
    made = dataset(tmp_path, "one", "two")
    systems = [fake("diarize", "--seconds", "0.5", "--startup", "0.3"), fake("peer", "--seconds", "2")]
    shown: list[tuple[str, float, float | None]] = []
    record, folder = benchmark(made, systems, Options(rounds=2), lambda *state: shown.append(state))
    assert folder is None
    ours, peer = record["systems"]["diarize"], record["systems"]["peer"]
    assert (record["schema"], record["main"]) == ("diarize-bench/1", "diarize")
    # 2 s of false alarm on 8 s of speech, in both files.
    assert ours["der"] == pytest.approx(0.25)
    assert (ours["false_alarm"], ours["total"]) == (pytest.approx(4.0), pytest.approx(16.0))
    assert ours["rtfx"]["warm"] == pytest.approx(20.0)
    assert peer["rtfx"]["warm_rounds"] == pytest.approx([5.0, 5.0])
    # The whole process: start-up of at least 0.3 s, and each file once.
    assert all(0.3 < seconds < 5 for seconds in ours["startup_seconds"])
    assert ours["rtfx"]["whole_process_rounds"] == pytest.approx([20 / (s + 1.0) for s in ours["startup_seconds"]])
    assert ours["stages"] == pytest.approx({"analysis": 0.5, "total": 1.0})
    assert ours["peak_host_bytes"] > 1e6
    assert ours["files"]["one"]["identical_rounds"] is True
    assert "diarize is 4.00 times as fast as peer, warm; by file 4.00 to 4.00" in result_table(record)
    assert record["failed"] == []
    assert json.loads(record_text(record)) == json.loads(json.dumps(record))


def test_the_record_keeps_its_keys(tmp_path: Path) -> None:
    record, _ = benchmark(dataset(tmp_path, "one"), [fake("diarize")], Options(rounds=1))
    assert list(record) == [
        "schema", "created", "dataset", "protocol", "rounds", "warmup", "environment", "main", "systems", "failed",
        "warnings", "processes", "samples",
    ]  # fmt: skip
    assert list(record["systems"]["diarize"]) == [
        "about", "command", "der", "missed", "false_alarm", "confusion", "total", "jer", "speaker_count", "rtfx",
        "startup_seconds", "stages", "peak_host_bytes", "peak_gpu_bytes", "files",
    ]  # fmt: skip
    assert list(record["systems"]["diarize"]["files"]["one"]) == [
        "der", "missed", "false_alarm", "confusion", "total", "jer", "speakers", "reference_speakers", "missing",
        "seconds", "rttm_sha256", "identical_rounds", "error",
    ]  # fmt: skip
    assert list(record["systems"]["diarize"]["rtfx"]) == [
        "warm", "warm_rounds", "whole_process", "whole_process_rounds",
    ]  # fmt: skip


def test_rounds_alternate_and_cold_files_are_done_again(tmp_path: Path) -> None:
    made = dataset(tmp_path, "one", "two", "three")
    systems = [fake("diarize"), fake("peer")]
    record, _ = benchmark(made, systems, Options(rounds=2, warmup=2))
    order = [(item["system"], item["round"]) for item in record["processes"]]
    assert order == [("diarize", 0), ("peer", 0), ("peer", 1), ("diarize", 1)]
    first = [item for item in record["samples"] if item["process"] == 0]
    assert [(item["file_id"], item["first"], item["position"]) for item in first] == [
        ("one", True, 0), ("two", True, 1), ("three", True, 2), ("one", False, 3), ("two", False, 4),
    ]  # fmt: skip
    # Warm are three, one and two, each in both rounds.
    assert [len(item["seconds"]) for item in record["systems"]["diarize"]["files"].values()] == [2, 2, 2]


def test_one_file_is_done_until_it_is_warm(tmp_path: Path) -> None:
    record, _ = benchmark(dataset(tmp_path, "one"), [fake("diarize")], Options(rounds=1, warmup=3))
    assert [item["position"] for item in record["samples"]] == [0, 1, 2, 3]
    assert len(record["systems"]["diarize"]["files"]["one"]["seconds"]) == 1


def test_a_bad_file_and_a_crash_do_not_end_the_run(tmp_path: Path) -> None:
    made = dataset(tmp_path, "a", "bad", "crash", "z")
    record, _ = benchmark(made, [fake("diarize")], Options(rounds=1))
    assert record["failed"] == [
        {"system": "diarize", "file": "bad", "error": "cannot be decoded"},
        {"system": "diarize", "file": "crash", "error": "diarize ended with status 7: out of luck"},
    ]
    system = record["systems"]["diarize"]
    assert system["files"]["bad"]["missing"] is True
    # Two files wholly missed, two with 2 s of false alarm.
    assert system["der"] == pytest.approx((8 + 8 + 2 + 2) / 32)
    assert system["files"]["z"]["seconds"] == [1.0]
    assert system["rtfx"]["whole_process"] is None
    text = " ".join(record["warnings"])
    assert "diarize failed on bad, crash: everything in them counts as missed" in text
    assert "round 1 took 2 processes" in text
    assert "-" in result_table(record, per_file=True)


def test_a_system_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="diarize ended with status 1: no model here"):
        benchmark(dataset(tmp_path, "a"), [fake("diarize", "--die-at-start")], Options(rounds=1))
    with pytest.raises(BackendError, match="cannot be started"):
        Worker(System("peer", ("/nonexistent/python",)))
    with pytest.raises(BackendError, match="model 'nosuch'"):
        Worker(our_system("nosuch", "cpu", "exact", 1))
    with pytest.raises(DatasetError, match="no recordings"):
        benchmark(Dataset("none", (), Protocol()), [], Options())


def test_a_peer_that_cannot_start_says_so_before_anything_is_timed(tmp_path: Path) -> None:
    systems = [fake("diarize"), fake("peer", "--die-at-start")]
    with pytest.raises(BackendError, match="peer ended with status 1: no model here"):
        benchmark(dataset(tmp_path, "a"), systems, Options(rounds=1, output=tmp_path / "out"))
    assert len((tmp_path / "out" / JOURNAL).read_text().splitlines()) == 1


def test_values_for_one_peer_or_all() -> None:
    values = by_peer(["speakrs=/a=b", "c=d"], "")
    assert (values("speakrs"), values("pyannote")) == ("/a=b", "c=d")
    assert by_peer(None, "python")("speakrs") == "python"
    with pytest.raises(OptionError, match="'y' is the second value for all peers"):
        by_peer(["x", "y"], "")


def test_an_interrupt_ends_a_worker_at_once_whatever_it_does() -> None:
    script = 'import time; print(\'{"event": "ready", "about": {}}\', flush=True); time.sleep(60)'
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Worker(System("busy", (sys.executable, "-c", script))):
        raise KeyboardInterrupt
    assert time.monotonic() - started < 5


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    made = dataset(tmp_path, "one", "two", "three")
    systems, out = [fake("diarize"), fake("peer")], tmp_path / "out"

    def stop(stage: str, done: float, total: float | None) -> None:
        if stage == "peer, round 1 of 2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        benchmark(made, systems, Options(rounds=2, output=out), stop)
    with (out / JOURNAL).open("a") as file:
        file.write('{"sample": {"cut')
    record, folder = benchmark(made, systems, Options(rounds=2, output=out))
    assert folder == out
    assert record == read_record(out)
    first = [(item["system"], item["round"], item["file_id"]) for item in record["samples"] if item["first"]]
    assert len(first) == len(set(first)) == 12
    # The peer's first file was done before the interruption, by a process of its own.
    assert [item["process"] for item in record["samples"] if item["system"] == "peer" and item["round"] == 0] == [
        1, 2, 2, 2, 2,
    ]  # fmt: skip
    assert len(record["systems"]["peer"]["rtfx"]["whole_process_rounds"]) == 1
    assert len(record["systems"]["diarize"]["rtfx"]["whole_process_rounds"]) == 2
    assert sorted(path.name for path in (out / "rttm" / "peer").iterdir()) == ["one.rttm", "three.rttm", "two.rttm"]


def test_a_folder_with_another_run_is_left_alone(tmp_path: Path) -> None:
    made, out = dataset(tmp_path, "one"), tmp_path / "out"
    benchmark(made, [fake("diarize")], Options(rounds=1, output=out))
    with pytest.raises(OutputError, match="holds a finished run; choose another --output, or --force"):
        benchmark(made, [fake("diarize")], Options(rounds=1, output=out))
    (out / "record.json").unlink()
    with pytest.raises(OutputError, match="holds a run with another rounds, systems; choose"):
        benchmark(made, [fake("diarize", "--seconds", "3")], Options(rounds=2, output=out))
    (out / "mine.txt").touch()
    record, _ = benchmark(made, [fake("diarize", "--seconds", "3")], Options(rounds=1, output=out, force=True))
    assert record["systems"]["diarize"]["files"]["one"]["seconds"] == [3.0]
    assert (out / "mine.txt").exists()
    (out / JOURNAL).write_text("[]\n")
    (out / "record.json").unlink()
    with pytest.raises(OutputError, match="is damaged"):
        benchmark(made, [fake("diarize")], Options(rounds=1, output=out))


@pytest.mark.parametrize(("rounds", "warmup"), [(0, 1), (1, -1)])
def test_counts_are_checked(tmp_path: Path, rounds: int, warmup: int) -> None:
    with pytest.raises(OptionError, match="it must be"):
        benchmark(dataset(tmp_path, "one"), [fake("diarize")], Options(rounds=rounds, warmup=warmup))


def test_results_that_change_between_rounds_are_told(tmp_path: Path) -> None:
    made = dataset(tmp_path, "noisy")
    samples = Samples()
    for number, digest in enumerate("ab"):
        samples.add(Sample("diarize", number, number, 1, "noisy", True, 1.0, 10.0, {}, digest))
    told = " ".join(advice.warnings(samples, 3, None, {}))
    assert told == "diarize: the result changed between rounds for noisy; its DER is that of the first one"
    record, _ = benchmark(made, [fake("diarize")], Options(rounds=3))
    digests = {item["rttm_sha256"] for item in record["samples"]}
    assert record["systems"]["diarize"]["files"]["noisy"]["identical_rounds"] == (len(digests) == 1)


def test_advice_names_its_remedy() -> None:
    samples = Samples()
    for number, clock in enumerate((1.0, 1.2)):
        samples.put(Process("diarize", number, number, 1.0, clock, {}))
    told = advice.warnings(samples, 1, 0.5, {"diarize": [10.0, 12.0]})
    assert [text.partition(";")[0].partition(":")[0] for text in told] == [
        "1 round",
        "the processor's speed drifted by 20 % between processes",
        "other programs used 50 % of the processors meanwhile",
        "diarize",
    ]
    assert all(";" in text for text in told)
    assert advice.warnings(Samples(), 3, 0.05, {"diarize": [10.0, 10.5]}) == ()


def test_other_load_is_what_is_busy_but_not_ours() -> None:
    before, after = Load(0.0, 100.0, 10.0, 4), Load(10.0, 125.0, 15.0, 4)
    assert after.others_since(before) == pytest.approx(0.5)
    assert before.others_since(before) == 0.0
    now = Load.now()
    assert now.processors == len(os.sched_getaffinity(0))
    assert now.busy > 0


def test_the_environment_is_stated() -> None:
    facts = environment()
    assert facts["processor"]
    assert facts["packages"]["numpy"]
    assert facts["memory_bytes"] > 1e8
    assert "gpu" not in facts
    watch = MemoryWatch(None)
    watch.start()
    watch.stop()
    assert watch.peak_bytes() is None


def test_two_records_are_compared_in_pairs(tmp_path: Path) -> None:
    made = dataset(tmp_path, "one", "two")
    first, _ = benchmark(made, [fake("diarize", "--seconds", "3")], Options(rounds=1))
    second, _ = benchmark(made, [fake("diarize", "--seconds", "1.5")], Options(rounds=1))
    second["systems"]["diarize"]["files"]["two"] |= {"rttm_sha256": "other", "der": 0.5, "seconds": [6.0]}
    second["systems"]["diarize"]["der"] = 0.375
    result = compare(first, second)
    assert (result.identical, result.speed_ratio) == (1, pytest.approx(6 / 7.5))
    assert result.spread == pytest.approx((0.5, 1.25, 2.0))
    assert as_json(result)["der_difference"] == pytest.approx(0.125)
    table = comparison_table(result).splitlines()
    assert table[4].split() == ["one", "25.00", "25.00", "+0.00", "2.000", "yes"]
    assert table[6].split() == ["pooled", "25.00", "37.50", "+12.50", "0.800", "1/2"]
    second["environment"]["processor"] = "another"
    assert "compare speeds on one machine only" in compare(first, second).notes[0]


def test_unlike_records_are_refused(tmp_path: Path) -> None:
    record, _ = benchmark(dataset(tmp_path, "one"), [fake("diarize")], Options(rounds=1))
    other = copy.deepcopy(record)
    other["dataset"]["fingerprint"] = "0"
    with pytest.raises(OptionError, match="other audio, references or channels"):
        compare(record, other)
    other = copy.deepcopy(record)
    other["protocol"]["collar_each_side"] = 0.25
    with pytest.raises(OptionError, match="scored differently, in collar_each_side"):
        compare(record, other)
    del other["dataset"]["files"]["one"]
    with pytest.raises(OptionError, match="different files, only one has one"):
        compare(record, other)


def test_a_channel_is_copied_for_every_system_alike(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-(2**15), 2**15, (5000, 3)).astype(np.int16)
    soundfile.write(tmp_path / "three.wav", samples, 16_000, "PCM_16")
    recording = Recording("three", tmp_path / "three.wav", ())
    with prepared(Dataset("made", (recording,), Protocol(), channel=2)) as audio:
        copied, rate = soundfile.read(audio["three"], dtype="int16")
        assert rate == 16_000
        np.testing.assert_array_equal(copied, samples[:, 1])
    assert not audio["three"].exists()
    with pytest.raises(DatasetError, match="has 3 channels; the data set's is number 4"):
        prepared(Dataset("made", (recording,), Protocol(), channel=4)).__enter__()
    (tmp_path / "three.wav").write_bytes(b"damaged")
    with pytest.raises(DatasetError, match="cannot be read"):
        prepared(Dataset("made", (recording,), Protocol(), channel=1)).__enter__()
    with prepared(Dataset("made", (recording,), Protocol())) as audio:
        assert audio == {"three": (tmp_path / "three.wav").resolve()}


def test_other_audio_or_reference_changes_the_fingerprint(tmp_path: Path) -> None:
    made = dataset(tmp_path, "one")
    before = benchmark(made, [fake("diarize")], Options(rounds=1))[0]["dataset"]["fingerprint"]
    moved = Dataset("made", (Recording("one", tmp_path / "one", (Turn(0.0, 7.0, "a"),), ((0.0, 10.0),)),), Protocol())
    assert benchmark(moved, [fake("diarize")], Options(rounds=1))[0]["dataset"]["fingerprint"] != before
    (tmp_path / "one").write_text("10.00")
    assert benchmark(made, [fake("diarize")], Options(rounds=1))[0]["dataset"]["fingerprint"] != before


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "is not JSON"), ("{}", "schema is None"), ('{"schema": "diarize-bench/1"}', "'systems' is missing")],
)
def test_what_is_no_record(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(FormatError, match=reason):
        read_record(tmp_path)
    with pytest.raises(FormatError, match="cannot be read"):
        read_record(tmp_path / "absent.json")


def test_peers_that_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown peer 'x'; allowed are pyannote, speakrs"):
        peer_system("x", sys.executable, "", "cpu", "exact")
    with pytest.raises(OptionError, match="needs --device cpu or --device cuda"):
        peer_system("speakrs", sys.executable, "", "auto", "exact")
    with pytest.raises(OptionError, match="no fast mode"):
        peer_system("pyannote", sys.executable, "", "cuda", "fast")
    with pytest.raises(BackendError, match=r"cannot be started .*; run: python -m venv peers"):
        peer_system("speakrs", str(tmp_path / "python"), "", "cpu", "exact")


def test_a_peer_that_is_absent_comes_with_its_install_command(tmp_path: Path) -> None:
    # An interpreter without site packages, where nothing is installed.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    for name in ("speakrs", "pyannote"):
        with pytest.raises(BackendError, match=rf"{name} is not installed for .*; run: .* install .*{name}.*=="):
            peer_system(name, str(python), "", "cpu", "exact")


PYANNOTE = """
import types
class Track(types.SimpleNamespace): pass
class Annotation:
    def itertracks(self, yield_label=False):
        assert yield_label
        yield Track(start=0.25, end=1.5), 0, "S"
class Pipeline:
    @classmethod
    def from_pretrained(cls, name):
        assert name == "a/model", name
        return cls()
    def to(self, device):
        assert device == "device cpu"
    def __call__(self, source):
        print("chatter")
        assert source["sample_rate"] == 16000 and source["waveform"].shape[0] == 1
        return types.SimpleNamespace(speaker_diarization=Annotation())
"""


def test_the_script_for_pyannote_keeps_to_its_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyannote").mkdir()
    (tmp_path / "pyannote" / "audio.py").write_text(PYANNOTE)
    (tmp_path / "torch.py").write_text("device = 'device {}'.format\nfrom_numpy = lambda array: array\n")
    about = tmp_path / "pyannote.audio-4.0.7.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pyannote.audio\nVersion: 4.0.7\n")
    (tmp_path / "pyannote" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    from diarize.resources import demo_recording

    with Worker(peer_system("pyannote", sys.executable, "a/model", "cpu", "exact")) as worker:
        assert worker.about == {"version": "4.0.7", "device": "cpu", "mode": "exact", "model": "a/model"}
        answer = worker.diarize(demo_recording())
        assert answer.turns == (Turn(0.25, 1.5, "S"),)
        assert answer.seconds > 0
        assert worker.diarize(tmp_path / "absent.wav").error.startswith("LibsndfileError: ")


def test_speakrs_runs_for_real() -> None:
    python, model = os.environ.get("DIARIZE_PEER_PYTHON"), os.environ.get("DIARIZE_SPEAKRS_MODEL")
    if not (python and model):
        pytest.skip("set DIARIZE_PEER_PYTHON and DIARIZE_SPEAKRS_MODEL to run speakrs")
    from diarize.resources import data_dir

    with Worker(peer_system("speakrs", python, model, "cpu", "exact")) as worker:
        assert worker.about["version"]
        answer = worker.diarize(data_dir("datasets") / "mini" / "alone.flac")
        assert answer.error == ""
        assert answer.turns
        assert answer.seconds > 0
        assert worker.peak_host_bytes() > 50e6
        assert worker.diarize(Path("absent.wav")).error
