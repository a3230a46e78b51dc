"""Log-mel energies of overlapping frames: LANES frames at a time, one in each vector lane.

A lane never mixes with another, so a frame's energies are the same bits wherever it falls. Fourier transform: 512 real
samples as 256 complex ones, four radix-4 passes in Stockham's self-sorting order, then the split into even and odd
parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..backend.base import BoundLayer
from ..cache import njit
from ..layers import Layer
from .simd import I64, LANES, CountedLoop, Emitter, data_pointer

FRAME_LENGTH = 400
FRAME_STEP = 160
FFT_LENGTH = 512
NUM_BINS = FFT_LENGTH // 2
PRE_EMPHASIS = 0.97
_COMPLEX = 2 * LANES


def twiddles() -> np.ndarray:
    """exp(-2 pi i k / 512) for k = 0 .. 511 as (512, 2) float32."""
    angle = -2.0 * np.pi * np.arange(FFT_LENGTH) / FFT_LENGTH
    return np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)


def _starts(context: Any, builder: ir.IRBuilder, signature: Any, args: Any, emit: Emitter) -> list[ir.Value]:
    """Addresses for arguments that come as pairs of array and offset."""
    return [
        emit.address(data_pointer(context, builder, signature.args[i], args[i]), args[i + 1])
        for i in range(0, len(args) - 1, 2)
    ]


@intrinsic
def _condition(typingctx, frames, offset, window, window_offset, length):  # type: ignore[no-untyped-def]
    """Subtract each lane's mean over `length` samples, pre-emphasise and multiply by the window, in place."""
    signature = types.void(frames, types.int64, window, types.int64, types.int64)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        start, window_start = _starts(context, builder, signature, args, emit)
        length = args[4]
        loop = CountedLoop(builder, length, [emit.constant(0.0)])
        sample = emit.load(start, builder.mul(loop.index, ir.Constant(I64, LANES)))
        loop.end([emit.add(loop.values[0], sample)])
        mean = emit.mul(loop.values[0], emit.constant(1.0 / FRAME_LENGTH))
        loop = CountedLoop(builder, length, [emit.sub(emit.load(start), mean)])
        offset = builder.mul(loop.index, ir.Constant(I64, LANES))
        sample = emit.sub(emit.load(start, offset), mean)
        emphasised = emit.fma(loop.values[0], emit.constant(-PRE_EMPHASIS), sample)
        emit.store(emit.mul(emphasised, emit.broadcast(window_start, loop.index)), start, offset)
        loop.end([sample])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _butterfly(typingctx, source, source_offset, target, target_offset, factors, factor, stride):  # type: ignore[no-untyped-def]
    """One radix-4 butterfly: complex inputs NUM_BINS / 4 apart, outputs `stride` apart times w^0 .. w^3.

    w is entry `factor` of the twiddles; offsets and stride count complex vectors.
    """
    long = types.int64
    signature = types.void(source, long, target, long, factors, long, long)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        arrays = [data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 2, 4)]
        width = ir.Constant(I64, _COMPLEX)
        start = emit.address(arrays[0], builder.mul(args[1], width))
        target = emit.address(arrays[1], builder.mul(args[3], width))
        step = builder.mul(args[6], width)
        quarter = NUM_BINS // 4 * _COMPLEX
        (a_re, a_im), (b_re, b_im), (c_re, c_im), (d_re, d_im) = (
            (emit.load(start, i * quarter), emit.load(start, i * quarter + LANES)) for i in range(4)
        )
        ac_re, ac_im, a_c_re, a_c_im = (
            emit.add(a_re, c_re),
            emit.add(a_im, c_im),
            emit.sub(a_re, c_re),
            emit.sub(a_im, c_im),
        )
        bd_re, bd_im, b_d_re, b_d_im = (
            emit.add(b_re, d_re),
            emit.add(b_im, d_im),
            emit.sub(b_re, d_re),
            emit.sub(b_im, d_im),
        )
        results = [
            (emit.add(ac_re, bd_re), emit.add(ac_im, bd_im)),
            (emit.add(a_c_re, b_d_im), emit.sub(a_c_im, b_d_re)),
            (emit.sub(ac_re, bd_re), emit.sub(ac_im, bd_im)),
            (emit.sub(a_c_re, b_d_im), emit.add(a_c_im, b_d_re)),
        ]
        for i, (real, imag) in enumerate(results):
            if i > 0:
                entry = builder.mul(args[5], ir.Constant(I64, 2 * i))
                cosine = emit.broadcast(arrays[2], entry)
                sine = emit.broadcast(arrays[2], builder.add(entry, ir.Constant(I64, 1)))
                negative = emit.sub(emit.constant(0.0), sine)
                real, imag = (
                    emit.fma(imag, negative, emit.mul(real, cosine)),
                    emit.fma(imag, cosine, emit.mul(real, sine)),
                )
            place = emit.address(target, builder.mul(step, ir.Constant(I64, i)))
            emit.store(real, place, 0)
            emit.store(imag, place, LANES)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _power(typingctx, spectrum, low, high, factors, factor, power, bin_offset):  # type: ignore[no-untyped-def]
    """Power of one bin of the real transform, from bins k (`low`) and 256 - k (`high`) of the packed complex one.

    X = (Z_k + conj Z_h) / 2 - i w (Z_k - conj Z_h) / 2 with w = exp(-2 pi i k / 512).
    """
    long = types.int64
    signature = types.void(spectrum, long, long, factors, long, power, long)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        spectrum, factors, power = (data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 3, 5))
        width = ir.Constant(I64, _COMPLEX)
        low, high = (emit.address(spectrum, builder.mul(args[i], width)) for i in (1, 2))
        entry = builder.mul(args[4], ir.Constant(I64, 2))
        cosine = emit.broadcast(factors, entry)
        sine = emit.broadcast(factors, builder.add(entry, ir.Constant(I64, 1)))
        even_re = emit.add(emit.load(low), emit.load(high))
        even_im = emit.sub(emit.load(low, LANES), emit.load(high, LANES))
        odd_re = emit.add(emit.load(low, LANES), emit.load(high, LANES))
        odd_im = emit.sub(emit.load(high), emit.load(low))
        negative = emit.sub(emit.constant(0.0), sine)
        real = emit.add(even_re, emit.fma(odd_im, negative, emit.mul(odd_re, cosine)))
        imag = emit.add(even_im, emit.fma(odd_im, cosine, emit.mul(odd_re, sine)))
        total = emit.mul(emit.fma(imag, imag, emit.mul(real, real)), emit.constant(0.25))
        emit.store(total, power, builder.mul(args[6], ir.Constant(I64, LANES)))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _band(typingctx, power, first, weights, weight_offset, energies, band, count, floor):  # type: ignore[no-untyped-def]
    """Weighted sum of `count` bins from `first` on, not below `floor`, written as energies of `band`."""
    long = types.int64
    signature = types.void(power, long, weights, long, energies, long, long, types.float32)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(builder)
        power, weights, energies = (data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 2, 4))
        width = ir.Constant(I64, LANES)
        start = emit.address(power, builder.mul(args[1], width))
        weight_start = emit.address(weights, args[3])
        loop = CountedLoop(builder, args[6], [emit.constant(0.0)])
        value = emit.load(start, builder.mul(loop.index, width))
        loop.end([emit.fma(value, emit.broadcast(weight_start, loop.index), loop.values[0])])
        emit.store(emit.maximum(loop.values[0], emit.splat(args[7])), energies, builder.mul(args[5], width))
        return context.get_dummy_value()

    return signature, codegen


