"""What the host does for a GPU: files to turns on a driver that does nothing, so that only its own work is left.

    python tests/benchmarks/cuda/host.py --model DIR --audio FILE [--audio FILE ...] [--mode exact] [--rounds 3]

Needs the CUDA bindings, no GPU. The recordings are those of pipeline.py: one hour, and 24 of five minutes. Who speaks
when is what the CPU hears in the five minutes, again and again; embeddings are invented, alike within a voice.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from pipeline import conversation, write_audio
from tools.null_gpu import null_gpu

from diarize.backend.cpu import CpuBackend
from diarize.backend.cuda_lane import CudaLane
from diarize.model.segmentation import SegmentationNetwork
from diarize.model.weights import load_segmentation
from diarize.pipeline import Pipeline

STEP = 16_000


class Talk:
    """Classes and embeddings in the place of those that a GPU would bring."""

    def __init__(self, samples: np.ndarray) -> None:
        count = (len(samples) - 160_000) // STEP + 1
        network = SegmentationNetwork(load_segmentation(), CpuBackend())
        self._classes = network.classes((samples / 32768).astype(np.float32), count, STEP)
        rng = np.random.default_rng(0)
        self._voices = rng.standard_normal((3, 256)).astype(np.float32)
        self._noise = rng.standard_normal((4096, 256)).astype(np.float32)
        self._first = itertools.count(0, 17)
        self._segment, self._trunk = CudaLane.segment, CudaLane._run_trunk

    def segment(self, lane: CudaLane, samples: np.ndarray, count: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """As the lane's, with classes of the talk."""
        self._segment(lane, samples, count, step)
        places = (next(self._first) + np.arange(count) * (step // STEP)) % len(self._classes)
        return self._classes[places], np.zeros(count, bool)

    def trunk(self, lane: CudaLane, *values: Any) -> np.ndarray:
        """As the lane's, with invented embeddings."""
        self._trunk(lane, *values)
        active, out = values[3], values[5]
        places, local = np.nonzero(active)
        out[places, local] = self._voices[local] + 0.3 * self._noise[np.arange(len(places)) % len(self._noise)]
        return np.zeros(0, np.int64)


def main() -> None:
    """Write the audio, run, print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--audio", type=Path, action="append", required=True)
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    samples = conversation(options.audio)
    talk = Talk(samples)

    def segment(lane: CudaLane, *values: Any) -> tuple[np.ndarray, np.ndarray]:
        return talk.segment(lane, *values)

    def trunk(lane: CudaLane, *values: Any) -> np.ndarray:
        return talk.trunk(lane, *values)

    with (
        tempfile.TemporaryDirectory() as folder,
        null_gpu((9, 0), 132, "NVIDIA H200") as driver,
        patch.object(CudaLane, "segment", segment),
        patch.object(CudaLane, "_run_trunk", trunk),
    ):
        hour, batch = write_audio(Path(folder), samples)
        pipeline = Pipeline.from_pretrained(options.model, "cuda", options.mode)
        for name, paths in (("batch", batch), ("hour", hour)):
            taken, used = [], []
            for _ in range(options.rounds + 1):
                before, started, cpu = driver.launches, time.perf_counter(), time.process_time()
                results = [outcome.get() for outcome in pipeline.diarize_many(paths)]
                taken.append(time.perf_counter() - started)
                used.append(time.process_time() - cpu)
            # The first round makes plans and compiles the clustering.
            median, busy = statistics.median(taken[1:]), statistics.median(used[1:])
            print(
                f"{options.mode} {name:6} {median:.3f} s, {busy:.3f} s of processor time, n={options.rounds}, "
                f"{driver.launches - before} launches, {sum(len(result.turns) for result in results)} turns"
            )


if __name__ == "__main__":
    main()
