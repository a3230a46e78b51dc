"""The vector emitter and the functions built from it, lane by lane against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from diarize.cpu.activations import LIMIT, emit_cell, emit_exp2, emit_minimum
from diarize.cpu.simd import I64, LANES, CountedLoop, Emitter, data_pointer


def emitted(function, inputs=2):
    """Compiled (arrays of LANES floats, out): `function(emit, *vectors)` stored to out, one vector per result."""

    @intrinsic
    def call(typingctx, arrays, out):
        signature = types.void(arrays, out)

        def codegen(context, builder, signature, args):
            emit = Emitter(builder)
            source = data_pointer(context, builder, signature.args[0], args[0])
            target = data_pointer(context, builder, signature.args[1], args[1])
            results = function(emit, *[emit.load(source, i * LANES) for i in range(inputs)])
            for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
                emit.store(value, target, i * LANES)
            return context.get_dummy_value()

        return signature, codegen

    @njit
    def run(arrays, out):
        call(arrays, out)

    def wrapper(*vectors, outputs=1):
        out = np.full((outputs, LANES), np.nan, np.float32)
        run(np.ascontiguousarray(vectors, np.float32), out)
        return out if outputs > 1 else out[0]

    return wrapper


@pytest.fixture
def vectors():
    return np.random.default_rng(1).standard_normal((5, LANES)).astype(np.float32) * 3


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda e, a, b: e.add(a, b), lambda a, b: a + b),
        (lambda e, a, b: e.sub(a, b), lambda a, b: a - b),
        (lambda e, a, b: e.mul(a, b), lambda a, b: a * b),
        (lambda e, a, b: e.maximum(a, b), np.maximum),
        (lambda e, a, b: emit_minimum(e, a, b), np.minimum),
        (lambda e, a, b: e.pin(ir.Constant(I64, 0), a, b)[1], lambda a, b: a),
        (lambda e, a, b: e.activate(a, "none"), lambda a, b: a),
        (lambda e, a, b: e.activate(a, "relu"), lambda a, b: np.maximum(a, 0)),
        (lambda e, a, b: e.activate(a, "leaky"), lambda a, b: np.where(a > 0, a, a * np.float32(0.01))),
        (lambda e, a, b: e.constant(2.5), lambda a, b: np.full_like(a, 2.5)),
    ],
    ids=["add", "sub", "mul", "maximum", "minimum", "pin", "none", "relu", "leaky", "constant"],
)
def test_operations_equal_numpy_exactly(function, expected, vectors):
    np.testing.assert_array_equal(emitted(function)(*vectors[:2]), expected(*vectors[:2]))


def test_fma_rounds_once():
    # (1 + e)(1 - e) - 1 = -e^2, which a separate product would lose.
    e = np.float32(2.0**-20)
    out = emitted(lambda emit, a, b, c: emit.fma(a, b, c), inputs=3)(*np.outer([1 + e, 1 - e, -1], np.ones(LANES)))
    np.testing.assert_array_equal(out, -(e * e))


def test_maximum_gives_the_second_where_one_is_nan():
    a, b = np.full(LANES, np.nan), np.arange(LANES)
    np.testing.assert_array_equal(emitted(lambda e, a, b: e.maximum(a, b))(a, b), b)


def test_unknown_activation_is_refused():
    module = ir.Module()
    builder = ir.IRBuilder(ir.Function(module, ir.FunctionType(ir.VoidType(), []), "f").append_basic_block())
    emit = Emitter(builder)
    with pytest.raises(ValueError, match="unknown activation 'gelu'"):
        emit.activate(emit.constant(0.0), "gelu")


@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_counted_loop_carries_values(count):
    def total(emit, a):
        loop = CountedLoop(emit.builder, ir.Constant(I64, count), [emit.constant(0.0)])
        loop.end([emit.add(loop.values[0], a)])
        return loop.values[0]

    np.testing.assert_array_equal(emitted(total, inputs=1)(np.arange(LANES)), np.arange(LANES) * count)


def test_power_of_two_is_accurate_to_two_units_in_the_last_place():
    power = emitted(emit_exp2, inputs=1)
    x = np.linspace(-LIMIT, LIMIT, 500 * LANES, dtype=np.float32).reshape(-1, LANES)
    got = np.array([power(row) for row in x], np.float64)
    # 1.1e-7 from the polynomial and half a unit (6e-8) from each of the last two roundings.
    assert np.abs(got / 2.0 ** x.astype(np.float64) - 1).max() < 2.4e-7
    whole = np.arange(-8, -8 + LANES)
    np.testing.assert_array_equal(power(whole), 2.0**whole)


def test_power_of_two_is_clamped():
    x = np.resize([-np.inf, -1000, 1000, np.inf], LANES)
    np.testing.assert_array_equal(emitted(emit_exp2, inputs=1)(x), 2.0 ** np.clip(x, -LIMIT, LIMIT))


def test_cell_equals_the_textbook_in_float64(vectors):
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    run = emitted(emit_cell, inputs=5)
    rng = np.random.default_rng(2)
    for size in (0.1, 3.0, 60.0):
        for _ in range(50):
            i, f, g, o, cell = (rng.standard_normal((5, LANES)) * size).astype(np.float32).astype(np.float64)
            log2e = np.log2(np.e)
            got = run(-i * log2e, -f * log2e, 2 * g * log2e, -o * log2e, cell, outputs=2)
            new = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            hidden = sigmoid(o) * np.tanh(new)
            # The gates are rounded to float32 after scaling: a relative 6e-8 of values up to 60 in the exponent.
            tolerance = 4e-7 * max(1.0, size)
            np.testing.assert_allclose(got[0], new, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(got[1], hidden, rtol=0, atol=tolerance)