@njit(cache=True, nogil=True)
def mel_energies(
    samples: np.ndarray,
    window: np.ndarray,
    factors: np.ndarray,
    first_bin: np.ndarray,
    mel: np.ndarray,
    floor: float,
    out: np.ndarray,
) -> None:
    """Mel energies, not yet logarithmic, of every frame of `samples`.

    samples (num_samples) float32; window (400) float32; factors as from `twiddles`; first_bin (num_mels) int64 and
    mel (num_mels, widest) float32, each row a filter's weights from its first bin on; out (num_frames, num_mels).
    """
    num_frames, num_mels = out.shape
    widest = mel.shape[1]
    one = np.empty(NUM_BINS * _COMPLEX, np.float32)
    two = np.empty(NUM_BINS * _COMPLEX, np.float32)
    power = np.zeros((NUM_BINS + widest) * LANES, np.float32)
    energies = np.empty(num_mels * LANES, np.float32)
    for block in range(0, num_frames, LANES):
        count = min(LANES, num_frames - block)
        for lane in range(LANES):
            start = (block + min(lane, count - 1)) * FRAME_STEP
            for n in range(FRAME_LENGTH):
                one[n * LANES + lane] = samples[start + n]
        one[FRAME_LENGTH * LANES :] = 0.0
        _condition(one, 0, window, 0, FRAME_LENGTH)  # type: ignore[call-arg]
        source, target = one, two
        stride = 1
        while stride < NUM_BINS:
            for p in range(NUM_BINS // (4 * stride)):
                for q in range(stride):
                    index = q + stride * p
                    _butterfly(source, index, target, q + stride * 4 * p, factors, 2 * stride * p, stride)
            source, target = target, source
            stride *= 4
        for k in range(NUM_BINS):
            _power(source, k, (NUM_BINS - k) % NUM_BINS, factors, k, power, k)
        for band in range(num_mels):
            _band(power, first_bin[band], mel, band * widest, energies, band, widest, floor)
        for lane in range(count):
            for band in range(num_mels):
                out[block + lane, band] = energies[band * LANES + lane]


def prepare_log_mel(layer: Layer) -> BoundLayer:
    """Bind `Op.LOG_MEL`: energies below the layer's floor count as the floor; natural logarithm."""
    mel = layer.weights["mel"]
    floor: Any = np.float32(layer.params["floor"])
    filled = mel > 0.0
    first = filled.argmax(1).astype(np.int64)
    widest = int((NUM_BINS - filled[:, ::-1].argmax(1) - first).max())
    padded = np.pad(mel, ((0, 0), (0, widest)))
    rows = [row[start : start + widest] for row, start in zip(padded, first, strict=True)]
    weights = np.ascontiguousarray(np.stack(rows), np.float32)
    window = np.ascontiguousarray(layer.weights["window"], np.float32)
    factors = twiddles()

    def log_mel(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        mel_energies(inputs[0], window, factors, first, weights, floor, outputs[0])
        np.log(outputs[0], out=outputs[0])

    return log_mel
