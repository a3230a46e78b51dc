# mypy: disallow-untyped-defs=False
"""Winograd's transforms on tensor-core fragments in registers: device twins of `ptx_sim_winograd`.

A fragment of A holds, for a thread, the same channels of two tiles. Loaded once for each pixel of the tiles, fragments
are transformed by additions of register to register: neither transformed inputs nor sums ever go to shared memory.
"""

from __future__ import annotations

from numba.cuda import types
from numba.cuda.extending import intrinsic

from .ptx_asm import F32, INT, LocalArray, emit, emit_tied, global_address, shared_address
from .ptx_device import _LDMATRIX, _LOAD4, _MMA_F16, _PACK, _PACK_RELU, _UNPACK, _literals

_ADD = "add.rn.f16x2 $0, $1, $2;"
_SUB = "sub.rn.f16x2 $0, $1, $2;"


def _four(add, sub, d):
    """Four inputs along an axis to four positions: the rows of B transposed."""
    return [sub(d[0], d[2]), add(d[1], d[2]), sub(d[2], d[1]), sub(d[1], d[3])]


def _two(add, sub, m):
    """Four sums along an axis to two outputs: the rows of A transposed."""
    return [add(add(m[0], m[1]), m[2]), sub(sub(m[1], m[2]), m[3])]


