"""Time whole pipelines side by side on the CPU: one process a system, alternating rounds, medians.

    python tests/benchmarks/cpu.py AUDIO [--rounds 3] [--systems campplus-exact,campplus-fast]
        [--resnet34 MODEL_FOLDER] [--peer-python PYTHON --speakrs-model DIR --shared DIR] [--output FILE.json]

Every system is loaded before the first round and does one warm-up on the first 30 s. Times run from the path of the
recording to its turns. Systems: campplus-exact, campplus-fast, resnet34-exact, resnet34-fast, speakrs, pyannote.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = Path(__file__).resolve().parent / "peers"


class Worker:
    """One system in a process of its own."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.samples: list[float] = []
        self.turns = 0
        self._read()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.name} ended with status {self._process.wait()}")

    def diarize(self, path: Path) -> dict[str, float]:
        """One timed run."""
        assert self._process.stdin is not None
        print(path, file=self._process.stdin, flush=True)
        return self._read()

    def peak_memory_mb(self) -> float:
        """High-water mark of resident memory so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """Command line of every system that the options allow."""
    ours = [sys.executable, str(PEERS / "worker_ours.py")]
    found = {f"campplus-{mode}": [*ours, "campplus", mode] for mode in ("exact", "fast")}
    if options.resnet34:
        found |= {f"resnet34-{mode}": [*ours, options.resnet34, mode] for mode in ("exact", "fast")}
    if options.peer_python and options.speakrs_model:
        found["speakrs"] = [options.peer_python, str(PEERS / "worker_speakrs.py"), options.speakrs_model]
    if options.peer_python and options.shared:
        found["pyannote"] = [options.peer_python, str(PEERS / "worker_pyannote.py"), "--shared", options.shared]
    return found


def processor() -> str:
    """Name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))


def main() -> None:
    """Run the rounds and print the table."""
    import soundfile

    parser = argparse.ArgumentParser()
    parser.add_argument("audio", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", default="campplus-exact,campplus-fast")
    for name in ("resnet34", "peer-python", "speakrs-model", "shared", "output"):
        parser.add_argument(f"--{name}", default="")
    options = parser.parse_args()
    samples, rate = soundfile.read(options.audio)
    duration = len(samples) / rate
    known = commands(options)
    with tempfile.TemporaryDirectory() as folder:
        warm_up = Path(folder) / "warm-up.wav"
        soundfile.write(warm_up, samples[: 30 * rate], rate)
        workers = [Worker(name, known[name]) for name in options.systems.split(",")]
        for worker in workers:
            worker.diarize(warm_up)
        for round_number in range(options.rounds):
            for worker in workers[round_number % len(workers) :] + workers[: round_number % len(workers)]:
                answer = worker.diarize(options.audio)
                worker.samples.append(answer["seconds"])
                worker.turns = int(answer["turns"])
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(sys.argv),
        "processor": processor(),
        "python": platform.python_version(),
        "audio": options.audio.name,
        "duration": duration,
        "systems": {
            worker.name: {
                "seconds": worker.samples,
                "rtfx": duration / statistics.median(worker.samples),
                "turns": worker.turns,
                "peak_memory_mb": worker.peak_memory_mb(),
            }
            for worker in workers
        },
    }
    for worker in workers:
        worker.close()
    if options.output:
        Path(options.output).write_text(json.dumps(record, indent=1) + "\n")
    print(f"{options.audio.name}, {duration:.0f} s, median of {options.rounds}")
    for name, row in record["systems"].items():
        spread = f"{min(row['seconds']):.2f}-{max(row['seconds']):.2f}"
        print(f"{name:16} {row['rtfx']:8.2f}x  {spread:>14} s  {row['peak_memory_mb']:7.0f} MB  {row['turns']} turns")


if __name__ == "__main__":
    main()
