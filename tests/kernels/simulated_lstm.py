"""Simulated cases of the LSTM and dense kernels, against float64 numpy."""

from __future__ import annotations

import numpy as np
from kernels.simulated import distance, launch, main

from diarize.kernels import dense, lstm
from diarize.kernels.lstm_hopper import BOX, make_lstm_input_hopper, pack_input_resident
from diarize.kernels.lstm_pack import gate_rows, gate_scale, pack_input, pack_recurrent, split_half

rng = np.random.default_rng(1)


def input_product(
    chunks: int, inputs: int, exact_weights: bool, exact_input: bool, stages: int = 3
) -> dict[str, float]:
    """The first 128 gate rows of 128 rows of inputs."""
    x = rng.standard_normal((128, inputs))
    high, low = split_half(x)
    pitch = 64 * chunks * (2 if exact_input else 1)
    rows = np.zeros((128, pitch), np.float16)
    rows[:, :inputs] = high
    if exact_input:
        rows[:, 64 * chunks : 64 * chunks + inputs] = low
    weights = tuple(rng.uniform(-0.3, 0.3, (512, inputs)) for _ in range(2))
    biases = tuple(rng.uniform(-0.3, 0.3, 512) for _ in range(2))
    packed, bias = pack_input(weights, biases, chunks, exact_weights, exact_input)
    gates = np.full(128 * 1024, np.nan, np.float32)
    kernel = lstm.make_lstm_input(chunks, exact_weights, exact_input, stages=stages)
    launch(kernel, (1, 1), rows.ravel(), packed, bias, gates)
    order = gate_rows()
    expected = ((x @ weights[0].T + biases[0]) * gate_scale())[:, order][:, :128]
    got = gates.reshape(16, 2, 8, 4, 32, 4)[:, 0, :2]
    return {"out": distance(got, arrange(expected, 2)[:, 0])}


def input_product_hopper() -> dict[str, float]:
    """All gates of 256 rows, two tiles a block, of 60 inputs."""
    from diarize.kernels.ptx_sim_hopper import TENSOR_MAPS

    x = rng.standard_normal((256, 60))
    rows = np.zeros((256, 2, 64), np.float16)
    rows[:, 0, :60], rows[:, 1, :60] = split_half(x)
    weights = tuple(rng.uniform(-0.3, 0.3, (512, 60)) for _ in range(2))
    biases = tuple(rng.uniform(-0.3, 0.3, 512) for _ in range(2))
    packed, bias = pack_input_resident(weights, biases, 1, True)
    TENSOR_MAPS[1] = (rows.reshape(1, 2, 128, 128), BOX)
    gates = np.full(256 * 1024, np.nan, np.float32)
    kernel = make_lstm_input_hopper(1, True, True)
    launch(kernel, (8,), np.array([1], np.float16), packed, bias, gates, 2)
    order = gate_rows()
    expected = [((x @ w.T + b) * gate_scale())[:, order] for w, b in zip(weights, biases, strict=True)]
    return {"out": distance(gates.reshape(32, 2, 8, 4, 32, 4), arrange(np.concatenate(expected, 1), 8))}


def arrange(gates: np.ndarray, warps: int) -> np.ndarray:
    """Packed gates (rows, directions * warps * 64) in the kernels' layout [row / 8][direction][warp][4][lane][4]."""
    rows = gates.shape[0] // 8
    tiles = gates.reshape(rows, 8, -1, warps, 4, 16)
    out = np.empty((rows, tiles.shape[2], warps, 4, 32, 4))
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for r in range(4):
            out[..., lane, r] = tiles[:, 2 * t + (r & 1), ..., g + 8 * (r >> 1)]
    return out


