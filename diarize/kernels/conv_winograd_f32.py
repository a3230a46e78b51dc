"""3x3 convolution, stride 1, float32 throughout, by Winograd's F(2x2,3x3): 2.25 times fewer multiplications.

For GPUs without tensor cores for float32, from compute capability 7.5 on. NHWC, fused bias, residual and ReLU. A block
of 256 threads computes 32 tiles of 2 x 2 outputs by 64 channels, or 64 by 32; a warp does two of the sixteen positions,
a thread 8 tiles by 8 channels of each.

A part of the input channels (8, or 4 with 64 tiles) is read tile by tile, transformed in registers and stored as
[channel][position][tile] in one of two buffers while the other is multiplied. Weights serve one warp only, so they go
from the second-level cache to registers, one channel ahead. At the end sums change hands through shared memory, a
quarter at a time; 33 KB in all.

References
----------
Lavin and Gray 2016, Fast algorithms for convolutional neural networks, section 4.1.
"""

from __future__ import annotations

from .conv_f32 import LARGEST
from .ptx import (
    SIMULATOR,
    ctaid_x_again,
    ctaid_y_again,
    ctaid_z_again,
    cuda,
    float32,
    float32_item,
    int32,
    make_load_eight,
    make_load_tile,
    make_outer_product,
    make_put_sums,
    make_store_tile,
    make_take_outputs,
    opaque32,
    tid_x_again,
    udiv32,
    umod32,
)
from .spec import Conv, Kernel
from .unroll import static_range, unroll
from .winograd_pack import pack_winograd_f32


