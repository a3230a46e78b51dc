"""speakrs as a process of its own, with the protocol of `diarize.bench.worker`; needs nothing but speakrs.

    PEER_PYTHON run_speakrs.py --device cpu|cuda[:N] --mode exact|fast [--model FOLDER]

Its mode is cpu, cuda, or for the fast mode on a GPU cuda-fast; on the CPU it has no fast mode.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time


def main() -> None:
    """Serve standard input until it ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--mode", required=True)
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(**content: object) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    kind, _, index = options.device.partition(":")
    if kind == "cuda" and index:
        os.environ["CUDA_VISIBLE_DEVICES"] = index
    mode = "cuda-fast" if kind == "cuda" and options.mode == "fast" else kind
    # Whatever it raises is its own business; the run goes on with the others.
    try:
        import speakrs

        prepared = speakrs.prepare(mode, model_dir=options.model) if options.model else speakrs.prepare(mode)
        pipeline = speakrs.Pipeline.from_prepared(prepared)
    except Exception as error:
        send(event="error", message=f"{type(error).__name__}: {error}")
        return
    about = {"version": importlib.metadata.version("speakrs"), "device": options.device, "mode": mode}
    send(event="ready", about={**about, "model": options.model or "as it downloads"})
    for line in sys.stdin:
        path = json.loads(line)["path"]
        started = time.perf_counter()
        try:
            result = pipeline.diarize_file(path)
        except Exception as error:
            send(event="error", message=f"{type(error).__name__}: {error}")
            continue
        seconds = time.perf_counter() - started
        turns = [[turn.start, turn.end, turn.speaker] for turn in result.segments]
        send(event="result", seconds=seconds, turns=turns)


if __name__ == "__main__":
    main()
