"""Convolution 3x3 or 1x1, stride 1 or 2, with float32 products, for every GPU from compute capability 7.5 on.

The kernels for layers that leave float16's range, and the twin that float16 kernels are compared with. NHWC
activations are float32, or float16 in a float16 trunk; weights and sums are float32; bias, residual and ReLU are fused.
`make_conv_f32` also gives the TF32 form, which is `conv_tf32`'s.

A block computes tile_rows x tile_columns pixels by tile_n channels, a thread `pixels` of a row by 8 channels. Parts of
tile_k input channels come to shared memory, the halo tile transposed to [channel][row][column]: a thread then reads ten
pixels once for the three taps of a filter row. With stride 2 the even columns of a row lie before the odd ones. Sums
run over parts, channels of a part and taps, in this order, whatever the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .conv_tf32 import LARGEST, LARGEST_HALF, make_conv_tf32
from .ptx import (
    SIMULATOR,
    cp_async16,
    cp_async_commit,
    cp_async_wait0,
    ctaid_x_again,
    ctaid_y_again,
    ctaid_z_again,
    cuda,
    fetch128,
    float32,
    float32_item,
    int32,
    make_copy128,
    make_fill_bias4,
    make_finish4,
    make_fma_tile,
    make_residual4,
    make_scatter,
    opaque32,
    tid_x_again,
    udiv32,
    umod32,
)
from .spec import Conv, Kernel
from .unroll import static_range, unroll


def pack_f32(weight: np.ndarray, tile_n: int, tile_k: int) -> np.ndarray:
    """(C_out, C_in, k, k) float32 weights as flat [C_in / tile_k][C_out / tile_n][tile_k][tap][tile_n]."""
    c_out, c_in, rows, columns = weight.shape
    packed = weight.astype(np.float32).reshape(c_out // tile_n, tile_n, c_in // tile_k, tile_k, rows * columns)
    return np.ascontiguousarray(packed.transpose(2, 0, 3, 4, 1)).reshape(-1)


def f32_tile(c_in: int, c_out: int, stride: int, kernel_size: int) -> dict[str, int]:
    """Default tile parameters of the float32 kernel: within the 64 KB of compute capability 7.5, fast on an H200.

    `inner` is the input channels a pass of the inner loop, `pixels` (8, 12 or 16) those of a thread. On an H200 two
    buffers (`stages` 2, `inner` 1, `min_blocks` 3) are up to 5 % faster with stride 1, more pixels slower.
    """
    tile = {"tile_rows": 4, "tile_columns": 32, "tile_n": 64, "tile_k": 8, "stages": 1, "inner": 2, "min_blocks": 4}
    tile |= {"pixels": 8}
    if c_out == 32:
        tile |= {"tile_rows": 8, "tile_n": 32}
    elif c_out == 256:
        tile |= {"tile_rows": 2, "tile_columns": 64}
    if kernel_size == 1:
        return tile | {"tile_k": 32}
    return tile | {"min_blocks": 3} if stride == 2 else tile


def make_conv_f32(
    c_in: int,
    c_out: int,
    stride: int = 1,
    tf32: bool = False,
    residual: bool = False,
    relu: bool = True,
    storage: str = "float",
    kernel_size: int = 3,
    **tile: int,
) -> Conv:
    """The convolution. Arguments: x, weights, bias, residual, y, flag, input height and width, then the output's.

    `storage` is that of x, residual and y: "float", or "half" (float16, one rounding at the store, the flag raised
    where it overflows). `tile` overrides parts of `f32_tile` or `tf32_tile`. With `stages` 2 the next part arrives
    while one is used, which needs compute capability 8.0.
    """
    assert storage in ("float", "half")
    assert kernel_size in (1, 3)
    make: Any = make_conv_tf32 if tf32 else _make_conv_fma
    return make(c_in, c_out, stride, residual, relu, storage == "half", kernel_size, **tile)


def _make_conv_fma(
    c_in: int, c_out: int, stride: int, residual: bool, relu: bool, half: bool, kernel_size: int, **given: int
) -> Conv:
    tile = f32_tile(c_in, c_out, stride, kernel_size) | given
    TH, TW, BN, KC = (tile.pop(key) for key in ("tile_rows", "tile_columns", "tile_n", "tile_k"))
    STAGES, KU, PX, min_blocks = (tile.pop(key) for key in ("stages", "inner", "pixels", "min_blocks"))
    assert not tile
    CI, CO, ST, KS = c_in, c_out, stride, kernel_size
    # A 1x1 convolution brings in only the pixels that it needs: its stride is taken on the way to shared memory.
    SS, GS, PAD = (ST, 1, 1) if KS == 3 else (1, ST, 0)
    ROWS, COLS = SS * (TH - 1) + KS, SS * (TW - 1) + KS
    XO = TW + 4
    XP = TW if KS == 1 else TW + 4 if SS == 1 else XO + TW
    # Channels 4 banks apart (mod 8): the transposed writes of 32 lanes then fall into different banks.
    KP = ROWS * XP + (4 if ROWS * XP % 8 == 0 else 0)
    CG, TG = BN // 8, TW // PX
    NACC = 8 * PX
    NT = TH * TG * CG
    NB, NKC = c_out // BN, c_in // KC
    UC = 8 if half else 4
    U = KC // UC
    NPX = ROWS * COLS
    AIT = -(-NPX * U // NT)
    BATCH = AIT if STAGES == 2 else min(AIT, 5)
    NWORDS = 4 * BATCH
    BSZ = KS * KS * KC * BN
    BIT = -(-BSZ // (4 * NT))
    BCOPY = -(-BIT // -(-BIT // 6))
    ASZ = KC * KP
    NSTEPS = KC // KU
    ASTEP, BSTEP = KU * KP, KU * KS * KS * BN
    SMEM = (ASZ + BSZ) * 4 * STAGES
    SIZE = ASZ + BSZ
    RES = int(residual)
    H4 = BN // 2
    assert c_in % KC == 0
    assert c_out % BN == 0
    assert BN % 16 == 0
    assert PX in (8, 12, 16)
    assert TW % PX == 0
    assert KC % UC == 0
    assert KC % KU == 0
    assert ASZ % 4 == 0
    tile_rows = [r * XP for r in range(KS)]
    tile_columns = [0] if KS == 1 else [0, 1, 2] if SS == 1 else [0, XO, 1]
    fma = make_fma_tile(tile_rows, tile_columns, KP, H4, KU, PX)
    fill = make_fill_bias4({h * H4: [[p * 8 + h * 4 + i for i in range(4)] for p in range(PX)] for h in range(2)})
    scatter = make_scatter(half, KP)
    copy = make_copy128(BCOPY, 4 * NT)
    residual4 = make_residual4(half)
    finish4 = make_finish4((0, 1, 2, 3), residual, relu, half, LARGEST_HALF if half else LARGEST)
    name = f"conv_f32_{'half_' if half else ''}k{KS}_ci{CI}_co{CO}_st{ST}_{TH}x{TW}_n{BN}_k{KC}_s{STAGES}_u{KU}_p{PX}"
    name += f"_b{min_blocks}" + ("_res" if residual else "") + ("_relu" if relu else "")

    @unroll(name=name)
    def conv(x, w, bias, res, y, flag, H, W, OH, OW):
        sm = cuda.shared.array(0, float32_item) if SIMULATOR else cuda.shared.array(0, float32_item, alignment=16)
        tid = int32(cuda.threadIdx.x)
        x0 = int32(cuda.blockIdx.x * (TW * ST) - PAD)
        y0 = int32(cuda.blockIdx.y * (TH * ST) - PAD)
        z = int32(cuda.blockIdx.z)
        imgrow = int32(udiv32(z, NB) * H)
        nb = umod32(z, NB)
        acc = cuda.local.array(NACC, float32)
        words = cuda.local.array(NWORDS, int32)
        cg = int32(umod32(tid, CG) * 4)
        pg = udiv32(tid, CG)
        fill(acc, bias, int32(nb * BN + cg))
        # This thread's first pixel in the tile and its channels in the weights.
        a0 = int32(udiv32(pg, TG) * (SS * XP) + umod32(pg, TG) * PX)
        b0 = int32(ASZ + cg)
        wsrc = int32(nb * BSZ + tid * 4)
        buf = int32(0)
        for kc in range(NKC + STAGES - 1):
            # One buffer: part kc is fetched, then used. Two: part kc is fetched while part kc - 1 is used.
            if STAGES == 1:
                cuda.syncthreads()
            else:
                cp_async_wait0()
                cuda.syncthreads()
            if STAGES == 1:
                for i in static_range(0, BIT, BCOPY):
                    at = int32(tid * 4 + i * (4 * NT))
                    copy(sm, ASZ + at, w, int32(kc) * (NB * BSZ) + wsrc + i * (4 * NT), BSZ - at)
            elif kc < NKC:
                for i in range(BIT):
                    at = int32(tid * 4 + int32(i) * (4 * NT))
                    if BSZ % (4 * NT) == 0 or at < BSZ:
                        source = int32(int32(kc) * (NB * BSZ) + wsrc + int32(i) * (4 * NT))
                        cp_async16(sm, buf + ASZ + at, w, source, 16)
                cp_async_commit()
            for first in static_range(0, AIT, BATCH):
                if STAGES == 1 or kc < NKC:
                    for i in static_range(first, min(AIT, first + BATCH)):
                        p = int32(tid + i * NT)
                        pix = udiv32(p, U)
                        gy = int32(y0 + udiv32(pix, COLS) * GS)
                        gx = int32(x0 + umod32(pix, COLS) * GS)
                        ok = (pix < NPX) & (gy >= 0) & (gy < H) & (gx >= 0) & (gx < W)
                        source = int32(((imgrow + gy) * W + gx) * CI + int32(kc) * KC + umod32(p, U) * UC)
                        fetch128(words, (i - first) * 4, x, source, int32(1) if ok else int32(0))
                if STAGES == 2:  # noqa: SIM102
                    if kc > 0:
                        k = int32(0)
                        last = opaque32(int32(NSTEPS))
                        a = int32(SIZE - buf + a0)
                        b = int32(SIZE - buf + b0)
                        while k < last:
                            fma(acc, sm, a, b)
                            a = int32(a + ASTEP)
                            b = int32(b + BSTEP)
                            k = int32(k + 1)
                if STAGES == 1 or kc < NKC:
                    for i in static_range(first, min(AIT, first + BATCH)):
                        p = int32(tid + i * NT)
                        pix = udiv32(p, U)
                        if pix < NPX:
                            px = umod32(pix, COLS)
                            column = px if SS == 1 else int32((px >> 1) + (px & 1) * XO)
                            at = int32(umod32(p, U) * (UC * KP) + udiv32(pix, COLS) * XP + column)
                            scatter(words, (i - first) * 4, sm, buf + at)
            if STAGES == 1:
                cuda.syncthreads()
                k = int32(0)
                last = opaque32(int32(NSTEPS))
                a = int32(a0)
                b = int32(b0)
                while k < last:
                    fma(acc, sm, a, b)
                    a = int32(a + ASTEP)
                    b = int32(b + BSTEP)
                    k = int32(k + 1)
            else:
                buf = int32(SIZE - buf)
        # Epilogue: places from special registers again, so that nothing stays live over the main loop.
        tid = tid_x_again()
        z = ctaid_z_again()
        pg = udiv32(tid, CG)
        oy = int32(ctaid_y_again() * TH + udiv32(pg, TG))
        ox = int32(ctaid_x_again() * TW + umod32(pg, TG) * PX)
        at = int32(((udiv32(z, NB) * OH + oy) * OW + ox) * CO + umod32(z, NB) * BN + umod32(tid, CG) * 4)
        values = cuda.local.array(16, float32)
        bad = cuda.local.array(1, int32)
        bad[0] = int32(0)
        for p in static_range(0, PX, 2):
            if RES == 1:
                for i in static_range(2):
                    ok = int32(1) if (oy < OH) & (ox + (p + i) < OW) else int32(0)
                    residual4(values, i * 8, res, at + (p + i) * CO, 0, ok)
                    residual4(values, i * 8 + 4, res, at + (p + i) * CO, H4, ok)
            for i in static_range(2):
                ok = int32(1) if (oy < OH) & (ox + (p + i) < OW) else int32(0)
                finish4(acc, (p + i) * 8, values, i * 8, y, at + (p + i) * CO, 0, ok, bad)
                finish4(acc, (p + i) * 8 + 4, values, i * 8 + 4, y, at + (p + i) * CO, H4, ok, bad)
        if bad[0] != 0:
            flag[0] = int32(1)

    arguments = "hffhhwiiii" if half else "fffffwiiii"
    capability = (7, 5) if STAGES == 1 else (8, 0)
    kernel = Kernel(name, conv, arguments, NT, SMEM, min_blocks, capability)
    return Conv(
        kernel,
        c_in,
        c_out,
        (TH, TW, BN),
        lambda weight: pack_f32(weight, BN, KC),
        kernel_size=kernel_size,
        stride=stride,
        residual=residual,
        relu=relu,
        precision="fp32",
    )