def make_conv_winograd_f32(
    c_in: int, c_out: int, *, residual: bool = False, relu: bool = True, tile_n: int = 0, tile_rows: int = 2
) -> Conv:
    """The convolution. Arguments: x, weights, bias, residual, y, flag, input height and width, then the output's.

    tile_n output channels a block, 64 or 32 (0: as many as c_out allows); tile_rows output rows a block, even
    (measured on an H200: 2 is the fastest at 256 channels, where it fits ten rows, and 4 no faster elsewhere).
    """
    BN = tile_n or min(64, c_out)
    CI, CO = c_in, c_out
    TT = 2048 // BN
    TH = tile_rows
    TCOLS = TT * 2 // TH
    TW = 2 * TCOLS
    NT = 256
    KP = NT // TT
    LKP = KP.bit_length() - 1
    NB = c_out // BN
    NK = c_in // KP
    VP = 16 * TT + TT // 8
    CGN = BN // 8
    HT, HB = TT // 2, BN // 2
    PAIRS = HB // 2
    SMEM = max(2 * KP * VP, 16 * HT * HB) * 4
    RES = int(residual)
    RELU = int(relu)
    BIG = LARGEST
    assert BN in (32, 64)
    assert tile_rows % 2 == 0
    assert TT * 2 % TH == 0
    assert c_in % KP == 0
    assert c_out % BN == 0
    load_tile = make_load_tile(c_in)
    store_tile = make_store_tile(TT)
    load_eight = make_load_eight(HB)
    outer_product = make_outer_product(HT)
    put_sums = make_put_sums(HB)
    take_outputs = make_take_outputs(HT * HB)
    name = f"conv_winograd_f32_ci{c_in}_co{c_out}_n{BN}_h{TH}"
    name += ("_res" if residual else "") + ("_relu" if relu else "")

    @unroll(name=name)
    def conv(x, w, bias, res, y, flag, H, W, OH, OW):
        sm = cuda.shared.array(0, float32_item) if SIMULATOR else cuda.shared.array(0, float32_item, alignment=16)
        tid = int32(cuda.threadIdx.x)
        z = int32(cuda.blockIdx.z)
        img = udiv32(z, NB)
        n0 = int32(umod32(z, NB) * BN)
        # Reading: this thread's tile and channel, and which of its pixels lie in the image.
        tile = int32(tid >> LKP)
        channel = int32(tid & (KP - 1))
        gy = int32(cuda.blockIdx.y * TH + udiv32(tile, TCOLS) * 2 - 1)
        gx = int32(cuda.blockIdx.x * TW + umod32(tile, TCOLS) * 2 - 1)
        mask = int32(0)
        for i in static_range(4):
            for j in static_range(4):
                if (gy + i >= 0) & (gy + i < H) & (gx + j >= 0) & (gx + j < W):
                    mask = int32(mask | (1 << (4 * i + j)))
        source = int32(((img * H + gy) * W + gx) * CI + channel)
        put = int32(channel * VP + tile)
        # Multiplying: this warp's two positions, this thread's tiles and channels.
        lane = int32(tid & 31)
        first = int32((tid >> 5) * 2)
        cg = int32(umod32(lane, CGN) * 4)
        tg = int32(udiv32(lane, CGN) * 4)
        take = int32(first * TT + tg)
        weight = int32((umod32(z, NB) * CI * 16 + first) * BN + cg)
        raw = cuda.local.array(16, float32)
        held = cuda.local.array(32, float32)
        acc = cuda.local.array(128, float32)
        for i in static_range(128):
            acc[i] = float32(0.0)
        load_tile(raw, x, source, W * CI, mask)
        load_eight(held, 0, w, weight)
        load_eight(held, 8, w, weight + BN)
        store_tile(raw, sm, put)
        buffer = int32(0)
        for part in range(NK):
            cuda.syncthreads()
            if part + 1 < NK:
                # Hidden, so that the sixteen bits are not taken apart in front of the loop, a register each.
                load_tile(raw, x, source + (int32(part) + 1) * KP, opaque32(W * CI), opaque32(mask))
            # Two channels at a time; the count is hidden, since unrolled further the loop lacks registers.
            for k in range(0, opaque32(int32(KP)), 2):
                for s in static_range(2):
                    # The last channel is read twice rather than one beyond it.
                    ahead = int32(min(int32(part) * KP + int32(k) + (s + 1), CI - 1) * (16 * BN))
                    load_eight(held, (s + 1) % 2 * 16, w, weight + ahead)
                    load_eight(held, (s + 1) % 2 * 16 + 8, w, weight + ahead + BN)
                    at = int32(buffer + take + (int32(k) + s) * VP)
                    outer_product(acc, 0, sm, at, held, s * 16)
                    outer_product(acc, 64, sm, at + TT, held, s * 16 + 8)
            buffer = int32(KP * VP - buffer)
            if part + 1 < NK:
                store_tile(raw, sm, buffer + put)
        # Sums of half the tiles by half the channels at a time: by position in, by tile and pair of channels out. What
        # names the thread is read again, so that it does not stay in registers over the products.
        out = cuda.local.array(8, float32)
        tid = tid_x_again()
        z = ctaid_z_again()
        img = udiv32(z, NB)
        n0 = int32(umod32(z, NB) * BN)
        lane = int32(tid & 31)
        sums = int32(((tid >> 5) * (2 * HT) + udiv32(lane, CGN) * 4) * HB + umod32(lane, CGN) * 4)
        mine = udiv32(tid, PAIRS)
        pair = int32(umod32(tid, PAIRS) * 2)
        for quarter in static_range(4):
            cuda.syncthreads()
            for p in static_range(2):
                put_sums(acc, p * 64 + (quarter // 2) * 32 + quarter % 2 * 4, sm, sums + p * (HT * HB))
            cuda.syncthreads()
            take_outputs(out, sm, mine * HB + pair)
            number = int32(mine + (quarter // 2) * HT)
            oy = int32(ctaid_y_again() * TH + udiv32(number, TCOLS) * 2)
            ox = int32(ctaid_x_again() * TW + umod32(number, TCOLS) * 2)
            c = int32(n0 + (quarter % 2) * HB + pair)
            for pixel in static_range(4):
                if (oy + pixel // 2 < OH) & (ox + pixel % 2 < OW):
                    for e in static_range(2):
                        at = int32(((img * OH + oy + pixel // 2) * OW + ox + pixel % 2) * CO + c + e)
                        value = out[pixel * 2 + e] + bias[c + e]
                        if RES == 1:
                            value = value + res[at]
                        if not (abs(value) <= float32(BIG)):
                            flag[0] = int32(1)
                        if RELU == 1:
                            value = max(value, float32(0.0))
                        y[at] = value

    kernel = Kernel(name, conv, "fffffwiiii", NT, SMEM, 1, (7, 5))
    return Conv(
        kernel,
        c_in,
        c_out,
        (TH, TW, BN),
        lambda weight: pack_winograd_f32(weight, BN),
        residual=residual,
        relu=relu,
        precision="fp32",
    )
