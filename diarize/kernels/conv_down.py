"""3x3 convolution, stride 2, with the strided 1x1 shortcut of the same input, on Hopper.

NHWC float16, float32 sums. y = ReLU(conv3x3(x) + bias), s = conv1x1(x) + shortcut bias, both at half the resolution
and with twice the channels. As `conv_stream` (its notes on swizzle and barriers hold here), with the input read as
four planes of odd and even rows and columns, one tensor map each, so that a filter tap is again a shift within a plane:

    plane 0 odd rows, odd columns    taps (0,0) (0,2) (2,0) (2,2)
    plane 1 odd rows, even columns   taps (0,1) (2,1)
    plane 2 even rows, odd columns   taps (1,0) (1,2)
    plane 3 even rows, even columns  tap (1,1), and the shortcut

Plane tiles go round a ring of `buffers`; weights through `stages` buffers, or stay in shared memory if `stages` is 0.
"""

from __future__ import annotations

import numpy as np

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
    wgmma_wait1,
)
from .spec import Conv, Kernel
from .unroll import static_range, unroll

TAP_ORDER = ((0, 0), (0, 2), (2, 0), (2, 2), (0, 1), (2, 1), (1, 0), (1, 2), (1, 1))
"""Filter taps (row, column) in the order in which their planes arrive; the shortcut comes last."""


def pack_down(weight: np.ndarray, shortcut: np.ndarray, tile_n: int, tile_k: int) -> np.ndarray:
    """(C_out, C_in, 3, 3) and (C_out, C_in, 1, 1) float32 weights in `TAP_ORDER`, as `pack_taps` lays them out."""
    taps = [weight[:, :, r, s] for r, s in TAP_ORDER] + [shortcut[:, :, 0, 0]]
    return pack_taps(np.stack(taps, axis=-1)[..., None], tile_n, tile_k)


