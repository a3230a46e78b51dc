# mypy: disallow-untyped-defs=False
"""Python twins of `ptx_conv` for the CUDA simulator."""

from __future__ import annotations

import numpy as np

from .ptx_sim import _all_ldmatrix, _all_mma_tf32, byte_range, collective, cvt_tf32, f32_bits, ndarray, unpack_half2


def _floats(array, index, count):
    return byte_range(array, index, 4 * count).view(np.float32)


def make_fma_tile(rows, columns, a_step, halves, count, width):
    def fma(acc, sm, a, b):
        sums = ndarray(acc)[: 8 * width].reshape(width, 8)
        for k in range(count):
            for r, row in enumerate(rows):
                for c, column in enumerate(columns):
                    tap = int(b) + ((k * len(rows) + r) * len(columns) + c) * 2 * halves
                    pixels = _floats(sm, int(a) + k * a_step + row + column, width).astype(np.float64)
                    weights = np.concatenate([_floats(sm, tap, 4), _floats(sm, tap + halves, 4)])
                    # The product is exact in float64: one rounding to float32, as the instruction has.
                    sums[:] = (pixels[:, None] * weights + sums).astype(np.float32)

    return fma


def make_kstep_tf32(a_offsets, b_offsets, half):
    count_n = 2 * len(b_offsets)

    def registers(words):
        if not half:
            return [[cvt_tf32(np.array([w], np.int32).view(np.float32)[0]) for w in words]]
        wide = [unpack_half2(w) for w in words]
        return [[f32_bits(wide[s + i % 2][i // 2]) for i in range(4)] for s in (0, 2)]

    def work(arguments):
        for m, a_offset in enumerate(a_offsets):
            rows = _all_ldmatrix([(sm, a + a_offset) for _, sm, a, _ in arguments])
            parts = [registers(words) for words in rows]
            for s in range(2 if half else 1):
                for j, b_offset in enumerate(b_offsets):
                    weights = _all_ldmatrix([(sm, (b ^ (8 * s)) + b_offset) for _, sm, _, b in arguments])
                    for n in (2 * j, 2 * j + 1):
                        base, pair = (m * count_n + n) * 4, 2 * (n % 2)
                        lanes = [
                            (*parts[lane][s], *weights[lane][pair : pair + 2], *arguments[lane][0][base : base + 4])
                            for lane in range(32)
                        ]
                        for lane, values in enumerate(_all_mma_tf32(lanes)):
                            arguments[lane][0][base : base + 4] = values
        return [None] * 32

    def kstep(acc, sm, a, b):
        collective(work, ndarray(acc), sm, int(a), int(b))

    return kstep


def fetch128(words, k, source, index, valid):
    ndarray(words)[k : k + 4] = byte_range(source, index).view(np.int32) if valid else 0


def make_scatter(half, pitch):
    def scatter(words, k, sm, index):
        values = ndarray(words)[k : k + 4].view(np.float16 if half else np.float32)
        for i, value in enumerate(values):
            sm[index + i * pitch] = np.float32(value)

    return scatter


def make_copy128(count, step):
    def copy(sm, s, source, g, left):
        for i in range(count):
            if i * step < left:
                byte_range(sm, s + i * step)[:] = byte_range(source, g + i * step)

    return copy


def make_fill_bias4(quads):
    def fill(acc, bias, channel):
        for offset, places in quads.items():
            for four in places:
                ndarray(acc)[list(four)] = ndarray(bias)[channel + offset : channel + offset + 4]

    return fill


def make_residual4(half):
    def residual4(values, k, source, index, offset, valid):
        at = index + offset
        ndarray(values)[k : k + 4] = ndarray(source)[at : at + 4].astype(np.float32) if valid else 0

    return residual4


def make_finish4(places, residual, relu, half, limit):
    def finish4(acc, k, values, kr, y, index, offset, valid, bad):
        out = ndarray(acc)[[k + place for place in places]]
        if residual:
            out = out + ndarray(values)[kr : kr + 4]
        size = out if relu and half else np.abs(out)
        if not valid:
            return
        if not (size < np.float32(limit)).all():
            bad[0] = 1
        with np.errstate(over="ignore"):
            ndarray(y)[index + offset : index + offset + 4] = np.maximum(out, 0) if relu else out

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
