"""3x3 convolution, stride 1, of 128 or 256 channels on Hopper: as `conv_stream`, without a warpgroup for the copies.

Thread 0 of the first warpgroup requests them after it has issued its own products. A producer warpgroup would leave
five consumer warpgroups 88 registers a thread; without it they have 96, and five rows divide the 10 rows of ResNet34's
last stage.

Weights run L = stages - 2 steps ahead. The buffer of step i + L was read at step i - 2, which every warpgroup has
released once it has passed step i - 1; this thread's own release of step i - 2 lies behind it, so its wait cannot block
itself.
"""

from __future__ import annotations

from .conv_pack import pack_taps
from .conv_stream import SHARED_LIMIT
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
    make_wgmma_block,
    mbar_arrive,
    mbar_expect_tx,
    mbar_init,
    mbar_wait,
    nctaid_x_again,
    opaque32,
    raise_flag,
    residual_load_ordered,
    smem_addr,
    tid_x_again,
    tma_load_4d,
    tma_prefetch_4d,
    udiv32,
    umod32,
    uniform32,
    wait_prerequisites,
    warp_sync,
    wgmma_commit,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_wait0,
    wgmma_wait1,
)
from .spec import Conv, Kernel
from .unroll import static_range, unroll


def make_conv_inline(
    c_in: int,
    c_out: int,
    groups: int = 5,
    tile_n: int = 128,
    stages: int = 6,
    residual: bool = False,
    relu: bool = True,
) -> Conv:
    """The convolution with `groups` warpgroups of one row of 64 pixels each; 4 <= stages <= 10."""
    TH = groups
    NT = 128 * groups
    NKC = c_in // 64
    S = stages
    L = stages - 2
    PITCH = 66
    ABYTES = (TH + 2) * PITCH * 128
    ASZ = -(-ABYTES // 1024) * 512
    BN = tile_n
    CO = c_out
    BSZ = tile_n * 64
    BB = BSZ * 2
    BOFF = 2 * ASZ
    BAR = BOFF + S * BSZ
    FA, EA, FB, EB = BAR, BAR + 8, BAR + 16, BAR + 16 + 4 * S
    SMEM = (BAR + 16 + 8 * S) * 2
    assert SMEM <= SHARED_LIMIT
    assert c_in % 64 == 0
    assert c_out % tile_n == 0
    assert tile_n % 32 == 0
    assert 2 <= L <= 8
    NB = c_out // tile_n
    A16, B16 = ASZ // 8, BSZ // 8
    NACC = tile_n // 2
    NGQ = tile_n // 32
    # 32-channel groups whose residual is loaded together.
    GS = 2 if NGQ % 2 == 0 else 1
    NRB = 8 * GS
    WROW = PITCH * 8
    DD = wgmma_descriptor(128)
    NPF = max(1, tile_n // 64)
    G4 = 4 * groups
    RES = int(residual)
    wgblock = make_wgmma_block(BN, [(0, k * 2, k * 2) for k in range(4)])
    fill_bias = make_fill_bias(1, BN)
    pin = make_pin(NACC)
    finish8 = make_finish8(residual, relu)
    name = f"conv_inline_ci{c_in}_co{c_out}_g{groups}_n{tile_n}_s{stages}"
    name += ("_res" if residual else "") + ("_relu" if relu else "")

    @unroll(name=name)
    def conv(tmx, tmr, w, bias, res, y, flag, H, W, XT, YT, nt):
        sm = cuda.shared.array(0, float16) if SIMULATOR else cuda.shared.array(0, float16, alignment=1024)
        tid = int32(cuda.threadIdx.x)
        t = int32(cuda.blockIdx.x)
        if tid == 0:
            for i in static_range(2):
                mbar_init(sm, FA + 4 * i, 1)
                mbar_init(sm, EA + 4 * i, G4)
            for i in static_range(S):
                mbar_init(sm, FB + 4 * i, 1)
                mbar_init(sm, EB + 4 * i, G4)
            fence_mbar_init()
        cuda.syncthreads()
        launch_dependents()
        wait_prerequisites()
        if tid == 0:
            nb = umod32(t, NB)
            sp = udiv32(t, NB)
            sy = udiv32(sp, XT)
            mbar_expect_tx(sm, FA, ABYTES)
            tma_load_4d(sm, 0, tmx, 0, umod32(sp, XT) * 64 - 1, umod32(sy, YT) * TH - 1, udiv32(sy, YT), sm, FA)
            for i in range(L):
                mbar_expect_tx(sm, FB + 4 * i, BB)
                bulk_g2s(sm, BOFF + i * BSZ, w, int64((i * NB + nb) * BSZ), sm, FB + 4 * i, BB)
            if RES == 1:
                for pf in static_range(NPF):
                    tma_prefetch_4d(tmr, nb * BN + pf * 64, umod32(sp, XT) * 64, umod32(sy, YT) * TH, udiv32(sy, YT))
        warp_sync()
        acc = cuda.local.array(NACC, float32)
        rb = cuda.local.array(NRB, int32)
        top = cuda.local.array(1, int32)
        wg = uniform32(int32(tid >> 7))
        da = int64(((smem_addr(sm, 0) & 0x3FFFF) >> 4) + wg * WROW) | DD
        db = int64((smem_addr(sm, BOFF) & 0x3FFFF) >> 4) | DD
        bs = int32(0)
        bp = int32(0)
        prev = int32(0)
        ab = int32(0)
        ap = int32(0)
        while t < nt:
            fill_bias(acc, bias, int32(umod32(t, NB) * BN + (tid_x_again() & 3) * 8))
            for kc in range(NKC):
                mbar_wait(sm, FA + 4 * ab, ap)
                for tap in static_range(9):
                    mbar_wait(sm, FB + 4 * bs, bp)
                    wgmma_fence()
                    wgblock(acc, sm, da + ab * A16 + ((tap // 3) * PITCH + tap % 3) * 8, db + bs * B16)
                    wgmma_commit()
                    if tid_x_again() == 0:
                        # The weights of L steps on.
                        ps = int32(bs + L)
                        pp = int32(bp ^ 1)
                        if ps >= S:
                            ps = int32(ps - S)
                            pp = int32(bp)
                        pt = int32(t)
                        pk = int32(kc * 9 + tap + L)
                        if tap + L >= 9:  # noqa: SIM102
                            if kc + 1 == NKC:
                                pk = int32(tap + L - 9)
                                pt = int32(t + nctaid_x_again())
                        if pt < nt:
                            mbar_wait(sm, EB + 4 * ps, pp)
                            mbar_expect_tx(sm, FB + 4 * ps, BB)
                            source = int64((pk * NB + umod32(pt, NB)) * BSZ)
                            bulk_g2s(sm, BOFF + ps * BSZ, w, source, sm, FB + 4 * ps, BB)
                        # The next part's halo tile: its buffer was read by the part before this one, released by every
                        # warpgroup at its first tap of this part or at the end of the last tile.
                        if tap == 2:
                            pt = int32(t)
                            pk = int32(kc + 1)
                            if pk == NKC:
                                pk = int32(0)
                                pt = int32(t + nctaid_x_again())
                            if pt < nt:
                                sp = udiv32(pt, NB)
                                sy = udiv32(sp, XT)
                                x0 = int32(umod32(sp, XT) * 64)
                                y0 = int32(umod32(sy, YT) * TH)
                                img = udiv32(sy, YT)
                                an = int32(ab ^ 1)
                                mbar_wait(sm, EA + 4 * an, int32(ap ^ an))
                                mbar_expect_tx(sm, FA + 4 * an, ABYTES)
                                tma_load_4d(sm, an * ASZ, tmx, pk * 64, x0 - 1, y0 - 1, img, sm, FA + 4 * an)
                                if RES == 1:  # noqa: SIM102
                                    if pk == 0:
                                        for pf in static_range(NPF):
                                            tma_prefetch_4d(tmr, umod32(pt, NB) * BN + pf * 64, x0, y0, img)
                    warp_sync()
                    wgmma_wait1()
                    if (tid_x_again() & 31) == 0:
                        if tap > 0:
                            mbar_arrive(sm, EB + 4 * prev)
                        else:
                            if kc > 0:
                                mbar_arrive(sm, EB + 4 * prev)
                                mbar_arrive(sm, EA + 4 * (ab ^ 1))
                    warp_sync()
                    prev = int32(bs)
                    bs = int32(bs + 1)
                    if bs == S:
                        bs = int32(0)
                        bp = int32(bp ^ 1)
                ab = int32(ab ^ 1)
                if ab == 0:
                    ap = int32(ap ^ 1)
            wgmma_wait0()
            pin(acc)
            if (tid_x_again() & 31) == 0:
                mbar_arrive(sm, EB + 4 * prev)
                mbar_arrive(sm, EA + 4 * (ab ^ 1))
            warp_sync()
            te = tid_x_again()
            tq = opaque32(t)
            nb = umod32(tq, NB)
            sp = udiv32(tq, NB)
            sy = udiv32(sp, XT)
            ox0 = int32(umod32(sp, XT) * 64 + ((te & 127) >> 5) * 16 + ((te & 31) >> 2))
            oy0 = int32(umod32(sy, YT) * TH + (te >> 7))
            o0 = int32(((udiv32(sy, YT) * H + oy0) * W + ox0) * CO + nb * BN + (te & 3) * 8)
            top[0] = int32(0)
            for gp in static_range(NGQ // GS):
                if RES == 1:
                    for half in static_range(2):
                        ok = int32(1) if (oy0 < H) & (ox0 + half * 8 < W) else int32(0)
                        for gi in static_range(GS):
                            residual_load_ordered(
                                rb, (half * GS + gi) * 4, res, o0, half * (8 * CO) + (gp * GS + gi) * 32, ok
                            )
                for gi in static_range(GS):
                    for half in static_range(2):
                        ok = int32(1) if (oy0 < H) & (ox0 + half * 8 < W) else int32(0)
                        finish8(
                            acc,
                            (gp * GS + gi) * 16 + half * 2,
                            rb,
                            (half * GS + gi) * 4,
                            y,
                            o0,
                            half * (8 * CO) + (gp * GS + gi) * 32,
                            ok,
                            top,
                        )
            raise_flag(top, flag)
            t = int32(t + nctaid_x_again())

    kernel = Kernel(name, conv, "mmhfhhwiiiii", NT, SMEM, 1, (9, 0), True, True)
    return Conv(
        kernel,
        c_in,
        c_out,
        (TH, 64, tile_n),
        lambda weight: pack_taps(weight, tile_n, 64),
        residual=residual,
        relu=relu,
        box=(64, PITCH, TH + 2),
        residual_box=(64, 64, TH),
        persistent=True,
    )
