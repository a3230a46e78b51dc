"""End to end on this machine's GPU, from files to turns, beside speakrs 0.7.0 where its folder is given.

    python tests/benchmarks/cuda/pipeline.py --model DIR --audio FILE [--audio FILE ...] [--speakrs DIR] [--out DIR]

The recordings are joined and cut or repeated to a conversation of 5 minutes; it is tiled to one hour, and rotated into
24 files. Each system runs in a process of its own, model loaded and kernels compiled; systems alternate, round by
round. `--speakrs` needs the package speakrs and a folder as written by tests/benchmarks/peers/speakrs_model.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

RATE = 16_000
MINUTES = 5
COPIES = 24


class System:
    """A system in a process of its own that is handed lists of recordings."""

    def __init__(self, kind: str, model: str, mode: str) -> None:
        self.name = f"{kind} {mode}"
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind, "--model", model, "--mode", mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._answer()
        self.start_seconds = time.perf_counter() - started

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended early")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, paths: list[Path]) -> dict[str, Any]:
        """Seconds and number of turns."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(path) for path in paths]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def serve_ours(model: str, mode: str) -> None:
    """Diarize lists of recordings on the GPU."""
    from diarize.pipeline import Pipeline

    pipeline = Pipeline.from_pretrained(model, "cuda", mode)
    print(json.dumps({"device": pipeline.device.name, "driver": pipeline.device.driver}), flush=True)
    for line in sys.stdin:
        paths = json.loads(line)
        started = time.perf_counter()
        results = [outcome.get() for outcome in pipeline.diarize_many(paths)]
        seconds = time.perf_counter() - started
        timings = {key: round(sum(r.timings[key] for r in results), 4) for key in results[0].timings}
        held = pipeline.engine.peak_device_bytes()
        answer = {"seconds": seconds, "turns": sum(len(r.turns) for r in results), "timings": timings, "held": held}
        print(json.dumps(answer), flush=True)


def serve_speakrs(model: str, mode: str) -> None:
    """Diarize lists of recordings with speakrs."""
    import speakrs

    pipeline = speakrs.Pipeline.from_prepared(speakrs.prepare(mode, model_dir=model))
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        paths = json.loads(line)
        started = time.perf_counter()
        if len(paths) == 1:
            turns = len(pipeline.diarize_file(paths[0]).segments)
        else:
            turns = len(list(pipeline.diarize_files(paths)))
        print(json.dumps({"seconds": time.perf_counter() - started, "turns": turns}), flush=True)


def conversation(paths: list[Path]) -> np.ndarray:
    """16-bit samples of five minutes."""
    parts = [soundfile.read(path, dtype="int16")[0] for path in paths]
    return np.resize(np.concatenate(parts), MINUTES * 60 * RATE)


def write_audio(folder: Path, samples: np.ndarray) -> tuple[list[Path], list[Path]]:
    """The one-hour recording and the 24 of five minutes."""
    hour = folder / "hour.wav"
    soundfile.write(hour, np.tile(samples, 60 // MINUTES), RATE, "PCM_16")
    batch = []
    for copy in range(COPIES):
        batch.append(folder / f"part{copy:02d}.wav")
        soundfile.write(batch[-1], np.roll(samples, copy * len(samples) // COPIES), RATE, "PCM_16")
    return [hour], batch


def main() -> None:
    """Write the audio, start the systems, alternate, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--audio", type=Path, action="append", default=[])
    parser.add_argument("--speakrs")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=("ours", "speakrs"))
    parser.add_argument("--mode", default="exact")
    options = parser.parse_args()
    if options.serve:
        {"ours": serve_ours, "speakrs": serve_speakrs}[options.serve](options.model, options.mode)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        hour, batch = write_audio(Path(name), conversation(options.audio))
        systems = [System("ours", options.model, mode) for mode in ("exact", "fast")]
        if options.speakrs:
            systems += [System("speakrs", options.speakrs, mode) for mode in ("cuda", "cuda-fast")]
        for system in systems:
            print(json.dumps({"system": system.name, "start": round(system.start_seconds, 2), **system.facts}))
            for work in (batch[:1], batch[:4]):
                system.run(work)
        for turn in range(options.rounds):
            for system in systems:
                for work, paths in (("hour", hour), ("batch", batch)):
                    # Ours are short: more samples for the same device time.
                    for _ in range(3 if system.name.startswith("ours") else 1):
                        rows.append({"system": system.name, "work": work, "round": turn, **system.run(paths)})
        for system in systems:
            system.end()
    for system in systems:
        for work, seconds in (("hour", 3600), ("batch", COPIES * MINUTES * 60)):
            mine = [row for row in rows if row["system"] == system.name and row["work"] == work]
            times = sorted(row["seconds"] for row in mine)
            median = statistics.median(times)
            spread = f"{times[0]:.3f} to {times[-1]:.3f} s"
            print(f"{system.name:18} {work:6} {median:7.3f} s  {seconds / median:7.0f}x  n={len(times)} ({spread})")
            print("   ", json.dumps({key: mine[-1].get(key) for key in ("turns", "timings", "held")}))
    (options.out / "pipeline.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