def make_winograd_step(tile, row_pitch, n16):
    """step(acc, sm, a, w): sixteen input channels of every product of a warp; float16 inputs, float32 sums.

    acc as `WarpTile.sum_index` says. sm[a] is this lane's row for pixels 0 and 1 of the tiles of octet column 0 in the
    first input row: lanes 0 to 7 tiles 0 to 7, pixel 0, channels 0 to 7; then channels 8 to 15; lanes 16 to 31 the same
    of pixel 1. Tiles lie 8 halves apart, pixels 2 and 3 one tile further, input rows `row_pitch` halves apart. sm[w]
    are this lane's eight weights of factor 0, with n16 * 256 halves from factor to factor.
    """
    pairs = tile.pairs()

    @intrinsic
    def step(typingctx, acc, sm, a, w):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])

            def at(index, offset):
                return shared_address(context, builder, sig.args[1], args[1], builder.add(index, INT[32](offset)))

            def add(x, y):
                return emit(builder, _ADD, "r", "rr", [x, y])[0]

            def sub(x, y):
                return emit(builder, _SUB, "r", "rr", [x, y])[0]

            # Each element is a word for channels 0 to 7 and one for 8 to 15 (this lane's two of each).
            def add2(x, y):
                return [add(*words) for words in zip(x, y, strict=True)]

            def sub2(x, y):
                return [sub(*words) for words in zip(x, y, strict=True)]

            known = {}

            def row(i, c):
                """Input row i of octet column c, transformed along the columns: four positions."""
                if (i, c) not in known:
                    pixels = []
                    for part in range(2):
                        where = at(args[2], i * row_pitch + c * 64 + part * 8)
                        words = emit(builder, _LDMATRIX, "rrrr", "r", [where], True, True)
                        pixels += [words[:2], words[2:]]
                    known[i, c] = _four(add2, sub2, pixels)
                return known[i, c]

            def multiply(factor, position, fragments):
                words = []
                for j in range(tile.blocks // 2):
                    where = at(args[3], (factor * n16 + j) * 256)
                    words += emit(builder, "ld.shared.v4.b32 " + _LOAD4, "rrrr", "r", [where], True, True)
                for m, fragment in enumerate(fragments):
                    for block in range(tile.blocks):
                        base = ((m * tile.positions + position) * tile.blocks + block) * 4
                        operands = (
                            fragment + words[2 * block : 2 * block + 2] + [local.load(base + i) for i in range(4)]
                        )
                        for i, value in enumerate(emit(builder, _MMA_F16, "ffff", "rrrrrrffff", operands)):
                            local.store(value, base + i)

            def fragment(first, second):
                return [first[0], second[0], first[1], second[1]]

            # Which input rows of a tile make up a row of positions.
            def position_row(number, r, c):
                d = [row(2 * r + i, c) if i in ((0, 2), (1, 2), (1, 2), (1, 3))[number] else None for i in range(4)]
                x, y = {0: (0, 2), 1: (1, 2), 2: (2, 1), 3: (1, 3)}[number]
                return [(add2 if number == 1 else sub2)(d[x][j], d[y][j]) for j in range(4)]

            if tile.square:
                for number in range(4):
                    values = {octet: position_row(number, *octet) for pair in pairs for octet in pair}
                    for j in range(4):
                        fragments = [fragment(values[one][j], values[other][j]) for one, other in pairs]
                        multiply(4 * number + j, 4 * number + j, fragments)
            else:
                for tap in range(3):
                    for j in range(4):
                        fragments = [fragment(row(r + tap, c)[j], row(s + tap, d)[j]) for (r, c), (s, d) in pairs]
                        multiply(4 * tap + j, j, fragments)
            return context.get_dummy_value()

        return types.void(acc, sm, types.int32, types.int32), codegen

    return step


def make_winograd_pixels(tile, row_pitch):
    """pixels(words, sm, a): this warp's input rows as they are, words[(i * 4 + pixel) * 2 + half] for octet column 0.

    sm[a] as for `make_winograd_step`.
    """

    @intrinsic
    def pixels(typingctx, words, sm, a):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            for i in range(tile.input_rows):
                for part in range(2):
                    index = builder.add(args[2], INT[32](i * row_pitch + part * 8))
                    where = shared_address(context, builder, sig.args[1], args[1], index)
                    for k, word in enumerate(emit(builder, _LDMATRIX, "rrrr", "r", [where], True, True)):
                        local.store(word, i * 8 + part * 4 + k)
            return context.get_dummy_value()

        return types.void(words, sm, types.int32), codegen

    return pixels


def make_winograd_operands(tile):
    """operands(out, words): pixels of a pair of octets, transformed along the columns, as twelve operands of wgmma.

    A row of pixels serves up to three taps, in another register of an operand each time. Copies are made here, since
    between the products they would make these wait for each other.
    """
    ((r, _), (s, _)) = tile.pairs()[0]

    @intrinsic
    def operands(typingctx, out, words):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            held = LocalArray(context, builder, sig.args[1], args[1])

            def add(x, y):
                return emit(builder, _ADD, "r", "rr", [x, y])[0]

            def sub(x, y):
                return emit(builder, _SUB, "r", "rr", [x, y])[0]

            lines = {}
            for i in range(tile.input_rows):
                for half in range(2):
                    lines[i, half] = _four(add, sub, [held.load((i * 4 + pixel) * 2 + half) for pixel in range(4)])
            for tap in range(3):
                for j in range(4):
                    order = ((r + tap, 0), (s + tap, 0), (r + tap, 1), (s + tap, 1))
                    for k, key in enumerate(order):
                        value = emit(builder, "mov.b32 $0, $1;", "r", "r", [lines[key][j]], True)[0]
                        local.store(value, (4 * tap + j) * 4 + k)
            return context.get_dummy_value()

        return types.void(out, words), codegen

    return operands


def make_winograd_products(pitch):
    """products(acc, operands, sm, db, more): F(2,3) by wgmma.m64n64k16, A in registers, B in shared memory.

    acc as `WarpTile.sum_index` says, operands from `make_winograd_operands`; db the descriptor of factor 0, with
    `pitch` units of 16 bytes from factor to factor. Without `more` the sums start at zero.
    """
    registers = ",".join(f"${i}" for i in range(32))
    asm = (
        "{.reg .pred p; setp.ne.b32 p, $69, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        f"{{{registers}}}, {{$64,$65,$66,$67}}, $68, p, 1, 1, 0;}}"
    )

    @intrinsic
    def products(typingctx, acc, words, sm, db, more):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            held = LocalArray(context, builder, sig.args[1], args[1])
            for tap in range(3):
                for j in range(4):
                    a = [held.load((4 * tap + j) * 4 + i) for i in range(4)]
                    b = builder.add(args[3], INT[64]((4 * tap + j) * pitch))
                    adds = args[4] if tap == 0 else INT[32](1)
                    where = range(32 * j, 32 * j + 32)
                    values = emit_tied(builder, asm, [local.load(i) for i in where], (*a, b, adds), "rrrrlr")
                    for i, value in zip(where, values, strict=True):
                        local.store(value, i)
            return context.get_dummy_value()

        return types.void(acc, words, sm, types.int64, types.int32), codegen

    return products


