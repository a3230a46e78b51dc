# ruff: noqa: E402 (the imports need numba-cuda)
"""The whole pipeline on a GPU: the CPU backend's turns, odd batches, overflow, memory, faults, what gets loaded.

DIARIZE_MODEL_DIR names a community-1 model folder (else one of random weights is made), and DIARIZE_CPU_RESULTS what
tests/tools/cpu_results.py wrote: the CPU backend's results (else they are computed here, which takes a while).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.cuda
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'diarize-cuda[cuda]'")

import diarize.pipeline
from diarize.activity import embedding_masks
from diarize.backend.cuda_devices import discover
from diarize.backend.cuda_driver import check
from diarize.backend.cuda_lane import CudaLane, Limits
from diarize.engine import open_engine
from diarize.engine_cuda import CudaEngine
from diarize.errors import BackendError
from diarize.model.weights import ModelWeights, load_model
from diarize.pipeline import Pipeline
from diarize.stretches import Stretch

STEP = 16_000


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    found = discover()
    if found.problem:
        pytest.skip(found.problem)


@pytest.fixture(scope="module")
def model(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    named = os.environ.get("DIARIZE_MODEL_DIR")
    if named:
        return named
    from tools.random_resnet34 import write_model_folder

    return str(write_model_folder(tmp_path_factory.mktemp("model"), shared / "models" / "plda"))


@pytest.fixture(scope="module")
def pipeline(model: str) -> Pipeline:
    return Pipeline.from_pretrained(model, "cuda")


@dataclass(frozen=True)
class Seen:
    """What a pipeline found: classes, embeddings, and turns as (start, end, speaker)."""

    classes: np.ndarray
    embeddings: np.ndarray
    turns: list[tuple[float, float, str]]


def run(pipeline: Pipeline, path: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    kept: dict[str, Any] = {}
    assemble = diarize.pipeline.assemble

    def spy(analysis: Any, *rest: Any) -> Any:
        kept["analysis"] = analysis
        return assemble(analysis, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(diarize.pipeline, "assemble", spy)
        result = pipeline.diarize(path)
    turns = [(turn.start, turn.end, turn.speaker) for turn in result.turns]
    return Seen(kept["analysis"].classes, kept["analysis"].embeddings, turns)


def on_cpu(model: str, mode: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    folder = os.environ.get("DIARIZE_CPU_RESULTS")
    if not folder:
        return run(Pipeline.from_pretrained(model, "cpu", mode), path, monkeypatch)
    network = "campplus" if model == "campplus" else "resnet34"
    with np.load(Path(folder) / f"{network}-{mode}" / f"{path.stem}.npz") as kept:
        embeddings = np.full((*kept["where"].shape, kept["rows"].shape[1]), np.nan, np.float32)
        embeddings[kept["where"]] = kept["rows"]
        speakers = kept["speakers"].tolist()
        turns = [(start, end, who) for (start, end), who in zip(kept["turns"].tolist(), speakers, strict=True)]
        return Seen(kept["classes"], embeddings, turns)


def different_share(a: list[tuple[float, float, str]], b: list[tuple[float, float, str]], seconds: float) -> float:
    """Share of 10 ms frames in which not the same people speak, of the speech in `a`, in percent."""
    names = sorted({who for *_, who in [*a, *b]})
    frames = np.zeros((2, len(names), int(seconds * 100) + 1), bool)
    for side, turns in enumerate((a, b)):
        for start, end, who in turns:
            frames[side, names.index(who), round(start * 100) : round(end * 100)] = True
    return float(100 * (frames[0] != frames[1]).sum() / max(1, frames[0].sum()))


def keep(name: str, seen: Seen) -> None:
    """Write what the GPU found to the folder that DIARIZE_GPU_RESULTS names, where it does."""
    folder = os.environ.get("DIARIZE_GPU_RESULTS")
    if folder:
        where = np.isfinite(seen.embeddings[..., 0])
        path = Path(folder) / "gpu.npz"
        kept = dict(np.load(path)) if path.exists() else {}
        kept |= {f"{name}.classes": seen.classes, f"{name}.where": where, f"{name}.rows": seen.embeddings[where]}
        np.savez_compressed(path, **kept)


# Frames of a mask from which the relative error of an embedding is held to 3e-3: two seconds, from which on clustering
# learns. What float16 rounds off in the trunk's 33 layers is alike in every step and averages out over a slot's steps,
# so that a slot of less than a second, which only one or two steps of the last stage see, may be up to three times as
# far off; its turns are still those of the CPU.
LONG_FRAMES = 118
LONG_ERROR, ALL_ERROR, SHORT_ERROR = 3e-3, 3e-3, 1.5e-2


class Differences:
    """Between a pipeline and the CPU's results, recording by recording."""

    def __init__(self) -> None:
        self.flips = self.frames = 0
        self.worst_row = self.worst_share = self.worst_long = 0.0
        self.squares = np.zeros(2)
        self.lines: list[str] = []

    def add(self, name: str, ours: Seen, expected: Seen) -> None:
        assert ours.classes.shape == expected.classes.shape
        changed = int((ours.classes != expected.classes).sum())
        self.flips, self.frames = self.flips + changed, self.frames + ours.classes.size
        where = np.isfinite(expected.embeddings[..., 0])
        # Which slots have an embedding follows from the classes, which may differ in a frame or two.
        assert changed or np.array_equal(where, np.isfinite(ours.embeddings[..., 0]))
        where &= np.isfinite(ours.embeddings[..., 0])
        rows = expected.embeddings[where]
        apart, size = np.linalg.norm(ours.embeddings[where] - rows, axis=1), np.linalg.norm(rows, axis=1)
        self.squares += [float(np.square(apart).sum()), float(np.square(size).sum())]
        long = embedding_masks(expected.classes).sum(axis=2)[where] >= LONG_FRAMES
        error, error_long = (float(np.linalg.norm(apart[s]) / np.linalg.norm(size[s])) for s in (slice(None), long))
        share = different_share(expected.turns, ours.turns, 10.0 + len(ours.classes))
        identical = ours.turns == expected.turns
        worst = float((apart / size).max())
        self.lines.append(
            f"{name}: {changed} of {ours.classes.size} frames, embeddings {error:.1e} (2 s and more {error_long:.1e}, "
            f"worst {worst:.1e} of {len(rows)}), turns {'identical' if identical else f'{share:.3f} % different'}"
        )
        self.worst_long, self.worst_row = max(self.worst_long, error_long), max(self.worst_row, worst)
        self.worst_share = max(self.worst_share, 0.0 if identical else share)

    @property
    def error(self) -> float:
        """Of all embeddings together."""
        return float((self.squares[0] / self.squares[1]) ** 0.5)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("network", ["resnet34", "campplus"])
