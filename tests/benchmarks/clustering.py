"""Time everything between the last stretch and the turns: clustering, stitching, confidence, on invented embeddings.

    python tests/benchmarks/clustering.py [--embeddings 5121] [--kind random|alike|speech] [--threads T] [--rounds 9]
        [--check] [--output FILE.json]

Embeddings to learn from are `--embeddings` in all, 1.43 a window of 1 s step; neighbours in time are alike, as windows
overlap. Kinds: `random` is what a random ResNet34 makes of five minutes of talk, repeated: alike, with exact copies;
`alike` the same without repetition; `speech` has six people who differ as people do. `--threads` limits the processors
that this process may use. `--check` compares the initial clusters with scipy's. The PLDA is random.

Rows: `at the end` does everything after the last stretch, `early` is what is left where embeddings were prepared while
stretches arrived, as the pipeline does; the others are parts, each on its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from diarize.activity import speaker_count
from diarize.analysis import StretchResult
from diarize.assembly import Analysis, Assembled, assemble
from diarize.backend.blas import one_blas_thread
from diarize.cluster import community1
from diarize.cluster.ahc import centroid_clusters, flat_clusters
from diarize.cluster.neighbours import Neighbours
from diarize.cluster.plda import Plda, unit
from diarize.cluster.search import centroid_by_search
from diarize.cluster.vbx import Terms, vbx_of
from diarize.clustering import Clusterer
from diarize.confidence import CURVES, confidences, margins
from diarize.early import Early, EarlyWork
from diarize.framing import FRAMES_PER_WINDOW, SAMPLE_RATE, Framing
from diarize.model.weights import EmbeddingNetwork
from diarize.rows import Rows
from diarize.stitch import LabelOrder, stitch
from diarize.types import Clustering, SpeakerBounds
from diarize.voiceprints import voiceprints

DIMENSION = 256
PER_WINDOW = 5121 / 3591
STRETCH = 320
REPEAT = 300


def recording(num_embeddings: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Classes (C, 589) and embeddings (C, 3, 256) with `num_embeddings` to learn from."""
    rng = np.random.default_rng(0)
    num_windows = max(round(num_embeddings / PER_WINDOW), -(-num_embeddings // 2))
    people, within, apart = (6, 0.25, 1.0) if kind == "speech" else (2, 0.26, 0.05)
    # Of a random network's embeddings the first axis has 37 % of the variance, the others fall as 1 / k.
    spread = np.concatenate([[0.37], 0.63 / np.arange(2, DIMENSION + 1) / np.log(DIMENSION / 2 + 0.5)])
    spread = within * np.sqrt(spread)
    common = rng.normal(size=DIMENSION) / np.sqrt(DIMENSION)
    speakers = common + apart * rng.normal(size=(people, DIMENSION)) / np.sqrt(DIMENSION)
    classes = np.zeros((num_windows, FRAMES_PER_WINDOW), np.uint8)
    embeddings = np.full((num_windows, 3, DIMENSION), np.nan, np.float32)
    axes = np.linalg.qr(rng.normal(size=(DIMENSION, DIMENSION)))[0]
    # Windows in which a second person talks long enough, spread evenly.
    seconds = np.diff(np.arange(num_windows + 1) * (num_embeddings - num_windows) // num_windows) > 0
    state = rng.normal(size=(2, DIMENSION)) * spread
    turn = np.array([0, 1])
    # A pause every 3.5 s.
    frames = Framing(SAMPLE_RATE, num_windows).first_frames[:, None] + np.arange(FRAMES_PER_WINDOW)
    memory = 0.9 if kind == "speech" else 0.75
    for window in range(num_windows):
        state = memory * state + np.sqrt(1 - memory**2) * rng.normal(size=(2, DIMENSION)) * spread
        if rng.random() < 0.12:
            turn = rng.permutation(people)[:2]
        classes[window, 20 : 20 + 300] = 1
        classes[window, 320 : 320 + (200 if seconds[window] else 90)] = 2
        embeddings[window, :2] = speakers[turn] + state @ axes
    classes[frames % 207 < 30] = 0
    if kind == "random":
        first = np.arange(num_windows) % REPEAT
        second = seconds[:, None] & np.isin(np.arange(3), 1)
        # The same windows have embeddings as before, but these are those of the first five minutes.
        embeddings = np.where(second[:, :, None] | (np.arange(3) == 0)[None, :, None], embeddings[first], embeddings)
    return classes, embeddings


def random_plda() -> Plda:
    """A PLDA of the size of community-1's."""
    rng = np.random.default_rng(1)
    rank = 128
    lda = np.linalg.qr(rng.normal(size=(DIMENSION, DIMENSION)))[0][:, :rank]
    zeros = np.zeros(rank)
    return Plda(np.zeros(DIMENSION), lda, zeros, zeros, np.eye(rank), np.geomspace(20, 0.1, rank))


def collected(classes: np.ndarray, embeddings: np.ndarray, clusterer: Clusterer) -> tuple[Early, float]:
    """What is prepared while stretches arrive, and the seconds that the last one leaves to wait for."""
    # As on a GPU.
    spare = max(1, len(os.sched_getaffinity(0)) // 4)
    with EarlyWork(clusterer.preparation(spare)) as work:
        starts = range(0, len(classes), STRETCH)
        parts = [StretchResult(s, classes[s : s + STRETCH], embeddings[s : s + STRETCH], 0.0, 0.0) for s in starts]
        for part in parts[:-1]:
            work.add(part)
        work.wait()
        started = time.perf_counter()
        work.add(parts[-1])
        early = work.finish()
        waited = time.perf_counter() - started
    assert early is not None
    return early, waited


class Clock:
    """Times by name, in seconds."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        """What `work` gives; its time is kept."""
        started = time.perf_counter()
        made = work()
        self.add(name, time.perf_counter() - started)
        return made

    def add(self, name: str, seconds: float) -> None:
        """One more time."""
        self.samples.setdefault(name, []).append(seconds)


def one_round(clock: Clock, classes: np.ndarray, embeddings: np.ndarray, clusterer: Clusterer) -> Assembled:
    """Everything once; both ways must give the same."""
    framing = Framing(SAMPLE_RATE, len(classes))
    samples = int((len(classes) + 9) * SAMPLE_RATE)

    def whole(early: Early | None) -> Assembled:
        analysis = Analysis(classes, embeddings, samples, 0.0, 0.0, early)
        return assemble(analysis, clusterer, framing, SpeakerBounds(), LabelOrder.FIRST_APPEARANCE, 0.0, False)

    late = clock("at the end", lambda: whole(None))
    early, waited = collected(classes, embeddings, clusterer)
    started = time.perf_counter()
    result = whole(early)
    clock.add("early", waited + time.perf_counter() - started)
    clock.add("  wait for the last stretch", waited)
    assert result.turns == late.turns
    assert result.embeddings.tobytes() == late.embeddings.tobytes()
    with one_blas_thread():
        parts(clock, classes, embeddings, clusterer.plda, framing)
    return result


def parts(clock: Clock, classes: np.ndarray, embeddings: np.ndarray, plda: Plda, framing: Framing) -> None:
    """Each part on its own."""
    rows = clock("  rows", lambda: Rows.of(classes, embeddings))
    train = community1.initial_training_set(rows).take(embeddings)
    count = clock("  speaker count", lambda: speaker_count(classes, framing))
    neighbours = clock("  neighbours, all at once", lambda: Neighbours(unit(train)))
    merges, heights = clock("  merges", lambda: centroid_by_search(neighbours))
    initial = clock("  flat clusters", lambda: flat_clusters(merges, heights, community1.AHC_CUT))
    terms = clock("  PLDA, one thread", lambda: Terms.of(plda.features(train), plda.phi))
    found = clock("  VBx", lambda: vbx_of(terms, initial, community1.FA, community1.FB))
    centroids = (found.gamma.T @ train) / found.gamma.sum(axis=0)[:, None]
    labels = clock("  assignment", lambda: community1._assign(rows, centroids, True))
    stitched = clock("  stitching", lambda: stitch(classes, Clustering(labels, centroids), count, framing))
    prints = clock("  speakers' embeddings", lambda: voiceprints(rows, labels, stitched.clusters))
    sure = clock("  margins", lambda: margins(rows, labels, stitched.clusters, prints))
    names = dict(zip(stitched.speakers, stitched.clusters.tolist(), strict=True))
    turns = [*stitched.turns, *stitched.exclusive]
    clock("  confidence", lambda: confidences(turns, names, classes, sure, framing, CURVES["resnet34"]))


def check(embeddings: np.ndarray, classes: np.ndarray) -> None:
    """The initial clusters are scipy's."""
    from scipy.cluster.hierarchy import fcluster, linkage

    rows = Rows.of(classes, embeddings)
    points = unit(community1.initial_training_set(rows).take(embeddings))
    started = time.perf_counter()
    expected = fcluster(linkage(points, "centroid"), community1.AHC_CUT, "distance") - 1
    seconds = time.perf_counter() - started
    same = np.array_equal(expected, centroid_clusters(points, community1.AHC_CUT))
    print(f"initial clusters {'equal' if same else 'DIFFER FROM'} scipy's, which took {seconds:.2f} s")


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embeddings", type=int, default=5121)
    parser.add_argument("--kind", choices=("random", "alike", "speech"), default="random")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    allowed = sorted(os.sched_getaffinity(0))
    if options.threads:
        os.sched_setaffinity(0, allowed[: options.threads])
    classes, embeddings = recording(options.embeddings, options.kind)
    clusterer = Clusterer(EmbeddingNetwork.RESNET34, random_plda())
    one_round(Clock(), classes, embeddings, clusterer)
    clock = Clock()
    for _ in range(options.rounds):
        result = one_round(clock, classes, embeddings, clusterer)
    threads = len(os.sched_getaffinity(0))
    print(
        f"{options.kind}: {options.embeddings} embeddings, {len(classes)} windows, {threads} threads, "
        f"{len(result.speakers)} speakers, {len(result.turns)} turns; median and range of {options.rounds}, ms"
    )
    for name, samples in clock.samples.items():
        low, middle, high = (1e3 * f(samples) for f in (min, statistics.median, max))
        print(f"{name:28} {middle:8.1f}   {low:8.1f} to {high:.1f}")
    if options.check:
        check(embeddings, classes)
    if options.output:
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "kind": options.kind,
            "embeddings": options.embeddings,
            "windows": len(classes),
            "threads": threads,
            "speakers": len(result.speakers),
            "turns": len(result.turns),
            "seconds": clock.samples,
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
