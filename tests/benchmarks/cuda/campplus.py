"""Checks and times CAM++ on this machine's GPU against the CPU backend.

`python tests/benchmarks/cuda/campplus.py --speech FILE.npz --out DIR`, the file holding 16-bit mono `samples` at
16 kHz. Times are medians of CUDA-graph replays, speed in gathered frames a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from filterbank import layer_of
from trunk import Bench, rel

from diarize.backend.cpu import CpuBackend
from diarize.backend.cuda_build import build
from diarize.backend.cuda_campplus import KERNELS, CampPlusKernels, columns_for
from diarize.backend.cuda_fbank import FilterbankKernels
from diarize.framing import WINDOW_SAMPLES
from diarize.model.campplus import CampPlusEmbedder, campplus_layers
from diarize.model.weights import load_campplus


def sequences(windows: int, seed: int) -> list[np.ndarray]:
    """Frames of one or two speakers a window: random runs, some almost whole, some short."""
    rng = np.random.default_rng(seed)
    out = []
    for window in range(windows):
        for _ in range(1 + window % 2):
            keep = np.repeat(rng.random(50) < rng.uniform(0.1, 1.0), 20)[:998]
            if keep.sum() >= 20:
                out.append((100 * window + np.flatnonzero(keep)).astype(np.int32))
    return out


def main() -> None:
    """Check embeddings, then time batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--batches", default="32,128,256")
    options = parser.parse_args()
    start = time.time()
    bench = Bench()
    build([*KERNELS.values()], bench.gpu.capability)
    print(f"built {len(KERNELS)} kernels in {time.time() - start:.1f} s", flush=True)
    samples = (np.load(options.speech)["samples"] / 32768).astype(np.float32)
    count = (len(samples) - WINDOW_SAMPLES) // 16000 + 1
    samples = samples[: (count - 1) * 16000 + WINDOW_SAMPLES]
    weights = load_campplus()
    kernels = CampPlusKernels(bench.gpu, bench.memory, campplus_layers(weights))
    banks = FilterbankKernels(bench.gpu, bench.memory, layer_of("povey"))
    bank = banks.plan(bench.memory.put(samples), count, 16000)
    bank.run(bench.stream)
    features = bench.memory.get(bank.features)
    chosen = [s[: 20 + 97 * i] for i, s in enumerate(sequences(16, 1))]
    chosen += sequences(600, 2)[::37]
    plan = kernels.plan(bank.features, columns_for([len(s) for s in chosen]) + 300, len(chosen) + 3)
    plan.load(chosen)
    plan.run(bench.stream)
    got, flag = bench.memory.get(plan.embeddings)[: len(chosen)], int(bench.memory.get(plan.flag)[0])
    embedder = CampPlusEmbedder(weights, CpuBackend())
    expected = np.stack([embedder.embed_features(features[s]) for s in chosen])
    each = [rel(a, b) for a, b in zip(got, expected, strict=True)]
    plan.load(chosen[5:6])
    plan.run(bench.stream)
    alone = bench.memory.get(plan.embeddings)[0]
    bench.record(
        kind="embedding", sequences=len(chosen), error=rel(got, expected), worst=max(each), flag=flag,
        alone_equal=bool((alone == got[5]).all()),
    )  # fmt: skip
    plan.close()
    for windows in [int(v) for v in options.batches.split(",")]:
        batch = sequences(windows, 3)
        frames = sum(map(len, batch))
        plan = kernels.plan(bank.features, columns_for([len(s) for s in batch]), len(batch))
        plan.load(batch)
        seconds = bench.seconds(plan.run, inner=1, replays=10)
        median = statistics.median(seconds)
        parts: dict[str, float] = {}
        for name, launch in plan.steps:
            us = statistics.median(bench.seconds(launch, 1, 3)) * 1e6
            key = "head" if name.startswith("head") else name.split(".")[-1] if "block" in name else name
            parts[key] = round(parts.get(key, 0.0) + us, 1)
        row = {"windows": windows, "sequences": len(batch), "frames": frames, "columns": plan.columns, "parts": parts}
        bench.record(kind="campplus", samples=seconds, per_second=frames / median, **row)
        plan.close()
        bench.memory.trim()
    (options.out / "campplus.json").write_text(json.dumps(bench.rows, indent=1))
    print(f"total {time.time() - start:.0f} s, peak {bench.memory.peak_bytes / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
