# mypy: disallow-untyped-defs=False
"""Inner tiles and epilogues of convolutions in float32 and TF32: device twins of `ptx_sim_conv`.

Activations in global memory are float32 or float16 (`half`), sums float32. Whatever is not TF32 runs on sm_75 too.
"""

from __future__ import annotations

from numba.cuda import types
from numba.cuda.extending import intrinsic

from .ptx_asm import F32, INT, LocalArray, emit, global_address, shared_address
from .ptx_device import _LDMATRIX, _LOAD4, _MMA_TF32, _UNPACK, _literals

_FMA = "fma.rn.f32 $0, $1, $2, $3;"
_LOAD_SHARED = {
    1: "ld.shared.f32 $0, [$1];",
    2: "ld.shared.v2.f32 {$0,$1}, [$2];",
    4: "ld.shared.v4.f32 " + _LOAD4,
}
# cvt.rn.f16x2, which converts a pair at once, needs sm_80.
_PACK_ANY = "{.reg .b16 l,h; cvt.rn.f16.f32 l, $1; cvt.rn.f16.f32 h, $2; mov.b32 $0, {l,h};}"
_FETCH = (
    "{.reg .pred p; setp.ne.s32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
    "@p ld.global.nc.v4.b32 {$0,$1,$2,$3}, [$4];}"
)
_FETCH2 = "{.reg .pred p; setp.ne.s32 p, $3, 0; mov.b32 $0, 0; mov.b32 $1, 0; @p ld.global.nc.v2.b32 {$0,$1}, [$2];}"


def make_fma_tile(rows, columns, a_step, halves, count, width):
    """fma(acc, sm, a, b): `count` input channels of a thread's `width` pixels by 8 output channels.

    Pixels of channel k start at sm[a + k a_step]. The tap of filter row r and column c reads `width` floats at
    rows[r] + columns[c] from there; columns less than four apart share loads. Weights follow each other in the order
    (channel, filter row, filter column) from sm[b] on, 2 `halves` floats a tap; the thread's channels are four floats
    and the four `halves` floats behind. acc float32 [pixel][channel].
    """
    spans = {}
    for place in columns:
        start = place // 4 * 4
        spans[start] = max(spans.get(start, 0), place + width)

    @intrinsic
    def fma(typingctx, acc, sm, a, b):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            sums = [local.load(i) for i in range(8 * width)]

            def load(index, offset, size):
                place = builder.add(index, INT[32](offset))
                at = shared_address(context, builder, sig.args[1], args[1], place)
                loaded = emit(builder, _LOAD_SHARED[size], "f" * size, "r", [at], True)
                return dict(enumerate(loaded, offset))

            for k in range(count):
                for r, row in enumerate(rows):
                    first = k * a_step + row
                    pixels = {}
                    for start, end in spans.items():
                        for at in range(start, end, 4):
                            pixels |= load(args[2], first + at, min(4, end - at))
                    for c, column in enumerate(columns):
                        tap = ((k * len(rows) + r) * len(columns) + c) * 2 * halves
                        weights = [*load(args[3], tap, 4).values(), *load(args[3], tap + halves, 4).values()]
                        for pixel in range(width):
                            for channel in range(8):
                                at = pixel * 8 + channel
                                operands = [pixels[first + column + pixel], weights[channel], sums[at]]
                                sums[at] = emit(builder, _FMA, "f", "fff", operands)[0]
            for i, value in enumerate(sums):
                local.store(value, i)
            return context.get_dummy_value()

        return types.void(acc, sm, types.int32, types.int32), codegen

    return fma


