"""How long `diarize run` takes for a short recording in a new process, and where the time goes.

    python tests/benchmarks/cuda/startup.py --audio 30s.flac --model DIR --model campplus --rounds 5

prints the seconds of every round, measured from outside, and the timeline of one more process: when each stage began
and ended, in seconds since the process was started. The kernels and Python's bytecode are compiled and the files read
once before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
CACHE = tempfile.TemporaryDirectory(prefix="startup-")

TRACED = """
import os, time
BEGAN = float(os.environ["STARTUP_BEGAN"])
marks = [("interpreter", 0.0, time.time() - BEGAN)]

def watch(owner, name, stage):
    inner = getattr(owner, name)
    def outer(*arguments, **named):
        start = time.time() - BEGAN
        try:
            return inner(*arguments, **named)
        finally:
            marks.append((stage, start, time.time() - BEGAN))
    # A class method is bound to its class already.
    setattr(owner, name, staticmethod(outer) if type(inner).__name__ == "method" else outer)

sums = {}

def add_up(owner, name, stage):
    inner = getattr(owner, name)
    def outer(*arguments, **named):
        start = time.time()
        try:
            return inner(*arguments, **named)
        finally:
            count, seconds = sums.get(stage, (0, 0.0))
            sums[stage] = (count + 1, seconds + time.time() - start)
    setattr(owner, name, outer)

def loading(*arguments, **named):
    import diarize.pipeline as pipeline
    marks.append(("pipeline imported", time.time() - BEGAN, time.time() - BEGAN))
    from diarize.backend import cuda_build, cuda_driver, cuda_lane, cuda_networks
    import diarize.engine_cuda, diarize.rehearsal
    watch(pipeline, "choose_device", "device found")
    watch(pipeline, "load_model", "weights read")
    watch(pipeline.Clusterer, "of", "PLDA")
    watch(pipeline, "open_engine", "engine")
    watch(diarize.rehearsal, "_rehearse", "rehearsal (beside)")
    watch(cuda_driver.Gpu, "__init__", "context waited for")
    watch(cuda_build, "build", "kernels looked for")
    watch(cuda_networks.CudaNetworks, "__init__", "kernels loaded, weights packed and uploaded")
    add_up(cuda_driver.LoadedKernel, "__init__", "kernels loaded")
    add_up(cuda_driver.MemoryPool, "put", "arrays uploaded")
    add_up(cuda_networks.PyanNetKernels, "__init__", "PyanNet made")
    add_up(cuda_networks.ResNet34Kernels, "__init__", "ResNet34 made")
    add_up(cuda_networks.CampPlusKernels, "__init__", "CAM++ made")
    watch(cuda_lane.CudaLane, "__init__", "lane")
    watch(cuda_lane.CudaLane, "segment", "segmentation")
    watch(cuda_lane.CudaLane, "embed", "embeddings")
    watch(pipeline, "assemble", "clustering")
    return load(*arguments, **named)

import sys
import diarize.cli.main, diarize.cli.run
marks.append(("command imported", marks[0][2], time.time() - BEGAN))
from diarize.backend import cuda_wake
watch(cuda_wake, "_start", "context started (beside)")
load, diarize.cli.run._load = diarize.cli.run._load, loading

def keep():
    import json
    marks.append(("before exit", time.time() - BEGAN, time.time() - BEGAN))
    with open(os.environ["STARTUP_MARKS"], "w") as file:
        json.dump({"marks": marks, "sums": sums}, file)

# The command may end the process itself, but not before this.
import atexit
atexit.register(keep)
diarize.cli.main.main()
"""


def timed(command: list[str], **environment: str) -> tuple[float, str]:
    """Seconds from start to end of a process, and what it said."""
    began = time.time()
    started = time.perf_counter()
    # As pip installs packages: with their bytecode, which some machines do without.
    more = {**os.environ, "PYTHONPYCACHEPREFIX": CACHE.name, "PYTHONDONTWRITEBYTECODE": ""}
    more |= {"STARTUP_BEGAN": repr(began), **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=more, cwd=ROOT)
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{command} failed: {done.stderr[-2000:]}")
    return seconds, done.stderr


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Rounds and timeline of one model."""
    rest = ["run", options.audio, "--device", options.device, "--model", model]
    plain = [sys.executable, "-c", "from diarize.cli.main import main; main()", *rest]
    first = timed(plain)[0]
    rounds = [timed(plain)[0] for _ in range(options.rounds)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "marks.json"
        traced, said = timed([sys.executable, "-c", TRACED, *rest, "-v"], STARTUP_MARKS=str(path))
        kept = json.loads(path.read_text())
    marks = sorted(kept["marks"], key=lambda mark: mark[2])
    print(f"\n{model}: first {first:.2f} s, then {', '.join(f'{s:.2f}' for s in rounds)}", end="")
    print(f" (median {statistics.median(rounds):.2f} s); traced {traced:.2f} s")
    for stage, start, end in marks:
        print(f"  {start:6.3f} {end:6.3f}  {end - start:6.3f}  {stage}")
    for stage, (count, total) in kept["sums"].items():
        print(f"                {total:6.3f}  {stage}, {count} times")
    print(said)
    return {"model": model, "first": first, "rounds": rounds, "traced": traced, **kept}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--audio", required=True)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args()
    found = [measure(model, options) for model in options.model or ["campplus"]]
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
