"""A whole residual block of 32 channels on Hopper: y = ReLU(conv3x3(ReLU(conv3x3(x) + b1)) + b2 + x), one kernel.

NHWC float16, float32 sums; the hidden activation is rounded to float16, as if it had been stored, and never leaves the
chip.

A warpgroup walks down a strip of 64 hidden columns (62 output columns) on its own. A row of the image is multiplied
once with the filter rows 2, 1 and 0 side by side, 96 columns wide, and what it adds to the rows above, at and below it
is carried in registers from row to row: products 96 wide keep the tensor cores busy where 32-wide ones would wait for
shared memory, and no row is read twice. For an image row i the steps are: products with the first filter, hidden row i
- 1 complete, to shared memory; products of it with the second filter, output row i - 2 complete; add x (still in
shared memory), ReLU, store.

Shared memory: both filters (36 KB); a ring of 8 image rows of 66 pixels and two hidden rows a warpgroup, in rows of 64
bytes swizzled as the copy engine does. Barriers as in `conv_stream`; image row i is released after step i + 2, which
reads it as the residual. Hidden rows are written by ordinary stores: each thread fences the asynchronous proxy before
the warpgroup's barrier. Two hidden rows, because a warp may be one step ahead of another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .conv_pack import pack_taps
from .conv_stream import SHARED_LIMIT, consumer_registers
from .ptx import (
    SIMULATOR,
    bar_sync,
    bulk_g2s,
    cuda,
    fence_async,
    fence_mbar_init,
    float16,
    float32,
    hidden8,
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
    sts128,
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
from .spec import Kernel
from .unroll import static_range, unroll

STRIP = 62
"""Output columns of a strip."""


def pack_block(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Both filters (32, 32, 3, 3) float32, taps by column, then by row from 2 down; packed by `pack_taps`."""
    turned = [weight[:, :, ::-1].transpose(0, 1, 3, 2) for weight in (first, second)]
    return np.concatenate([pack_taps(weight, 32, 32) for weight in turned])


