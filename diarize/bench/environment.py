"""Where a benchmark ran: facts that a record keeps, and what else was going on meanwhile."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .nvml import find_gpu

_PACKAGES = ("numpy", "scipy", "numba", "numba-cuda", "soundfile", "soxr", "pyannote.metrics")
_WORK = bytes(1 << 24)


def environment(gpu: int | None = None) -> dict[str, Any]:
    """Facts about this machine and installation, for a record."""
    from .. import __version__

    found: dict[str, Any] = {
        "diarize": __version__,
        "git": _git(Path(__file__).resolve().parents[2]),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }
    card = None if gpu is None else find_gpu(gpu)
    if card is not None:
        found |= {"gpu": card.name, "driver": card.driver}
    return found


def clock_sample() -> float:
    """Seconds of a fixed piece of work on one thread, the best of three: how fast the processor is just now."""
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        hashlib.sha256(_WORK).digest()
        best = min(best, time.perf_counter() - started)
    return best


@dataclass(frozen=True)
class Load:
    """A moment: wall clock, and seconds that the processors were busy in all and with this run."""

    wall: float
    busy: float
    own: float
    processors: int

    @classmethod
    def now(cls) -> Load:
        """This moment. Children count as soon as they have ended."""
        allowed = os.sched_getaffinity(0)
        busy = 0.0
        ticks = os.sysconf("SC_CLK_TCK")
        for line in Path("/proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if name[:3] == "cpu" and name[3:].isdecimal() and int(name[3:]) in allowed:
                # User, nice, system, then idle and waiting for disks, then interrupts and stolen time.
                busy += sum(map(int, fields[:3] + fields[5:8])) / ticks
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(item.ru_utime + item.ru_stime for item in usage)
        return cls(time.monotonic(), busy, own, len(allowed))

    def others_since(self, before: Load) -> float:
        """Share of the processors that something else kept busy since `before`, 0 to 1."""
        wall = (self.wall - before.wall) * self.processors
        others = (self.busy - before.busy) - (self.own - before.own)
        return min(1.0, max(0.0, others / wall)) if wall > 0 else 0.0


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _git(root: Path) -> str | None:
    """The commit that this checkout is at, with "-dirty" where files have changed; None in an installed package."""
    if not (root / ".git").exists():
        return None
    try:
        head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        state = subprocess.run(
            ["git", "-C", root, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("-dirty" if state.stdout.strip() else "")
