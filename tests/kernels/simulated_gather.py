"""Simulated gathering of windows, against slices."""

from __future__ import annotations

import numpy as np
from kernels.simulated import launch, main, unwritten

from diarize.kernels.gather import make_gather

rng = np.random.default_rng(5)


def gathered(chosen: list[int], frames: int, step: int) -> dict[str, float]:
    """Largest difference from slices, of features and of means; windows of `frames` frames every `step`."""
    windows = 6
    features = rng.standard_normal((windows - 1) * step * 80 + frames * 80).astype(np.float32)
    means = rng.standard_normal((windows, 80)).astype(np.float32)
    out, out_mean = unwritten(len(chosen), frames * 80), unwritten(len(chosen), 80)
    numbers = np.array(chosen, np.int32)
    launch(make_gather(), (8, len(chosen)), features, means.reshape(-1), numbers, out, out_mean, step * 80, frames * 80)
    expected = np.stack([features[w * step * 80 :][: frames * 80] for w in chosen])
    return {
        "features": float(np.abs(out.reshape(expected.shape) - expected).max()),
        "means": float(np.abs(out_mean.reshape(-1, 80) - means[numbers]).max()),
    }


if __name__ == "__main__":
    main(
        {
            "one": lambda: gathered([2], 3, 2),
            "gaps": lambda: gathered([0, 3, 5], 110, 7),
            "all": lambda: gathered([0, 1, 2, 3, 4, 5], 1, 1),
        },
        {},
    )
