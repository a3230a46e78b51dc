"""Winograd's transforms for tiles of 5 x 5 outputs of a 3x3 convolution, stride 1 or 2, as vector code.

Stride 1 is F(5, 3) along each axis: 7 inputs, 7 products. Stride 2 splits an axis into its odd and even samples: the
outer two taps meet 6 odd samples by F(5, 2), the middle tap meets 5 even samples as they are: 11 inputs, 11 products
for 5 outputs instead of 15. Evaluation points 0, 1, -1, 2, -2, for F(5, 3) also 1/2, and infinity.

References
----------
Lavin and Gray 2016, Fast algorithms for convolutional neural networks, section 4; the matrices follow from Toom-Cook
interpolation at these points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .simd import I64, Emitter, data_pointer

OUTPUTS = 5
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0)
INPUTS = {1: 7, 2: 11}
"""Inputs, and products, along an axis for each stride."""


def evaluate_taps(stride: int) -> np.ndarray:
    """(7, 3) float64: from three taps to the distinct factors of the products along an axis."""
    points = (*POINTS, 0.5) if stride == 1 else POINTS
    factors = np.zeros((7, 3))
    for i, point in enumerate(points):
        scale = float(np.prod([point - other for j, other in enumerate(points) if j != i]))
        factors[i] = [1.0 / scale, point / scale, point * point / scale]
    if stride == 1:
        factors[6, 2] = 1.0
        return factors
    # Taps 0 and 2 are the two taps on odd samples; the middle one is a factor of its own.
    factors[:5] = np.stack([factors[:5, 0], np.zeros(5), factors[:5, 1]], 1)
    factors[5, 2] = 1.0
    factors[6, 1] = 1.0
    return factors


def factor_of_position(stride: int) -> np.ndarray:
    """For each of the INPUTS x INPUTS products, the index (of 49) of the factor that it uses, int64."""
    along = np.minimum(np.arange(INPUTS[stride]), 6)
    return (along[:, None] * 7 + along[None, :]).reshape(-1)


def _scaled(emit: Emitter, factor: float, a: ir.Value, b: ir.Value) -> ir.Value:
    """factor * a + b."""
    return emit.fma(emit.constant(factor), a, b)


def _six_points(emit: Emitter, t: Sequence[ir.Value]) -> list[ir.Value]:
    """Six samples evaluated at 0, 1, -1, 2, -2 and infinity.

    4a - 5b + c is formed as 4(a - b) + (c - b): additions run beside multiplications on units of their own.
    """
    odd, even = _scaled(emit, -4.0, t[1], t[3]), _scaled(emit, -4.0, t[2], t[4])
    wide_odd, wide_even = emit.sub(t[3], t[1]), emit.sub(t[4], t[2])
    twice = emit.add(wide_odd, wide_odd)
    return [
        _scaled(emit, 4.0, emit.sub(t[0], t[2]), wide_even),
        emit.add(even, odd),
        emit.sub(even, odd),
        emit.add(wide_even, twice),
        emit.sub(wide_even, twice),
        _scaled(emit, -4.0, wide_odd, emit.sub(t[5], t[3])),
    ]


def _forward(emit: Emitter, stride: int, d: Sequence[ir.Value]) -> list[ir.Value]:
    """The samples of one line of a tile to the first factors of its products."""
    if stride == 2:
        return [*_six_points(emit, d[0::2]), *d[1::2]]
    # Every evaluation but the one at 1/2 has the factor (x - 1/2), which is applied once.
    six = _six_points(emit, [_scaled(emit, -0.5, d[k], d[k + 1]) for k in range(6)])
    half = _scaled(emit, 4.0, emit.sub(d[1], d[3]), emit.sub(d[5], d[3]))
    return [*six[:5], half, six[5]]


def _backward(emit: Emitter, stride: int, m: Sequence[ir.Value]) -> list[ir.Value]:
    """One line of products to its five outputs: output k sums point^k times each product; the last adds infinity's."""
    sum_one, difference_one = emit.add(m[1], m[2]), emit.sub(m[1], m[2])
    sum_two, difference_two = emit.add(m[3], m[4]), emit.sub(m[3], m[4])
    outputs = [
        emit.add(emit.add(m[0], sum_one), sum_two),
        _scaled(emit, 2.0, difference_two, difference_one),
        _scaled(emit, 4.0, sum_two, sum_one),
        _scaled(emit, 8.0, difference_two, difference_one),
        _scaled(emit, 16.0, sum_two, sum_one),
    ]
    if stride == 2:
        outputs[4] = emit.add(outputs[4], m[5])
        return [emit.add(outputs[k], m[6 + k]) for k in range(OUTPUTS)]
    outputs = [emit.add(outputs[0], m[5]), *(_scaled(emit, 0.5**k, m[5], outputs[k]) for k in range(1, OUTPUTS))]
    outputs[4] = emit.add(outputs[4], m[6])
    return outputs