def recurrence(
    windows: int,
    block: int,
    steps: int,
    weights: bool,
    state: bool,
    low: bool,
    shared: bool = True,
    interleaved: bool = False,
    staged: bool = True,
) -> dict[str, float]:
    """All steps of both directions, the last block not full; what lies behind the last window stays unwritten."""
    padded = -(-windows // block) * block
    x = rng.standard_normal((steps, padded, 2, 512))
    recurrent = tuple(rng.uniform(-0.3, 0.3, (512, 128)) for _ in range(2))
    order = gate_rows()
    packed = (x * gate_scale())[..., order].reshape(steps * padded, 1024)
    gates = arrange(packed, 8).astype(np.float32).ravel()
    high, rest = pack_recurrent(recurrent)
    pitch = 512 if low else 256
    out = np.full(steps * padded * pitch, np.nan, np.float16)
    if interleaved:
        kernel = lstm.make_lstm_interleaved(block, weights, state, low)
    else:
        kernel = lstm.make_lstm_recurrence(block, weights, state, low, low_shared=shared, staged=staged)
    launch(kernel, (padded // block, 2), gates, high, rest, out, steps, padded)

    def sigmoid(v: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-v))

    expected = np.empty((steps, padded, 256))
    for d in range(2):
        h, c = np.zeros((padded, 128)), np.zeros((padded, 128))
        for t in range(steps) if d == 0 else reversed(range(steps)):
            i, f, g, o = np.split(x[t, :, d] + h @ recurrent[d].T, 4, 1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            expected[t, :, 128 * d : 128 * d + 128] = h
    got = out.reshape(steps, padded, -1, 256).astype(np.float64).sum(2)
    return {"out": distance(got, expected)}


def classes(low: bool, windows: int, steps: int, pieces: int = 1) -> dict[str, float]:
    """Classes that differ from float64, and the flag; without `low` also with an infinite input."""
    padded = 8
    hidden = rng.standard_normal((steps * padded, 256)) * 0.5
    high, rest = split_half(hidden)
    rows = np.concatenate([high, rest], 1) if low else high
    weights = tuple(rng.standard_normal(shape) / shape[1] ** 0.5 for shape in ((128, 256), (128, 128), (7, 128)))
    biases = tuple(rng.standard_normal(n) for n in (128, 128, 7))
    y = high.astype(np.float64) + (rest if low else 0)
    for index, (w, b) in enumerate(zip(weights, biases, strict=True)):
        y = y @ w.T + b
        y = y if index == 2 else np.where(y > 0, y, 0.01 * y)
    expected = y.argmax(1).reshape(steps, padded)[:, :windows].T
    packed, bias = dense.pack_dense(weights), dense.pack_dense_bias(biases)
    flags = []
    for poison in (False,) if low else (False, True):
        out, flag = np.full(windows * steps, 99, np.uint8), np.zeros(1, np.int32)
        values = rows.copy()
        if poison:
            values[0, 3] = np.inf
        with np.errstate(invalid="ignore"):
            launch(
                dense.make_dense(low, pieces), (-(-rows.shape[0] // 64),), values.ravel(), packed, bias, out, flag,
                steps, windows, padded,
            )  # fmt: skip
        flags.append(int(flag[0]))
        if not poison:
            wrong = int((out.reshape(windows, steps) != expected).sum())
    return {"wrong": wrong, "flag": flags[0], "flag of an infinite input": flags[-1]}


if __name__ == "__main__":
    main(
        {
            "input hopper": input_product_hopper,
            "recurrence exact": lambda: recurrence(5, 8, 2, True, True, True),
            "dense": lambda: classes(False, 1, 2),
        },
        {
            "input exact": lambda: input_product(1, 60, True, True),
            "recurrence cache": lambda: recurrence(1, 8, 2, True, True, True, False),
            "recurrence interleaved": lambda: recurrence(11, 16, 4, True, True, True, True, True),
            "recurrence weights": lambda: recurrence(11, 16, 2, True, False, False),
            "dense exact": lambda: classes(True, 3, 8),
            "input in two stages": lambda: input_product(2, 128, True, True, 2),
            "recurrence ahead": lambda: recurrence(5, 8, 3, True, True, True, False, staged=False),
            "dense in pieces": lambda: classes(True, 3, 8, 2),
        },
    )
