"""Matrix product: odd sizes against numpy in float64, and the same bytes whatever the batch."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import diarize.cpu
from diarize.backend.cpu import CpuBackend
from diarize.cpu.gemm import PANEL, TILE_ROWS, make_gemm, pack_weight, pad_bias, row_block
from diarize.layers import Layer, Op

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "leaky": lambda x: np.where(x > 0, x, 0.01 * x),
}


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(rows, weight, bias, activation="none"):
    out = np.full((len(rows), -(-len(weight) // PANEL) * PANEL), np.nan, np.float32)
    make_gemm(activation)(rows, pack_weight(weight), pad_bias(bias, len(weight)), out)
    return out


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("count", [1, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 2 * TILE_ROWS + 7, 101])
@pytest.mark.parametrize(("inner", "c_out"), [(1, 1), (3, PANEL - 1), (60, PANEL), (127, PANEL + 1), (256, 97)])
def test_product_equals_float64(activation, count, inner, c_out):
    rows, weight, bias = random(count, inner), random(c_out, inner, seed=1), random(c_out, seed=2)
    expected = ACTIVATIONS[activation](rows.astype(np.float64) @ weight.T.astype(np.float64) + bias)
    got = product(rows, weight, bias, activation)
    # A chain of `inner` roundings of sums of about sqrt(inner): 6e-8 * inner at the very most.
    np.testing.assert_allclose(got[:, :c_out], expected, rtol=0, atol=6e-8 * (inner + 2) * np.sqrt(inner + 1))
    assert not got[:, c_out:].any()


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_blocks_of_rows_meet(extra):
    inner = 4096
    count = 2 * row_block(inner) + extra
    rows, weight = random(count, inner), random(PANEL + 1, inner, seed=1)
    got = product(rows, weight, None)
    np.testing.assert_allclose(got[:, : PANEL + 1], rows.astype(np.float64) @ weight.T, rtol=0, atol=1e-3)


def test_a_row_gives_the_same_bytes_in_any_batch():
    rows, weight, bias = random(3 * TILE_ROWS + 1, 131), random(PANEL + 3, 131, seed=1), random(PANEL + 3, seed=2)
    together = product(rows, weight, bias, "leaky")
    for first in range(len(rows)):
        alone = product(rows[first : first + 1].copy(), weight, bias, "leaky")
        assert alone.tobytes() == together[first].tobytes()


@pytest.mark.parametrize("c_out", [1, 7, PANEL, PANEL + 1, 3 * PANEL])
def test_linear_layer_writes_exactly_its_columns(c_out):
    rows, weight, bias = random(13, 128), random(c_out, 128, seed=1), random(c_out, seed=2)
    run = CpuBackend().prepare(Layer("test", Op.LINEAR, {"weight": weight, "bias": bias}, {"activation": "relu"}))
    out = np.full((13, c_out), np.nan, np.float32)
    run([rows], [out])
    np.testing.assert_allclose(out, np.maximum(rows.astype(np.float64) @ weight.T + bias, 0), rtol=0, atol=5e-5)


def test_linear_layer_without_bias():
    rows, weight = random(3, 5), random(PANEL, 5, seed=1)
    out = np.empty((3, PANEL), np.float32)
    CpuBackend().prepare(Layer("test", Op.LINEAR, {"weight": weight}))([rows], [out])
    np.testing.assert_allclose(out, rows.astype(np.float64) @ weight.T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("path", sorted(Path(diarize.cpu.__path__[0]).glob("*.py")), ids=lambda path: path.name)
def test_compiled_functions_are_found_in_the_disk_cache_again(path):
    # numba keys its cache on closure cells, and an intrinsic in a cell has a new identity in every process: a compiled
    # function inside another one would be compiled anew each time.
    compiled = [
        (inner.name, outer.name)
        for outer in ast.walk(ast.parse(path.read_text()))
        if isinstance(outer, ast.FunctionDef)
        for inner in ast.walk(outer)
        if isinstance(inner, ast.FunctionDef) and inner is not outer
        if any("njit" in ast.unparse(decorator) for decorator in inner.decorator_list)
    ]
    assert compiled == []