def make_transform(stride: int) -> Any:
    """Intrinsic (x, start, row_stride, pixel_stride, v, v_start, v_stride).

    LANES channels of an INPUTS x INPUTS tile at x[start] become vectors at v[v_start + position * v_stride].
    Bind it at module level: see `gemm.make_tile`.
    """
    inputs = INPUTS[stride]

    @intrinsic
    def transform(typingctx, x, start, row_stride, pixel_stride, v, v_start, v_stride):  # type: ignore[no-untyped-def]
        long = types.int64
        signature = types.void(x, long, long, long, v, long, long)

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)
            source = emit.address(data_pointer(context, builder, signature.args[0], args[0]), args[1])
            target = emit.address(data_pointer(context, builder, signature.args[4], args[4]), args[5])
            rows = [emit.address(source, builder.mul(args[2], ir.Constant(I64, i))) for i in range(inputs)]
            columns = []
            for j in range(inputs):
                offset = builder.mul(args[3], ir.Constant(I64, j))
                columns.append(_forward(emit, stride, [emit.load(row, offset) for row in rows]))
            for i in range(inputs):
                for j, value in enumerate(_forward(emit, stride, [column[i] for column in columns])):
                    emit.store(value, target, builder.mul(args[6], ir.Constant(I64, i * inputs + j)))
            return context.get_dummy_value()

        return signature, codegen

    return transform


def make_inverse(stride: int, residual: bool) -> Any:
    """Intrinsic (m, m_start, m_stride, bias, bias_start, floor, shortcut, out, start, row_stride, pixel_stride).

    LANES channels of products become a 5 x 5 tile at out[start], with bias, the same tile of `shortcut` if `residual`,
    and nothing below `floor`. Bind it at module level: see `gemm.make_tile`.
    """
    inputs = INPUTS[stride]

    @intrinsic
    def inverse(
        typingctx, m, m_start, m_stride, bias, bias_start, floor, shortcut, out, start, row_stride, pixel_stride
    ):  # type: ignore[no-untyped-def]
        long = types.int64
        signature = types.void(m, long, long, bias, long, types.float32, shortcut, out, long, long, long)

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            emit = Emitter(builder)
            m, bias, shortcut, out = (data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 3, 6, 7))
            source = emit.address(m, args[1])
            bias_vector = emit.load(bias, args[4])
            floor = emit.splat(args[5])
            columns = []
            for j in range(inputs):
                positions = [builder.mul(args[2], ir.Constant(I64, i * inputs + j)) for i in range(inputs)]
                columns.append(_backward(emit, stride, [emit.load(source, position) for position in positions]))
            for i in range(OUTPUTS):
                row = builder.add(args[8], builder.mul(args[9], ir.Constant(I64, i)))
                for j, value in enumerate(_backward(emit, stride, [column[i] for column in columns])):
                    offset = builder.add(row, builder.mul(args[10], ir.Constant(I64, j)))
                    value = emit.add(value, bias_vector)
                    if residual:
                        value = emit.add(value, emit.load(shortcut, offset))
                    # In this order a NaN stays one.
                    emit.store(emit.maximum(floor, value), out, offset)
            return context.get_dummy_value()

        return signature, codegen

    return inverse