def make_conv_down(c_in: int, groups: int = 3, tile_n: int = 128, stages: int = 4, buffers: int = 3) -> Conv:
    """The strided convolution c_in -> 2 c_in with `groups` consumer warpgroups of one row of 64 output pixels each."""
    c_out = 2 * c_in
    BK = min(64, c_in)
    RB = BK * 2
    U = RB // 16
    PITCH = 65
    TH = groups
    NT = 128 * groups + 128
    NPROD = 128 * groups
    NKC = c_in // BK
    ABYTES = (TH + 1) * PITCH * RB
    ASZ = -(-ABYTES // 1024) * 512
    BSZ = tile_n * BK
    BB = BSZ * 2
    BN = tile_n
    CO = c_out
    NB = c_out // tile_n
    RESIDENT = int(stages == 0)
    S = 10 if stages == 0 else stages
    if RESIDENT:
        assert NB == 1
        assert NKC == 1
    P = buffers
    BOFF = P * ASZ
    BAR = BOFF + S * BSZ
    FA, EA, FB, EB = BAR, BAR + 4 * P, BAR + 8 * P, BAR + 8 * P + 4 * S
    SMEM = (BAR + 8 * P + 8 * S) * 2
    assert SMEM <= SHARED_LIMIT
    assert c_out % tile_n == 0
    assert tile_n % 32 == 0
    assert P >= 2
    A16, B16 = ASZ // 8, BSZ // 8
    NACC = tile_n // 2
    NGQ = tile_n // 32
    DD = wgmma_descriptor(RB)
    G4 = 4 * groups
    reg_dec = make_setmaxnreg(32, False)
    reg_inc = make_setmaxnreg(consumer_registers(groups, 32, 1), True)
    wgblock = make_wgmma_block(BN, [(0, k * 2, k * 2) for k in range(BK // 16)], RB)
    fill_bias = make_fill_bias(1, BN)
    pin = make_pin(NACC)
    finish_y = make_finish8(False, True)
    finish_s = make_finish8(False, False)
    name = f"conv_down_ci{c_in}_g{groups}_n{tile_n}_s{stages}_a{buffers}"

    @unroll(name=name)
    def conv(m0, m1, m2, m3, w, bias, bias_s, y, s, flag, H, W, XT, YT, nt):
        sm = cuda.shared.array(0, float16) if SIMULATOR else cuda.shared.array(0, float16, alignment=1024)
        tid = int32(cuda.threadIdx.x)
        if tid == 0:
            for i in static_range(P):
                mbar_init(sm, FA + 4 * i, 1)
                mbar_init(sm, EA + 4 * i, G4)
            for i in static_range(S):
                mbar_init(sm, FB + 4 * i, 1)
                mbar_init(sm, EB + 4 * i, G4)
            fence_mbar_init()
        cuda.syncthreads()
        launch_dependents()
        if tid >= NPROD:
            reg_dec()
            if tid == NPROD:
                t = int32(cuda.blockIdx.x)
                step = int32(cuda.gridDim.x)
                bs = int32(0)
                bp = int32(1)
                ab = int32(0)
                ap = int32(1)
                if RESIDENT == 1:
                    for tap in range(10):
                        mbar_expect_tx(sm, FB + 4 * tap, BB)
                        bulk_g2s(sm, BOFF + tap * BSZ, w, int64(tap * BSZ), sm, FB + 4 * tap, BB)
                wait_prerequisites()
                while t < nt:
                    nb = umod32(t, NB)
                    sp = udiv32(t, NB)
                    x0 = int32(umod32(sp, XT) * 64)
                    sy = udiv32(sp, XT)
                    y0 = int32(umod32(sy, YT) * TH)
                    img = udiv32(sy, YT)
                    for kc in range(NKC):
                        for plane in static_range(4):
                            mbar_wait(sm, EA + 4 * ab, ap)
                            mbar_expect_tx(sm, FA + 4 * ab, ABYTES)
                            if plane == 0:
                                tma_load_4d(sm, ab * ASZ, m0, kc * BK, x0 - 1, y0 - 1, img, sm, FA + 4 * ab)
                            if plane == 1:
                                tma_load_4d(sm, ab * ASZ, m1, kc * BK, x0, y0 - 1, img, sm, FA + 4 * ab)
                            if plane == 2:
                                tma_load_4d(sm, ab * ASZ, m2, kc * BK, x0 - 1, y0, img, sm, FA + 4 * ab)
                            if plane == 3:
                                tma_load_4d(sm, ab * ASZ, m3, kc * BK, x0, y0, img, sm, FA + 4 * ab)
                            ab = int32(ab + 1)
                            if ab == P:
                                ab = int32(0)
                                ap = int32(ap ^ 1)
                            if RESIDENT == 0:
                                for i in static_range(4 if plane == 0 else 2):
                                    mbar_wait(sm, EB + 4 * bs, bp)
                                    mbar_expect_tx(sm, FB + 4 * bs, BB)
                                    tap = int32(i if plane == 0 else 2 + 2 * plane + i)
                                    source = int64(((kc * 10 + tap) * NB + nb) * BSZ)
                                    bulk_g2s(sm, BOFF + bs * BSZ, w, source, sm, FB + 4 * bs, BB)
                                    bs = int32(bs + 1)
                                    if bs == S:
                                        bs = int32(0)
                                        bp = int32(bp ^ 1)
                    t = int32(t + step)
        else:
            reg_inc()
            wait_prerequisites()
            acc = cuda.local.array(NACC, float32)
            acs = cuda.local.array(NACC, float32)
            none = cuda.local.array(1, int32)
            top = cuda.local.array(1, int32)
            none[0] = int32(0)
            wg = uniform32(int32(tid >> 7))
            da = int64(((smem_addr(sm, 0) & 0x3FFFF) >> 4) + wg * (PITCH * U)) | DD
            db = int64((smem_addr(sm, BOFF) & 0x3FFFF) >> 4) | DD
            bs = int32(0)
            bp = int32(0)
            prev = int32(0)
            ab = int32(0)
            ap = int32(0)
            last = int32(0)
            t = int32(cuda.blockIdx.x)
            if RESIDENT == 1:
                for tap in range(10):
                    mbar_wait(sm, FB + 4 * tap, 0)
            while t < nt:
                ch = int32(umod32(t, NB) * BN + (tid_x_again() & 3) * 8)
                fill_bias(acc, bias, ch)
                fill_bias(acs, bias_s, ch)
                for kc in range(NKC):
                    for plane in static_range(4):
                        mbar_wait(sm, FA + 4 * ab, ap)
                        if RESIDENT == 1:
                            wgmma_fence()
                            for i in static_range(4 if plane == 0 else 2):
                                k = int64(B16 * (i if plane == 0 else 2 + 2 * plane + i))
                                if plane == 0:
                                    wgblock(acc, sm, da + ab * A16 + ((i // 2) * PITCH + i % 2) * U, db + k)
                                if plane == 1:
                                    wgblock(acc, sm, da + ab * A16 + i * PITCH * U, db + k)
                                if plane == 2:
                                    wgblock(acc, sm, da + ab * A16 + i * U, db + k)
                                if plane == 3 and i == 0:
                                    wgblock(acc, sm, da + ab * A16, db + k)
                                if plane == 3 and i == 1:
                                    wgblock(acs, sm, da + ab * A16, db + k)
                            wgmma_commit()
                            wgmma_wait1()
                            if (tid_x_again() & 31) == 0:  # noqa: SIM102
                                if plane > 0:
                                    mbar_arrive(sm, EA + 4 * last)
                        else:
                            for i in static_range(4 if plane == 0 else 2):
                                mbar_wait(sm, FB + 4 * bs, bp)
                                wgmma_fence()
                                if plane == 0:
                                    wgblock(acc, sm, da + ab * A16 + ((i // 2) * PITCH + i % 2) * U, db + bs * B16)
                                if plane == 1:
                                    wgblock(acc, sm, da + ab * A16 + i * PITCH * U, db + bs * B16)
                                if plane == 2:
                                    wgblock(acc, sm, da + ab * A16 + i * U, db + bs * B16)
                                if plane == 3 and i == 0:
                                    wgblock(acc, sm, da + ab * A16, db + bs * B16)
                                if plane == 3 and i == 1:
                                    wgblock(acs, sm, da + ab * A16, db + bs * B16)
                                wgmma_commit()
                                wgmma_wait1()
                                # Everything but the products just committed is complete.
                                if (tid_x_again() & 31) == 0:
                                    if plane > 0 or i > 0:
                                        mbar_arrive(sm, EB + 4 * prev)
                                        if i == 0:
                                            mbar_arrive(sm, EA + 4 * last)
                                    else:
                                        if kc > 0:
                                            mbar_arrive(sm, EB + 4 * prev)
                                            mbar_arrive(sm, EA + 4 * last)
                                prev = int32(bs)
                                bs = int32(bs + 1)
                                if bs == S:
                                    bs = int32(0)
                                    bp = int32(bp ^ 1)
                        last = int32(ab)
                        ab = int32(ab + 1)
                        if ab == P:
                            ab = int32(0)
                            ap = int32(ap ^ 1)
                wgmma_wait0()
                pin(acc)
                pin(acs)
                if (tid_x_again() & 31) == 0:
                    if RESIDENT == 0:
                        mbar_arrive(sm, EB + 4 * prev)
                    mbar_arrive(sm, EA + 4 * last)
                te = tid_x_again()
                tq = opaque32(t)
                nb = umod32(tq, NB)
                sp = udiv32(tq, NB)
                sy = udiv32(sp, XT)
                ox0 = int32(umod32(sp, XT) * 64 + ((te & 127) >> 5) * 16 + ((te & 31) >> 2))
                oy0 = int32(umod32(sy, YT) * TH + (te >> 7))
                o0 = int32(((udiv32(sy, YT) * H + oy0) * W + ox0) * CO + nb * BN + (te & 3) * 8)
                top[0] = int32(0)
                for half in static_range(2):
                    ok = int32(1) if (oy0 < H) & (ox0 + half * 8 < W) else int32(0)
                    for gq in static_range(NGQ):
                        finish_y(acc, gq * 16 + half * 2, none, 0, y, o0, half * (8 * CO) + gq * 32, ok, top)
                    for gq in static_range(NGQ):
                        finish_s(acs, gq * 16 + half * 2, none, 0, s, o0, half * (8 * CO) + gq * 32, ok, top)
                raise_flag(top, flag)
                t = int32(t + nctaid_x_again())

    kernel = Kernel(name, conv, "mmmmhffhhwiiiii", NT, SMEM, 1, (9, 0), True, True)
    return Conv(
        kernel,
        c_in,
        c_out,
        (TH, 64, tile_n),
        lambda weight, shortcut: pack_down(weight, shortcut, tile_n, BK),
        stride=2,
        box=(BK, PITCH, TH + 1),
        shortcut=True,
        persistent=True,
    )
