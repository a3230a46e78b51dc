"""Log-mel energies of overlapping frames, a warp a frame, and their means over windows.

Frames of 400 samples every 160: mean subtracted, pre-emphasis 0.97, analysis window, 512-point real Fourier transform
as a packed 256-point complex one (four radix-4 passes in Stockham's self-sorting order), power, mel filters, logarithm.
A frame's values do not depend on what surrounds it.

References
----------
Povey et al. 2011, The Kaldi speech recognition toolkit (feat/feature-fbank); Stockham 1966 for the passes.
"""

from __future__ import annotations

import math

import numpy as np

from .ptx import cuda, float32, int32, int64, warp_sync
from .spec import Kernel
from .unroll import static_range, unroll

FRAME_LENGTH = 400
FRAME_STEP = 160
BINS = 256
MELS = 80
FRAME_TILE = 8
"""Frames a block."""


def pack_twiddles() -> np.ndarray:
    """exp(-2 pi i k / 512) for k = 0 .. 511, cosine and sine alternating, float32."""
    angle = -2.0 * np.pi * np.arange(2 * BINS) / (2 * BINS)
    return np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32).reshape(-1)


def pack_mel(mel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Filters (80, 256) as the first bin of each, int32 (80,), and weights float32 [widest][80] from there on."""
    filled = mel > 0.0
    first = filled.argmax(1)
    widest = int((BINS - filled[:, ::-1].argmax(1) - first).max())
    padded = np.pad(mel, ((0, 0), (0, widest)))
    rows = np.stack([row[start : start + widest] for row, start in zip(padded, first, strict=True)])
    return first.astype(np.int32), np.ascontiguousarray(rows.T, np.float32).reshape(-1)


def make_fbank() -> Kernel:
    """Arguments: samples, analysis window (400), twiddles, first bins (80), mel weights, out (frames, 80), frames,
    widest filter, floor. Grid (frames / 8), 256 threads.

    Shared memory: two buffers of 264 complex numbers a warp; element i lies at i + i / 32, which spreads the passes
    over the banks.
    """
    PITCH = 264
    BUFFER = 2 * PITCH
    NSHARED = 8 * 2 * BUFFER
    NPOWER = 8 * 320
    name = "fbank_512"

    @unroll(name=name)
    def fbank(x, window, factors, first_bin, mel, out, frames, widest, floor):
        sm = cuda.shared.array(NSHARED, float32)
        power = cuda.shared.array(NPOWER, float32)
        tid = int32(cuda.threadIdx.x)
        lane = int32(tid & 31)
        warp = int32(tid >> 5)
        frame = int32(cuda.blockIdx.x * 8 + warp)
        # Warps behind the last frame repeat it, so that all reach the same synchronisations.
        source = int32(min(frame, int32(frames - 1)) * 160)
        a = int32(warp * (2 * BUFFER))
        b = int32(a + BUFFER)
        p = int32(warp * 320)
        total = float32(0.0)
        for i in static_range(13):
            n = int32(lane + i * 32)
            value = float32(0.0)
            if n < 400:
                value = x[source + n]
            total += value
            sm[a + n] = value
        power[p + lane] = total
        warp_sync()
        mean = float32(0.0)
        for i in range(32):
            mean += power[p + int32(i)]
        mean *= float32(1.0 / 400.0)
        re = cuda.local.array(8, float32)
        im = cuda.local.array(8, float32)
        for i in static_range(8):
            k = int32(lane + i * 32)
            re[i] = float32(0.0)
            im[i] = float32(0.0)
            if k < 200:
                even = sm[a + 2 * k] - mean
                odd = sm[a + 2 * k + 1] - mean
                before = sm[a + max(2 * k - 1, 0)] - mean
                re[i] = (even - float32(0.97) * before) * window[2 * k]
                im[i] = (odd - float32(0.97) * even) * window[2 * k + 1]
        warp_sync()
        for level in static_range(4):
            stride = 1 << (2 * level)
            for half in static_range(2):
                index = int32(lane + half * 32)
                step = int32(index >> (2 * level))
                q = int32(index & (stride - 1))
                if level > 0:
                    for i in static_range(4):
                        at = int32((a if level % 2 == 1 else b) + index + i * 64 + ((index + i * 64) >> 5))
                        re[half + 2 * i] = sm[at]
                        im[half + 2 * i] = sm[at + PITCH]
                s_re = re[half] + re[half + 4]
                s_im = im[half] + im[half + 4]
                d_re = re[half] - re[half + 4]
                d_im = im[half] - im[half + 4]
                t_re = re[half + 2] + re[half + 6]
                t_im = im[half + 2] + im[half + 6]
                e_re = re[half + 2] - re[half + 6]
                e_im = im[half + 2] - im[half + 6]
                re[half] = s_re + t_re
                im[half] = s_im + t_im
                re[half + 2] = d_re + e_im
                im[half + 2] = d_im - e_re
                re[half + 4] = s_re - t_re
                im[half + 4] = s_im - t_im
                re[half + 6] = d_re - e_im
                im[half + 6] = d_im + e_re
                for i in static_range(4):
                    real = re[half + 2 * i]
                    imag = im[half + 2 * i]
                    if i > 0 and level < 3:
                        turn = int32(step * (4 * stride * i))
                        cosine = factors[turn]
                        sine = factors[turn + 1]
                        turned = real * cosine - imag * sine
                        imag = imag * cosine + real * sine
                        real = turned
                    to = int32(q + step * (4 * stride) + i * stride)
                    at = int32((b if level % 2 == 1 else a) + to + (to >> 5))
                    sm[at] = real
                    sm[at + PITCH] = imag
            warp_sync()
        # X_k = (Z_k + conj Z_h) / 2 - i w^k (Z_k - conj Z_h) / 2, h = 256 - k.
        for i in static_range(8):
            k = int32(lane + i * 32)
            h = int32((256 - k) & 255)
            low = int32(b + k + (k >> 5))
            high = int32(b + h + (h >> 5))
            even_re = sm[low] + sm[high]
            even_im = sm[low + PITCH] - sm[high + PITCH]
            odd_re = sm[low + PITCH] + sm[high + PITCH]
            odd_im = sm[high] - sm[low]
            cosine = factors[2 * k]
            sine = factors[2 * k + 1]
            real = even_re + (odd_re * cosine - odd_im * sine)
            imag = even_im + (odd_im * cosine + odd_re * sine)
            power[p + k] = (real * real + imag * imag) * float32(0.25)
        # Filters are padded with zero weights beyond the last bin.
        for i in static_range(2):
            power[p + 256 + lane + i * 32] = float32(0.0)
        warp_sync()
        for i in static_range(3):
            band = int32(lane + i * 32)
            if (band < 80) & (frame < frames):
                start = int32(p + first_bin[band])
                total = float32(0.0)
                for j in range(widest):
                    total += power[start + int32(j)] * mel[int32(j) * 80 + band]
                out[int64(frame) * 80 + band] = math.log(max(total, floor))

    return Kernel(name, fbank, "fffwffiis", 256, 0, 2)


def make_window_mean() -> Kernel:
    """Mean of each mel bin over each window's frames. Grid (windows), 640 threads: 80 bins by eight parts.

    Arguments: features (frames, 80), mean (windows, 80), frames between windows, frames of a window.
    """
    name = "window_mean"

    @unroll(name=name)
    def window_mean(x, mean, step, count):
        sums = cuda.shared.array(640, float32)
        tid = int32(cuda.threadIdx.x)
        window = int32(cuda.blockIdx.x)
        part = int32(tid // 80)
        band = int32(tid - part * 80)
        total = float32(0.0)
        frame = part
        while frame < count:
            total += x[int64(window * step + frame) * 80 + band]
            frame = int32(frame + 8)
        sums[tid] = total
        cuda.syncthreads()
        if tid < 80:
            total = float32(0.0)
            for i in static_range(8):
                total += sums[i * 80 + tid]
            mean[window * 80 + tid] = total / float32(count)

    return Kernel(name, window_mean, "ffii", 640, 0, 1)
