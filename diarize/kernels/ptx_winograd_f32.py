# mypy: disallow-untyped-defs=False
"""Pieces of the float32 Winograd convolution, sm_75 and newer: device twins of `ptx_sim_winograd_f32`."""

from __future__ import annotations

from numba.cuda import types
from numba.cuda.extending import intrinsic

from .ptx_asm import INT, LocalArray, emit, global_address, shared_address
from .ptx_device import _LOAD4, _literals
from .ptx_winograd import _four, _two

_LOAD_IF = "{.reg .pred p; setp.ne.s32 p, $2, 0; mov.f32 $0, 0f00000000; @p ld.global.nc.f32 $0, [$1];}"


def make_load_tile(channels):
    """load_tile(raw, x, at, across, mask): raw[4 i + j] = x[at + i across + j channels], 0 if bit 4 i + j is 0."""

    @intrinsic
    def load_tile(typingctx, raw, x, at, across, mask):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            for i in range(4):
                row = builder.add(args[2], builder.mul(args[3], INT[32](i)))
                first = global_address(context, builder, sig.args[1], args[1], builder.sext(row, INT[64]))
                for j in range(4):
                    inside = builder.and_(args[4], INT[32](1 << (4 * i + j)))
                    where = builder.add(first, INT[64](4 * j * channels))
                    local.store(emit(builder, _LOAD_IF, "f", "lr", [where, inside], True)[0], 4 * i + j)
            return context.get_dummy_value()

        return types.void(raw, x, types.int32, types.int32, types.int32), codegen

    return load_tile


def make_store_tile(pitch):
    """store_tile(raw, sm, at): the sixteen positions of a tile's inputs to sm[at + pitch * position]."""

    @intrinsic
    def store_tile(typingctx, raw, sm, at):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])

            def four(values):
                return _four(builder.fadd, builder.fsub, values)

            lines = [four([local.load(4 * i + j) for j in range(4)]) for i in range(4)]
            columns = [four([lines[i][j] for i in range(4)]) for j in range(4)]
            for i in range(4):
                for j in range(4):
                    index = builder.add(args[2], INT[32](pitch * (4 * i + j)))
                    where = shared_address(context, builder, sig.args[1], args[1], index)
                    emit(builder, "st.shared.f32 [$0], $1;", "", "rf", [where, columns[j][i]], True, True)
            return context.get_dummy_value()

        return types.void(raw, sm, types.int32), codegen

    return store_tile


def make_load_eight(apart):
    """load_eight(held, k, w, at): held[k..k+7] = w[at..at+3], w[at+apart..at+apart+3]; k is a literal."""

    @intrinsic
    def load_eight(typingctx, held, k, w, at):
        if not _literals(k):
            return None
        first = k.literal_value

        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            for part in range(2):
                index = builder.sext(builder.add(args[3], INT[32](part * apart)), INT[64])
                where = global_address(context, builder, sig.args[2], args[2], index)
                for i, value in enumerate(emit(builder, "ld.global.nc.v4.f32 " + _LOAD4, "ffff", "l", [where], True)):
                    local.store(value, first + 4 * part + i)
            return context.get_dummy_value()

        return types.void(held, k, w, types.int32), codegen

    return load_eight


def make_outer_product(apart):
    """outer_product(acc, k, sm, at, held, kh): acc[k + 8 i + j] += a[i] * held[kh + j], i and j below 8.

    a are sm[at..at+3] and sm[at+apart..at+apart+3]; k and kh are literals.
    """

    @intrinsic
    def outer_product(typingctx, acc, k, sm, at, held, kh):
        if not _literals(k, kh):
            return None
        first, first_held = k.literal_value, kh.literal_value

        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            weights = LocalArray(context, builder, sig.args[4], args[4])
            inputs = []
            for part in range(2):
                index = builder.add(args[3], INT[32](part * apart))
                where = shared_address(context, builder, sig.args[2], args[2], index)
                inputs += emit(builder, "ld.shared.v4.f32 " + _LOAD4, "ffff", "r", [where], True, True)
            for i in range(8):
                for j in range(8):
                    at_sum = first + 8 * i + j
                    operands = [inputs[i], weights.load(first_held + j), local.load(at_sum)]
                    local.store(emit(builder, "fma.rn.f32 $0, $1, $2, $3;", "f", "fff", operands)[0], at_sum)
            return context.get_dummy_value()

        return types.void(acc, k, sm, types.int32, held, kh), codegen

    return outer_product


def make_put_sums(pitch):
    """put_sums(acc, k, sm, at): acc[k + 8 i .. + 3] to sm[at + pitch * i], i below 4; k is a literal."""

    @intrinsic
    def put_sums(typingctx, acc, k, sm, at):
        if not _literals(k):
            return None
        first = k.literal_value

        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            for i in range(4):
                index = builder.add(args[3], INT[32](pitch * i))
                where = shared_address(context, builder, sig.args[2], args[2], index)
                values = [local.load(first + 8 * i + j) for j in range(4)]
                emit(builder, "st.shared.v4.f32 [$0], {$1,$2,$3,$4};", "", "rffff", [where, *values], True, True)
            return context.get_dummy_value()

        return types.void(acc, k, sm, types.int32), codegen

    return put_sums


def make_take_outputs(pitch):
    """take_outputs(out, sm, at): the 2 x 2 outputs of two channels whose sums are sm[at + pitch * position ..+1].

    out[2 (2 i + j) + e] is output (i, j) of channel e.
    """

    @intrinsic
    def take_outputs(typingctx, out, sm, at):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            sums = []
            for position in range(16):
                index = builder.add(args[2], INT[32](pitch * position))
                where = shared_address(context, builder, sig.args[1], args[1], index)
                sums.append(emit(builder, "ld.shared.v2.f32 {$0,$1}, [$2];", "ff", "r", [where], True, True))
            for e in range(2):
                down = [_two(builder.fadd, builder.fsub, [sums[4 * i + j][e] for i in range(4)]) for j in range(4)]
                for i in range(2):
                    for j, value in enumerate(_two(builder.fadd, builder.fsub, [down[p][i] for p in range(4)])):
                        local.store(value, 2 * (2 * i + j) + e)
            return context.get_dummy_value()

        return types.void(out, sm, types.int32), codegen

    return take_outputs


__all__ = [
    "make_load_eight",
    "make_load_tile",
    "make_outer_product",
    "make_put_sums",
    "make_store_tile",
    "make_take_outputs",
]
