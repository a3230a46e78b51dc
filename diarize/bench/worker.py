"""This project as a process of its own: recordings are named on standard input, answers come on standard output.

    python -m diarize.bench.worker --model MODEL --device DEVICE --mode MODE [--threads N] [--tune-file F]

One JSON object a line. First {"event": "ready", ...}; then for each {"path": ...} one {"event": "result", "seconds",
"duration", "turns", "stages"} or {"event": "error", "message"}. The seconds run from the path to the turns; neither
writing the answer nor starting up is among them. The scripts in `peers/` keep to the same protocol.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, TextIO

from ..errors import DiarizeError


def main() -> None:
    """Serve standard input until it ends."""
    parser = argparse.ArgumentParser()
    for name in ("model", "device", "mode"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tune-file")
    options = parser.parse_args()
    answers = _private_stdout()
    try:
        from .. import __version__
        from ..pipeline import Pipeline

        pipeline = Pipeline.from_pretrained(
            options.model, options.device, options.mode, options.threads, tune_file=options.tune_file
        )
    except DiarizeError as error:
        _send(answers, {"event": "error", "message": str(error)})
        return
    device = pipeline.device
    about = {
        "version": __version__,
        "model": pipeline.model_name,
        "model_sha256": pipeline.model.checksum,
        "device": str(device),
        "device_name": device.name,
        "driver": device.driver,
        "runtime": device.runtime,
        "mode": options.mode,
        "threads": pipeline.threads,
        "recipe": "" if pipeline.recipe is None else pipeline.recipe.source,
    }
    _send(answers, {"event": "ready", "about": about})
    for line in sys.stdin:
        path = json.loads(line)["path"]
        started = time.perf_counter()
        try:
            result = pipeline.diarize(path)
        except (DiarizeError, MemoryError) as error:
            _send(answers, {"event": "error", "message": str(error) or type(error).__name__})
            continue
        seconds = time.perf_counter() - started
        turns = [[turn.start, turn.end, turn.speaker] for turn in result.turns]
        answer = {"seconds": seconds, "duration": result.duration, "turns": turns, "stages": result.timings}
        _send(answers, {"event": "result", **answer})


def _private_stdout() -> TextIO:
    """What was standard output, which from now on is standard error, so that no library can mix its lines in."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _send(answers: TextIO, content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
