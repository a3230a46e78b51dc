"""What a device is: frozen facts about a processor or GPU, read by a backend and quoted in records."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A processor or GPU that can run the networks.

    `kind` is "cpu" or "cuda", `index` the GPU's number (0 for the CPU), `compute_capability` the CUDA pair,
    `multiprocessors` the number of GPU multiprocessors or CPU threads, `memory_bytes` the device memory.
    """

    kind: str
    name: str
    index: int = 0
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int = 0
    memory_bytes: int = 0
    driver: str = ""
    runtime: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    @property
    def slug(self) -> str:
        """File-name form of the device's name.

        >>> Device("cuda", "NVIDIA H200").slug
        'nvidia-h200'
        """
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
