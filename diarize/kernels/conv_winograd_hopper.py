"""3x3 convolution, stride 1, by Winograd's F(2,3) along the columns on Hopper: 1.5 times fewer products, with wgmma.

NHWC float16, float32 sums, fused bias, residual and ReLU. Persistent blocks keep the transformed weights of 64 output
channels in shared memory; two warpgroups, independent of each other, each take tiles of 4 x 32 outputs. A warp reads
its pixels as fragments, transforms them in registers, and these are the A operand of wgmma.m64n64k16. The next part's
fragments are made while the products of the one before run.

Shared memory: weights, 768 bytes for each input channel and output channel group of 32, rows of 64 bytes swizzled; then
for each warpgroup `stages` halo tiles of 16 input channels, laid out as in `conv_winograd`, brought by cp.async. The
weights' barrier is used once.

References
----------
Lavin and Gray 2016, Fast algorithms for convolutional neural networks, section 3.
"""

from __future__ import annotations

from .ptx import (
    SIMULATOR,
    bar_sync,
    bulk_g2s,
    cp_async16,
    cp_async_commit,
    cp_async_wait0,
    cp_async_wait1,
    cp_async_wait2,
    cp_async_wait3,
    cuda,
    fence_mbar_init,
    float16,
    float32,
    int32,
    int64,
    make_pin,
    make_winograd_finish,
    make_winograd_operands,
    make_winograd_pixels,
    make_winograd_products,
    mbar_expect_tx,
    mbar_init,
    mbar_wait,
    raise_flag,
    smem_addr,
    tid_x_again,
    udiv32,
    umod32,
    uniform32,
    wgmma_commit,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_wait0,
)
from .spec import Conv, Kernel
from .unroll import static_range, unroll
from .winograd_pack import WarpTile, pack_winograd_resident

SHARED_LIMIT = 232448
"""Most dynamic shared memory of a block on compute capability 9.0, in bytes."""


