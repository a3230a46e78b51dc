"""3x3 convolution, stride 1 or 2, for every GPU from compute capability 7.5 on: cp.async, ldmatrix and mma.sync.

NHWC float16, float32 sums, fused bias, residual and ReLU. A block computes tile_rows x tile_columns output pixels by
tile_n channels. The input halo tile of tile_k channels comes to shared memory once and serves all nine taps: a tap
only shifts the ldmatrix row addresses. Packed weights stream through three buffers, one tap and channel part each.

Shared memory: pixel rows of tile_k halves, 16-byte units swizzled by the pixel number; the row pitch is a multiple of
8 pixels, so that a shift by rows keeps the swizzle. There are tiles for the 99 KB of compute capability 8.6 and for
the 64 KB of 7.5.
"""

from __future__ import annotations

from .conv_pack import pack_taps
from .ptx import (
    SIMULATOR,
    cp_async16,
    cp_async_commit,
    cp_async_wait1,
    ctaid_x_again,
    ctaid_y_again,
    ctaid_z_again,
    cuda,
    float16,
    float32,
    int32,
    make_fill_bias,
    make_finish8,
    make_kstep,
    opaque32,
    raise_flag,
    residual_load,
    tid_x_again,
    udiv32,
    umod32,
)
from .spec import Conv, Kernel, lowest_capability
from .unroll import static_range, unroll