def test_recordings_as_on_the_cpu(
    network: str,
    mode: str,
    model: str,
    shared: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = model if network == "resnet34" else "campplus"
    own = Pipeline.from_pretrained(name, "cuda", mode)
    assert str(own.device) == "cuda:0"
    seen = Differences()
    for path in sorted((shared / "data").rglob("*.flac")):
        ours = run(own, path, monkeypatch)
        keep(f"{network}.{mode}.{path.stem}", ours)
        seen.add(path.stem, ours, on_cpu(name, mode, path, monkeypatch))
    with capsys.disabled():
        print(f"\n  {network}, {mode}:", *seen.lines, sep="\n  ")
        print(f"  all: {seen.flips} of {seen.frames} frames, embeddings {seen.error:.1e}")
    assert seen.flips <= max(1, seen.frames / 50_000)
    assert seen.worst_share < 0.1
    assert seen.error < ALL_ERROR
    assert seen.worst_long < LONG_ERROR
    assert seen.worst_row < SHORT_ERROR


def stretch_of(samples: np.ndarray, first: int, count: int) -> Stretch:
    return Stretch(first, count, samples[first * STEP :][: (count - 1) * STEP + 160_000])


@pytest.fixture(scope="module")
def speech(shared: Path) -> np.ndarray:
    from diarize.audio import load

    return load(shared / "data" / "voxconverse" / "aepyx.flac").samples


def test_a_window_gives_the_same_bytes_in_any_batch(pipeline: Pipeline, speech: np.ndarray) -> None:
    engine = pipeline.engine
    whole = engine.analyse(stretch_of(speech, 0, 131), STEP)
    for first, count in [(0, 1), (5, 2), (17, 7), (40, 65), (2, 127)]:
        part = engine.analyse(stretch_of(speech, first, count), STEP)
        assert np.array_equal(part.classes, whole.classes[first : first + count])
        assert np.array_equal(part.embeddings, whole.embeddings[first : first + count], equal_nan=True)


def scaled(weights: ModelWeights, factor: float) -> ModelWeights:
    """The model with the output of its first convolution larger by `factor`."""
    changed = dict(weights.embedding)
    for name in ("bn1.weight", "bn1.bias"):
        changed[name] = weights.embedding[name] * np.float32(factor)
    return replace(weights, embedding=changed)


@pytest.mark.parametrize(("factor", "at_load"), [(3e4, False), (1e7, True)])
def test_overflow_is_computed_again_in_float32(model: str, speech: np.ndarray, factor: float, at_load: bool) -> None:
    weights = scaled(load_model(model), factor)
    engine, cpu = open_engine("cuda", weights), open_engine("cpu", weights)
    assert any("float16" in note for note in engine.notes) is at_load
    stretch = stretch_of(speech, 20, 3)
    ours, expected = engine.analyse(stretch, STEP).embeddings, cpu.analyse(stretch, STEP).embeddings
    same = np.isfinite(expected)
    assert same.any()
    assert np.array_equal(np.isfinite(ours), same)
    assert np.linalg.norm(ours[same] - expected[same]) / np.linalg.norm(expected[same]) < 3e-3


@pytest.mark.parametrize("layer", ["layer1.1.conv2", "layer3.2.conv2"])
def test_a_layer_with_large_weights_alone_leaves_float16(model: str, speech: np.ndarray, layer: str) -> None:
    plain = load_model(model)
    changed = dict(plain.embedding)
    inner = layer.replace("conv2", "bn1")
    # A channel that is always zero, times weights that no float16 holds.
    for name, value in ((f"{inner}.bias", np.float32(-1e6)), (f"{inner}.weight", np.float32(0))):
        changed[name] = changed[name].copy()
        changed[name][3] = value
    changed[f"{layer}.weight"] = changed[f"{layer}.weight"].copy()
    changed[f"{layer}.weight"][:, 3] = 1e7
    weights = replace(plain, embedding=changed)
    engine, cpu = open_engine("cuda", weights), open_engine("cpu", weights)
    assert any(layer in note for note in engine.notes)
    assert isinstance(engine, CudaEngine)
    stretch = stretch_of(speech, 20, 3)
    ours, expected = engine.analyse(stretch, STEP).embeddings, cpu.analyse(stretch, STEP).embeddings
    same = np.isfinite(expected)
    assert np.array_equal(np.isfinite(ours), same)
    assert np.linalg.norm(ours[same] - expected[same]) / np.linalg.norm(expected[same]) < 3e-3


@pytest.mark.parametrize("grid", [False, True])
def test_overflow_of_campplus_is_computed_again_on_the_cpu(
    speech: np.ndarray, grid: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plain = load_model("campplus")
    # Activations of the first convolution reach 24; the folded weights still fit.
    changed = {name: plain.embedding[name] * np.float32(6e3) for name in ("head.bn1.weight", "head.bn1.bias")}
    weights = replace(plain, embedding={**plain.embedding, **changed})
    engine, cpu = open_engine("cuda", weights, grid), open_engine("cpu", weights, grid)
    stretch = stretch_of(speech, 20, 3)
    ours, expected = engine.analyse(stretch, STEP).embeddings, cpu.analyse(stretch, STEP).embeddings
    assert np.isfinite(expected).any()
    assert np.array_equal(ours, expected, equal_nan=True)
    assert "embeddings beyond the range of its kernels are computed again on the CPU" in caplog.text
    # The same stretch with the weights as they are stays on the GPU.
    caplog.clear()
    open_engine("cuda", plain, grid).analyse(stretch, STEP)
    assert "computed again" not in caplog.text


def test_samples_that_are_not_finite_reach_the_cpu(pipeline: Pipeline, speech: np.ndarray) -> None:
    samples = speech[: 160_000 + 2 * STEP].copy()
    samples[-STEP:] = np.nan
    engine = pipeline.engine
    result = engine.analyse(Stretch(0, 3, samples), STEP)
    plain = engine.analyse(stretch_of(speech, 0, 2), STEP)
    # The windows before the damage are right although their batch was flagged.
    assert np.array_equal(result.classes[:2], plain.classes)


def test_memory_that_runs_out(model: str, speech: np.ndarray, caplog: pytest.LogCaptureFixture) -> None:
    engine = open_engine("cuda", load_model(model))
    assert isinstance(engine, CudaEngine)
    stretch = stretch_of(speech, 0, 100)
    expected = engine.analyse(stretch, STEP)
    assert engine._session is not None
    lane = engine._session.all_lanes[-1]
    assert isinstance(lane, CudaLane)
    lane.release()
    lane.limits = Limits(256, 64)
    gpu = lane.gpu
    hoard = [check(gpu.driver.cuMemAlloc(max(1, gpu.free_bytes() - (900 << 20))))]
    try:
        # Lanes are handed out last in, first out.
        result = engine.analyse(stretch, STEP)
    finally:
        for block in hoard:
            check(gpu.driver.cuMemFree(block))
    assert "out of memory" in caplog.text
    assert lane.limits.embedding < 64
    assert np.array_equal(result.classes, expected.classes)
    assert np.array_equal(result.embeddings, expected.embeddings, equal_nan=True)


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(BackendError, match="there is no GPU 7"):
        Pipeline.from_pretrained("campplus", "cuda:7")


FORBIDDEN = ("cudnn", "cublas", "cufft", "cupy", "torch", "onnxruntime", "curand", "cusparse")

# The command leaves without unwinding once it has used a GPU, but not without what was registered.
CODE = """
import atexit, sys
sys.argv = ["diarize", "run", sys.argv[1], "--device", "cuda", "--model", sys.argv[2], "-o", sys.argv[3], "-f"]
from diarize.cli.main import main
atexit.register(lambda: print(open("/proc/self/maps").read(), *sys.modules))
main()
"""


@pytest.mark.parametrize("network", ["resnet34", "campplus"])
def test_a_warm_start_and_what_is_loaded(
    network: str, model: str, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = str(shared / "data" / "ami30" / "dev00.flac")
    name = model if network == "resnet34" else "campplus"
    # As pip installs packages: with their bytecode, which the machine that tests this may do without.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        command = [sys.executable, "-c", CODE, recording, name, str(tmp_path / "turns.rttm")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
        seconds.append(time.perf_counter() - started)
        assert done.returncode == 0, done.stderr[-2000:]
    libraries = {line.split("/")[-1] for line in done.stdout.splitlines() if ".so" in line}
    with capsys.disabled():
        print(f"\n  {network}: a 30 s recording in a new process, seconds: {', '.join(f'{s:.2f}' for s in seconds)}")
    assert any(name.startswith("libcuda.so") for name in libraries)
    loaded = [name for name in libraries if any(word in name.lower() for word in FORBIDDEN)]
    assert not loaded
    assert "numba.cuda" not in done.stdout
    # The first may still compile.
    assert sorted(seconds[1:])[1] < 2.0


def fail_once(lane: CudaLane) -> None:
    """Let the lane's next embedding write to address 0, which ends the driver's context."""
    embed = lane.embed

    def broken(active: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lane.embed = embed  # type: ignore[method-assign]
        lane._networks.gather.bind((8, 1, 1), 0, 0, 0, 0, 0, 400, 79_840)(lane._stream)
        return embed(active, weights)

    lane.embed = broken  # type: ignore[method-assign]


IN_CHILD = "DIARIZE_TEST_LOSES_ITS_GPU"


def test_a_gpu_lost_in_mid_batch_in_a_process_of_its_own(model: str) -> None:
    """The process that loses its GPU has none for the tests after this one."""
    name = f"{__file__}::{test_a_gpu_lost_in_mid_batch.__name__}"
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-p", "no:cacheprovider", "--tb=short", name]
    environment = {**os.environ, IN_CHILD: "1", "DIARIZE_MODEL_DIR": model}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "1 passed" in done.stdout


@pytest.mark.skipif(IN_CHILD not in os.environ, reason="run by the test above in a process of its own")
def test_a_gpu_lost_in_mid_batch(model: str, shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = Pipeline.from_pretrained(model, "cuda")
    files = sorted((shared / "data" / "ami30").glob("*.flac"))[:3]
    expected = [own.diarize(path).turns for path in files]
    for lane in own.engine._session.all_lanes:  # type: ignore[attr-defined]
        fail_once(lane)
    outcomes = list(own.diarize_many(files))
    assert [outcome.get().turns for outcome in outcomes] == expected
    # What addresses that are not there do, the driver forgives a process never.
    assert "cannot be started again: the CPU computes the rest" in caplog.text