def make_winograd_finish(tile, channels, residual, relu, first_block=0):
    """finish(acc, r, c, bias, res, y, at, across, rows, columns, top, bad): an octet's sums leave as float16 outputs.

    r, c (literals): the octet. This thread's tile begins at y[at], `across` elements from row to row; only `rows` x
    `columns` of it lie in the image. Its channels are those of at most four blocks from `first_block` on, bias: theirs.
    top[0] becomes the half2 maximum of magnitudes as for `finish8`; bad[0] becomes NaN if an output was not finite in
    float32, which ReLU would hide.
    """
    width = min(tile.blocks, 4)
    letters = "r" * width
    vector = f"v{width}.b32"
    held = "{" + ",".join(f"${i}" for i in range(width)) + "}"
    stored = "{" + ",".join(f"${i + 1}" for i in range(width)) + "}"
    clear = " ".join(f"mov.b32 ${i}, 0;" for i in range(width))
    load = (
        "{.reg .pred p; setp.ne.s32 p, $" + str(width + 1) + ", 0; " + clear + " @p ld.global.nc.L1::no_allocate."
        f"{vector} {held}, [${width}];" + "}"
    )
    store = "{.reg .pred p; setp.ne.s32 p, $" + str(width + 1) + f", 0; @p st.global.{vector} [$0], {stored};" + "}"

    @intrinsic
    def finish(typingctx, acc, r, c, bias, res, y, at, across, rows, columns, top, bad):
        if not _literals(r, c):
            return None
        r_value, c_value = r.literal_value, c.literal_value

        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            added = LocalArray(context, builder, sig.args[3], args[3])
            highest, doubt = (LocalArray(context, builder, sig.args[i], args[i]) for i in (10, 11))
            outputs = {}
            for block in range(width):
                for e in range(2):
                    first = [
                        tile.sum_index(r_value, c_value, p, first_block + block) + e for p in range(tile.positions)
                    ]
                    m = [local.load(index) for index in first]
                    if tile.square:
                        down = [_two(builder.fadd, builder.fsub, m[j::4]) for j in range(4)]
                        lines = [[down[j][i] for j in range(4)] for i in range(2)]
                    else:
                        lines = [m]
                    for i, line in enumerate(lines):
                        for j, value in enumerate(_two(builder.fadd, builder.fsub, line)):
                            outputs[i, j, 2 * block + e] = builder.fadd(value, added.load(2 * block + e))
            for i in range(tile.tile_rows):
                for j in range(2):
                    inside = builder.and_(
                        builder.icmp_signed(">", args[8], INT[32](i)), builder.icmp_signed(">", args[9], INT[32](j))
                    )
                    valid = builder.zext(inside, INT[32])
                    index = builder.add(args[6], builder.add(builder.mul(args[7], INT[32](i)), INT[32](j * channels)))
                    wide = builder.sext(index, INT[64])
                    values = [outputs[i, j, k] for k in range(2 * width)]
                    if residual:
                        where = global_address(context, builder, sig.args[4], args[4], wide)
                        words = emit(builder, load, letters, "lr", [where, valid], True)
                        rest = [v for word in words for v in emit(builder, _UNPACK, "ff", "r", [word])]
                        values = [builder.fadd(x, z) for x, z in zip(values, rest, strict=True)]
                    running, total = highest.load(0), doubt.load(0)
                    for value in values:
                        kept = builder.select(inside, value, F32(0.0))
                        total = emit(builder, "fma.rn.f32 $0, $1, 0f00000000, $2;", "f", "ff", [kept, total])[0]
                    convert = _PACK_RELU if relu else _PACK
                    packed = [emit(builder, convert, "r", "ff", values[2 * k : 2 * k + 2])[0] for k in range(width)]
                    for word in packed:
                        magnitude = word if relu else builder.and_(word, INT[32](0x7FFF7FFF))
                        magnitude = builder.select(inside, magnitude, INT[32](0))
                        running = emit(builder, "max.NaN.f16x2 $0, $1, $2;", "r", "rr", [running, magnitude])[0]
                    highest.store(running, 0)
                    doubt.store(total, 0)
                    where = global_address(context, builder, sig.args[5], args[5], wide)
                    emit(builder, store, "", "l" + letters + "r", [where, *packed, valid], True, True)
            return context.get_dummy_value()

        i32 = types.int32
        return types.void(acc, r, c, bias, res, y, i32, i32, i32, i32, top, bad), codegen

    return finish


__all__ = [
    "make_winograd_finish",
    "make_winograd_operands",
    "make_winograd_pixels",
    "make_winograd_products",
    "make_winograd_step",
]
