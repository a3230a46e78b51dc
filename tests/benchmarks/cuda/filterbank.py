"""Checks and times the filterbank on this machine's GPU against the CPU backend.

`python tests/benchmarks/cuda/filterbank.py --speech FILE.npz --out DIR`, the file holding 16-bit mono `samples` at
16 kHz. Times are medians of CUDA-graph replays.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from trunk import Bench

from diarize.backend.cuda_fbank import FilterbankKernels
from diarize.framing import WINDOW_SAMPLES
from diarize.layers import Layer, Op
from diarize.model.fbank import Filterbank, analysis_window, mel_filters


def layer_of(window: str) -> Layer:
    """The filterbank's layer as the model makes it."""
    weights = {"window": (analysis_window(window) * 32768).astype(np.float32), "mel": mel_filters().astype(np.float32)}
    return Layer("fbank", Op.LOG_MEL, weights, {"floor": 1.1920929e-07})


def main() -> None:
    """Check both windows, then time one hour at a step of one second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    bench = Bench()
    samples = (np.load(options.speech)["samples"] / 32768).astype(np.float32)
    windows = (len(samples) - WINDOW_SAMPLES) // 16000 + 1
    samples = samples[: (windows - 1) * 16000 + WINDOW_SAMPLES]
    for name in ("hamming", "povey"):
        kernels = FilterbankKernels(bench.gpu, bench.memory, layer_of(name))
        plan = kernels.plan(bench.memory.put(samples), windows, 16000)
        plan.run(bench.stream)
        got, mean = bench.memory.get(plan.features), bench.memory.get(plan.mean)
        expected = Filterbank(name).features(samples)
        means = np.stack([expected[100 * i : 100 * i + 998].mean(0, dtype=np.float64) for i in range(windows)])
        bench.record(
            kind="filterbank", window=name, frames=len(got), largest=float(np.abs(got - expected[: len(got)]).max()),
            mean=float(np.abs(mean - means).max()),
        )  # fmt: skip
        plan.close()
    hour = bench.memory.put(np.resize(samples, 3590 * 16000 + WINDOW_SAMPLES))
    plan = kernels.plan(hour, 3591, 16000)
    for name, launch in plan.steps:
        seconds = bench.seconds(launch, 1, 10)
        bench.record(kind="filterbank hour", step=name, samples=seconds, per_second=3591 / statistics.median(seconds))
    (options.out / "filterbank.json").write_text(json.dumps(bench.rows, indent=1))


if __name__ == "__main__":
    main()
