# mypy: disallow-untyped-defs=False
"""Inline-PTX intrinsics of every supported GPU: the device twins of `ptx_sim`.

They are written for sm_80 and newer; the backend rewrites them for sm_75, TF32 excepted: `backend/cuda_turing.py` must
know every statement here.

Naming: `ldg` and `stg` global memory, `lds` and `sts` shared memory, the number is the width in bits. Warp collectives
must be reached by all 32 lanes.
"""

from __future__ import annotations

from numba.cuda import types
from numba.cuda.extending import intrinsic
from numba.cuda.types import float16, float32, int32, int64  # noqa: F401

from .ptx_asm import INT, LocalArray, define, emit, global_address, mem_op, ptx_op, shared_address

# What a dynamic shared array of float32 is declared with; the simulator wants a dtype instance there.
float32_item = float32

_LOAD4 = "{$0,$1,$2,$3}, [$4];"
_MMA_F16 = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3},{$4,$5,$6,$7},{$8,$9},{$10,$11,$12,$13};"
_MMA_TF32 = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {$0,$1,$2,$3},{$4,$5,$6,$7},{$8,$9},{$10,$11,$12,$13};"
_LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 " + _LOAD4
_UNPACK = "{.reg .b16 l,h; mov.b32 {l,h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h;}"
_PACK = "cvt.rn.f16x2.f32 $0, $2, $1;"
# With ReLU; NaN stays NaN, where a maximum with 0 would hide it.
_PACK_RELU = "cvt.rn.relu.f16x2.f32 $0, $2, $1;"

# Vector memory: four 32-bit words.
ldg128 = mem_op("ldg128", "ld.global.v4.b32 " + _LOAD4, "rrrr", "g")
ldg128_nc = mem_op("ldg128_nc", "ld.global.nc.v4.b32 " + _LOAD4, "rrrr", "g", memory=False, volatile=False)
ldg128f = mem_op("ldg128f", "ld.global.nc.v4.f32 " + _LOAD4, "ffff", "g", memory=False, volatile=False)
stg128 = mem_op("stg128", "st.global.v4.b32 [$0], {$1,$2,$3,$4};", "", "g", "rrrr")
stg128f = mem_op("stg128f", "st.global.v4.f32 [$0], {$1,$2,$3,$4};", "", "g", "ffff")
lds128 = mem_op("lds128", "ld.shared.v4.b32 " + _LOAD4, "rrrr", "s")
lds128f = mem_op("lds128f", "ld.shared.v4.f32 " + _LOAD4, "ffff", "s")
sts128 = mem_op("sts128", "st.shared.v4.b32 [$0], {$1,$2,$3,$4};", "", "s", "rrrr")

# Asynchronous copies: cp_async16(shared, si, global, gi, bytes), bytes 16, or 0 to fill with zeros.
cp_async16 = mem_op("cp_async16", "cp.async.cg.shared.global [$0], [$1], 16, $2;", "", "sg", "r")
cp_async_commit = ptx_op("cp_async_commit", "cp.async.commit_group;", memory=True)
cp_async_wait0 = ptx_op("cp_async_wait0", "cp.async.wait_group 0;", memory=True)
cp_async_wait1 = ptx_op("cp_async_wait1", "cp.async.wait_group 1;", memory=True)
cp_async_wait2 = ptx_op("cp_async_wait2", "cp.async.wait_group 2;", memory=True)
cp_async_wait3 = ptx_op("cp_async_wait3", "cp.async.wait_group 3;", memory=True)

# Products of matrix fragments.
mma_f16_16816 = ptx_op("mma_f16_16816", _MMA_F16, "ffff", "rrrrrrffff")

# Square roots and packing; pack_half2(low, high), unpack_half2(word) -> (low, high).
sqrt_rn = ptx_op("sqrt_rn", "sqrt.rn.f32 $0, $1;", "f", "f")
pack_half2 = ptx_op("pack_half2", _PACK, "r", "ff")
unpack_half2 = ptx_op("unpack_half2", _UNPACK, "ff", "r")
hmax2_nan = ptx_op("hmax2_nan", "max.NaN.f16x2 $0, $1, $2;", "r", "rr")
f32_bits = ptx_op("f32_bits", "mov.b32 $0, $1;", "r", "f")

