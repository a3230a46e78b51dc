"""Vector power of two and the LSTM cell built from it, as emitted code.

2^x is 2^n * 2^r with n the nearest integer and |r| <= 1/2; 2^r is a polynomial of degree 5 whose largest
relative error is 1.1e-7 before rounding (minimax with 2^0 exact, by linear programming on 4,001 points; coefficients
rounded to float32).
"""

from __future__ import annotations

import math

from llvmlite import ir

from .simd import I32, Emitter

# Beyond this a sigmoid or hyperbolic tangent is 0 or 1 to less than 1e-12, and the product of three
# exponentials, which the cell divides by, still fits float32.
LIMIT = 40.0

# sigmoid(x) = 1 / (1 + 2^(-x log2 e)) and tanh(x) = (2^(2 x log2 e) - 1) / (2^(2 x log2 e) + 1): what the gates
# i, f, g, o are multiplied with, in the weights, to become exponents.
GATE_SCALES = (-math.log2(math.e), -math.log2(math.e), 2 * math.log2(math.e), -math.log2(math.e))

# Adding 1.5 * 2^23 rounds a float32 below 2^22 to an integer and leaves that integer in the low mantissa bits.
_ROUNDER = 12582912.0
_COEFFICIENTS = (1.0, 0.6931470037, 0.2402224243, 0.0555073358, 0.0096715130, 0.0013264727)


def emit_exp2(emit: Emitter, x: ir.Value) -> ir.Value:
    """2^x for x clamped to [-LIMIT, LIMIT]."""
    x = emit_minimum(emit, emit.maximum(x, emit.constant(-LIMIT)), emit.constant(LIMIT))
    shifted = emit.add(x, emit.constant(_ROUNDER))
    rest = emit.sub(x, emit.sub(shifted, emit.constant(_ROUNDER)))
    power = emit.constant(_COEFFICIENTS[-1])
    for coefficient in reversed(_COEFFICIENTS[:-1]):
        power = emit.fma(power, rest, emit.constant(coefficient))
    integers = ir.VectorType(I32, emit.lanes)
    builder = emit.builder
    exponent = builder.shl(builder.bitcast(shifted, integers), ir.Constant(integers, [23] * emit.lanes))
    return builder.bitcast(builder.add(builder.bitcast(power, integers), exponent), emit.type)


def emit_minimum(emit: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
    """The smaller of a and b, lane by lane; b where either is NaN."""
    return emit.builder.select(emit.builder.fcmp_ordered("<", a, b), a, b)


def emit_cell(
    emit: Emitter, i: ir.Value, f: ir.Value, g: ir.Value, o: ir.Value, cell: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """New cell and hidden state of an LSTM from the four gates before their activations, times GATE_SCALES.

    cell' = sigmoid(f) cell + sigmoid(i) tanh(g), hidden = sigmoid(o) tanh(cell'). Each is one fraction, so that a
    division, the slowest instruction here, is needed twice instead of five times.
    """
    one = emit.constant(1.0)
    input_term = emit.add(emit_exp2(emit, i), one)
    forget_term = emit.add(emit_exp2(emit, f), one)
    update = emit_exp2(emit, g)
    input_product = emit.mul(input_term, emit.add(update, one))
    numerator = emit.fma(cell, input_product, emit.mul(emit.sub(update, one), forget_term))
    cell = emit.builder.fdiv(numerator, emit.mul(input_product, forget_term))
    output_term = emit.add(emit_exp2(emit, o), one)
    squashed = emit_exp2(emit, emit.mul(cell, emit.constant(GATE_SCALES[2])))
    hidden = emit.builder.fdiv(emit.sub(squashed, one), emit.mul(output_term, emit.add(squashed, one)))
    return cell, hidden