@dataclass(frozen=True)
class Block:
    """The fused block: its kernel and launch shape; `box` is the tensor map's. Results do not depend on `rows`."""

    kernel: Kernel
    groups: int
    box: tuple[int, int, int] = (32, 66, 1)

    def rows(self, windows: int, height: int, width: int, multiprocessors: int) -> int:
        """Output rows of a task for the least work on the busiest warpgroup: a task also multiplies four rows more."""

        def work(rows: int) -> int:
            return -(-self.tasks(windows, height, width, rows)[2] // (multiprocessors * self.groups)) * (rows + 4)

        return min((height, *range(8, height)), key=work)

    def tasks(self, windows: int, height: int, width: int, rows: int) -> tuple[int, int, int]:
        """Strips across, tasks down, tasks in all, for tasks of `rows` output rows."""
        across, down = -(-width // STRIP), -(-height // rows)
        return across, down, across * down * windows

    def grid(self, tasks: int, multiprocessors: int) -> tuple[int, int, int]:
        """Persistent blocks, one a multiprocessor at most."""
        return min(multiprocessors, -(-tasks // self.groups)), 1, 1


def make_block32(groups: int = 3, producer_registers: int = 32) -> Block:
    """The fused block with `groups` consumer warpgroups, at most 3 (160 registers a thread).

    Arguments: tensor map of x, both filters, both biases (64), y, flag, height, width, strips across, tasks down,
    tasks, rows of a task.
    """
    G = groups
    NT = 128 * groups + 128
    NPROD = 128 * groups
    ROW = 2560
    ROWBYTES = 66 * 64
    BSZ = 1024
    WOFF = 0
    XOFF = 18 * BSZ
    XRING = 8 * ROW
    HOFF = XOFF + groups * XRING
    BAR = HOFF + groups * 2 * ROW
    FX, EX, FW = BAR, BAR + 32 * groups, BAR + 64 * groups
    SMEM = (BAR + 64 * groups + 4) * 2
    assert SMEM <= SHARED_LIMIT
    assert groups in (1, 2, 3)
    R16 = ROW // 8
    DD = wgmma_descriptor(64)
    PADS = groups * 2 * 8
    reg_dec = make_setmaxnreg(producer_registers, False)
    reg_inc = make_setmaxnreg(consumer_registers(groups, producer_registers, 1), True)
    steps = [(0, s * 4 + k * 2, s * 3 * (BSZ // 8) + k * 2) for s in range(3) for k in range(2)]
    products = make_wgmma_block(96, steps, 64, fresh=True)
    pin = make_pin(48)
    roll_rows = make_roll_rows(32)
    fill16 = make_fill(16)
    fill48 = make_fill(48)
    finish8 = make_finish8(True, True, guarded=True)
    name = f"block32_g{groups}"

    @unroll(name=name)
    def block(tmx, w, bias, y, flag, H, W, XT, YT, nt, R):
        sm = cuda.shared.array(0, float16) if SIMULATOR else cuda.shared.array(0, float16, alignment=1024)
        tid = int32(cuda.threadIdx.x)
        if tid == 0:
            for i in static_range(8 * G):
                mbar_init(sm, FX + 4 * i, 1)
                mbar_init(sm, EX + 4 * i, 4)
            mbar_init(sm, FW, 1)
            fence_mbar_init()
        # The two columns past the hidden row feed outputs that are thrown away; they must be finite all the same.
        p = tid
        while p < PADS:
            sts128(sm, int32(HOFF + (p >> 3) * ROW + 64 * 32 + (p & 7) * 8), 0, 0, 0, 0)
            p = int32(p + NT)
        fence_async()
        cuda.syncthreads()
        launch_dependents()
        if tid >= NPROD:
            reg_dec()
            ring = int32((tid - NPROD) >> 5)
            if (tid & 31) == 0 and ring < G:
                if ring == 0:
                    mbar_expect_tx(sm, FW, 18 * BSZ * 2)
                    for tap in range(18):
                        bulk_g2s(sm, WOFF + tap * BSZ, w, int64(tap * BSZ), sm, FW, BSZ * 2)
                wait_prerequisites()
                t = int32(cuda.blockIdx.x * G + ring)
                step = int32(cuda.gridDim.x * G)
                c = int32(0)
                xbase = int32(XOFF + ring * XRING)
                full = int32(FX + ring * 32)
                empty = int32(EX + ring * 32)
                while t < nt:
                    sy = udiv32(t, XT)
                    x0 = int32(umod32(t, XT) * 62 - 2)
                    y0 = int32(umod32(sy, YT) * R - 2)
                    img = udiv32(sy, YT)
                    k = int32(0)
                    while k < R + 4:
                        s = int32(c & 7)
                        mbar_wait(sm, empty + 4 * s, int32(((c >> 3) & 1) ^ 1))
                        mbar_expect_tx(sm, full + 4 * s, ROWBYTES)
                        tma_load_4d(sm, xbase + s * ROW, tmx, 0, x0, y0 + k, img, sm, full + 4 * s)
                        c = int32(c + 1)
                        k = int32(k + 1)
                    t = int32(t + step)
        else:
            reg_inc()
            wait_prerequisites()
            acc = cuda.local.array(48, float32)
            h0 = cuda.local.array(16, float32)
            h1 = cuda.local.array(16, float32)
            o0 = cuda.local.array(16, float32)
            o1 = cuda.local.array(16, float32)
            row = cuda.local.array(16, float32)
            b1 = cuda.local.array(8, float32)
            b2 = cuda.local.array(8, float32)
            words = cuda.local.array(4, int32)
            top = cuda.local.array(1, int32)
            fill48(acc)
            fill16(h0)
            fill16(h1)
            fill16(o0)
            fill16(o1)
            q = int32(tid & 3)
            for part in static_range(2):
                i = part * 4
                b1[i], b1[i + 1], b1[i + 2], b1[i + 3] = ldg128f(bias, q * 8 + i)
                b2[i], b2[i + 1], b2[i + 2], b2[i + 3] = ldg128f(bias, 32 + q * 8 + i)
            top[0] = int32(0)
            wg = uniform32(int32(tid >> 7))
            full = int32(FX + wg * 32)
            empty = int32(EX + wg * 32)
            xbase = int32(XOFF + wg * XRING)
            hbase = int32(HOFF + wg * (2 * ROW))
            dx = int64((smem_addr(sm, xbase) & 0x3FFFF) >> 4) | DD
            dh = int64((smem_addr(sm, hbase) & 0x3FFFF) >> 4) | DD
            dw = int64((smem_addr(sm, WOFF) & 0x3FFFF) >> 4) | DD
            m0 = int32(((tid & 127) >> 5) * 16 + ((tid & 31) >> 2))
            # Swizzled places of this thread's pixels: in a hidden row, and two pixels on in an image row.
            hat = int32(m0 * 32 + (q ^ ((m0 >> 1) & 3)) * 8)
            xat = int32((m0 + 2) * 32 + (q ^ (((m0 + 2) >> 1) & 3)) * 8)
            c = int32(0)
            hb = int32(0)
            mbar_wait(sm, FW, 0)
            t = int32(cuda.blockIdx.x * G + wg)
            while t < nt:
                sy = udiv32(t, XT)
                x0 = int32(umod32(t, XT) * 62)
                y0 = int32(umod32(sy, YT) * R)
                base = int32((udiv32(sy, YT) * H * W + x0 + m0) * 32 + q * 8)
                inside0 = int32(1) if (x0 + m0 > 0) & (x0 + m0 - 1 < W) else int32(0)
                inside1 = int32(1) if x0 + m0 + 7 < W else int32(0)
                good0 = int32(1) if x0 + m0 < W else int32(0)
                good1 = int32(1) if (m0 + 8 < 62) & (x0 + m0 + 8 < W) else int32(0)
                k = int32(0)
                while k < R + 4:
                    s = int32(c & 7)
                    mbar_wait(sm, full + 4 * s, int32((c >> 3) & 1))
                    wgmma_fence()
                    products(acc, sm, dx + s * R16, dw)
                    wgmma_commit()
                    wgmma_wait0()
                    pin(acc)
                    roll_rows(h0, h1, acc, b1, row)
                    hr = int32(y0 + k - 3)
                    keep = int32(1) if (hr >= 0) & (hr < H) & (k >= 2) else int32(0)
                    hidden8(row, 0, sm, hbase + hb * ROW + hat, keep & inside0, top)
                    hidden8(row, 2, sm, hbase + hb * ROW + hat + 8 * 32, keep & inside1, top)
                    fence_async()
                    bar_sync(1 + wg, 128)
                    wgmma_fence()
                    products(acc, sm, dh + hb * R16, dw + 9 * (BSZ // 8))
                    wgmma_commit()
                    wgmma_wait0()
                    pin(acc)
                    roll_rows(o0, o1, acc, b2, row)
                    oy = int32(y0 + k - 4)
                    r = int32((c - 2) & 7)
                    store = int32(1) if (k >= 4) & (oy < H) else int32(0)
                    at = int32(base + oy * W * 32)
                    words[0], words[1], words[2], words[3] = lds128(sm, xbase + r * ROW + xat)
                    finish8(row, 0, words, 0, y, at, 0, store & good0, top)
                    words[0], words[1], words[2], words[3] = lds128(sm, xbase + r * ROW + xat + 8 * 32)
                    finish8(row, 2, words, 0, y, at, 8 * 32, store & good1, top)
                    warp_sync()
                    if k >= 2 and (tid_x_again() & 31) == 0:
                        mbar_arrive(sm, empty + 4 * r)
                    c = int32(c + 1)
                    hb = int32(hb ^ 1)
                    k = int32(k + 1)
                if (tid_x_again() & 31) == 0:
                    mbar_arrive(sm, empty + 4 * ((c - 2) & 7))
                    mbar_arrive(sm, empty + 4 * ((c - 1) & 7))
                t = int32(t + cuda.gridDim.x * G)
            raise_flag(top, flag)

    kernel = Kernel(name, block, "mhfhwiiiiii", NT, SMEM, 1, (9, 0), True, True)
    return Block(kernel, groups)
