"""3x3 convolution, stride 1, of 64 channels on Hopper: each image row is multiplied once, for three output rows.

As `block32`, without the fusion: a warpgroup walks down a strip of 64 columns. An image row is multiplied with the
filter rows 2, 1 and 0 side by side, 192 columns wide, and what it adds to the rows above, at and below it is carried
in registers. Against one product a tap this reads the pixels once instead of three times from shared memory, which
would otherwise be as busy as the tensor cores. The products of the next row run while an output row is finished.

Shared memory: the filter (72 KB) and a ring of `buffers` image rows of 66 pixels, with residual rows, a warpgroup.
Barriers as in `conv_stream`.
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
    ldg128f,
    lds128,
    make_fill,
    make_finish8,
    make_pin,
    make_roll_rows,
    make_setmaxnreg,
    make_wgmma_block,
    mbar_arrive,
    mbar_expect_tx,
    mbar_init,
    mbar_wait,
    raise_flag,
    smem_addr,
    tid_x_again,
    tma_load_4d,
    udiv32,
    umod32,
    uniform32,
    wait_prerequisites,
    warp_sync,
    wgmma_commit,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_wait0,
)
from .spec import Conv, Kernel
from .unroll import static_range, unroll


def turn(weight: np.ndarray) -> np.ndarray:
    """(C_out, C_in, 3, 3) weights with taps in the order of the rolling kernels: column, then row from 2 down."""
    return np.ascontiguousarray(weight[:, :, ::-1].transpose(0, 1, 3, 2))


def make_conv_roll(
    channels: int = 64,
    groups: int = 2,
    rows: int = 40,
    buffers: int = 4,
    residual: bool = False,
    relu: bool = True,
    producer_registers: int = 32,
) -> Conv:
    """The rolling convolution with `groups` consumer warpgroups and tasks of `rows` output rows; buffers 4 or 8."""
    C = channels
    U = channels // 8
    KK = channels // 16
    N = channels // 2
    N3 = 3 * N
    G = groups
    NT = 128 * groups + 128
    NPROD = 128 * groups
    NAB = buffers
    MASK = buffers - 1
    SHIFT = buffers.bit_length() - 1
    ROWBYTES = 66 * channels * 2
    ROW = -(-ROWBYTES // 1024) * 512
    BSZ = channels * channels
    # With a residual, its row comes in the same buffer as the image row whose products complete the output row.
    RROW = 64 * channels if residual else 0
    SLOT = ROW + RROW
    SLOTBYTES = ROWBYTES + 2 * RROW
    XOFF = 9 * BSZ
    XRING = buffers * SLOT
    BAR = XOFF + groups * XRING
    FX, EX, FW = BAR, BAR + 4 * NAB * groups, BAR + 8 * NAB * groups
    SMEM = (BAR + 8 * NAB * groups + 4) * 2
    assert SMEM <= SHARED_LIMIT
    assert channels in (32, 64)
    assert buffers in (2, 4, 8)
    R = rows
    R2 = rows + 2
    S16 = SLOT // 8
    WIDE = int(channels == 64)
    DD = wgmma_descriptor(channels * 2)
    NGQ = channels // 32
    NWORDS = 4 * NGQ
    NBIAS = 8 * NGQ
    RES = int(residual)
    reg_dec = make_setmaxnreg(producer_registers, False)
    reg_inc = make_setmaxnreg(consumer_registers(groups, producer_registers, 1), True)
    steps = [(0, s * U + k * 2, s * 3 * (BSZ // 8) + k * 2) for s in range(3) for k in range(KK)]
    products = make_wgmma_block(3 * channels, steps, channels * 2, fresh=True)
    pin = make_pin(N3)
    pin_row = make_pin(N)
    roll = make_roll_rows(channels)
    fill_acc = make_fill(N3)
    fill_row = make_fill(N)
    finish8 = make_finish8(residual, relu, guarded=True)
    name = f"conv_roll_c{channels}_g{groups}_r{rows}_a{buffers}" + ("_res" if residual else "")
    name += "_relu" if relu else ""

    @unroll(name=name)
    def conv(tmx, tmr, w, bias, res, y, flag, H, W, XT, YT, nt):
        sm = cuda.shared.array(0, float16) if SIMULATOR else cuda.shared.array(0, float16, alignment=1024)
        tid = int32(cuda.threadIdx.x)
        if tid == 0:
            for i in static_range(NAB * G):
                mbar_init(sm, FX + 4 * i, 1)
                mbar_init(sm, EX + 4 * i, 4)
            mbar_init(sm, FW, 1)
            fence_mbar_init()
        cuda.syncthreads()
        launch_dependents()
        if tid >= NPROD:
            reg_dec()
            ring = int32((tid - NPROD) >> 5)
            if (tid & 31) == 0 and ring < G:
                if ring == 0:
                    mbar_expect_tx(sm, FW, 9 * BSZ * 2)
                    for tap in range(9):
                        bulk_g2s(sm, tap * BSZ, w, int64(tap * BSZ), sm, FW, BSZ * 2)
                wait_prerequisites()
                t = int32(cuda.blockIdx.x * G + ring)
                step = int32(cuda.gridDim.x * G)
                c = int32(0)
                xbase = int32(XOFF + ring * XRING)
                full = int32(FX + ring * (4 * NAB))
                empty = int32(EX + ring * (4 * NAB))
                while t < nt:
                    sy = udiv32(t, XT)
                    x0 = int32(umod32(t, XT) * 64)
                    y0 = int32(umod32(sy, YT) * R - 1)
                    img = udiv32(sy, YT)
                    k = int32(0)
                    while k < R2:
                        s = int32(c & MASK)
                        mbar_wait(sm, empty + 4 * s, int32(((c >> SHIFT) & 1) ^ 1))
                        mbar_expect_tx(sm, full + 4 * s, SLOTBYTES)
                        tma_load_4d(sm, xbase + s * SLOT, tmx, 0, x0 - 1, y0 + k, img, sm, full + 4 * s)
                        if RES == 1:
                            at = int32(xbase + s * SLOT + ROW)
                            tma_load_4d(sm, at, tmr, 0, x0, y0 + k - 1, img, sm, full + 4 * s)
                        c = int32(c + 1)
                        k = int32(k + 1)
                    t = int32(t + step)
        else:
            reg_inc()
            wait_prerequisites()
            acc = cuda.local.array(N3, float32)
            r0 = cuda.local.array(N, float32)
            r1 = cuda.local.array(N, float32)
            row = cuda.local.array(N, float32)
            b = cuda.local.array(NBIAS, float32)
            words = cuda.local.array(NWORDS, int32)
            top = cuda.local.array(1, int32)
            fill_acc(acc)
            fill_row(r0)
            fill_row(r1)
            q = int32(tid & 3)
            for i in static_range(2 * NGQ):
                k4 = i * 4
                b[k4], b[k4 + 1], b[k4 + 2], b[k4 + 3] = ldg128f(bias, q * 8 + (i // 2) * 32 + (i % 2) * 4)
            words[0] = int32(0)
            top[0] = int32(0)
            wg = uniform32(int32(tid >> 7))
            full = int32(FX + wg * (4 * NAB))
            empty = int32(EX + wg * (4 * NAB))
            dx = int64((smem_addr(sm, XOFF + wg * XRING) & 0x3FFFF) >> 4) | DD
            dw = int64((smem_addr(sm, 0) & 0x3FFFF) >> 4) | DD
            c = int32(0)
            k = int32(0)
            t = int32(cuda.blockIdx.x * G + wg)
            step = int32(cuda.gridDim.x * G)
            # All rows of all tasks of this warpgroup, one after the other.
            total = int32(udiv32(nt - t + step - 1, step) * R2) if t < nt else int32(0)
            mbar_wait(sm, FW, 0)
            if total > 0:
                mbar_wait(sm, full, 0)
            wgmma_fence()
            products(acc, sm, dx, dw)
            wgmma_commit()
            while c < total:
                wgmma_wait0()
                pin(acc)
                roll(r0, r1, acc, b, row)
                # The sums must be done before the next products take the accumulators.
                pin_row(row)
                pin_row(r0)
                pin_row(r1)
                if RES == 0:  # noqa: SIM102
                    if (tid_x_again() & 31) == 0:
                        mbar_arrive(sm, empty + 4 * (c & MASK))
                last = int32(c & MASK)
                c = int32(c + 1)
                if c < total:
                    mbar_wait(sm, full + 4 * (c & MASK), int32((c >> SHIFT) & 1))
                wgmma_fence()
                products(acc, sm, dx + (c & MASK) * S16, dw)
                wgmma_commit()
                te = tid_x_again()
                sy = udiv32(t, XT)
                ox = int32(umod32(t, XT) * 64 + ((te & 127) >> 5) * 16 + ((te & 31) >> 2))
                oy = int32(umod32(sy, YT) * R + k - 2)
                at = int32(((udiv32(sy, YT) * H + oy) * W + ox) * C + (te & 3) * 8)
                for half in static_range(2):
                    ok = int32(1) if (k >= 2) & (oy < H) & (ox + half * 8 < W) else int32(0)
                    if RES == 1:
                        m = int32(((te & 127) >> 5) * 16 + ((te & 31) >> 2) + half * 8)
                        from_row = int32(XOFF + (te >> 7) * XRING + last * SLOT + ROW + m * C)
                        for gq in static_range(NGQ):
                            turned = int32((m & 7) if WIDE == 1 else ((m >> 1) & 3))
                            unit = int32((gq * 4 + (te & 3)) ^ turned)
                            w0, w1, w2, w3 = lds128(sm, from_row + unit * 8)
                            words[gq * 4] = w0
                            words[gq * 4 + 1] = w1
                            words[gq * 4 + 2] = w2
                            words[gq * 4 + 3] = w3
                    for gq in static_range(NGQ):
                        finish8(row, gq * 16 + half * 2, words, gq * 4, y, at, half * (8 * C) + gq * 32, ok, top)
                if RES == 1:
                    warp_sync()
                    if (tid_x_again() & 31) == 0:
                        mbar_arrive(sm, empty + 4 * last)
                k = int32(k + 1)
                if k == R2:
                    k = int32(0)
                    t = int32(t + step)
            wgmma_wait0()
            pin(acc)
            raise_flag(top, flag)

    kernel = Kernel(name, conv, "mmhfhhwiiiii", NT, SMEM, 1, (9, 0), True, True)
    return Conv(
        kernel,
        channels,
        channels,
        (rows, 64, channels),
        lambda weight: pack_taps(turn(weight), channels, channels),
        residual=residual,
        relu=relu,
        box=(channels, 66, 1),
        residual_box=(channels, 64, 1),
        persistent=True,
    )
