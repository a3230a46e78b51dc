"""What a kernel module hands to the backend: the Python kernel, its launch shape and its argument layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .unroll import Unrolled

TURING = (7, 5)
"""The lowest compute capability of any kernel."""
TURING_SHARED_BYTES = 64 * 1024
"""Shared memory that a block of compute capability 7.5 gets at most; a multiprocessor has no more."""


def lowest_capability(shared_bytes: int) -> tuple[int, int]:
    """Lowest compute capability of a portable kernel with so much shared memory a block, static and dynamic."""
    return TURING if shared_bytes <= TURING_SHARED_BYTES else (8, 0)


@dataclass(frozen=True)
class Kernel:
    """One kernel in one configuration.

    `name` spells the whole configuration. `arguments` has one letter an argument: h, f, w, b for pointers to float16,
    float32, int32 and bytes, m for the address of a tensor map, i for an int32, s for a float32 scalar. `capability`
    is the lowest compute capability; `architecture_specific` means that it runs on exactly that one (the 'a' targets).
    `shared_bytes` is dynamic shared memory, `min_blocks` the blocks that must fit a multiprocessor. `early_start`
    means that the kernel itself waits for the one before it, so it may be launched while that one ends.
    """

    name: str
    source: Unrolled = field(compare=False, repr=False)
    arguments: str
    threads: int
    shared_bytes: int = 0
    min_blocks: int = 1
    capability: tuple[int, int] = TURING
    architecture_specific: bool = False
    early_start: bool = False

    @property
    def function(self) -> Callable[..., Any]:
        """The Python function that numba compiles, its static parts expanded."""
        return self.source.expand()

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a device of this compute capability can run the kernel."""
        return capability == self.capability if self.architecture_specific else capability >= self.capability


@dataclass(frozen=True)
class Conv:
    """A convolution of NHWC activations with fused bias, optional residual and optional ReLU.

    `kernel_size` 3 (padding 1) or 1 (no padding); output size is ceil(input / stride). `tile` is output rows, output
    columns and output channels of a block. `box` and `residual_box` are the tensor maps' boxes (channels, columns,
    rows), None where the kernel reads plain pointers. `shortcut` means that the kernel also computes
    the strided 1x1 convolution of its input. `pack` turns (C_out, C_in, k, k) float32 weights into what the kernel
    reads.
    """

    kernel: Kernel
    c_in: int
    c_out: int
    tile: tuple[int, int, int]
    pack: Callable[..., np.ndarray] = field(compare=False, repr=False)
    kernel_size: int = 3
    stride: int = 1
    residual: bool = False
    relu: bool = True
    precision: str = "fp16"
    box: tuple[int, int, int] | None = None
    residual_box: tuple[int, int, int] | None = None
    shortcut: bool = False
    persistent: bool = False

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Output rows and columns."""
        return -(-height // self.stride), -(-width // self.stride)

    def tiles(self, windows: int, height: int, width: int) -> tuple[int, int, int]:
        """Tiles across a row, tiles down a column, tiles in all; height and width are the input's."""
        rows, columns = self.output_size(height, width)
        across, down = -(-columns // self.tile[1]), -(-rows // self.tile[0])
        return across, down, across * down * windows * (self.c_out // self.tile[2])

    def grid(self, windows: int, height: int, width: int, multiprocessors: int) -> tuple[int, int, int]:
        """Blocks to launch: one a tile, or as many as stay resident for a persistent kernel."""
        across, down, count = self.tiles(windows, height, width)
        if self.persistent:
            return min(count, multiprocessors * self.kernel.min_blocks), 1, 1
        return across, down, windows * (self.c_out // self.tile[2])