def make_kstep_tf32(a_offsets, b_offsets, half):
    """kstep(acc, sm, a, b): 32 bytes of channels of a warp tile of len(a_offsets) m16 by 2 len(b_offsets) n8 blocks.

    acc float32 [m][n][4]; A block i at sm[a + a_offsets[i]] (this lane's ldmatrix row), B block pair j at
    sm[b + b_offsets[j]] (rows n, K-major float32 in TF32). Pixels are 8 float32 channels, rounded here, or 16 float16
    channels, which TF32 holds exactly: then B's second 8 channels are at b ^ 8, and a lane's pair of channels counts as
    k = t and t + 4.

    The tensor core ignores the low 13 bits, so adding half of what they can hold rounds as cvt.rna does, in one
    instruction instead of two. Only a NaN may become a zero: who made it has raised the flag.
    """
    count_n = 2 * len(b_offsets)

    @intrinsic
    def kstep(typingctx, acc, sm, a, b):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])

            def fragment(index, offset):
                at = shared_address(context, builder, sig.args[1], args[1], builder.add(index, INT[32](offset)))
                return emit(builder, _LDMATRIX, "rrrr", "r", [at], True, True)

            def bits(value):
                return builder.bitcast(value, INT[32])

            def parts(words):
                """The four A registers of each k8 step."""
                if not half:
                    return [[builder.add(w, INT[32](0x1000)) for w in words]]
                wide = [emit(builder, _UNPACK, "ff", "r", [w]) for w in words]
                return [[bits(wide[s + i % 2][i // 2]) for i in range(4)] for s in (0, 2)]

            steps = [[w for offset in b_offsets for w in fragment(args[3], offset)]]
            if half:
                second = builder.xor(args[3], INT[32](8))
                steps.append([w for offset in b_offsets for w in fragment(second, offset)])
            for m, offset in enumerate(a_offsets):
                for a_words, b_words in zip(parts(fragment(args[2], offset)), steps, strict=True):
                    for step in range(count_n):
                        # Serpentine order reuses the operand at each turn.
                        n = step if m % 2 == 0 else count_n - 1 - step
                        base = (m * count_n + n) * 4
                        operands = [*a_words, *b_words[2 * n : 2 * n + 2], *[local.load(base + i) for i in range(4)]]
                        for i, value in enumerate(emit(builder, _MMA_TF32, "ffff", "rrrrrrffff", operands)):
                            local.store(value, base + i)
            return context.get_dummy_value()

        return types.void(acc, sm, types.int32, types.int32), codegen

    return kstep


@intrinsic
def fetch128(typingctx, words, k, source, index, valid):
    """words[k..k+3] = the 16 bytes at source[index], zeros if not valid, without a branch; k is a literal."""
    if not _literals(k):
        return None
    first = k.literal_value

    def codegen(context, builder, sig, args):
        local = LocalArray(context, builder, sig.args[0], args[0])
        at = global_address(context, builder, sig.args[2], args[2], builder.sext(args[3], INT[64]))
        for i, word in enumerate(emit(builder, _FETCH, "rrrr", "lr", [at, args[4]], True)):
            local.store(word, first + i)
        return context.get_dummy_value()

    return types.void(words, k, source, types.int32, types.int32), codegen


def make_scatter(half, pitch):
    """scatter(words, k, sm, index): the channels of words[k..k+3], as float32, to sm[index], sm[index + pitch] ...

    Four float32 channels or eight float16 ones; k is a literal.
    """

    @intrinsic
    def scatter(typingctx, words, k, sm, index):
        if not _literals(k):
            return None
        first = k.literal_value

        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            values = []
            for i in range(4):
                word = local.load(first + i)
                values += emit(builder, _UNPACK, "ff", "r", [word]) if half else [builder.bitcast(word, F32)]
            for i, value in enumerate(values):
                place = builder.add(args[3], INT[32](i * pitch))
                at = shared_address(context, builder, sig.args[2], args[2], place)
                emit(builder, "st.shared.f32 [$0], $1;", "", "rf", [at, value], True, True)
            return context.get_dummy_value()

        return types.void(words, k, sm, types.int32), codegen

    return scatter


def make_copy128(count, step):
    """copy(sm, s, source, g, left): `count` words of 16 bytes, `step` elements of 4 bytes apart, global to shared.

    Word i is copied if i step < left. All loads go before the stores.
    """
    store = "{.reg .pred p; setp.ne.s32 p, $5, 0; @p st.shared.v4.b32 [$0], {$1,$2,$3,$4};}"

    @intrinsic
    def copy(typingctx, sm, s, source, g, left):
        def codegen(context, builder, sig, args):
            kept = []
            for i in range(count):
                valid = builder.zext(builder.icmp_signed("<", INT[32](i * step), args[4]), INT[32])
                place = builder.sext(builder.add(args[3], INT[32](i * step)), INT[64])
                at = global_address(context, builder, sig.args[2], args[2], place)
                kept.append((emit(builder, _FETCH, "rrrr", "lr", [at, valid], True), valid))
            for i, (words, valid) in enumerate(kept):
                place = builder.add(args[1], INT[32](i * step))
                at = shared_address(context, builder, sig.args[0], args[0], place)
                emit(builder, store, "", "rrrrrr", [at, *words, valid], True, True)
            return context.get_dummy_value()

        return types.void(sm, types.int32, source, types.int32, types.int32), codegen

    return copy


def make_fill_bias4(quads):
    """fill(acc, bias, channel): sums start at the bias; `quads` maps channel offsets to lists of four places in acc."""

    @intrinsic
    def fill(typingctx, acc, bias, channel):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            for offset, places in quads.items():
                index = builder.sext(builder.add(args[2], INT[32](offset)), INT[64])
                at = global_address(context, builder, sig.args[1], args[1], index)
                values = emit(builder, "ld.global.nc.v4.f32 " + _LOAD4, "ffff", "l", [at])
                for four in places:
                    for place, value in zip(four, values, strict=True):
                        local.store(value, place)
            return context.get_dummy_value()

        return types.void(acc, bias, types.int32), codegen

    return fill


def make_residual4(half):
    """residual4(values, k, source, index, offset, valid): values[k..k+3] = four channels as float32, or zeros.

    k and offset are literals.
    """

    @intrinsic
    def residual4(typingctx, values, k, source, index, offset, valid):
        if not _literals(k, offset):
            return None
        first, fixed = k.literal_value, offset.literal_value

        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            place = builder.sext(builder.add(args[3], INT[32](fixed)), INT[64])
            at = global_address(context, builder, sig.args[2], args[2], place)
            if half:
                words = emit(builder, _FETCH2, "rr", "lr", [at, args[5]], True)
                loaded = [v for word in words for v in emit(builder, _UNPACK, "ff", "r", [word])]
            else:
                words = emit(builder, _FETCH, "rrrr", "lr", [at, args[5]], True)
                loaded = [builder.bitcast(word, F32) for word in words]
            for i, value in enumerate(loaded):
                local.store(value, first + i)
            return context.get_dummy_value()

        return types.void(values, k, source, types.int32, offset, types.int32), codegen

    return residual4


def make_finish4(places, residual, relu, half, limit):
    """finish4(acc, k, values, kr, y, index, offset, valid, bad): four adjacent channels of one pixel leave as a word.

    Takes acc[k + p] for p in `places`; adds values[kr..kr+3] if `residual`, then ReLU if `relu`; rounds to float16 if
    `half`; stores at y[index + offset] if valid. bad[0] becomes 1 for a value that is NaN or not below `limit` (before
    ReLU, in magnitude without it or in float32). k, kr and offset are literals.
    """

    @intrinsic
    def finish4(typingctx, acc, k, values, kr, y, index, offset, valid, bad):
        if not _literals(k, kr, offset):
            return None
        first, held, fixed = k.literal_value, kr.literal_value, offset.literal_value

        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            out = [local.load(first + place) for place in places]
            if residual:
                added = LocalArray(context, builder, sig.args[2], args[2])
                out = [builder.fadd(value, added.load(held + i)) for i, value in enumerate(out)]
            wrong = INT[1](0)
            for value in out:
                size = value
                if not (relu and half):
                    magnitude = builder.and_(builder.bitcast(value, INT[32]), INT[32](0x7FFFFFFF))
                    size = builder.bitcast(magnitude, F32)
                wrong = builder.or_(wrong, builder.fcmp_unordered(">=", size, F32(limit)))
            wrong = builder.and_(wrong, builder.icmp_signed("!=", args[7], INT[32](0)))
            seen = LocalArray(context, builder, sig.args[8], args[8])
            seen.store(builder.or_(seen.load(0), builder.zext(wrong, INT[32])), 0)
            if relu:
                out = [emit(builder, "max.f32 $0, $1, 0f00000000;", "f", "f", [value])[0] for value in out]
            place = builder.sext(builder.add(args[5], INT[32](fixed)), INT[64])
            at = global_address(context, builder, sig.args[4], args[4], place)
            if half:
                words = [emit(builder, _PACK_ANY, "r", "ff", out[i : i + 2])[0] for i in (0, 2)]
                store = "{.reg .pred p; setp.ne.s32 p, $3, 0; @p st.global.v2.b32 [$0], {$1,$2};}"
                emit(builder, store, "", "lrrr", [at, *words, args[7]], True, True)
            else:
                store = "{.reg .pred p; setp.ne.s32 p, $5, 0; @p st.global.v4.f32 [$0], {$1,$2,$3,$4};}"
                emit(builder, store, "", "lffffr", [at, *out, args[7]], True, True)
            return context.get_dummy_value()

        return types.void(acc, k, values, kr, y, types.int32, offset, types.int32, bad), codegen

    return finish4


__all__ = [
    "fetch128",
    "make_copy128",
    "make_fill_bias4",
    "make_finish4",
    "make_fma_tile",
    "make_kstep_tf32",
    "make_residual4",
    "make_scatter",
]
