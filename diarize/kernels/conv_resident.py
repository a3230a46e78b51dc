"""3x3 convolution, stride 1, of 32 or 64 channels on Hopper: weights stay in shared memory, warpgroups share nothing
else.

As `conv_stream` (its notes on swizzle and barriers hold here), but every consumer warpgroup computes whole tiles of
`rows` by 64 pixels, so the epilogue of one overlaps the products of the others. Halo tiles go round a ring of
`buffers`.
"""

from __future__ import annotations

from .conv_pack import pack_taps
from .conv_stream import SHARED_LIMIT, consumer_registers
from .ptx import (
    SIMULATOR,
    bulk_g2s,
    cuda,
    fence_mbar_init,
    float16,
    float32,
    int32,
    int64,
    launch_dependents,
    make_fill_bias,
    make_finish8,
    make_pin,
    make_setmaxnreg,
    make_wgmma_block,
    mbar_arrive,
    mbar_expect_tx,
    mbar_init,
    mbar_wait,
    nctaid_x_again,
    opaque32,
    raise_flag,
    residual_load,
    smem_addr,
    tid_x_again,
    tma_load_4d,
    udiv32,
    umod32,
    uniform32,
    wait_prerequisites,
    wgmma_commit,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_wait0,
)
from .spec import Conv, Kernel
from .unroll import static_range, unroll


