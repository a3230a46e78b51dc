"""Simulated cases of the CAM++ kernels on two sequences with free places between, against float64 numpy."""

from __future__ import annotations

import numpy as np
from kernels.simulated import distance, launch, main, unwritten

from diarize.backend.cuda_campplus import lay_out
from diarize.kernels import campplus_head as head
from diarize.kernels import campplus_tdnn as tdnn
from diarize.kernels.lstm_pack import split_half

rng = np.random.default_rng(3)
LAYOUT = lay_out([np.arange(5, 38), np.arange(2, 23)], 72, 2)
COLUMNS = 72
VALID = LAYOUT.item >= 0


def pairs(*shape: int) -> np.ndarray:
    """Random activations as pairs of float16, high parts first."""
    return np.stack(split_half(rng.standard_normal(shape)))


def halves(*shape: int) -> np.ndarray:
    """Random float16 activations."""
    return rng.standard_normal(shape).astype(np.float16)


def stem() -> dict[str, float]:
    """Means of gathered frames, then the first convolution of two sequences."""
    features = rng.standard_normal((40, 80)).astype(np.float32)
    mean = unwritten(2, 80)
    launch(head.make_cam_mean(), (2,), features.ravel(), LAYOUT.source, LAYOUT.columns.ravel(), mean)
    expected_mean = np.stack([features[5:38].mean(0), features[2:23].mean(0)])
    weight, bias = rng.standard_normal((32, 1, 3, 3)) / 3, rng.standard_normal(32)
    y = unwritten(2, 80, COLUMNS, 32, dtype=np.float16)
    packed = head.pack_stem(weight, bias)
    launch(head.make_cam_stem(), (3,), features.ravel(), LAYOUT.source, LAYOUT.item, mean, packed, y, COLUMNS)
    x = np.zeros((80, COLUMNS, 1))
    x[:, VALID, 0] = (features[LAYOUT.source[VALID]] - expected_mean[LAYOUT.item[VALID]]).T
    expected = np.maximum(convolve(x, weight, 1) + bias, 0) * VALID[None, :, None]
    return {
        "mean": distance(mean.reshape(2, 80), expected_mean),
        "out": distance(added_up(y, expected.shape), expected),
    }


