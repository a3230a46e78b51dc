"""Features of chosen windows, side by side: windows of a stretch overlap, and silent ones are left out."""

from __future__ import annotations

from .ptx import cuda, int32, ldg128f, stg128f
from .spec import Kernel
from .unroll import unroll


def make_gather() -> Kernel:
    """Copies windows of features and their means. Grid (8, chosen windows), 256 threads.

    Arguments: features (frames, 80), means (all windows, 80), numbers of the chosen windows, their features
    (chosen, frames of a window, 80), their means (chosen, 80), values between two windows' starts and values of a
    window, both multiples of 4.
    """
    name = "gather_windows"

    @unroll(name=name)
    def gather(x, mean, chosen, y, y_mean, step, count):
        tid = int32(cuda.threadIdx.x)
        place = int32(cuda.blockIdx.y)
        window = chosen[place]
        source = int32(window * step)
        target = int32(place * count)
        i = int32((cuda.blockIdx.x * 256 + tid) * 4)
        while i < count:
            a, b, c, d = ldg128f(x, int32(source + i))
            stg128f(y, int32(target + i), a, b, c, d)
            i = int32(i + 8192)
        if (cuda.blockIdx.x == 0) & (tid < 80):
            y_mean[place * 80 + tid] = mean[window * 80 + tid]

    return Kernel(name, gather, "ffwffii", 256, 0, 1)
