"""A system for benchmark tests: answers by the protocol of diarize.bench.worker, in scripted ways.

    python tests/tools/fake_worker.py [--startup S] [--seconds S] [--label NAME] [--die-at-start]

What it does with a file depends on words in its name: "bad" is an error, "crash" ends the process, "noisy" changes its
turns from process to process. A file holds the length of the recording as text.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Serve standard input until it ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--startup", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--label", default="X")
    parser.add_argument("--die-at-start", action="store_true")
    options = parser.parse_args()
    if options.die_at_start:
        sys.exit("no model here")
    time.sleep(options.startup)
    print("chatter of a library")
    print(json.dumps({"event": "ready", "about": {"version": "1"}}), flush=True)
    for line in sys.stdin:
        path = Path(json.loads(line)["path"])
        if "crash" in path.name:
            print("out of luck", file=sys.stderr)
            os._exit(7)
        if "bad" in path.name:
            print(json.dumps({"event": "error", "message": "cannot be decoded"}), flush=True)
            continue
        length = float(path.read_text())
        end = length - (os.getpid() % 97 / 100 if "noisy" in path.name else 0.0)
        turns = [[0.0, end, options.label]]
        stages = {"analysis": options.seconds / 2, "total": options.seconds}
        answer = {"seconds": options.seconds, "duration": length, "turns": turns, "stages": stages}
        print(json.dumps({"event": "result", **answer}), flush=True)


if __name__ == "__main__":
    main()
