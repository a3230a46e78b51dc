"""3x3 convolution, stride 1 or 2, with float32 activations: plain float32, or TF32 products on tensor cores.

The fallback for layers and batches that leave float16's range, and the twin that float16 kernels are compared with on
a GPU. NHWC float32, fused bias, residual and ReLU. A block computes 4 x 16 output pixels by 64 (or 32) channels, 16
input channels at a time: halo tile and weights of all nine taps come to shared memory, at most 64 KB, which every GPU
from 7.5 on has.

Pixels lie 20 floats apart and weight rows tile_n + 8, so that neither operand's fragments collide in the memory banks.
"""

from __future__ import annotations

import numpy as np

from .ptx import (
    SIMULATOR,
    cuda,
    cvt_tf32,
    f32_bits,
    float32,
    float32_item,
    int32,
    ldg128f,
    lds128f,
    mma_tf32_1688,
    sts128,
    udiv32,
    umod32,
)
from .spec import Conv, Kernel
from .unroll import static_range, unroll

LARGEST = 3.0e38
"""A larger magnitude, or NaN, raises the flag."""


def pack_f32(weight: np.ndarray) -> np.ndarray:
    """(C_out, C_in, 3, 3) float32 weights as flat [C_in / 16][tap][16][C_out]."""
    c_out, c_in = weight.shape[:2]
    packed = weight.astype(np.float32).transpose(2, 3, 1, 0).reshape(9, c_in // 16, 16, c_out).transpose(1, 0, 2, 3)
    return np.ascontiguousarray(packed).reshape(-1)


def make_conv_f32(
    c_in: int, c_out: int, stride: int = 1, tf32: bool = False, residual: bool = False, relu: bool = True
) -> Conv:
    """The convolution. Arguments: x, weights, bias, residual, y, flag, input height and width, then the output's."""
    BN = min(64, c_out)
    CI, CO = c_in, c_out
    ST = stride
    NB = c_out // BN
    GROUPS = BN // 4
    NT = 16 * GROUPS
    ROWS = 3 * stride + 3
    COLS = 15 * stride + 3
    NPX = ROWS * COLS
    AIT = -(-NPX * 4 // NT)
    BP = BN + 8
    BOFF = NPX * 20
    BIT = 9 * 16 * BN // 4 // NT
    NKC = c_in // 16
    SMEM = (BOFF + 9 * 16 * BP) * 4
    TF32 = int(tf32)
    RES = int(residual)
    RELU = int(relu)
    BIG = LARGEST
    assert c_in % 16 == 0
    assert c_out % 32 == 0
    name = f"conv_{'tf32' if tf32 else 'f32'}_ci{c_in}_co{c_out}_st{stride}"
    name += ("_res" if residual else "") + ("_relu" if relu else "")

    @unroll(name=name)
    def conv(x, w, bias, res, y, flag, H, W, OH, OW):
        sm = cuda.shared.array(0, float32_item) if SIMULATOR else cuda.shared.array(0, float32_item, alignment=16)
        tid = int32(cuda.threadIdx.x)
        x0 = int32(cuda.blockIdx.x * (16 * ST) - 1)
        y0 = int32(cuda.blockIdx.y * (4 * ST) - 1)
        z = int32(cuda.blockIdx.z)
        img = udiv32(z, NB)
        n0 = int32(umod32(z, NB) * BN)
        acc = cuda.local.array(16, float32)
        for i in range(16):
            acc[i] = float32(0.0)
        lane = int32(tid & 31)
        g = int32(lane >> 2)
        q = int32(lane & 3)
        # TF32: this warp's row of 16 pixels and its 32 channels. Float32: this thread's 4 pixels and 4 channels.
        wm = int32((tid >> 5) & 3)
        wn = int32((tid >> 7) * 32)
        pg = udiv32(tid, GROUPS)
        cg = int32(umod32(tid, GROUPS) * 4)
        for kc in range(NKC):
            cuda.syncthreads()
            for i in range(AIT):
                p = int32(tid + int32(i) * NT)
                pix = int32(p >> 2)
                if pix < NPX:
                    gy = int32(y0 + udiv32(pix, COLS))
                    gx = int32(x0 + umod32(pix, COLS))
                    a0, a1, a2, a3 = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
                    if (gy >= 0) & (gy < H) & (gx >= 0) & (gx < W):
                        a0, a1, a2, a3 = ldg128f(x, ((img * H + gy) * W + gx) * CI + int32(kc) * 16 + (p & 3) * 4)
                    at = int32(pix * 20 + (p & 3) * 4)
                    if TF32 == 1:
                        sts128(sm, at, cvt_tf32(a0), cvt_tf32(a1), cvt_tf32(a2), cvt_tf32(a3))
                    else:
                        sts128(sm, at, f32_bits(a0), f32_bits(a1), f32_bits(a2), f32_bits(a3))
            for i in range(BIT):
                p = int32(tid + int32(i) * NT)
                row = udiv32(p, GROUPS)
                column = int32(umod32(p, GROUPS) * 4)
                a0, a1, a2, a3 = ldg128f(w, (int32(kc) * 144 + row) * CO + n0 + column)
                at = int32(BOFF + row * BP + column)
                if TF32 == 1:
                    sts128(sm, at, cvt_tf32(a0), cvt_tf32(a1), cvt_tf32(a2), cvt_tf32(a3))
                else:
                    sts128(sm, at, f32_bits(a0), f32_bits(a1), f32_bits(a2), f32_bits(a3))
            cuda.syncthreads()
            for tap in range(9):
                ty = udiv32(int32(tap), 3)
                tx = umod32(int32(tap), 3)
                if TF32 == 1:
                    for k8 in static_range(2):
                        base = int32(((wm * ST + ty) * COLS + g * ST + tx) * 20 + k8 * 8 + q)
                        v0 = f32_bits(sm[base])
                        v1 = f32_bits(sm[base + 8 * ST * 20])
                        v2 = f32_bits(sm[base + 4])
                        v3 = f32_bits(sm[base + 8 * ST * 20 + 4])
                        for n in static_range(4):
                            at = int32(BOFF + (int32(tap) * 16 + k8 * 8 + q) * BP + wn + n * 8 + g)
                            b0 = f32_bits(sm[at])
                            b1 = f32_bits(sm[at + 4 * BP])
                            k = n * 4
                            acc[k], acc[k + 1], acc[k + 2], acc[k + 3] = mma_tf32_1688(
                                v0, v1, v2, v3, b0, b1, acc[k], acc[k + 1], acc[k + 2], acc[k + 3]
                            )
                else:
                    base = int32((((pg >> 2) * ST + ty) * COLS + (pg & 3) * 4 * ST + tx) * 20)
                    for k in range(16):
                        b0, b1, b2, b3 = lds128f(sm, int32(BOFF + (int32(tap) * 16 + int32(k)) * BP + cg))
                        for p in static_range(4):
                            a0 = sm[base + p * ST * 20 + int32(k)]
                            acc[p * 4] += a0 * b0
                            acc[p * 4 + 1] += a0 * b1
                            acc[p * 4 + 2] += a0 * b2
                            acc[p * 4 + 3] += a0 * b3
        for i in static_range(16):
            if TF32 == 1:
                oy = int32(cuda.blockIdx.y * 4 + wm)
                ox = int32(cuda.blockIdx.x * 16 + g + ((i >> 1) & 1) * 8)
                channel = int32(n0 + wn + (i >> 2) * 8 + q * 2 + (i & 1))
            else:
                oy = int32(cuda.blockIdx.y * 4 + (pg >> 2))
                ox = int32(cuda.blockIdx.x * 16 + (pg & 3) * 4 + (i >> 2))
                channel = int32(n0 + cg + (i & 3))
            if (oy < OH) & (ox < OW):
                at = int32(((img * OH + oy) * OW + ox) * CO + channel)
                value = acc[i] + bias[channel]
                if RES == 1:
                    value = value + res[at]
                if not (abs(value) <= float32(BIG)):
                    flag[0] = int32(1)
                if RELU == 1:
                    value = max(value, float32(0.0))
                y[at] = value

    kernel = Kernel(name, conv, "fffffwiiii", NT, SMEM, 1, (8, 0) if tf32 else (7, 5))
    return Conv(
        kernel,
        c_in,
        c_out,
        (4, 16, BN),
        pack_f32,
        stride=stride,
        residual=residual,
        relu=relu,
        precision="tf32" if tf32 else "fp32",
    )