def make_conv_mma(
    c_in: int,
    c_out: int,
    stride: int = 1,
    tile_rows: int = 4,
    tile_columns: int = 32,
    tile_n: int = 64,
    tile_k: int = 64,
    warps_m: int = 4,
    warps_n: int = 1,
    residual: bool = False,
    relu: bool = True,
    min_blocks: int = 1,
) -> Conv:
    """The portable convolution; a warp computes pixels / warps_m by tile_n / warps_n.

    Arguments: x, weights, bias, residual, y, flag, input height and width, output height and width.
    """
    TH, TW, BN, BK = tile_rows, tile_columns, tile_n, tile_k
    WM, WN = warps_m, warps_n
    ST = stride
    CI, CO = c_in, c_out
    BM = TH * TW
    NT = 32 * WM * WN
    MT, NTL = BM // WM // 16, BN // WN // 8
    MW, NW = MT * 16, NTL * 8
    assert BM % (WM * 16) == 0
    assert BN % (WN * 32) == 0
    assert TW % 16 == 0
    assert c_out % BN == 0
    assert c_in % BK == 0
    assert TW % MW == 0 or MW % TW == 0
    CH = BK // 8
    LCH = CH.bit_length() - 1
    ROWS = ST * (TH - 1) + 3
    COLS = ST * (TW - 1) + 3
    PITCH = (COLS + 7) // 8 * 8
    NPX = ROWS * COLS
    AIT = -(-NPX * CH // NT)
    PSTEP = NT // CH
    NKC = c_in // BK
    ASZ = ROWS * PITCH * BK
    NAB = 1 if NKC == 1 else 2
    BSZ = BN * BK
    BCH = BSZ // 8
    BIT = -(-BCH // NT)
    BOFF = NAB * ASZ
    # Taps over which the next halo tile is brought in; the last two must be complete when it is used.
    ATAPS = 6
    APT = -(-AIT // ATAPS)
    KK = BK // 16
    SSH, SMASK = (0, 7) if BK == 64 else (1, 3)
    NB = c_out // BN
    XPW = max(TW // MW, 1)
    RPW = max(MW // TW, 1)
    NACC = MT * NTL * 4
    NGQ = NW // 32
    SMEM = (NAB * ASZ + 3 * BSZ) * 2
    RES = int(residual)
    a_offsets = [((m * 16 // TW) * ST * PITCH + (m * 16) % TW * ST) * BK for m in range(MT)]
    kstep = make_kstep(a_offsets, [n * 16 * BK for n in range(NTL // 2)])
    fill_bias = make_fill_bias(MT, NW)
    finish8 = make_finish8(residual, relu, guarded=True)
    name = f"conv_mma_ci{c_in}_co{c_out}_st{stride}_{TH}x{TW}_n{BN}_k{BK}_w{WM}x{WN}_b{min_blocks}"
    name += ("_res" if residual else "") + ("_relu" if relu else "")

    @unroll(name=name)
    def conv(x, w, bias, res, y, flag, H, W, OH, OW):
        sm = cuda.shared.array(0, float16) if SIMULATOR else cuda.shared.array(0, float16, alignment=128)
        tid = int32(cuda.threadIdx.x)
        lane = int32(tid & 31)
        warp = int32(tid >> 5)
        wm = umod32(warp, WM)
        wn = udiv32(warp, WM)
        x0 = int32(cuda.blockIdx.x * (TW * ST) - 1)
        y0 = int32(cuda.blockIdx.y * (TH * ST) - 1)
        z = int32(cuda.blockIdx.z)
        imgrow = int32(udiv32(z, NB) * H)
        nb = umod32(z, NB)
        ach = int32(tid & (CH - 1))
        ap0 = int32(tid >> LCH)
        wsrc = int32(nb * BSZ + tid * 8)
        acc = cuda.local.array(NACC, float32)
        fill_bias(acc, bias, int32(nb * BN + wn * NW + (lane & 3) * 8))
        for i in range(AIT):
            p = int32(ap0 + int32(i) * PSTEP)
            if p < NPX:
                py = udiv32(p, COLS)
                px = umod32(p, COLS)
                gy = int32(y0 + py)
                gx = int32(x0 + px)
                pix = int32(py * PITCH + px)
                sw = int32(ach ^ ((pix >> SSH) & SMASK))
                ok = (gy >= 0) & (gy < H) & (gx >= 0) & (gx < W)
                src = int32(((imgrow + gy) * W + gx) * CI + ach * 8)
                cp_async16(sm, pix * BK + sw * 8, x, src if ok else int32(0), int32(16) if ok else int32(0))
        for st in static_range(2):
            for i in range(BIT):
                if BCH % NT == 0 or tid + int32(i) * NT < BCH:
                    at = int32(BOFF + st * BSZ + (tid + int32(i) * NT) * 8)
                    cp_async16(sm, at, w, wsrc + st * (NB * BSZ) + int32(i) * (NT * 8), 16)
            cp_async_commit()
        pixb = int32(udiv32(wm, XPW) * (RPW * ST * PITCH) + (umod32(wm, XPW) * MW + (lane & 15)) * ST)
        hi = int32(lane >> 4)
        brow = int32(wn * NW + ((lane >> 4) << 3) + (lane & 7))
        ba = int32(BOFF + brow * BK + ((((lane >> 3) & 1) ^ ((lane >> SSH) & SMASK)) << 3))
        abuf = int32(0)
        for kc in range(NKC):
            for tap in static_range(9):
                cp_async_wait1()
                cuda.syncthreads()
                # Weights two taps ahead. The thread number is read again, which keeps address arithmetic out of
                # registers.
                if tap + 2 < 9 or NKC > 1:  # noqa: SIM102
                    if tap + 2 < 9 or kc + 1 < NKC:
                        t2 = tid_x_again()
                        n2 = umod32(ctaid_z_again(), NB)
                        for i in range(BIT):
                            if BCH % NT == 0 or t2 + int32(i) * NT < BCH:
                                at = int32(BOFF + ((tap + 2) % 3) * BSZ + (t2 + int32(i) * NT) * 8)
                                part = int32((int32(kc) * 9 + (tap + 2)) * NB + n2)
                                cp_async16(sm, at, w, part * BSZ + t2 * 8 + int32(i) * (NT * 8), 16)
                if NKC > 1 and tap < ATAPS:  # noqa: SIM102
                    if kc + 1 < NKC:
                        nbuf = int32(ASZ - abuf)
                        t3 = tid_x_again()
                        x3 = int32(ctaid_x_again() * (TW * ST) - 1)
                        y3 = int32(ctaid_y_again() * (TH * ST) - 1)
                        g3 = int32(udiv32(ctaid_z_again(), NB) * H)
                        ach = int32(t3 & (CH - 1))
                        ap0 = int32(t3 >> LCH)
                        for i in range(tap * APT, min(AIT, tap * APT + APT)):
                            p = int32(ap0 + int32(i) * PSTEP)
                            if p < NPX:
                                py = udiv32(p, COLS)
                                px = umod32(p, COLS)
                                gy = int32(y3 + py)
                                gx = int32(x3 + px)
                                pix = int32(py * PITCH + px)
                                sw = int32(ach ^ ((pix >> SSH) & SMASK))
                                ok = (gy >= 0) & (gy < H) & (gx >= 0) & (gx < W)
                                src = int32(((g3 + gy) * W + gx) * CI + (int32(kc) + 1) * BK + ach * 8)
                                size = int32(16) if ok else int32(0)
                                cp_async16(sm, nbuf + pix * BK + sw * 8, x, src if ok else int32(0), size)
                cp_async_commit()
                ps = int32(opaque32(pixb) + tap % 3)
                a0 = int32(ps * BK + ((hi ^ ((ps >> SSH) & SMASK)) << 3) + abuf)
                for kk in static_range(KK):
                    kstep(acc, sm, (a0 ^ (kk * 16)) + (tap // 3) * PITCH * BK, (ba ^ (kk * 16)) + (tap % 3) * BSZ)
            if NKC > 1:
                abuf = int32(ASZ - abuf)
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
        ch = int32(nb * BN + wn * NW + (lane & 3) * 8)
        words = cuda.local.array(4, int32)
        top = cuda.local.array(1, int32)
        words[0] = int32(0)
        top[0] = int32(0)
        for m in static_range(MT):
            for half in static_range(2):
                oy = int32(oy0 + (m * 16) // TW)
                ox = int32(ox0 + (m * 16) % TW + half * 8)
                ok = int32(1) if (oy < OH) & (ox < OW) else int32(0)
                at = int32(((orow + oy) * OW + ox) * CO + ch)
                for gq in static_range(NGQ):
                    if RES == 1:
                        residual_load(words, 0, res, at, gq * 32, ok)
                    finish8(acc, (m * NTL + gq * 4) * 4 + half * 2, words, 0, y, at, gq * 32, ok, top)
        raise_flag(top, flag)

    kernel = Kernel(name, conv, "hhfhhwiiii", NT, SMEM, min_blocks, lowest_capability(SMEM))
    return Conv(
        kernel,
        c_in,
        c_out,
        (TH, TW, BN),
        lambda weight: pack_taps(weight, BN, BK),
        stride=stride,
        residual=residual,
        relu=relu,
    )
