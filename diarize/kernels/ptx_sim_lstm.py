# mypy: disallow-untyped-defs=False
"""Python twins of `ptx_lstm` for the CUDA simulator."""

from __future__ import annotations

import numpy as np

from .lstm_pack import CELL_SCALE, STATE_PITCH
from .ptx_sim import _all_ldmatrix, _all_mma_f16, byte_range, collective, ndarray


def make_store_gates(float_gates, rows=4, columns=8):
    def store(acc, bias, out, base):
        sums, added = ndarray(acc).reshape(rows, columns, 4), ndarray(bias).reshape(rows, 2)
        for n in range(columns):
            values = (sums[:, n] + np.repeat(added, 2, 1)).astype(np.float32)
            if not float_gates:
                values = values.astype(np.float16).reshape(rows // 2, 8)
            for j, word in enumerate(values):
                byte_range(out, base + n * 8192 + j * (128 if float_gates else 256))[:] = word.view(np.uint8)

    return store


def load_recurrent(held, weights, base):
    for fragment in range(32):
        words = byte_range(weights, base + fragment * 256).view(np.int32)
        ndarray(held)[4 * fragment : 4 * fragment + 4] = words


def make_load_gates(blocks, float_gates):
    words = 4 if float_gates else 2

    def load(acc, sm, base):
        sums = ndarray(acc).reshape(4, blocks, 4)
        for n in range(blocks):
            for j in range(words):
                raw = byte_range(sm, base + (n * 8 * words + j) * 256)
                if float_gates:
                    sums[j, n] = raw.view(np.float32)
                else:
                    sums[2 * j : 2 * j + 2, n] = raw.view(np.float16).astype(np.float32).reshape(2, 4)

    return load


def make_recurrent_product(blocks, exact_weights, exact_state, low_offset, low_shared=True):
    def work(arguments):
        sm = arguments[0][2]

        def multiply(place, a, b):
            lanes = [(*a[i], *b[i], *arguments[i][0][place : place + 4]) for i in range(32)]
            for i, values in enumerate(_all_mma_f16(lanes)):
                arguments[i][0][place : place + 4] = values

        for n in range(blocks):
            for pair in range(4):
                where = n * 8 * STATE_PITCH + pair * 32
                operands = [_all_ldmatrix([(sm, state + where) for *_, state, _, _ in arguments])]
                if exact_state:
                    operands.append(_all_ldmatrix([(sm, state + low_offset + where) for *_, state, _, _ in arguments]))
                for half in range(2):
                    part = slice(2 * half, 2 * half + 2)
                    for m in range(4):
                        fragment = m * 8 + 2 * pair + half
                        place = (m * blocks + n) * 4
                        high = [[int(v) for v in a[1][4 * fragment : 4 * fragment + 4]] for a in arguments]
                        for operand in operands:
                            multiply(place, high, [b[part] for b in operand])
                        if exact_weights:
                            words = [byte_range(a[4], a[5] + fragment * 256).view(np.int32) for a in arguments]
                            multiply(place, [[int(v) for v in w] for w in words], [b[part] for b in operands[0]])
        return [None] * 32

    def product(acc, held, sm, state, weights, low):
        collective(work, ndarray(acc), ndarray(held), sm, int(state), weights, int(low))

    return product


def make_cells(blocks, out_pitch, keep_low_state, write_low, low_offset):
    one, scale, most = np.float32(1), np.float32(CELL_SCALE), np.float32(40)

    def cells(acc, kept, sm, state, out, o):
        sums, cell_of = ndarray(acc).reshape(4, blocks, 4), ndarray(kept)
        for n in range(blocks):
            for r in range(2):
                states = []
                for parity in range(2):
                    first, k = 2 * parity, (n * 2 + parity) * 2 + r
                    gates = (sums[first, n, r], sums[first, n, 2 + r], sums[first + 1, n, r], sums[first + 1, n, 2 + r])
                    e_i, e_f, e_g, e_o = (np.exp2(np.minimum(x, most)) for x in gates)
                    product, forget = (one + e_i) * (one + e_g), one + e_f
                    cell = (cell_of[k] * product + (scale - scale * e_g) * forget) / (product * forget)
                    cell_of[k] = cell
                    e_c = np.exp2(np.minimum(cell, most))
                    states.append((one - e_c) / ((one + e_o) * (one + e_c)))
                values = np.array(states, np.float32)
                high = values.astype(np.float16)
                low = (values - high.astype(np.float32)).astype(np.float16)
                row = 8 * n + r
                byte_range(sm, state + row * STATE_PITCH, 4)[:] = high.view(np.uint8)
                byte_range(out, o + row * out_pitch, 4)[:] = high.view(np.uint8)
                if keep_low_state:
                    byte_range(sm, state + low_offset + row * STATE_PITCH, 4)[:] = low.view(np.uint8)
                if write_low:
                    byte_range(out, o + 256 + row * out_pitch, 4)[:] = low.view(np.uint8)

    return cells


def make_product_cells(blocks, exact_weights, exact_state, out_pitch, write_low, low_offset):
    product = make_recurrent_product(blocks, exact_weights, exact_state, low_offset)
    cells = make_cells(blocks, out_pitch, exact_state, write_low, low_offset)

    def both(acc, held, sm, state, weights, low, other, kept, target, out, o):
        product(acc, held, sm, state, weights, low)
        cells(other, kept, sm, target, out, o)

    return both


__all__ = [
    "load_recurrent",
    "make_cells",
    "make_load_gates",
    "make_product_cells",
    "make_recurrent_product",
    "make_store_gates",
]
