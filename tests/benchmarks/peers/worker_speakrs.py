"""Diarize files named on standard input with speakrs 0.7.0; a line of JSON for each.

    PEER_PYTHON tests/benchmarks/peers/worker_speakrs.py MODEL_FOLDER [cpu|cuda|cuda-fast]

The time runs from the path to the turns, as for the other workers.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Serve standard input until it ends."""
    import speakrs

    mode = (sys.argv[2:] or ["cpu"])[0]
    pipeline = speakrs.Pipeline.from_prepared(speakrs.prepare(mode, model_dir=sys.argv[1]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        result = pipeline.diarize_file(line.strip())
        print(json.dumps({"seconds": time.perf_counter() - started, "turns": len(result.segments)}), flush=True)


if __name__ == "__main__":
    main()
