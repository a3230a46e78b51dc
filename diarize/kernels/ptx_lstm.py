# mypy: disallow-untyped-defs=False
"""Inner tiles of the LSTM kernels as inline PTX: gates, recurrent product and cells. Device twins of `ptx_sim_lstm`.

Accumulators are float32 [m][n][4]: m 16-row blocks of gates, n blocks of eight windows. Lane (g, t) of a block holds
the input, forget, cell and output gates of two adjacent hidden units for two adjacent windows (`lstm_pack.gate_rows`),
so that the cells need no exchange between lanes.
"""

from __future__ import annotations

from itertools import zip_longest

from numba.cuda import types
from numba.cuda.extending import intrinsic

from .lstm_pack import CELL_SCALE, STATE_PITCH
from .ptx_asm import F32, INT, LocalArray, emit, global_address, shared_address
from .ptx_device import _LDMATRIX, _LOAD4, _MMA_F16, _PACK, _UNPACK

_MOST = "min.f32 $0, $1, 0f42200000;"


def _unary(builder, asm):
    return lambda x: emit(builder, asm, "f", "f", [x])[0]


def _fma(builder, x, y, z):
    return emit(builder, "fma.rn.f32 $0, $1, $2, $3;", "f", "fff", [x, y, z])[0]


def make_store_gates(float_gates, rows=4, columns=8):
    """store(acc, bias, out, base): acc [rows][columns][4] plus bias [rows][2] as 16-byte words of gates.

    base is the element of block column 0 for this lane; the words of a lane are 32 lanes apart, block columns 8192.
    """

    @intrinsic
    def store(typingctx, acc, bias, out, base):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            added = LocalArray(context, builder, sig.args[1], args[1])
            held = [added.load(i) for i in range(2 * rows)]

            def place(offset):
                index = builder.add(args[3], INT[64](offset))
                return global_address(context, builder, sig.args[2], args[2], index)

            for n in range(columns):
                values = [
                    builder.fadd(local.load((m * columns + n) * 4 + r), held[m * 2 + r // 2])
                    for m in range(rows)
                    for r in range(4)
                ]
                if float_gates:
                    for j in range(rows):
                        words = values[4 * j : 4 * j + 4]
                        asm = "st.global.v4.f32 [$0], {$1,$2,$3,$4};"
                        emit(builder, asm, "", "lffff", [place(n * 8192 + j * 128), *words], True, True)
                    continue
                halves = [emit(builder, _PACK, "r", "ff", values[2 * i : 2 * i + 2])[0] for i in range(2 * rows)]
                for j in range(rows // 2):
                    words = halves[4 * j : 4 * j + 4]
                    asm = "st.global.v4.b32 [$0], {$1,$2,$3,$4};"
                    emit(builder, asm, "", "lrrrr", [place(n * 8192 + j * 256), *words], True, True)
            return context.get_dummy_value()

        return types.void(acc, bias, out, types.int64), codegen

    return store


@intrinsic
def load_recurrent(typingctx, held, weights, base):
    """held[128] = this lane's fragments of the recurrent weights of its warp: 32 words of 16 bytes."""

    def codegen(context, builder, sig, args):
        local = LocalArray(context, builder, sig.args[0], args[0])
        for fragment in range(32):
            index = builder.add(args[2], INT[64](fragment * 256))
            at = global_address(context, builder, sig.args[1], args[1], index)
            for i, word in enumerate(emit(builder, "ld.global.v4.b32 " + _LOAD4, "rrrr", "l", [at], True, True)):
                local.store(word, 4 * fragment + i)
        return context.get_dummy_value()

    return types.void(held, weights, types.int64), codegen


def make_load_gates(blocks, float_gates):
    """load(acc, sm, base): acc [4][blocks][4] from this lane's staged words."""
    words = 4 if float_gates else 2

    @intrinsic
    def load(typingctx, acc, sm, base):
        def codegen(context, builder, sig, args):
            local = LocalArray(context, builder, sig.args[0], args[0])
            for n in range(blocks):
                for j in range(words):
                    index = builder.add(args[2], INT[32]((n * 8 * words + j) * 256))
                    at = shared_address(context, builder, sig.args[1], args[1], index)
                    if float_gates:
                        asm = "ld.shared.v4.f32 " + _LOAD4
                        for i, value in enumerate(emit(builder, asm, "ffff", "r", [at], True, True)):
                            local.store(value, (j * blocks + n) * 4 + i)
                        continue
                    for i, word in enumerate(
                        emit(builder, "ld.shared.v4.b32 " + _LOAD4, "rrrr", "r", [at], True, True)
                    ):
                        first = ((2 * j + i // 2) * blocks + n) * 4 + 2 * (i % 2)
                        for k, value in enumerate(emit(builder, _UNPACK, "ff", "r", [word])):
                            local.store(value, first + k)
            return context.get_dummy_value()

        return types.void(acc, sm, types.int32), codegen

    return load


def _product_steps(blocks, exact_weights, exact_state, low_offset, low_shared, context, builder, sig, args):
    """Emit the product of `make_recurrent_product`, handing over after every instruction of the tensor pipe."""
    local = LocalArray(context, builder, sig.args[0], args[0])
    fragments = LocalArray(context, builder, sig.args[1], args[1])

    def matrix(offset):
        index = builder.add(args[3], INT[32](offset))
        at = shared_address(context, builder, sig.args[2], args[2], index)
        return emit(builder, _LDMATRIX, "rrrr", "r", [at], True, True)

    def low_weight(fragment):
        index = builder.add(args[5], INT[64](fragment * 256))
        if low_shared:
            at = shared_address(context, builder, sig.args[4], args[4], builder.trunc(index, INT[32]))
            return emit(builder, "ld.shared.v4.b32 " + _LOAD4, "rrrr", "r", [at], True, True)
        at = global_address(context, builder, sig.args[4], args[4], index)
        return emit(builder, "ld.global.nc.v4.b32 " + _LOAD4, "rrrr", "l", [at], True, True)

    places = [(m, n) for m in range(4) for n in range(blocks)]
    sums = {(m, n): [local.load((m * blocks + n) * 4 + i) for i in range(4)] for m, n in places}

    def multiply(m, n, a, b):
        sums[m, n] = emit(builder, _MMA_F16, "ffff", "rrrrrrffff", a + b + sums[m, n])

    for pair in range(4):
        high = [matrix(n * 8 * STATE_PITCH + pair * 32) for n in range(blocks)]
        rest = [matrix(low_offset + n * 8 * STATE_PITCH + pair * 32) for n in range(blocks)] if exact_state else []
        for half in range(2):
            k, part = 2 * pair + half, slice(2 * half, 2 * half + 2)
            a = [[fragments.load((m * 8 + k) * 4 + i) for i in range(4)] for m in range(4)]
            for operand in (high, rest) if exact_state else (high,):
                for m, n in places:
                    multiply(m, n, a[m], operand[n][part])
                    yield
            if exact_weights:
                for m in range(4):
                    low = low_weight(m * 8 + k)
                    for n in range(blocks):
                        multiply(m, n, low, high[n][part])
                        yield
    for (m, n), values in sums.items():
        for i, value in enumerate(values):
            local.store(value, (m * blocks + n) * 4 + i)


def make_recurrent_product(blocks, exact_weights, exact_state, low_offset, low_shared=True):
    """product(acc, held, sm, state, weights, low): acc += W h for `blocks` blocks of eight windows.

    `state` is this lane's ldmatrix element in sm, weights[low] its first low weight parts, in shared memory if
    `low_shared`; low parts of the state are `low_offset` behind the high ones. `exact_weights` and `exact_state` add
    the products with those parts.
    """

    @intrinsic
    def product(typingctx, acc, held, sm, state, weights, low):
        def codegen(context, builder, sig, args):
            steps = (blocks, exact_weights, exact_state, low_offset, low_shared, context, builder, sig, args)
            for _ in _product_steps(*steps):
                pass
            return context.get_dummy_value()

        return types.void(acc, held, sm, types.int32, weights, types.int64), codegen

    return product


def _cell_steps(builder, gates, cell):
    """Emit one cell, handing over after every slow instruction; returns the new scaled cell and hidden state.

    Gates come as exponents of two: exp2(i) = exp(-x_i), so sigmoid is 1 / (1 + exp2(i)) and tanh(x_g) is
    (1 - exp2(g)) / (1 + exp2(g)). The cell is kept as -2 log2(e) c. Exponents are cut at 40, where the functions have
    long saturated and no product overflows. Five exponentials and two reciprocals.
    """
    exponential, reciprocal = (
        _unary(builder, "ex2.approx.ftz.f32 $0, $1;"),
        _unary(builder, "rcp.approx.ftz.f32 $0, $1;"),
    )
    most, one, scale = _unary(builder, _MOST), F32(1.0), CELL_SCALE
    exponentials = []
    for x in gates:
        exponentials.append(exponential(most(x)))
        yield
    e_i, e_f, e_g, e_o = exponentials
    product = builder.fmul(builder.fadd(one, e_i), builder.fadd(one, e_g))
    forget = builder.fadd(one, e_f)
    entering = builder.fmul(_fma(builder, e_g, F32(-scale), F32(scale)), forget)
    total = _fma(builder, cell, product, entering)
    yield
    cell = builder.fmul(total, reciprocal(builder.fmul(product, forget)))
    yield
    e_c = exponential(most(cell))
    yield
    below = builder.fmul(builder.fadd(one, e_o), builder.fadd(one, e_c))
    state = builder.fmul(builder.fsub(one, e_c), reciprocal(below))
    yield
    return cell, state


# How often `_cell_steps` hands over.
_CELL_STEPS = 8


def _cells_steps(blocks, out_pitch, keep_low_state, write_low, low_offset, context, builder, sig, args, places):
    """Emit the cells of `make_cells`; `places` are the positions of its six arguments in `args`."""
    acc, kept, sm, state, out, o = places
    local = LocalArray(context, builder, sig.args[acc], args[acc])
    cell_of = LocalArray(context, builder, sig.args[kept], args[kept])

    def put(word, row, shared, elsewhere, to_shared, to_out):
        if to_shared:
            index = builder.add(args[state], INT[32](row * STATE_PITCH + shared))
            at = shared_address(context, builder, sig.args[sm], args[sm], index)
            emit(builder, "st.shared.b32 [$0], $1;", "", "rr", [at, word], True, True)
        if to_out:
            index = builder.add(args[o], INT[64](row * out_pitch + elsewhere))
            at = global_address(context, builder, sig.args[out], args[out], index)
            emit(builder, "st.global.b32 [$0], $1;", "", "lr", [at, word], True, True)

    def one(n, parity, r, states):
        gates = [local.load(((2 * parity + q) * blocks + n) * 4 + i) for q in range(2) for i in (r, 2 + r)]
        k = (n * 2 + parity) * 2 + r
        value, states[parity] = yield from _cell_steps(builder, gates, cell_of.load(k))
        cell_of.store(value, k)

    for n in range(blocks):
        for r in range(2):
            # Two cells at a time, whose states share a word.
            states = [None, None]
            for _ in zip_longest(one(n, 0, r, states), one(n, 1, r, states)):
                yield
            high = emit(builder, _PACK, "r", "ff", states)[0]
            put(high, 8 * n + r, 0, 0, True, True)
            if keep_low_state or write_low:
                rounded = emit(builder, _UNPACK, "ff", "r", [high])
                rest = [builder.fsub(x, y) for x, y in zip(states, rounded, strict=True)]
                low = emit(builder, _PACK, "r", "ff", rest)[0]
                put(low, 8 * n + r, low_offset, 256, keep_low_state, write_low)


def make_cells(blocks, out_pitch, keep_low_state, write_low, low_offset):
    """cells(acc, cells, sm, state, out, o): gates to cells and hidden states of this lane's 4 * blocks cells.

    The state goes as half2 to sm[state + row * STATE_PITCH], its low part `low_offset` behind if `keep_low_state`, and
    to out[o + row * out_pitch], its low part 256 behind if `write_low`; row = 8 n + r.
    """

    @intrinsic
    def cells(typingctx, acc, kept, sm, state, out, o):
        def codegen(context, builder, sig, args):
            shape = (blocks, out_pitch, keep_low_state, write_low, low_offset)
            for _ in _cells_steps(*shape, context, builder, sig, args, range(6)):
                pass
            return context.get_dummy_value()

        return types.void(acc, kept, sm, types.int32, out, types.int64), codegen

    return cells


def make_product_cells(blocks, exact_weights, exact_state, out_pitch, write_low, low_offset):
    """both(acc, held, sm, state, weights, low, other, kept, target, out, o): product of one group of windows, cells of
    another.

    The first six arguments are those of `make_recurrent_product`, the rest with sm those of `make_cells`. Instructions
    alternate, so that the tensor pipe and the special functions work at the same time.
    """

    @intrinsic
    def both(typingctx, acc, held, sm, state, weights, low, other, kept, target, out, o):
        def codegen(context, builder, sig, args):
            products = _product_steps(
                blocks, exact_weights, exact_state, low_offset, True, context, builder, sig, args
            )  # fmt: skip
            shape = (blocks, out_pitch, exact_state, write_low, low_offset)
            cells = _cells_steps(*shape, context, builder, sig, args, (6, 7, 2, 8, 9, 10))
            count = 32 * blocks * (1 + exact_weights + exact_state)
            wanted, done = 2 * blocks * _CELL_STEPS, 0
            for number, _ in enumerate(products, start=1):
                while done * count < number * wanted:
                    next(cells, None)
                    done += 1
            for _ in cells:
                pass
            return context.get_dummy_value()

        i32, i64 = types.int32, types.int64
        return types.void(acc, held, sm, i32, weights, i64, other, kept, i32, out, i64), codegen

    return both


__all__ = [
    "load_recurrent",
    "make_cells",
    "make_load_gates",
    "make_product_cells",
    "make_recurrent_product",
    "make_store_gates",
]