# Barriers over part of a block: barrier number, number of threads.
bar_sync = ptx_op("bar_sync", "bar.sync $0, $1;", "", "rr", memory=True)
warp_sync = ptx_op("warp_sync", "bar.warp.sync 0xffffffff;", memory=True)

# Special registers, read again: a value derived from one need not stay in a register across the main loop.
tid_x_again = ptx_op("tid_x_again", "mov.u32 $0, %tid.x;", "r", "", volatile=True)
ctaid_x_again = ptx_op("ctaid_x_again", "mov.u32 $0, %ctaid.x;", "r", "", volatile=True)
ctaid_y_again = ptx_op("ctaid_y_again", "mov.u32 $0, %ctaid.y;", "r", "", volatile=True)
ctaid_z_again = ptx_op("ctaid_z_again", "mov.u32 $0, %ctaid.z;", "r", "", volatile=True)
nctaid_x_again = ptx_op("nctaid_x_again", "mov.u32 $0, %nctaid.x;", "r", "", volatile=True)
# Hides a value from common-subexpression elimination and hoisting.
opaque32 = ptx_op("opaque32", "mov.u32 $0, $1;", "r", "r", volatile=True)
# Lane 0's value, in a register that the compiler knows to be the same in the whole warp.
uniform32 = ptx_op("uniform32", "shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;", "r", "r", volatile=True)


def _int_op(name, build):
    """32-bit integer intrinsic: numba itself would widen to 64 bits."""

    def implementation(*_):
        def codegen(context, builder, signature, args):
            return build(builder, *args)

        return types.int32(types.int32, types.int32), codegen

    return define(name, ["a", "b"], implementation)


udiv32 = _int_op("udiv32", lambda b, x, y: b.udiv(x, y))
umod32 = _int_op("umod32", lambda b, x, y: b.urem(x, y))


@intrinsic
def smem_addr(typingctx, array, index):
    """32-bit shared-memory address of array[index]."""

    def codegen(context, builder, sig, args):
        return shared_address(context, builder, sig.args[0], args[0], args[1])

    return types.int32(array, types.int32), codegen


def _literals(*kinds):
    return all(isinstance(k, types.IntegerLiteral) for k in kinds)


# One call in the Python text, many instructions in the intermediate code: numba's front end costs about a millisecond a
# statement, the compilers below next to nothing, so inner tiles are emitted here.


def make_kstep(a_offsets, b_offsets):
    """kstep(acc, sm, a, b): one k16 step of a warp tile of len(a_offsets) m16 by 2 len(b_offsets) n8 blocks.

    acc float32 [m][n][4]; A block i at sm[a + a_offsets[i]] (this lane's ldmatrix row), B block pair j at
    sm[b + b_offsets[j]] (rows n, K-major).
    """
    count_m, count_n = len(a_offsets), 2 * len(b_offsets)

    @intrinsic
    def kstep(typingctx, acc, sm, a, b):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])

            def fragment(index, offset):
                at = shared_address(context, builder, sig.args[1], args[1], builder.add(index, INT[32](offset)))
                return emit(builder, _LDMATRIX, "rrrr", "r", [at], True, True)

            b_words = [w for offset in b_offsets for w in fragment(args[3], offset)]
            a_words = [fragment(args[2], offset) for offset in a_offsets]
            for m in range(count_m):
                for step in range(count_n):
                    # Serpentine order reuses the operand at each turn.
                    n = step if m % 2 == 0 else count_n - 1 - step
                    base = (m * count_n + n) * 4
                    operands = a_words[m] + b_words[2 * n : 2 * n + 2] + [local.load(base + i) for i in range(4)]
                    for i, value in enumerate(emit(builder, _MMA_F16, "ffff", "rrrrrrffff", operands)):
                        local.store(value, base + i)
            return context.get_dummy_value()

        return types.void(acc, sm, types.int32, types.int32), codegen

    return kstep


def make_fill(count):
    """fill(acc): zeros, by volatile moves that stay in front of a following wgmma."""

    @intrinsic
    def fill(typingctx, acc):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            for i in range(count):
                local.store(emit(builder, "mov.f32 $0, 0f00000000;", "f", "", [], True)[0], i)
            return context.get_dummy_value()

        return types.void(acc), codegen

    return fill