def added_up(y: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The values of pairs."""
    return y.reshape(2, *shape).astype(np.float64).sum(0)


def convolve(x: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    """(rows, columns, C_in) float64 by (C_out, C_in, k, k), stride over rows."""
    size = weight.shape[2]
    pad = size // 2
    padded = np.pad(x.astype(np.float64), ((pad, pad), (pad, pad), (0, 0)))
    rows = (x.shape[0] - 1) // stride + 1
    out = np.zeros((rows, x.shape[1], weight.shape[0]))
    for dy in range(size):
        for dx in range(size):
            taken = padded[dy : dy + stride * rows : stride, dx : dx + x.shape[1]]
            out += taken[:rows] @ weight[:, :, dy, dx].T
    return out


def convolution(stride: int, size: int, residual: bool, relu: bool, passes: int = 1) -> dict[str, float]:
    """One convolution; free columns become zero."""
    rows_in = 5 * stride
    x = pairs(rows_in, COLUMNS, 32) * VALID[:, None].astype(np.float16)
    weight = (rng.standard_normal((32, 32, size, size)) / 10).astype(np.float32)
    bias = rng.standard_normal(32).astype(np.float32)
    rows = (rows_in - 1) // stride + 1
    added = pairs(rows, COLUMNS, 32)
    y, flag = unwritten(2, rows, COLUMNS, 32, dtype=np.float16), np.zeros(1, np.int32)
    launch(
        head.make_cam_conv(stride, size, residual, relu, passes), (2, -(-rows // 4)), x.ravel(),
        head.pack_conv(weight), bias, added.ravel(), y, LAYOUT.item, flag, rows_in, rows, COLUMNS,
    )  # fmt: skip
    value = x.astype(np.float64).sum(0)
    expected = convolve(value, weight, stride) + bias + (added.astype(np.float64).sum(0) if residual else 0)
    expected = np.maximum(expected, 0) if relu else expected
    expected = expected * VALID[None, :, None]
    return {"out": distance(added_up(y, expected.shape), expected), "flag": flag[0]}


def product(mode: str) -> dict[str, float]:
    """One kind of product; free rows become zero."""
    rows = COLUMNS // 2
    valid = LAYOUT.part >= 0
    scale, shift = rng.standard_normal(64).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    gates = rng.random((4, 32)).astype(np.float32)
    outputs, pitch_out, column, relu, extra = 128, 160, 32, 1, 0
    if mode in ("norm", "transit"):
        x, pitch, inputs = rng.standard_normal((rows, 96)).astype(np.float32), 96, 64
        a = np.maximum(x[:, :64].astype(np.float64) * scale + shift, 0)
    elif mode == "head":
        x, pitch, inputs = pairs(10, COLUMNS, 32), COLUMNS, 1600
        padded = np.pad(x.astype(np.float64).sum(0), ((0, 0), (2, 2), (0, 0)))
        taps = np.stack([padded[:, t : t + COLUMNS : 2] for t in range(5)], 1)
        a = taps.transpose(2, 0, 1, 3).reshape(rows, inputs)
    else:
        x, pitch, inputs, outputs, relu, extra = halves(rows, 128), 128, 384, 32, 0, 2
        padded = np.pad(x.astype(np.float64), ((2, 2), (0, 0)))
        a = np.concatenate([padded[0:rows], padded[2 : 2 + rows], padded[4:]], 1)
    weight = (rng.standard_normal((outputs, inputs)) / inputs**0.5).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    dtype = np.float16 if mode == "norm" else np.float32
    out, flag = unwritten(rows, pitch_out, dtype=dtype), np.zeros(1, np.int32)
    launch(
        tdnn.make_cam_product(mode), (1, 1), x.ravel(), scale, shift, tdnn.pack_product(weight), bias, gates.ravel(),
        LAYOUT.part, out, flag, pitch, inputs // 32, rows, outputs // 8, pitch_out, column, relu, extra,
    )  # fmt: skip
    expected = a @ weight.T
    expected = expected * gates[LAYOUT.part] if mode == "taps" else np.maximum(expected + bias, 0)
    out = out.reshape(rows, pitch_out)
    assert np.isnan(out[:, :column]).all()
    got = out[:, column : column + outputs]
    return {"out": distance(got, expected * valid[:, None]), "flag": flag[0]}


def context() -> dict[str, float]:
    """Gates and statistics of sequences of 101 and 7 rows."""
    layout = lay_out([np.arange(202), np.arange(13)], 240, 2)
    hidden = halves(120, 128)
    w1, b1 = rng.standard_normal((64, 128)) / 8, rng.standard_normal(64)
    w2, b2 = rng.standard_normal((32, 64)) / 8, rng.standard_normal(32)
    sums, gates = unwritten(3, 128), unwritten(3, 32)
    packed = tdnn.pack_context(w1, b1, w2, b2)
    launch(tdnn.make_cam_context(), (2,), hidden.ravel(), layout.rows.ravel(), packed, sums, gates)
    means = []
    for first, length, _ in layout.rows:
        x = hidden[first : first + length].astype(np.float64)
        means += [x[i : i + 100].mean(0) + x.mean(0) for i in range(0, length, 100)]
    expected = 1 / (1 + np.exp(-(np.maximum(np.array(means) @ w1.T + b1, 0) @ w2.T + b2)))
    x = rng.standard_normal((120, 512)).astype(np.float32)
    out = unwritten(2, 1024)
    launch(tdnn.make_cam_statistics(), (2, 4), x.ravel(), layout.rows.ravel(), out)
    parts = [x[first : first + length].astype(np.float64) for first, length, _ in layout.rows]
    statistics = np.stack([np.concatenate([p.mean(0), p.std(0, ddof=1)]) for p in parts])
    weight, bias = rng.standard_normal((192, 1024)) / 32, rng.standard_normal(192).astype(np.float32)
    last = unwritten(2, 192)
    transposed = np.ascontiguousarray(weight.T, np.float32).ravel()
    launch(tdnn.make_cam_dense(), (2,), out, transposed, bias, last)
    return {
        "gates": distance(gates.reshape(3, 32), expected),
        "statistics": distance(out.reshape(2, 1024), statistics),
        "dense": distance(last.reshape(2, 192), np.maximum(statistics @ weight.T + bias, 0)),
    }


if __name__ == "__main__":
    main(
        {
            "shortcut": lambda: convolution(2, 1, False, False),
            "norm": lambda: product("norm"),
            "taps": lambda: product("taps"),
            "context": context,
        },
        {
            "stem": stem,
            "strided": lambda: convolution(2, 3, False, True),
            "strided in passes": lambda: convolution(2, 3, False, True, 2),
            "outer": lambda: convolution(1, 3, True, True),
            "transit": lambda: product("transit"),
            "head": lambda: product("head"),
        },
    )
