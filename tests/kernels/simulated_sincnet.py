"""Simulated cases of the front of the segmentation network, against float64 numpy."""

from __future__ import annotations

import numpy as np
from kernels.simulated import distance, launch, main, unwritten

from diarize.kernels import moments, sincnet

rng = np.random.default_rng(0)


def leaky(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.01 * x)


def moment_errors(partial: np.ndarray, x: np.ndarray, part_rows: int) -> tuple[np.ndarray, dict[str, float]]:
    """Merge the parts of x (windows, rows, channels); norm (windows, 2, channels) and its errors."""
    windows, rows, channels = x.shape
    norm = unwritten(windows, 2, channels)
    parts = -(-rows // part_rows)
    ones = np.ones(channels, np.float32)
    launch(moments.make_merge(), (windows,), partial, ones, norm, parts, channels, part_rows, rows)
    norm = norm.reshape(windows, 2, channels)
    scale = 1 / np.sqrt(x.var(1) + moments.EPSILON)
    return norm, {"mean": distance(norm[:, 0], x.mean(1)), "scale": distance(norm[:, 1], scale)}


def wave() -> dict[str, float]:
    """A waveform on a large constant; the last part is shorter."""
    x = (rng.standard_normal(1000) * 0.01 + 5).astype(np.float32)
    partial = unwritten(2, 3, 2)
    launch(moments.make_wave_moments(300), (3, 2), x, partial, 200, 3, 800)
    return moment_errors(partial, np.stack([x[:800], x[200:]])[..., None].astype(np.float64), 300)[1]


def silence() -> dict[str, float]:
    """A constant channel has exactly its value as mean, and no variance."""
    x = np.full(700, 0.1, np.float32)
    partial = unwritten(1, 3, 2)
    launch(moments.make_wave_moments(300), (3, 1), x, partial, 0, 3, 700)
    norm = unwritten(2)
    launch(moments.make_merge(), (1,), partial, np.ones(1, np.float32), norm, 3, 1, 300, 700)
    expected = 1 / np.sqrt(np.float32(moments.EPSILON))
    return {"mean": abs(float(norm[0] - x[0])), "scale": abs(float(norm[1] / expected - 1))}


def sinc(passes: int = 1) -> dict[str, float]:
    """67 positions, three more than a block, of a quiet signal on a large constant."""
    bank = rng.standard_normal((80, 251))
    bank = np.concatenate([bank[:40] + bank[:40, ::-1], bank[40:] - bank[40:, ::-1]]).astype(np.float32)
    positions = 67
    x = (rng.standard_normal((positions - 1) * 10 + 251) * 1e-3 + 3).astype(np.float32)
    out = unwritten(positions, 80)
    launch(sincnet.make_sinc(passes), (2,), x, sincnet.pack_sinc(bank), out, positions, x.size)
    rows = np.stack([x[10 * p : 10 * p + 251].astype(np.float64) - x[10 * p + 125] for p in range(positions)])
    return {"out": distance(out.reshape(positions, 80), rows @ bank.T.astype(np.float64))}


def pool() -> dict[str, float]:
    """65 pooled rows, one more than a block, in two windows 100 samples apart."""
    rows, windows, step = 65, 2, 100
    positions = (windows - 1) * step // 10 + 3 * rows
    x = rng.standard_normal(positions * 10 + 251).astype(np.float32)
    filtered = rng.standard_normal((positions, 80)).astype(np.float32)
    norm = np.array([[0.3, 1.5], [-0.2, 0.7]], np.float32)
    sums = rng.standard_normal(80).astype(np.float32)
    out, partial = unwritten(windows, rows, 80), unwritten(windows, 2, 2, 80)
    launch(
        sincnet.make_rectify_pool(), (2, windows), filtered.ravel(), x, norm.ravel(), sums, out, partial,
        np.float32(0.1), step, step // 10, rows, 2,
    )  # fmt: skip
    expected = []
    for window in range(windows):
        at = np.arange(3 * rows)
        z = norm[window, 1] * (x[window * step + at * 10 + 125] - norm[window, 0]) + 0.1
        values = np.abs(norm[window, 1] * filtered[window * step // 10 + at] + z[:, None] * sums)
        expected.append(values.reshape(rows, 3, 80).max(1))
    result = {"out": distance(out.reshape(windows, rows, 80), np.array(expected))}
    return result | moment_errors(partial, np.array(expected, np.float64), 64)[1]


def convolution(channels: int, c_in: int, rows: int, windows: int, passes: int = 1) -> dict[str, float]:
    """Norm, convolution, pooling, moments; then the split inputs of the LSTM."""
    rows_in = 3 * rows + 5
    x = rng.standard_normal((windows, rows_in, channels)).astype(np.float32)
    norm = np.stack([x.mean(1), 1 / x.std(1)], 1).astype(np.float32)
    shift, bias = rng.standard_normal(channels).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    weight = (rng.standard_normal((60, c_in, 5)) / 20).astype(np.float32)
    tiles = -(-rows // 64)
    out, partial = unwritten(windows, rows, 64), unwritten(windows, tiles, 2, 64)
    launch(
        sincnet.make_conv_pool(channels, passes=passes), (tiles, windows), x.ravel(), norm.ravel(), shift,
        sincnet.pack_conv(weight, channels), bias, out, partial, rows_in, rows, tiles,
    )  # fmt: skip
    y = leaky((x.astype(np.float64) - norm[:, None, 0]) * norm[:, None, 1] + shift)
    full = np.zeros((windows, 3 * rows, 64))
    for tap in range(5):
        full[..., :60] += y[:, tap : tap + 3 * rows, :c_in] @ weight[:, :, tap].T
    expected = full.reshape(windows, rows, 3, 64).max(2) + bias
    result = {"out": distance(out.reshape(windows, rows, 64), expected)}
    norm, errors = moment_errors(partial, expected, 64)
    padded = 8
    halves = np.zeros(rows * padded * 128, np.float16)
    grid = (-(-rows // 32), windows)
    launch(moments.make_norm_split(), grid, out, norm.ravel(), bias, halves, rows, padded)
    parts = halves.reshape(rows, padded, 2, 64)[:, :windows].astype(np.float64).sum(2)
    scale = 1 / np.sqrt(expected.var(1, keepdims=True) + moments.EPSILON)
    split = leaky((expected - expected.mean(1, keepdims=True)) * scale + bias)
    return result | errors | {"split": distance(parts.transpose(1, 0, 2), split)}


if __name__ == "__main__":
    main(
        {"wave": wave, "silence": silence, "sinc": sinc, "pool": pool, "conv1": lambda: convolution(80, 80, 5, 1)},
        {
            "conv2": lambda: convolution(64, 60, 65, 1),
            "sinc in passes": lambda: sinc(2),
            "conv2 in passes": lambda: convolution(64, 60, 65, 1, 2),
        },
    )
