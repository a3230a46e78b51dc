"""Convolution 3x3 or 1x1, stride 1 or 2, with TF32 products on tensor cores: cp.async, ldmatrix and mma.sync.

For every GPU from compute capability 8.0 on. NHWC activations are float32, rounded to TF32 on the way to the tensor
cores, or float16, which TF32 holds exactly; weights are float32 rounded to TF32; sums are float32; bias, residual and
ReLU are fused.

A block computes tile_rows x tile_columns pixels by tile_n channels, as in `conv_mma`: the halo tile of tile_k channels
comes to shared memory once and serves all nine taps, packed weights stream through three buffers, one tap and channel
part each. Four bytes of float32 stand where `conv_mma` has two halves, so ldmatrix gives the fragments of m16n8k8; of
float16 activations a lane gets two adjacent channels at a time, so the weights' channels are reordered to match. With
stride 2 the even columns of a row lie before the odd ones, which keeps ldmatrix free of bank conflicts.
"""

from __future__ import annotations

import numpy as np

from .conv_pack import swizzle_rows
from .ptx import (
    SIMULATOR,
    cp_async16,
    cp_async_commit,
    cp_async_wait0,
    cp_async_wait1,
    ctaid_x_again,
    ctaid_y_again,
    ctaid_z_again,
    cuda,
    float32,
    float32_item,
    int32,
    make_fill_bias4,
    make_finish4,
    make_kstep_tf32,
    make_residual4,
    opaque32,
    tid_x_again,
    udiv32,
    umod32,
)
from .spec import Conv, Kernel
from .unroll import static_range, unroll

LARGEST = 3.0e38
"""A magnitude of this size, or NaN, raises the flag of a float32 output."""
LARGEST_HALF = 65520.0
"""The smallest magnitude that float16 rounds to infinity."""


