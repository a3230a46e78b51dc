"""Vector exponential and the LSTM cell built from it, as emitted code.

The exponential is 2^n * 2^r with n the nearest integer and |r| <= 1/2; 2^r is a polynomial of degree 5 whose largest
relative error is 1.1e-7 before rounding (minimax with 2^0 exact, by linear programming on 4,001 points; coefficients
rounded to float32).
"""

from __future__ import annotations

import math

from llvmlite import ir

from .simd import I32, Emitter

# Beyond this a sigmoid or hyperbolic tangent is 0 or 1 to less than 1e-12, and the product of three
# exponentials, which the cell divides by, still fits float32.
LIMIT = 28.0

# Adding 1.5 * 2^23 rounds a float32 below 2^22 to an integer and leaves that integer in the low mantissa bits.
_ROUNDER = 12582912.0
_COEFFICIENTS = (1.0, 0.6931470037, 0.2402224243, 0.0555073358, 0.0096715130, 0.0013264727)


def emit_exp(emit: Emitter, x: ir.Value) -> ir.Value:
    """e^x for x clamped to [-LIMIT, LIMIT]."""
    x = emit.maximum(x, emit.constant(-LIMIT))
    x = emit_minimum(emit, x, emit.constant(LIMIT))
    log2_e = emit.constant(math.log2(math.e))
    shifted = emit.fma(x, log2_e, emit.constant(_ROUNDER))
    whole = emit.sub(shifted, emit.constant(_ROUNDER))
    rest = emit.fma(x, log2_e, emit.sub(emit.constant(-0.0), whole))
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
    """New cell and hidden state of an LSTM from the four gates before their activations.

    cell' = sigmoid(f) cell + sigmoid(i) tanh(g), hidden = sigmoid(o) tanh(cell'). Each is one fraction, so that a
    division, the slowest instruction here, is needed twice instead of five times.
    """
    one = emit.constant(1.0)
    negative = emit.constant(-1.0)
    two = emit.constant(2.0)
    input_term = emit.add(emit_exp(emit, emit.mul(i, negative)), one)
    forget_term = emit.add(emit_exp(emit, emit.mul(f, negative)), one)
    update = emit_exp(emit, emit.mul(g, two))
    input_product = emit.mul(input_term, emit.add(update, one))
    numerator = emit.fma(cell, input_product, emit.mul(emit.sub(update, one), forget_term))
    cell = emit.builder.fdiv(numerator, emit.mul(input_product, forget_term))
    output_term = emit.add(emit_exp(emit, emit.mul(o, negative)), one)
    squashed = emit_exp(emit, emit.mul(cell, two))
    hidden = emit.builder.fdiv(emit.sub(squashed, one), emit.mul(output_term, emit.add(squashed, one)))
    return cell, hidden
