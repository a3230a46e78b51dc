"""3x3 convolution, stride 1, of 128 or 256 channels on Hopper: persistent blocks that share streamed weights.

NHWC float16, float32 sums, fused bias, residual and ReLU. A block computes `groups * rows` rows of 64 pixels by
`tile_n` channels. Halo tiles of 64 channels arrive by the tensor copy engine (zeros outside the image), weights of one
tap and 64 channels through a ring of `stages` buffers; consumer warpgroups multiply with wgmma.

Shared memory: pixel rows of 128 bytes, swizzled by the copy engine. The swizzle is a function of the address, so a
filter tap is a shift of the descriptor's start address by whole rows, base offset 0.

Barriers, each wait a phase parity:

- full: one arrival (the producer's byte count) and the bytes of the copies. Copies and wgmma are both in the
asynchronous
  proxy, so no proxy fence is needed.
- empty: one arrival of lane 0 of every consuming warp, after wgmma.wait_group has covered the last product that reads
the
  buffer (the wait is per warp, hence an arrival per warp). The producer's first wait uses parity 1: true on a new
  barrier.
"""

from __future__ import annotations

from .conv_pack import pack_taps
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
    tma_prefetch_4d,
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

SHARED_LIMIT = 232448
"""Most dynamic shared memory of a block on compute capability 9.0, in bytes."""