def round_tf32(values: np.ndarray) -> np.ndarray:
    """Float32 values rounded to the 10 mantissa bits of TF32, ties away from zero, as cvt.rna does."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def pack_tf32(weight: np.ndarray, tile_n: int, tile_k: int, half: bool) -> np.ndarray:
    """Weights as the TF32 kernel streams them, one (channel part, tap, channel group) after the other.

    Parameters
    ----------
    weight : (C_out, C_in, kernel rows, kernel columns) float32
    tile_n : output channels a tile, a multiple of 16
    tile_k : input channels a part, 16 or 32
    half : whether activations are float16, of which a lane gets channels 2t and 2t + 1 as k = t and t + 4

    Returns
    -------
    flat float32 [C_in / tile_k][taps][C_out / tile_n][tile_n][tile_k] in TF32; rows of 16 are ordered so that columns
    2q, 2q + 1 of two blocks of eight are four adjacent channels; 16-byte units are swizzled
    """
    c_out, c_in, rows, columns = weight.shape
    row = np.arange(c_out)
    order = row // 16 * 16 + row % 8 // 2 * 4 + row % 16 // 8 * 2 + row % 2
    place = np.arange(c_in)
    channel = place // 8 * 8 + place % 4 * 2 + place % 8 // 4 if half else place
    packed = round_tf32(weight[order][:, channel]).transpose(2, 3, 0, 1)
    packed = packed.reshape(rows * columns, c_out // tile_n, tile_n, c_in // tile_k, tile_k // 4, 4)
    return swizzle_rows(np.ascontiguousarray(packed.transpose(3, 0, 1, 2, 4, 5))).reshape(-1)


def tf32_tile(c_in: int, c_out: int, stride: int, kernel_size: int, half: bool) -> dict[str, int]:
    """Default tile parameters of the TF32 kernel: the fastest on an H200 of those within 99 KB of shared memory."""
    tile = {"tile_rows": 4, "tile_columns": 32, "tile_n": min(64, c_out), "tile_k": 32 if half else 16}
    tile |= {"warps_m": 2, "warps_n": 1, "min_blocks": 3}
    if kernel_size == 1:
        tile |= {"tile_k": min(32, c_in), "warps_m": 4, "min_blocks": 2}
        return tile | ({"tile_rows": 2, "tile_columns": 64} if c_out == 256 else {})
    if c_out == 32:
        return tile | {"tile_k": min(32, c_in), "warps_m": 4}
    square = {"tile_n": 128, "warps_n": 2, "min_blocks": 2}
    if stride == 2:
        if c_out >= 128:
            return tile | square | {"tile_rows": 2}
        return tile | ({"warps_m": 4, "min_blocks": 2} if half else {"tile_columns": 16})
    if c_out == 256:
        return tile | square | {"tile_rows": 2, "tile_columns": 64}
    if half:
        return tile | {"tile_columns": 64, "warps_m": 4, "min_blocks": 2}
    return tile | square if c_out == 128 else tile


def make_conv_tf32(
    c_in: int, c_out: int, stride: int, residual: bool, relu: bool, half: bool, kernel_size: int, **given: int
) -> Conv:
    """The TF32 form of `conv_f32.make_conv_f32`; a warp computes pixels / warps_m by tile_n / warps_n."""
    tile = tf32_tile(c_in, c_out, stride, kernel_size, half) | given
    TH, TW, BN, BK = (tile.pop(key) for key in ("tile_rows", "tile_columns", "tile_n", "tile_k"))
    WM, WN, min_blocks = (tile.pop(key) for key in ("warps_m", "warps_n", "min_blocks"))
    assert not tile
    CI, CO, ST, KS = c_in, c_out, stride, kernel_size
    TAPS = KS * KS
    # A 1x1 convolution brings in only the pixels that it needs: its stride is taken on the way to shared memory.
    SS, GS, PAD = (ST, 1, 1) if KS == 3 else (1, ST, 0)
    BM = TH * TW
    NT = 32 * WM * WN
    MT, NTL = BM // WM // 16, BN // WN // 8
    MW, NW = MT * 16, NTL * 8
    ROWS, COLS = SS * (TH - 1) + KS, SS * (TW - 1) + KS
    EVEN = TW + 1
    PITCH = (COLS + 7) // 8 * 8
    NPX = ROWS * COLS
    # Words of 4 bytes: a pixel row, and the channels of a 16-byte unit.
    AW = BK // 2 if half else BK
    UC = 8 if half else 4
    CH = AW // 4
    LCH = CH.bit_length() - 1
    AIT = -(-NPX * CH // NT)
    PSTEP = NT // CH
    NKC = c_in // BK
    ASZ = ROWS * PITCH * AW
    NAB = 1 if NKC == 1 else 2
    BSZ = BN * BK
    BUN = BSZ // 4
    BIT = -(-BUN // NT)
    BOFF = NAB * ASZ
    # Steps whose weights are under way before the loop, and the buffers that they take.
    AHEAD = 2 if TAPS == 9 else 1
    # Taps over which the next halo tile is brought in; the last two must be complete when it is used.
    ATAPS = 6
    APT = -(-AIT // ATAPS)
    # ldmatrix steps of a part, and their distance in the weights.
    KK = AW // 8
    BKK = 16 if half else 8
    ASH, AMASK = (0, 7) if AW == 32 else (1, 3)
    BSH, BMASK = (0, 7) if BK == 32 else (1, 3)
    NB = c_out // BN
    XPW = max(TW // MW, 1)
    RPW = max(MW // TW, 1)
    NACC = MT * NTL * 4
    NGQ = NW // 16
    NVALUES = 4 * NGQ
    SMEM = (NAB * ASZ + (AHEAD + 1) * BSZ) * 4
    RES = int(residual)
    assert BM % (WM * 16) == 0
    assert BN % (WN * 16) == 0
    assert TW % 16 == 0
    assert TW % MW == 0 or MW % TW == 0
    assert c_out % BN == 0
    assert c_in % BK == 0
    assert BK in (16, 32)
    assert AW in (16, 32)
    a_offsets = [((m * 16 // TW) * SS * PITCH + (m * 16) % TW) * AW for m in range(MT)]
    kstep = make_kstep_tf32(a_offsets, [n * 16 * BK for n in range(NTL // 2)], half)
    quads = {
        j * 16: [[(m * NTL + 2 * j) * 4 + h * 2 + i for i in (0, 1, 4, 5)] for m in range(MT) for h in range(2)]
        for j in range(NGQ)
    }
    fill = make_fill_bias4(quads)
    residual4 = make_residual4(half)
    finish4 = make_finish4((0, 1, 4, 5), residual, relu, half, LARGEST_HALF if half else LARGEST)
    name = f"conv_tf32_{'half_' if half else ''}k{KS}_ci{CI}_co{CO}_st{ST}_{TH}x{TW}_n{BN}_k{BK}_w{WM}x{WN}"
    name += f"_b{min_blocks}" + ("_res" if residual else "") + ("_relu" if relu else "")

    @unroll(name=name)
    def conv(x, w, bias, res, y, flag, H, W, OH, OW):
        sm = cuda.shared.array(0, float32_item) if SIMULATOR else cuda.shared.array(0, float32_item, alignment=128)
        tid = int32(cuda.threadIdx.x)
        lane = int32(tid & 31)
        warp = int32(tid >> 5)
        wm = umod32(warp, WM)
        wn = udiv32(warp, WM)
        x0 = int32(cuda.blockIdx.x * (TW * ST) - PAD)
        y0 = int32(cuda.blockIdx.y * (TH * ST) - PAD)
        z = int32(cuda.blockIdx.z)
        imgrow = int32(udiv32(z, NB) * H)
        nb = umod32(z, NB)
        ach = int32(tid & (CH - 1))
        ap0 = int32(tid >> LCH)
        wsrc = int32(nb * BSZ + tid * 4)
        acc = cuda.local.array(NACC, float32)
        fill(acc, bias, int32(nb * BN + wn * NW + (lane & 3) * 4))
        for i in range(AIT):
            p = int32(ap0 + int32(i) * PSTEP)
            if p < NPX:
                py = udiv32(p, COLS)
                px = umod32(p, COLS)
                gy = int32(y0 + py * GS)
                gx = int32(x0 + px * GS)
                pix = int32(py * PITCH + (px if SS == 1 else (px >> 1) + (px & 1) * EVEN))
                sw = int32(ach ^ ((pix >> ASH) & AMASK))
                ok = (gy >= 0) & (gy < H) & (gx >= 0) & (gx < W)
                src = int32(((imgrow + gy) * W + gx) * CI + ach * UC)
                cp_async16(sm, pix * AW + sw * 4, x, src if ok else int32(0), int32(16) if ok else int32(0))
        for st in static_range(AHEAD):
            for i in range(BIT):
                if BUN % NT == 0 or tid + int32(i) * NT < BUN:
                    at = int32(BOFF + st * BSZ + (tid + int32(i) * NT) * 4)
                    cp_async16(sm, at, w, wsrc + st * (NB * BSZ) + int32(i) * (NT * 4), 16)
            cp_async_commit()
        pixb = int32(udiv32(wm, XPW) * (RPW * SS * PITCH) + umod32(wm, XPW) * MW + (lane & 15))
        hi = int32(lane >> 4)
        brow = int32(wn * NW + ((lane >> 4) << 3) + (lane & 7))
        ba = int32(BOFF + brow * BK + ((((lane >> 3) & 1) ^ ((lane >> BSH) & BMASK)) << 2))
        abuf = int32(0)
        bbuf = int32(0)
        for kc in range(NKC):
            for tap in static_range(TAPS):
                if TAPS == 9:
                    cp_async_wait1()
                else:
                    cp_async_wait0()
                cuda.syncthreads()
                # The thread number is read again, which keeps address arithmetic out of registers.
                if tap + AHEAD < TAPS or NKC > 1:  # noqa: SIM102
                    if tap + AHEAD < TAPS or kc + 1 < NKC:
                        t2 = tid_x_again()
                        n2 = umod32(ctaid_z_again(), NB)
                        for i in range(BIT):
                            if BUN % NT == 0 or t2 + int32(i) * NT < BUN:
                                if TAPS == 9:
                                    at = int32(BOFF + ((tap + AHEAD) % 3) * BSZ + (t2 + int32(i) * NT) * 4)
                                else:
                                    at = int32(BOFF + BSZ - bbuf + (t2 + int32(i) * NT) * 4)
                                part = int32((int32(kc) * TAPS + (tap + AHEAD)) * NB + n2)
                                cp_async16(sm, at, w, part * BSZ + t2 * 4 + int32(i) * (NT * 4), 16)
                if NKC > 1 and tap < ATAPS:  # noqa: SIM102
                    if kc + 1 < NKC:
                        nbuf = int32(ASZ - abuf)
                        t3 = tid_x_again()
                        x3 = int32(ctaid_x_again() * (TW * ST) - PAD)
                        y3 = int32(ctaid_y_again() * (TH * ST) - PAD)
                        g3 = int32(udiv32(ctaid_z_again(), NB) * H)
                        ach = int32(t3 & (CH - 1))
                        ap0 = int32(t3 >> LCH)
                        for i in range(tap * APT if TAPS == 9 else 0, min(AIT, tap * APT + APT) if TAPS == 9 else AIT):
                            p = int32(ap0 + int32(i) * PSTEP)
                            if p < NPX:
                                py = udiv32(p, COLS)
                                px = umod32(p, COLS)
                                gy = int32(y3 + py * GS)
                                gx = int32(x3 + px * GS)
                                pix = int32(py * PITCH + (px if SS == 1 else (px >> 1) + (px & 1) * EVEN))
                                sw = int32(ach ^ ((pix >> ASH) & AMASK))
                                ok = (gy >= 0) & (gy < H) & (gx >= 0) & (gx < W)
                                src = int32(((g3 + gy) * W + gx) * CI + (int32(kc) + 1) * BK + ach * UC)
                                size = int32(16) if ok else int32(0)
                                cp_async16(sm, nbuf + pix * AW + sw * 4, x, src if ok else int32(0), size)
                cp_async_commit()
                column = (tap % 3) if SS == 1 else (tap % 3 // 2 + tap % 3 % 2 * EVEN)
                ps = int32(opaque32(pixb) + column)
                a0 = int32(ps * AW + ((hi ^ ((ps >> ASH) & AMASK)) << 2) + abuf)
                b0 = int32(ba + (tap % 3) * BSZ + bbuf)
                for kk in static_range(KK):
                    kstep(acc, sm, (a0 ^ (kk * 8)) + (tap // 3) * PITCH * AW, b0 ^ (kk * BKK))
            if NKC > 1:
                abuf = int32(ASZ - abuf)
                if TAPS == 1:
                    bbuf = int32(BSZ - bbuf)
        # Epilogue: everything from special registers again, so that nothing stays live over the main loop.
        tid = tid_x_again()
        z = ctaid_z_again()
        nb = umod32(z, NB)
        orow = int32(udiv32(z, NB) * OH)
        lane = int32(tid & 31)
        warp = int32(tid >> 5)
        wm = umod32(warp, WM)
        wn = udiv32(warp, WM)
        oy0 = int32(ctaid_y_again() * TH + udiv32(wm, XPW) * RPW)
        ox0 = int32(ctaid_x_again() * TW + umod32(wm, XPW) * MW + (lane >> 2))
        ch = int32(nb * BN + wn * NW + (lane & 3) * 4)
        values = cuda.local.array(NVALUES, float32)
        bad = cuda.local.array(1, int32)
        bad[0] = int32(0)
        for m in static_range(MT):
            for h in static_range(2):
                oy = int32(oy0 + (m * 16) // TW)
                ox = int32(ox0 + (m * 16) % TW + h * 8)
                ok = int32(1) if (oy < OH) & (ox < OW) else int32(0)
                at = int32(((orow + oy) * OW + ox) * CO + ch)
                if RES == 1:
                    for j in static_range(NGQ):
                        residual4(values, j * 4, res, at, j * 16, ok)
                for j in static_range(NGQ):
                    finish4(acc, (m * NTL + j * 2) * 4 + h * 2, values, j * 4, y, at, j * 16, ok, bad)
        if bad[0] != 0:
            flag[0] = int32(1)

    arguments = "hffhhwiiii" if half else "fffffwiiii"
    kernel = Kernel(name, conv, arguments, NT, SMEM, min_blocks, (8, 0))
    return Conv(
        kernel,
        c_in,
        c_out,
        (TH, TW, BN),
        lambda weight: pack_tf32(weight, BN, BK, half),
        kernel_size=kernel_size,
        stride=stride,
        residual=residual,
        relu=relu,
        precision="tf32",
    )
