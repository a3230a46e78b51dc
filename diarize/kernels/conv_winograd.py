"""3x3 convolution, stride 1, by Winograd's method on tensor cores, for every GPU from compute capability 8.0 on.

NHWC float16, float32 sums, fused bias, residual and ReLU, all in one kernel: F(2x2,3x3), 2.25 times fewer products, or
F(2,3) along the columns, 1.5 times fewer. A block computes tile_rows x tile_columns outputs by tile_n channels. Parts
of tile_k input channels come to shared memory by cp.async, `stages` buffers of a halo tile and of its weights.

A warp reads the pixels of its tiles as fragments of A and transforms them in registers, where it also keeps the sums of
all positions: so inputs are transformed once a warp and sums are transformed back without an exchange. What limits this
is shared memory: for every 32 products of m16n8k16, F(2x2,3x3) reads 14 KB and F(2,3) 6 KB (the direct kernel: 6 KB).
The sums take 128 registers a thread, so eight warps fill a multiprocessor. On an H200 the direct kernels are faster.

Shared memory of a stage: [unit of 8 channels][even, odd columns][row][column / 2] cells of 16 bytes, so that tiles side
by side lie in cells side by side; then the weights in the lanes' order (`pack_winograd`). Both are read without bank
conflicts.

The flag also rises where a transformed input (up to four times the largest input) leaves float16's range.

References
----------
Lavin and Gray 2016, Fast algorithms for convolutional neural networks, sections 3 and 4.
"""

from __future__ import annotations

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
    float16,
    float32,
    int32,
    make_winograd_finish,
    make_winograd_step,
    raise_flag,
    tid_x_again,
    udiv32,
    umod32,
)
from .spec import Conv, Kernel
from .unroll import static_range, unroll
from .winograd_pack import WarpTile, pack_winograd