def make_fill_bias(rows, width):
    """fill_bias(acc, bias, channel): accumulators of `rows` blocks by `width` channels start at the bias.

    This thread owns channels channel + 32 g .. + 8 of each group g. Moves are volatile: otherwise the constants sink
    between two wgmma and the assembler inserts waits.
    """

    @intrinsic
    def fill_bias(typingctx, acc, bias, channel):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            for group in range(width // 32):
                values = []
                for part in range(2):
                    index = builder.add(args[2], INT[32](group * 32 + part * 4))
                    at = global_address(context, builder, sig.args[1], args[1], builder.sext(index, INT[64]))
                    values += emit(builder, "ld.global.nc.v4.f32 " + _LOAD4, "ffff", "l", [at], True)
                for row in range(rows):
                    for half in range(2):
                        for j in range(8):
                            moved = emit(builder, "mov.f32 $0, $1;", "f", "f", [values[j]], True)[0]
                            index = (row * (width // 8) + group * 4) * 4 + half * 2 + (j // 2) * 4 + j % 2
                            local.store(moved, index)
            return context.get_dummy_value()

        return types.void(acc, bias, types.int32), codegen

    return fill_bias


def _residual_load(name, cache):
    asm = (
        "{.reg .pred p; setp.ne.s32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
        "@p ld.global." + cache + "v4.b32 {$0,$1,$2,$3}, [$4];}"
    )

    def implementation(words, k, residual, index, offset, valid):
        if not _literals(k, offset):
            return None
        first, fixed = k.literal_value, offset.literal_value

        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            wide = builder.sext(args[3], INT[64])
            at = global_address(context, builder, sig.args[2], args[2], wide)
            at = builder.add(at, INT[64](2 * fixed))
            for i, word in enumerate(emit(builder, asm, "rrrr", "lr", [at, args[5]], True)):
                local.store(word, first + i)
            return context.get_dummy_value()

        return types.void(words, k, residual, types.int32, offset, types.int32), codegen

    return define(name, ["words", "k", "residual", "index", "offset", "valid"], implementation)


# residual_load(words, k, residual, index, offset, valid): words[k..k+3] = eight halves at residual[index + offset],
# zeros if not valid, without a branch. k and offset are literals. The ordered form stays behind earlier stores, which
# bounds the registers of an epilogue.
residual_load = _residual_load("residual_load", "nc.L1::no_allocate.")
residual_load_ordered = _residual_load("residual_load_ordered", "")


def make_finish8(residual, relu, guarded=False):
    """finish8(acc, k, words, kr, y, index, offset, valid, top): eight adjacent channels of one pixel leave as 16 bytes.

    Takes acc[k + 4j], acc[k + 4j + 1], j = 0..3; adds the halves words[kr..kr+3] if `residual`, then ReLU if `relu`;
    stores at y[index + offset] if valid. top[0] becomes the half2 maximum of magnitudes, NaN included. k, kr, offset
    are literals.
    """

    @intrinsic
    def finish8(typingctx, acc, k, words, kr, y, index, offset, valid, top):
        if not _literals(k, kr, offset):
            return None
        first, first_word, fixed = k.literal_value, kr.literal_value, offset.literal_value

        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            values = [local.load(first + (j // 2) * 4 + j % 2) for j in range(8)]
            if residual:
                held = LocalArray(context, builder, sig.args[2], args[2])
                added = []
                for i in range(4):
                    added += emit(builder, _UNPACK, "ff", "r", [held.load(first_word + i)])
                values = [builder.fadd(x, y) for x, y in zip(values, added, strict=True)]
            convert = _PACK_RELU if relu else _PACK
            packed = [emit(builder, convert, "r", "ff", values[2 * i : 2 * i + 2])[0] for i in range(4)]
            highest = LocalArray(context, builder, sig.args[8], args[8])
            running = highest.load(0)
            for word in packed:
                magnitude = word if relu else builder.and_(word, INT[32](0x7FFF7FFF))
                if guarded:
                    valid_bit = builder.icmp_signed("!=", args[7], INT[32](0))
                    magnitude = builder.select(valid_bit, magnitude, INT[32](0))
                running = emit(builder, "max.NaN.f16x2 $0, $1, $2;", "r", "rr", [running, magnitude])[0]
            highest.store(running, 0)
            wide = builder.sext(args[5], INT[64])
            at = builder.add(global_address(context, builder, sig.args[4], args[4], wide), INT[64](2 * fixed))
            store = "{.reg .pred p; setp.ne.s32 p, $5, 0; @p st.global.v4.b32 [$0], {$1,$2,$3,$4};}"
            emit(builder, store, "", "lrrrrr", [at, *packed, args[7]], True, True)
            return context.get_dummy_value()

        return types.void(acc, k, words, kr, y, types.int32, offset, types.int32, top), codegen

    return finish8


@intrinsic
def hidden8(typingctx, acc, k, sm, index, keep, top):
    """Eight adjacent channels of one pixel to shared memory as float16: ReLU, or zeros if not keep; top as in
    `finish8`.

    Takes acc[k + 4j], acc[k + 4j + 1], j = 0..3 (k literal); writes 16 bytes at sm[index].
    """
    if not _literals(k):
        return None
    first = k.literal_value

    def codegen(context, builder, sig, args):
        local = LocalArray(context, builder, sig.args[0], args[0])
        values = [local.load(first + (j // 2) * 4 + j % 2) for j in range(8)]
        packed = [emit(builder, _PACK_RELU, "r", "ff", values[2 * i : 2 * i + 2])[0] for i in range(4)]
        kept = builder.icmp_signed("!=", args[4], INT[32](0))
        packed = [builder.select(kept, word, INT[32](0)) for word in packed]
        highest = LocalArray(context, builder, sig.args[5], args[5])
        running = highest.load(0)
        for word in packed:
            running = emit(builder, "max.NaN.f16x2 $0, $1, $2;", "r", "rr", [running, word])[0]
        highest.store(running, 0)
        at = shared_address(context, builder, sig.args[2], args[2], args[3])
        emit(builder, "st.shared.v4.b32 [$0], {$1,$2,$3,$4};", "", "rrrrr", [at, *packed], True, True)
        return context.get_dummy_value()

    return types.void(acc, k, sm, types.int32, types.int32, top), codegen


@intrinsic
def raise_flag(typingctx, top, flag):
    """flag[0] = 1 if either half of top[0] is infinite or NaN."""

    def codegen(context, builder, sig, args):
        word = LocalArray(context, builder, sig.args[0], args[0]).load(0)
        # A half with all exponent bits set carries into its sign bit.
        carried = builder.add(builder.and_(word, INT[32](0x7FFF7FFF)), INT[32](0x04000400))
        bad = builder.and_(carried, INT[32](-0x7FFF8000))
        at = global_address(context, builder, sig.args[1], args[1], INT[64](0))
        asm = "{.reg .pred p; setp.ne.s32 p, $1, 0; @p st.global.b32 [$0], 1;}"
        emit(builder, asm, "", "lr", [at, bad], True, True)
        return context.get_dummy_value()

    return types.void(top, flag), codegen


def make_weighted_sum(count, squared):
    """add(acc, words, weight, mean): acc[j] += weight[i] * x[i][j], or its squared distance from mean[j], i < count.

    x[i] are the eight halves words[4 i .. 4 i + 3]; float32, in the order of i.
    """

    @intrinsic
    def add(typingctx, acc, words, weight, mean):
        def codegen(context, builder, sig, args):
            a, w, f, m = (LocalArray(context, builder, sig.args[i], args[i]) for i in range(4))
            sums = [a.load(j) for j in range(8)]
            means = [m.load(j) for j in range(8)]
            for i in range(count):
                factor = f.load(i)
                values = [v for k in range(4) for v in emit(builder, _UNPACK, "ff", "r", [w.load(4 * i + k)])]
                for j in range(8):
                    term = builder.fsub(values[j], means[j]) if squared else values[j]
                    term = builder.fmul(term, term) if squared else term
                    sums[j] = emit(builder, "fma.rn.f32 $0, $1, $2, $3;", "f", "fff", [factor, term, sums[j]])[0]
            for j in range(8):
                a.store(sums[j], j)
            return context.get_dummy_value()

        return types.void(acc, words, weight, mean), codegen

    return add


__all__ = [name for name in dir() if not name.startswith("_") and name not in {"F32", "INT", "annotations"}]
