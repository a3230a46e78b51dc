"""Settings of the GPU engine side by side: lanes, recordings at a time, windows of a stretch and of a trunk batch.

    python tests/benchmarks/cuda/settings.py --model DIR --audio FILE [--audio FILE ...] [--setting 3,6,320,64 ...]
    python tests/benchmarks/cuda/settings.py --model DIR --audio FILE [--audio FILE ...] --parts

The work is that of pipeline.py. Each setting has a pipeline of its own in this process; all take turns, round by round.
With `--parts`, for the settings as they are: how long how many lanes were in use, and when each part of the hour's
clustering began and how long it took, in milliseconds, of the last of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pipeline import conversation, write_audio

import diarize.assembly
import diarize.cluster.community1
import diarize.engine_cuda as engine
import diarize.pipeline
from diarize.early import EarlyWork
from diarize.pipeline import Pipeline

SETTINGS = ("2,4,256,64", "2,4,320,64", "3,4,320,64", "3,6,320,64", "3,6,320,128", "4,6,320,64")
NAMES = ("LANES", "RECORDINGS", "STRETCH_WINDOWS", "BATCH_WINDOWS")
PARTS = (
    (engine.CudaEngine, "_classes"),
    (engine.CudaEngine, "_embeddings"),
    (EarlyWork, "finish"),
    (diarize.pipeline, "assemble"),
    (diarize.assembly, "speaker_count"),
    (diarize.cluster.community1, "_automatic_centroids"),
    (diarize.cluster.community1, "centroid_clusters"),
    (diarize.cluster.community1, "vbx_of"),
    (diarize.cluster.community1, "_assign"),
    (diarize.assembly, "stitch"),
    (diarize.assembly, "voiceprints"),
    (diarize.assembly, "margins"),
    (diarize.assembly, "confidences"),
)


def seconds(pipeline: Pipeline, paths: Sequence[Path]) -> float:
    """Wall-clock seconds for all recordings."""
    started = time.perf_counter()
    for outcome in pipeline.diarize_many(paths):
        outcome.get()
    return time.perf_counter() - started


def compare(options: argparse.Namespace, mode: str, hour: list[Path], batch: list[Path]) -> None:
    """Print the median and the least of each setting."""
    pipelines = {}
    for setting in options.setting or SETTINGS:
        for name, value in zip(NAMES, map(int, setting.split(",")), strict=True):
            setattr(engine, name, value)
        pipelines[setting] = Pipeline.from_pretrained(options.model, "cuda", mode)
        seconds(pipelines[setting], [*batch[:8], *hour])
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for setting, pipeline in pipelines.items():
            for work, paths in (("batch", batch), ("hour", hour)):
                times.setdefault((setting, work), []).append(seconds(pipeline, paths))
    for (setting, work), values in times.items():
        print(f"{mode:6} {setting:14} {work:6} {statistics.median(values):.3f} s (least {min(values):.3f})")


def parts(options: argparse.Namespace, mode: str, hour: list[Path], batch: list[Path]) -> None:
    """Print the lanes in use, and the parts of the clustering."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for owner, name in PARTS:
        setattr(owner, name, timed(getattr(owner, name), spans.setdefault(name, [])))
    pipeline = Pipeline.from_pretrained(options.model, "cuda", mode)
    for work, paths in (("hour", hour), ("batch", batch)):
        for _ in range(options.rounds):
            for found in spans.values():
                found.clear()
            started = time.perf_counter()
            whole = seconds(pipeline, paths)
        busy = occupancy([*spans["_classes"], *spans["_embeddings"]], started, started + whole)
        print(f"{mode} {work} {whole:.3f} s, lanes in use:", {n: f"{value:.3f}" for n, value in busy.items()})
        for name, found in spans.items() if work == "hour" else ():
            begin = 1e3 * (found[-1][0] - started)
            print(f"    {name:22} {begin:8.1f} {1e3 * sum(end - start for start, end in found):8.1f}")


def timed(function: Any, spans: list[tuple[float, float]]) -> Any:
    """`function`, which notes when it ran."""

    def wrapped(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            spans.append((started, time.perf_counter()))

    return wrapped


def occupancy(spans: Sequence[tuple[float, float]], start: float, end: float) -> dict[int, float]:
    """Seconds from `start` to `end` by the number of `spans` that lie over them."""
    marks = sorted([(begin, 1) for begin, _ in spans] + [(stop, -1) for _, stop in spans])
    found: dict[int, float] = {}
    number, last = 0, start
    for at, step in [*marks, (end, 0)]:
        found[number] = found.get(number, 0.0) + at - last
        number, last = number + step, at
    return found


def main() -> None:
    """Write the audio, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--audio", type=Path, action="append", required=True)
    parser.add_argument("--setting", action="append", metavar="LANES,RECORDINGS,STRETCH,BATCH")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hour, batch = write_audio(Path(folder), conversation(options.audio))
        for mode in ("exact", "fast"):
            (parts if options.parts else compare)(options, mode, hour, batch)


if __name__ == "__main__":
    main()