def consumer_registers(groups: int, producer: int, min_blocks: int) -> int:
    """Registers a consumer thread may take when the producer warpgroup keeps `producer`.

    Registers move inside the block's own pool, which is what the launch gives `groups + 1` warpgroups; asking for more
    than the producer has given back would block for ever.
    """
    launch = 65536 // (min_blocks * 128 * (groups + 1)) // 8 * 8
    return min(240, (launch * (groups + 1) - producer) // groups // 8 * 8)


def make_conv_stream(
    c_in: int,
    c_out: int,
    groups: int = 4,
    rows: int = 1,
    tile_n: int = 128,
    stages: int = 6,
    residual: bool = False,
    relu: bool = True,
    early: bool = False,
    columns: int = 1,
    producer_registers: int = 32,
) -> Conv:
    """The streaming convolution with `groups` consumer warpgroups of `rows` rows each.

    `early` loads the residual before the products instead of after them. With `columns` 2 the warpgroups lie two
    abreast, for tiles 128 pixels wide. 3 <= stages; c_in a multiple of 64, c_out of
    tile_n, tile_n of 32; shared memory at most `SHARED_LIMIT`.
    """
    XC = columns
    TW = 64 * columns
    PITCH = TW + 2
    TH = groups * rows // columns
    assert groups % columns == 0
    NT = 128 * groups + 128
    NPROD = 128 * groups
    NKC = c_in // 64
    ABYTES = (TH + 2) * PITCH * 128
    ASZ = -(-ABYTES // 1024) * 512
    BSZ = tile_n * 64
    BB = BSZ * 2
    S = stages
    BN = tile_n
    RPW = rows
    CO = c_out
    BOFF = 2 * ASZ
    BAR = BOFF + S * BSZ
    FA, EA, FB, EB = BAR, BAR + 8, BAR + 16, BAR + 16 + 4 * S
    SMEM = (BAR + 16 + 8 * S) * 2
    assert SMEM <= SHARED_LIMIT
    assert c_in % 64 == 0
    assert c_out % tile_n == 0
    assert tile_n % 32 == 0
    assert stages >= 3
    NB = c_out // tile_n
    # After this tap's weights the next halo tile is requested.
    TA = min(S, 8)
    A16, B16 = ASZ // 8, BSZ // 8
    NACC = rows * tile_n // 2
    NGQ = tile_n // 32
    # 32-channel groups whose residual is loaded together.
    GS = 2 if NGQ % 2 == 0 else 1
    NRB = NACC // 2 if early else rows * 8 * GS
    WROW = rows * PITCH * 8
    DD = wgmma_descriptor(128)
    NPF = max(1, tile_n // 64)
    G4 = 4 * groups
    RES = int(residual)
    EARLY = int(early and residual)
    reg_dec = make_setmaxnreg(producer_registers, False)
    reg_inc = make_setmaxnreg(consumer_registers(groups, producer_registers, 1), True)
    steps = [(r * BN // 2, r * PITCH * 8 + k * 2, k * 2) for r in range(rows) for k in range(4)]
    wgblock = make_wgmma_block(BN, steps)
    fill_bias = make_fill_bias(RPW, BN)
    pin = make_pin(NACC)
    finish8 = make_finish8(residual, relu)
    name = f"conv_stream_ci{c_in}_co{c_out}_g{groups}_r{rows}_n{tile_n}_s{stages}"
    name += ("_res" if residual else "") + ("_relu" if relu else "") + ("_early" if EARLY else "")
    name += f"_x{columns}" if columns > 1 else ""

    @unroll(name=name)
    def conv(tmx, tmr, w, bias, res, y, flag, H, W, XT, YT, nt):
        sm = cuda.shared.array(0, float16) if SIMULATOR else cuda.shared.array(0, float16, alignment=1024)
        tid = int32(cuda.threadIdx.x)
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
        if tid >= NPROD:
            # The producer: one thread works, but setmaxnreg is for whole warpgroups.
            reg_dec()
            if tid == NPROD:
                wait_prerequisites()
                t = int32(cuda.blockIdx.x)
                step = int32(cuda.gridDim.x)
                bs = int32(0)
                bp = int32(1)
                ai = int32(0)
                if t < nt:
                    nb = umod32(t, NB)
                    sp = udiv32(t, NB)
                    x0 = int32(umod32(sp, XT) * TW)
                    sy = udiv32(sp, XT)
                    y0 = int32(umod32(sy, YT) * TH)
                    img = udiv32(sy, YT)
                    mbar_expect_tx(sm, FA, ABYTES)
                    tma_load_4d(sm, 0, tmx, 0, x0 - 1, y0 - 1, img, sm, FA)
                    if RES == 1:
                        for pf in static_range(NPF):
                            tma_prefetch_4d(tmr, nb * BN + pf * 64, x0, y0, img)
                    ai = int32(1)
                while t < nt:
                    nbt = umod32(t, NB)
                    for kc in range(NKC):
                        for tap in range(9):
                            mbar_wait(sm, EB + 4 * bs, bp)
                            mbar_expect_tx(sm, FB + 4 * bs, BB)
                            source = int64(((kc * 9 + tap) * NB + nbt) * BSZ)
                            bulk_g2s(sm, BOFF + bs * BSZ, w, source, sm, FB + 4 * bs, BB)
                            bs = int32(bs + 1)
                            if bs == S:
                                bs = int32(0)
                                bp = int32(bp ^ 1)
                            if tap == TA:
                                # The next halo tile: its buffer was read by the part before this one, which the
                                # consumers leave at the first tap of this one; this one's weights and halo are already
                                # on their way, so the wait cannot deadlock.
                                tt = int32(t)
                                kk = int32(kc + 1)
                                if kk == NKC:
                                    kk = int32(0)
                                    tt = int32(t + step)
                                if tt < nt:
                                    nb = umod32(tt, NB)
                                    sp = udiv32(tt, NB)
                                    x0 = int32(umod32(sp, XT) * TW)
                                    sy = udiv32(sp, XT)
                                    y0 = int32(umod32(sy, YT) * TH)
                                    img = udiv32(sy, YT)
                                    ab = int32(ai & 1)
                                    mbar_wait(sm, EA + 4 * ab, int32(((ai >> 1) & 1) ^ 1))
                                    mbar_expect_tx(sm, FA + 4 * ab, ABYTES)
                                    tma_load_4d(sm, ab * ASZ, tmx, kk * 64, x0 - 1, y0 - 1, img, sm, FA + 4 * ab)
                                    if RES == 1:  # noqa: SIM102
                                        if kk == 0:
                                            for pf in static_range(NPF):
                                                tma_prefetch_4d(tmr, nb * BN + pf * 64, x0, y0, img)
                                    ai = int32(ai + 1)
                    t = int32(t + step)
        else:
            reg_inc()
            wait_prerequisites()
            acc = cuda.local.array(NACC, float32)
            rb = cuda.local.array(NRB, int32)
            top = cuda.local.array(1, int32)
            wg = uniform32(int32(tid >> 7))
            shift = int32(udiv32(wg, XC) * WROW + umod32(wg, XC) * (64 * 8))
            da = int64(((smem_addr(sm, 0) & 0x3FFFF) >> 4) + shift) | DD
            db = int64((smem_addr(sm, BOFF) & 0x3FFFF) >> 4) | DD
            bs = int32(0)
            bp = int32(0)
            prev = int32(0)
            ab = int32(0)
            ap = int32(0)
            t = int32(cuda.blockIdx.x)
            while t < nt:
                if EARLY == 1:
                    te = tid_x_again()
                    nb = umod32(t, NB)
                    sp = udiv32(t, NB)
                    sy = udiv32(sp, XT)
                    ox0 = int32(
                        umod32(sp, XT) * TW + umod32(te >> 7, XC) * 64 + ((te & 127) >> 5) * 16 + ((te & 31) >> 2)
                    )
                    oy0 = int32(umod32(sy, YT) * TH + udiv32(te >> 7, XC) * RPW)
                    o0 = int32(((udiv32(sy, YT) * H + oy0) * W + ox0) * CO + nb * BN + (te & 3) * 8)
                    for m in static_range(RPW):
                        for half in static_range(2):
                            ok = int32(1) if (oy0 + m < H) & (ox0 + half * 8 < W) else int32(0)
                            om = int32(o0 + m * (W * CO))
                            for gq in static_range(NGQ):
                                residual_load(
                                    rb, ((m * 2 + half) * NGQ + gq) * 4, res, om, half * (8 * CO) + gq * 32, ok
                                )
                fill_bias(acc, bias, int32(umod32(t, NB) * BN + (tid_x_again() & 3) * 8))
                for kc in range(NKC):
                    mbar_wait(sm, FA + 4 * ab, ap)
                    for tap in static_range(9):
                        mbar_wait(sm, FB + 4 * bs, bp)
                        wgmma_fence()
                        wgblock(acc, sm, da + ab * A16 + ((tap // 3) * PITCH + tap % 3) * 8, db + bs * B16)
                        wgmma_commit()
                        wgmma_wait1()
                        # All but the products just committed are complete: the stage before this one is free, and at
                        # the first tap of a part the halo tile of the part before it.
                        if (tid_x_again() & 31) == 0:
                            if tap > 0:
                                mbar_arrive(sm, EB + 4 * prev)
                            else:
                                if kc > 0:
                                    mbar_arrive(sm, EB + 4 * prev)
                                    mbar_arrive(sm, EA + 4 * (ab ^ 1))
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
                # Epilogue, the tile number hidden: nothing derived from it stays in registers over the main loop.
                te = tid_x_again()
                tq = opaque32(t)
                nb = umod32(tq, NB)
                sp = udiv32(tq, NB)
                sy = udiv32(sp, XT)
                ox0 = int32(umod32(sp, XT) * TW + umod32(te >> 7, XC) * 64 + ((te & 127) >> 5) * 16 + ((te & 31) >> 2))
                oy0 = int32(umod32(sy, YT) * TH + udiv32(te >> 7, XC) * RPW)
                o0 = int32(((udiv32(sy, YT) * H + oy0) * W + ox0) * CO + nb * BN + (te & 3) * 8)
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
                t = int32(t + nctaid_x_again())

    kernel = Kernel(name, conv, "mmhfhhwiiiii", NT, SMEM, 1, (9, 0), True, True)
    return Conv(
        kernel,
        c_in,
        c_out,
        (TH, TW, tile_n),
        lambda weight: pack_taps(weight, tile_n, 64),
        residual=residual,
        relu=relu,
        box=(64, PITCH, TH + 2),
        residual_box=(64, TW, TH),
        persistent=True,
    )
