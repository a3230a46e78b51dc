"""Bidirectional LSTM against the textbook recurrence in float64, and the same bytes whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest

from diarize.backend.cpu import CpuBackend
from diarize.cpu.lstm import BLOCK_ROWS, HALF_ROWS, TILE_ROWS
from diarize.cpu.simd import LANES
from diarize.errors import BackendError
from diarize.layers import Layer, Op


def random_layer(c_in, hidden, seed=0, scale=0.3):
    rng = np.random.default_rng(seed)
    shapes = {"weight_ih": (4 * hidden, c_in), "weight_hh": (4 * hidden, hidden)}
    shapes |= {"bias_ih": (4 * hidden,), "bias_hh": (4 * hidden,)}
    weights = {
        name + side: (rng.standard_normal(shape) * scale).astype(np.float32)
        for name, shape in shapes.items()
        for side in ("", "_reverse")
    }
    return Layer("test", Op.BILSTM, weights)


def run(layer, x):
    out = np.full((*x.shape[:2], layer.weights["weight_hh"].shape[1] * 2), np.nan, np.float32)
    CpuBackend().prepare(layer)([x], [out])
    return out


def reference(layer, x):
    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    halves = []
    for side in ("", "_reverse"):
        w = {
            name: layer.weights[name + side].astype(np.float64)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        hidden = w["weight_hh"].shape[1]
        state, cell = np.zeros((2, x.shape[1], hidden))
        outputs = []
        for step in x[::-1] if side else x:
            gates = step @ w["weight_ih"].T + w["bias_ih"] + state @ w["weight_hh"].T + w["bias_hh"]
            i, f, g, o = np.split(gates, 4, axis=1)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            state = sigmoid(o) * np.tanh(cell)
            outputs.append(state)
        halves.append(np.array(outputs[::-1] if side else outputs))
    return np.concatenate(halves, axis=2)


@pytest.mark.parametrize("batch", [1, 2, HALF_ROWS, HALF_ROWS + 1, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 10, 13])
@pytest.mark.parametrize("steps", [1, 2, 3, 41])
@pytest.mark.parametrize(("c_in", "hidden"), [(60, 128), (1, 2 * LANES)])
def test_equals_the_textbook(batch, steps, c_in, hidden):
    layer = random_layer(c_in, hidden, scale=1 / np.sqrt(hidden))
    x = np.random.default_rng(3).standard_normal((steps, batch, c_in)).astype(np.float32)
    # Gates are float32 sums of some 200 products, then contract: the largest error seen is 1e-6.
    np.testing.assert_allclose(run(layer, x), reference(layer, x), rtol=0, atol=4e-6)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_blocks_of_time_steps_meet(extra):
    batch = 7
    steps = 2 * (BLOCK_ROWS // batch) + extra
    layer = random_layer(5, 2 * LANES)
    x = np.random.default_rng(4).standard_normal((steps, batch, 5)).astype(np.float32)
    np.testing.assert_allclose(run(layer, x), reference(layer, x), rtol=0, atol=4e-6)


def test_saturated_gates_stay_finite():
    layer = random_layer(8, 2 * LANES, scale=30.0)
    x = np.random.default_rng(5).standard_normal((50, 3, 8)).astype(np.float32) * 10
    got = run(layer, x)
    assert np.isfinite(got).all()
    assert np.abs(got).max() <= 1.0


def test_an_item_gives_the_same_bytes_in_any_batch():
    layer = random_layer(60, 128, scale=0.1)
    x = np.random.default_rng(6).standard_normal((20, BLOCK_ROWS + 3, 60)).astype(np.float32)
    together = run(layer, x)
    for first, count in (
        (0, 1),
        (1, 2),
        (4, HALF_ROWS),
        (9, HALF_ROWS + 1),
        (5, TILE_ROWS),
        (2, TILE_ROWS + 1),
        (BLOCK_ROWS, 3),
        (BLOCK_ROWS + 2, 1),
    ):
        part = run(layer, np.ascontiguousarray(x[:, first : first + count]))
        assert part.tobytes() == together[:, first : first + count].tobytes()


def test_odd_hidden_size_is_refused():
    with pytest.raises(BackendError, match=f"hidden size is {LANES + 1}; it must be a multiple of {LANES}"):
        CpuBackend().prepare(random_layer(4, LANES + 1))
