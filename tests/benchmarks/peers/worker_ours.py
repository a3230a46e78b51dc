"""Diarize files named on standard input with this project; a line of JSON for each.

    PYTHON tests/benchmarks/peers/worker_ours.py MODEL MODE [DEVICE]

The time runs from the path to the turns, model loaded and kernels compiled.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


def main() -> None:
    """Serve standard input until it ends."""
    from diarize.pipeline import Pipeline

    model, mode = sys.argv[1:3]
    pipeline = Pipeline.from_pretrained(model, (sys.argv[3:] or ["cpu"])[0], mode)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        result = pipeline.diarize(line.strip())
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "turns": len(result.turns), "timings": result.timings}), flush=True)


if __name__ == "__main__":
    main()