def make_conv_winograd(
    c_in: int,
    c_out: int,
    *,
    residual: bool = False,
    relu: bool = True,
    square: bool = True,
    octet_rows: int = 2,
    octet_columns: int = 1,
    warp_n: int = 16,
    warps_down: int = 1,
    warps_across: int = 4,
    warps_n: int = 2,
    tile_k: int = 16,
    stages: int = 3,
    min_blocks: int = 1,
) -> Conv:
    """The convolution. Arguments: x, weights, bias, residual, y, flag, input height and width, output height and width.

    `square` is F(2x2,3x3), else F(2,3). A warp computes octet_rows x octet_columns groups of eight tiles side by side
    (16 outputs wide, two rows or one high) by warp_n channels (16 or 32); a block has warps_down x warps_across x
    warps_n warps. tile_k is 16 or 32; stages 2 or 3.
    """
    tile = WarpTile(square, octet_rows, octet_columns, warp_n // 8)
    RU, CG = octet_rows, octet_columns
    RT = tile.tile_rows
    WD, WA, WN = warps_down, warps_across, warps_n
    NT = 32 * WD * WA * WN
    TH, TW, BN, BK = WD * RU * RT, WA * CG * 16, warps_n * warp_n, tile_k
    S = stages
    CI, CO = c_in, c_out
    assert warp_n in (16, 32)
    assert tile_k in (16, 32)
    assert stages in (2, 3)
    assert c_in % BK == 0
    assert c_out % BN == 0
    NB = c_out // BN
    NK = c_in // BK
    UNITS = BK // 8
    LUNITS = UNITS.bit_length() - 1
    ROWS, COLS = TH + 2, TW + 2
    NPX = ROWS * COLS
    # Cells of a row of even (or odd) columns, and of a plane: 2 modulo 8, so that copies meet few bank conflicts.
    PITCH = TW // 2 + 1
    PLANE = ROWS * PITCH + (2 - ROWS * PITCH) % 8
    ASZ = UNITS * 2 * PLANE * 8
    AIT = -(-NPX * UNITS // NT)
    N16 = BN // 16
    FSZ = tile.factors * N16 * 256
    BSZ = BK // 16 * FSZ
    BCH = BSZ // 8
    BIT = -(-BCH // NT)
    STAGE = ASZ + BSZ
    SMEM = S * STAGE * 2
    STEPS = BK // 16
    WNN = warp_n
    OWN = warp_n // 4
    NACC = tile.accumulators
    step = make_winograd_step(tile, PITCH * 8, N16)
    finish = make_winograd_finish(tile, c_out, residual, relu)
    form = "2x2" if square else "2"
    name = f"conv_winograd{form}_ci{c_in}_co{c_out}_o{RU}x{CG}_w{WD}x{WA}x{WN}_n{warp_n}_k{BK}_s{S}_b{min_blocks}"
    name += ("_res" if residual else "") + ("_relu" if relu else "")

    @unroll(name=name)
    def conv(x, w, bias, res, y, flag, H, W, OH, OW):
        sm = cuda.shared.array(0, float16) if SIMULATOR else cuda.shared.array(0, float16, alignment=128)
        tid = int32(cuda.threadIdx.x)
        lane = int32(tid & 31)
        warp = int32(tid >> 5)
        wm = udiv32(warp, WN)
        wn = umod32(warp, WN)
        x0 = int32(cuda.blockIdx.x * TW - 1)
        y0 = int32(cuda.blockIdx.y * TH - 1)
        z = int32(cuda.blockIdx.z)
        imgrow = int32(udiv32(z, NB) * H)
        nb = umod32(z, NB)
        # Where this thread's units of a halo tile come from (-1: outside the image) and go to.
        source = cuda.local.array(AIT, int32)
        target = cuda.local.array(AIT, int32)
        for i in static_range(AIT):
            p = int32(tid + i * NT)
            unit = int32(p & (UNITS - 1))
            pixel = int32(p >> LUNITS)
            py = udiv32(pixel, COLS)
            px = umod32(pixel, COLS)
            gy = int32(y0 + py)
            gx = int32(x0 + px)
            ok = (gy >= 0) & (gy < H) & (gx >= 0) & (gx < W)
            source[i] = int32(((imgrow + gy) * W + gx) * CI + unit * 8) if ok else int32(-1)
            cell = int32((unit * 2 + (px & 1)) * PLANE + py * PITCH + (px >> 1))
            target[i] = int32(cell * 8) if pixel < NPX else int32(-1)
        acc = cuda.local.array(NACC, float32)
        for i in static_range(NACC):
            acc[i] = float32(0.0)
        for part in static_range(min(S - 1, NK)):
            for i in static_range(AIT):
                if target[i] >= 0:
                    size = int32(16) if source[i] >= 0 else int32(0)
                    cp_async16(sm, target[i] + part * STAGE, x, max(source[i], int32(0)) + part * BK, size)
            for i in static_range(BIT):
                if BCH % NT == 0 or tid + i * NT < BCH:
                    at = int32((tid + i * NT) * 8)
                    cp_async16(sm, at + part * STAGE + ASZ, w, (part * NB + nb) * BSZ + at, 16)
            cp_async_commit()
        top = int32(umod32(wm, WA) * (CG * 8) + udiv32(wm, WA) * (RU * RT * PITCH))
        a = int32((((lane >> 3) & 1) * (2 * PLANE) + (lane >> 4) * PLANE + (lane & 7) + top) * 8)
        b = int32(ASZ + wn * (WNN // 16 * 256) + lane * 8)
        stage = int32(0)
        ahead = int32((S - 1) * STAGE)
        for part in range(NK):
            if S == 3:
                cp_async_wait1()
            else:
                cp_async_wait0()
            cuda.syncthreads()
            if part + (S - 1) < NK:
                k = int32(int32(part) + (S - 1))
                for i in static_range(AIT):
                    if target[i] >= 0:
                        size = int32(16) if source[i] >= 0 else int32(0)
                        cp_async16(sm, target[i] + ahead, x, max(source[i], int32(0)) + k * BK, size)
                t2 = tid_x_again()
                n2 = umod32(ctaid_z_again(), NB)
                for i in static_range(BIT):
                    if BCH % NT == 0 or t2 + i * NT < BCH:
                        at = int32((t2 + i * NT) * 8)
                        cp_async16(sm, at + ahead + ASZ, w, (k * NB + n2) * BSZ + at, 16)
            cp_async_commit()
            for s in static_range(STEPS):
                step(acc, sm, a + stage + s * (4 * PLANE * 8), b + stage + s * FSZ)
            stage = int32(stage + STAGE) if stage < (S - 1) * STAGE else int32(0)
            ahead = int32(ahead + STAGE) if ahead < (S - 1) * STAGE else int32(0)
        # Epilogue: everything from special registers again, so that nothing stays live over the main loop.
        tid = tid_x_again()
        z = ctaid_z_again()
        lane = int32(tid & 31)
        warp = int32(tid >> 5)
        wm = udiv32(warp, WN)
        ch = int32(umod32(z, NB) * BN + umod32(warp, WN) * WNN + (lane & 3) * OWN)
        oy0 = int32(ctaid_y_again() * TH + udiv32(wm, WA) * (RU * RT))
        ox0 = int32(ctaid_x_again() * TW + umod32(wm, WA) * (CG * 16) + (lane >> 2) * 2)
        own = cuda.local.array(OWN, float32)
        for i in static_range(OWN):
            own[i] = bias[ch + i]
        highest = cuda.local.array(1, int32)
        bad = cuda.local.array(1, float32)
        highest[0] = int32(0)
        bad[0] = float32(0.0)
        for r in static_range(RU):
            for c in static_range(CG):
                oy = int32(oy0 + r * RT)
                ox = int32(ox0 + c * 16)
                at = int32(((udiv32(z, NB) * OH + oy) * OW + ox) * CO + ch)
                finish(acc, r, c, own, res, y, at, OW * CO, OH - oy, OW - ox, highest, bad)
        raise_flag(highest, flag)
        if bad[0] != float32(0.0):
            flag[0] = int32(1)

    kernel = Kernel(name, conv, "hhfhhwiiii", NT, SMEM, min_blocks, (8, 0))
    return Conv(
        kernel,
        c_in,
        c_out,
        (TH, TW, BN),
        lambda weight: pack_winograd(weight, square, BN, BK, warp_n),
        residual=residual,
        relu=relu,
    )
