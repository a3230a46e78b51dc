# mypy: disallow-untyped-defs=False
"""Products of float16 pairs on tensor cores, as accurate as float32: device twins of `ptx_sim_split`.

A value is the sum of a high and a low float16 part (about 22 bits). A product takes three instructions: high times
high, low times high and high times low, summed in float32.
"""

from __future__ import annotations

from numba.cuda import types
from numba.cuda.extending import intrinsic

from .ptx_asm import F32, INT, LocalArray, emit, global_address, shared_address
from .ptx_device import _LDMATRIX, _LOAD4, _MMA_F16, _PACK, _UNPACK


def make_split_step(a_offsets, low_offset, columns, exact=True, group=5):
    """step(acc, sm, a, weights, w): one k16 step of len(a_offsets) m16 blocks by `columns` n8 blocks.

    acc float32 [m][n][4]; A block i is at sm[a + a_offsets[i]] (this lane's ldmatrix row), its low part `low_offset`
    behind; without `exact` A has no low part. B block j is the 16-byte word weights[w + 256 j] of `split_pack`;
    `group` blocks are held at a time.
    """

    @intrinsic
    def step(typingctx, acc, sm, a, weights, w):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])

            def matrix(offset):
                index = builder.add(args[2], INT[32](offset))
                at = shared_address(context, builder, sig.args[1], args[1], index)
                return emit(builder, _LDMATRIX, "rrrr", "r", [at], True, True)

            def block(j):
                index = builder.add(args[4], INT[64](256 * j))
                at = global_address(context, builder, sig.args[3], args[3], index)
                return emit(builder, "ld.global.nc.v4.b32 " + _LOAD4, "rrrr", "l", [at])

            for first in range(0, columns, group):
                members = range(first, min(first + group, columns))
                b = {j: block(j) for j in members}
                # One block of rows at a time: registers are short.
                for m, offset in enumerate(a_offsets):
                    high = matrix(offset)
                    low = matrix(offset + low_offset) if exact else None
                    for operand, part in ((high, 0), (high, 2), (low, 0)):
                        if operand is None:
                            continue
                        for j in members:
                            base = (m * columns + j) * 4
                            operands = operand + b[j][part : part + 2] + [local.load(base + i) for i in range(4)]
                            for i, value in enumerate(emit(builder, _MMA_F16, "ffff", "rrrrrrffff", operands)):
                                local.store(value, base + i)
            return context.get_dummy_value()

        return types.void(acc, sm, types.int32, weights, types.int64), codegen

    return step


@intrinsic
def split_half2(typingctx, first, second):
    """High and low words of two float32: (high parts packed, low parts packed)."""

    def codegen(context, builder, sig, args):
        high = emit(builder, _PACK, "r", "ff", list(args))[0]
        rounded = emit(builder, _UNPACK, "ff", "r", [high])
        rest = [builder.fsub(x, r) for x, r in zip(args, rounded, strict=True)]
        low = emit(builder, _PACK, "r", "ff", rest)[0]
        return context.make_tuple(builder, sig.return_type, [high, low])

    return types.UniTuple(types.int32, 2)(types.float32, types.float32), codegen


@intrinsic
def sts32(typingctx, sm, index, word):
    """Store one 32-bit word at shared element `index`."""

    def codegen(context, builder, sig, args):
        at = shared_address(context, builder, sig.args[0], args[0], args[1])
        emit(builder, "st.shared.b32 [$0], $1;", "", "rr", [at, args[2]], True, True)
        return context.get_dummy_value()

    return types.void(sm, types.int32, types.int32), codegen


@intrinsic
def leaky(typingctx, x):
    """x, or 0.01 x where that is larger; NaN stays NaN."""

    def codegen(context, builder, sig, args):
        below = builder.fmul(args[0], F32(0.009999999776482582))
        return emit(builder, "max.NaN.f32 $0, $1, $2;", "f", "ff", [args[0], below])[0]

    return types.float32(types.float32), codegen


__all__ = ["leaky", "make_split_step", "split_half2", "sts32"]