def make_conv_winograd_hopper(
    c_in: int, c_out: int, *, residual: bool = False, relu: bool = True, stages: int = 2
) -> Conv:
    """The convolution. Arguments: x, weights, bias, residual, y, flag, height, width, number of windows, 0.

    c_in a multiple of 32 up to 128, c_out of 64; stages 2 to 4.
    """
    tile = WarpTile(False, 2, 1, 8)
    TH, TW = 4, 32
    S = stages
    CI, CO = c_in, c_out
    NB = c_out // 64
    NK = c_in // 16
    ROWS, COLS = TH + 2, TW + 2
    NPX = ROWS * COLS
    PITCH = TW // 2 + 1
    PLANE = ROWS * PITCH + (2 - ROWS * PITCH) % 8
    ASZ = 4 * PLANE * 8
    AIT = -(-NPX * 2 // 128)
    BSZ = c_in * 12 * 64
    BBYTES = BSZ * 2
    BAR = BSZ + 2 * S * ASZ
    SMEM = (BAR + 4) * 2
    DD = wgmma_descriptor(64)
    assert SMEM <= SHARED_LIMIT
    assert c_in % 32 == 0
    assert c_out % 64 == 0
    assert stages in (2, 3, 4)
    pixels = make_winograd_pixels(tile, PITCH * 8)
    operands = make_winograd_operands(tile)
    products = make_winograd_products(256)
    pin = make_pin(128)
    finish_low = make_winograd_finish(tile, c_out, residual, relu)
    finish_high = make_winograd_finish(tile, c_out, residual, relu, 4)
    name = f"conv_winograd_hopper_ci{c_in}_co{c_out}_s{stages}"
    name += ("_res" if residual else "") + ("_relu" if relu else "")

    @unroll(name=name)
    def conv(x, w, bias, res, y, flag, H, W, N, unused):
        sm = cuda.shared.array(0, float16) if SIMULATOR else cuda.shared.array(0, float16, alignment=1024)
        tid = int32(cuda.threadIdx.x)
        block = int32(cuda.blockIdx.x)
        nb = umod32(block, NB)
        if tid == 0:
            mbar_init(sm, BAR, 1)
            fence_mbar_init()
        cuda.syncthreads()
        if tid == 0:
            mbar_expect_tx(sm, BAR, BBYTES)
            bulk_g2s(sm, 0, w, int64(nb * BSZ), sm, BAR, BBYTES)
        group = int32(uniform32(int32(tid >> 7)))
        me = int32(tid & 127)
        lane = int32(tid & 31)
        warp = int32((tid >> 5) & 3)
        across = udiv32(W + (TW - 1), TW)
        down = udiv32(H + (TH - 1), TH)
        total = int32(across * down * N)
        # Blocks with the same channels share the tiles, two warpgroups each.
        step = int32(udiv32(int32(cuda.gridDim.x) - nb + (NB - 1), NB) * 2)
        tile_number = int32(udiv32(block, NB) * 2 + group)
        base = int32(BSZ + group * (S * ASZ))
        a = int32((((lane >> 3) & 1) * (2 * PLANE) + (lane >> 4) * PLANE + (lane & 7)) * 8)
        a = int32(base + a + ((warp & 1) * 8 + (warp >> 1) * (2 * PITCH)) * 8)
        source = cuda.local.array(AIT, int32)
        target = cuda.local.array(AIT, int32)
        for i in static_range(AIT):
            pixel = int32((me + i * 128) >> 1)
            px = umod32(pixel, COLS)
            cell = int32(((me & 1) * 2 + (px & 1)) * PLANE + udiv32(pixel, COLS) * PITCH + (px >> 1))
            target[i] = int32(base + cell * 8) if pixel < NPX else int32(-1)
            source[i] = int32(-1)
        acc = cuda.local.array(128, float32)
        words = cuda.local.array(48, int32)
        ahead = cuda.local.array(32, int32)
        for i in static_range(128):
            acc[i] = float32(0.0)
        low = cuda.local.array(8, float32)
        high = cuda.local.array(8, float32)
        highest = cuda.local.array(1, int32)
        bad = cuda.local.array(1, float32)
        highest[0] = int32(0)
        bad[0] = float32(0.0)
        # What is loaded next: a tile, a part of it, a stage.
        load_tile = int32(tile_number)
        load_part = int32(0)
        load_stage = int32(0)
        stage = int32(0)
        part = int32(0)
        left = int32(udiv32(total - tile_number + (step - 1), step) * NK) if tile_number < total else int32(0)
        mbar_wait(sm, BAR, 0)
        for turn in range(-S, left):
            if turn >= 0:
                if turn == 0:
                    # S groups are under way; the oldest is the first part.
                    if S == 2:
                        cp_async_wait1()
                    elif S == 3:
                        cp_async_wait2()
                    else:
                        cp_async_wait3()
                    bar_sync(group + 1, 128)
                    pixels(ahead, sm, a)
                    operands(words, ahead)
                    stage = int32(ASZ)
                wgmma_fence()
                k = int32(udiv32(part, 2) * (12 * 256) + (part & 1) * 2)
                db = int64(DD) | int64((smem_addr(sm, 0) >> 4) + k)
                products(acc, words, sm, db, part)
                wgmma_commit()
                # While they run: the next part's fragments. After the last part of all these are never used.
                if S == 2:
                    cp_async_wait0()
                elif S == 3:
                    cp_async_wait1()
                else:
                    cp_async_wait2()
                bar_sync(group + 1, 128)
                pixels(ahead, sm, a + stage)
                wgmma_wait0()
                pin(acc)
                operands(words, ahead)
                stage = int32(stage + ASZ) if stage < (S - 1) * ASZ else int32(0)
                part = int32(part + 1)
                if part == NK:
                    part = int32(0)
                    row = udiv32(tile_number, across)
                    t2 = tid_x_again()
                    oy = int32(umod32(row, down) * TH + ((t2 >> 6) & 1) * 2)
                    ox = int32(umod32(tile_number, across) * TW + ((t2 >> 5) & 1) * 16 + ((t2 >> 2) & 7) * 2)
                    at = int32(((udiv32(row, down) * H + oy) * W + ox) * CO + nb * 64 + (t2 & 3) * 8)
                    for i in static_range(8):
                        low[i] = bias[nb * 64 + (t2 & 3) * 8 + i]
                        high[i] = bias[nb * 64 + 32 + (t2 & 3) * 8 + i]
                    for r in static_range(2):
                        there = int32(at + r * W * CO)
                        finish_low(acc, r, 0, low, res, y, there, W * CO, H - oy - r, W - ox, highest, bad)
                        finish_high(acc, r, 0, high, res, y, there + 32, W * CO, H - oy - r, W - ox, highest, bad)
                    tile_number = int32(tile_number + step)
            # The stage of the part that was multiplied is free: every warp read it before the barrier.
            if load_tile < total:
                if load_part == 0:
                    x0 = int32(umod32(load_tile, across) * TW - 1)
                    row = udiv32(load_tile, across)
                    y0 = int32(umod32(row, down) * TH - 1)
                    image = int32(udiv32(row, down) * H)
                    for i in static_range(AIT):
                        pixel = int32((int32(tid_x_again() & 127) + i * 128) >> 1)
                        gy = int32(y0 + udiv32(pixel, COLS))
                        gx = int32(x0 + umod32(pixel, COLS))
                        ok = (gy >= 0) & (gy < H) & (gx >= 0) & (gx < W)
                        source[i] = int32(((image + gy) * W + gx) * CI + (tid_x_again() & 1) * 8) if ok else int32(-1)
                for i in static_range(AIT):
                    if target[i] >= 0:
                        size = int32(16) if source[i] >= 0 else int32(0)
                        cp_async16(sm, target[i] + load_stage, x, max(source[i], int32(0)) + load_part * 16, size)
                load_part = int32(load_part + 1)
                if load_part == NK:
                    load_part = int32(0)
                    load_tile = int32(load_tile + step)
            load_stage = int32(load_stage + ASZ) if load_stage < (S - 1) * ASZ else int32(0)
            cp_async_commit()
        raise_flag(highest, flag)
        if bad[0] != float32(0.0):
            flag[0] = int32(1)

    kernel = Kernel(name, conv, "hhfhhwiiii", 256, SMEM, 1, (9, 0), architecture_specific=True)
    return Conv(
        kernel,
        c_in,
        c_out,
        (TH, TW, 64),
        pack_winograd_resident,
        residual=residual,
        relu=relu,
        persistent=True,
    )
