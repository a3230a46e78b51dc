"""Simulated cases of the filterbank, against float64 numpy."""

from __future__ import annotations

import numpy as np
from kernels.simulated import launch, main, unwritten

from diarize.kernels import fbank
from diarize.model.fbank import analysis_window, mel_filters, num_frames

rng = np.random.default_rng(2)
FLOOR = 1.1920929e-07


def reference(x: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Log-mel energies by numpy's transform."""
    out = []
    for frame in range(num_frames(x.size)):
        y = x[160 * frame : 160 * frame + 400].astype(np.float64)
        y = y - y.mean()
        y = (y - 0.97 * np.concatenate([y[:1], y[:-1]])) * window
        power = np.abs(np.fft.rfft(y, 512)[:256]) ** 2
        out.append(np.log(np.maximum(mel_filters() @ power, FLOOR)))
    return np.array(out)


def energies(name: str, samples: int, silent: bool = False) -> dict[str, float]:
    """Largest difference of a logarithm, and of a mean over all frames but one."""
    window = (analysis_window(name) * 32768).astype(np.float32)
    x = (rng.standard_normal(samples) * 0.05 + 0.1).astype(np.float32)
    if silent:
        x[:] = 0
    frames = num_frames(samples)
    first, weights = fbank.pack_mel(mel_filters())
    out = unwritten(frames, 80)
    launch(
        fbank.make_fbank(), (-(-frames // 8),), x, window, fbank.pack_twiddles(), first, weights, out, frames,
        weights.size // 80, np.float32(FLOOR),
    )  # fmt: skip
    expected = reference(x, window.astype(np.float64))
    result = {"log": np.abs(out.reshape(frames, 80) - expected).max()}
    if frames > 1:
        mean = unwritten(2, 80)
        launch(fbank.make_window_mean(), (2,), out, mean, 1, frames - 1)
        means = np.stack([expected[:-1].mean(0), expected[1:].mean(0)])
        result["mean"] = np.abs(mean.reshape(2, 80) - means).max()
    return result


if __name__ == "__main__":
    main(
        {
            "hamming": lambda: energies("hamming", 400 + 160 * 8),
            "povey": lambda: energies("povey", 400 + 160 * 2 + 159),
            "one frame": lambda: energies("hamming", 400),
            "silence": lambda: energies("hamming", 560, silent=True),
        },
        {},
    )