def make_conv_resident(
    channels: int,
    groups: int = 4,
    rows: int = 2,
    buffers: int = 4,
    residual: bool = False,
    relu: bool = True,
    early: bool = True,
    min_blocks: int = 1,
    producer_registers: int = 32,
) -> Conv:
    """The convolution of 32 or 64 channels with `groups` consumer warpgroups; buffers >= groups is advised."""
    PITCH = 66
    BN = channels
    RB = channels * 2
    U = RB // 16
    CO = channels
    G = groups
    NT = 128 * groups + 128
    NPROD = 128 * groups
    RPW = rows
    NAB = buffers
    ABYTES = (rows + 2) * PITCH * RB
    ASZ = -(-ABYTES // 1024) * 512
    BSZ = BN * channels
    WBY = 9 * BSZ * 2
    AOFF = 9 * BSZ
    assert AOFF % 512 == 0
    BAR = AOFF + NAB * ASZ
    FA, EA, FW = BAR, BAR + 4 * NAB, BAR + 8 * NAB
    SMEM = (BAR + 8 * NAB + 4) * 2
    assert (SHARED_LIMIT if min_blocks == 1 else 233472 // min_blocks - 1024) >= SMEM
    A16, B16 = ASZ // 8, BSZ // 8
    NACC = rows * BN // 2
    NGQ = BN // 32
    GS = 2 if NGQ % 2 == 0 else 1
    RES = int(residual)
    EARLY = int(early and residual)
    NRB = NACC // 2 if EARLY else rows * 8 * GS
    DD = wgmma_descriptor(RB)
    reg_dec = make_setmaxnreg(producer_registers, False)
    reg_inc = make_setmaxnreg(consumer_registers(groups, producer_registers, min_blocks), True)
    steps = [(r * BN // 2, r * PITCH * U + k * 2, k * 2) for r in range(rows) for k in range(channels // 16)]
    wgblock = make_wgmma_block(BN, steps, RB)
    fill_bias = make_fill_bias(RPW, BN)
    pin = make_pin(NACC)
    finish8 = make_finish8(residual, relu)
    name = f"conv_resident_c{channels}_g{groups}_r{rows}_a{buffers}_b{min_blocks}"
    name += ("_res" if residual else "") + ("_relu" if relu else "") + ("_early" if EARLY else "")

    @unroll(name=name)
    def conv(tmx, tmr, w, bias, res, y, flag, H, W, XT, YT, nt):
        sm = cuda.shared.array(0, float16) if SIMULATOR else cuda.shared.array(0, float16, alignment=1024)
        tid = int32(cuda.threadIdx.x)
        if tid == 0:
            for i in static_range(NAB):
                mbar_init(sm, FA + 4 * i, 1)
                mbar_init(sm, EA + 4 * i, 4)
            mbar_init(sm, FW, 1)
            fence_mbar_init()
        cuda.syncthreads()
        launch_dependents()
        if tid >= NPROD:
            reg_dec()
            if tid == NPROD:
                mbar_expect_tx(sm, FW, WBY)
                for tap in range(9):
                    bulk_g2s(sm, tap * BSZ, w, int64(tap * BSZ), sm, FW, BSZ * 2)
                wait_prerequisites()
                t = int32(cuda.blockIdx.x)
                step = int32(cuda.gridDim.x)
                ab = int32(0)
                ap = int32(1)
                while t < nt:
                    sy = udiv32(t, XT)
                    mbar_wait(sm, EA + 4 * ab, ap)
                    mbar_expect_tx(sm, FA + 4 * ab, ABYTES)
                    x0 = int32(umod32(t, XT) * 64 - 1)
                    y0 = int32(umod32(sy, YT) * RPW - 1)
                    tma_load_4d(sm, AOFF + ab * ASZ, tmx, 0, x0, y0, udiv32(sy, YT), sm, FA + 4 * ab)
                    ab = int32(ab + 1)
                    if ab == NAB:
                        ab = int32(0)
                        ap = int32(ap ^ 1)
                    t = int32(t + step)
        else:
            reg_inc()
            wait_prerequisites()
            acc = cuda.local.array(NACC, float32)
            rb = cuda.local.array(NRB, int32)
            top = cuda.local.array(1, int32)
            wg = uniform32(int32(tid >> 7))
            da = int64((smem_addr(sm, AOFF) & 0x3FFFF) >> 4) | DD
            db = int64((smem_addr(sm, 0) & 0x3FFFF) >> 4) | DD
            # The block's tile j goes to buffer j % NAB and to warpgroup j % G: this one takes j = wg, wg + G, ...
            ab = int32(umod32(wg, NAB))
            ap = int32(udiv32(wg, NAB) & 1)
            t = int32(cuda.blockIdx.x + wg * cuda.gridDim.x)
            mbar_wait(sm, FW, 0)
            while t < nt:
                if EARLY == 1:
                    te = tid_x_again()
                    sy = udiv32(t, XT)
                    ox0 = int32(umod32(t, XT) * 64 + ((te & 127) >> 5) * 16 + ((te & 31) >> 2))
                    oy0 = int32(umod32(sy, YT) * RPW)
                    o0 = int32(((udiv32(sy, YT) * H + oy0) * W + ox0) * CO + (te & 3) * 8)
                    for m in static_range(RPW):
                        for half in static_range(2):
                            ok = int32(1) if (oy0 + m < H) & (ox0 + half * 8 < W) else int32(0)
                            om = int32(o0 + m * (W * CO))
                            for gq in static_range(NGQ):
                                residual_load(
                                    rb, ((m * 2 + half) * NGQ + gq) * 4, res, om, half * (8 * CO) + gq * 32, ok
                                )
                fill_bias(acc, bias, int32((tid_x_again() & 3) * 8))
                mbar_wait(sm, FA + 4 * ab, ap)
                wgmma_fence()
                for tap in static_range(9):
                    wgblock(acc, sm, da + ab * A16 + ((tap // 3) * PITCH * U + (tap % 3) * U), db + tap * B16)
                wgmma_commit()
                wgmma_wait0()
                pin(acc)
                if (tid_x_again() & 31) == 0:
                    mbar_arrive(sm, EA + 4 * ab)
                ab = int32(ab + G)
                while ab >= NAB:
                    ab = int32(ab - NAB)
                    ap = int32(ap ^ 1)
                te = tid_x_again()
                tq = opaque32(t)
                sy = udiv32(tq, XT)
                ox0 = int32(umod32(tq, XT) * 64 + ((te & 127) >> 5) * 16 + ((te & 31) >> 2))
                oy0 = int32(umod32(sy, YT) * RPW)
                o0 = int32(((udiv32(sy, YT) * H + oy0) * W + ox0) * CO + (te & 3) * 8)
                top[0] = int32(0)
                for gp in static_range(NGQ // GS):
                    if RES == 1 and EARLY == 0:
                        for m in static_range(RPW):
                            for half in static_range(2):
                                ok = int32(1) if (oy0 + m < H) & (ox0 + half * 8 < W) else int32(0)
                                om = int32(o0 + m * (W * CO))
                                for gi in static_range(GS):
                                    residual_load(
                                        rb,
                                        ((m * 2 + half) * GS + gi) * 4,
                                        res,
                                        om,
                                        half * (8 * CO) + (gp * GS + gi) * 32,
                                        ok,
                                    )
                    for gi in static_range(GS):
                        for m in static_range(RPW):
                            for half in static_range(2):
                                ok = int32(1) if (oy0 + m < H) & (ox0 + half * 8 < W) else int32(0)
                                finish8(
                                    acc,
                                    (m * (BN // 8) + (gp * GS + gi) * 4) * 4 + half * 2,
                                    rb,
                                    ((m * 2 + half) * NGQ + gp * GS + gi) * 4 * EARLY
                                    + ((m * 2 + half) * GS + gi) * 4 * (1 - EARLY),
                                    y,
                                    int32(o0 + m * (W * CO)),
                                    half * (8 * CO) + (gp * GS + gi) * 32,
                                    ok,
                                    top,
                                )
                raise_flag(top, flag)
                t = int32(t + G * nctaid_x_again())

    kernel = Kernel(name, conv, "mmhfhhwiiiii", NT, SMEM, min_blocks, (9, 0), True, True)
    return Conv(
        kernel,
        channels,
        channels,
        (rows, 64, channels),
        lambda weight: pack_taps(weight, channels, channels),
        residual=residual,
        relu=relu,
        box=(channels, PITCH, rows + 2),
        residual_box=(channels, 64, rows),
        persistent=True,
    )
