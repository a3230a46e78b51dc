"""Input product of the LSTM on Hopper's warpgroup tensor cores: persistent blocks with resident weights.

A block keeps 128 gate rows of the weights, high and low parts, in shared memory for all of their inputs, and walks over
tiles of 128 rows (time * windows). A producer warp streams the inputs with the tensor copy engine; two consumer
warpgroups multiply 64 gates by 128 rows each. Layouts of inputs and gates are those of `lstm`.
"""

from __future__ import annotations

import numpy as np

from .conv_pack import swizzle_rows
from .lstm_pack import scaled_gates, split_half
from .ptx import (
    SIMULATOR,
    bulk_g2s,
    cuda,
    fence_mbar_init,
    float16,
    float32,
    int32,
    int64,
    make_pin,
    make_store_gates,
    make_wgmma_block,
    mbar_arrive,
    mbar_expect_tx,
    mbar_init,
    mbar_wait,
    smem_addr,
    tma_load_4d,
    uniform32,
    wgmma_commit,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_wait0,
    wgmma_wait1,
)
from .spec import Kernel
from .unroll import static_range, unroll

BOX = (64, 128, 1)
"""Box of the inputs' tensor map: an array (1, rows / 128, 128, pitch)."""
_SHARED_LIMIT = 232448


def pack_input_resident(
    weights: tuple[np.ndarray, np.ndarray], biases: tuple[np.ndarray, np.ndarray], chunks: int, exact_weights: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Weights as flat float16 [8 row blocks][chunks][high, low][128 rows][64], swizzled, and the bias (1024,) float32.

    Arguments as of `lstm_pack.pack_input`.
    """
    scaled = scaled_gates(weights)
    scaled = np.pad(scaled, ((0, 0), (0, chunks * 64 - scaled.shape[1])))
    parts = np.stack(split_half(scaled)[: 1 + exact_weights])
    tiles = parts.reshape(-1, 8, 128, chunks, 8, 8).transpose(1, 3, 0, 2, 4, 5)
    return swizzle_rows(np.ascontiguousarray(tiles)).reshape(-1), scaled_gates(biases).astype(np.float32)


def make_lstm_input_hopper(chunks: int, exact_weights: bool, exact_input: bool) -> Kernel:
    """Float32 gates of all rows.

    Arguments: tensor map of the inputs (boxes of `BOX`), packed weights, bias (1024), gates, row tiles. Grid (8 g), g
    blocks for each of the eight blocks of gate rows.
    """
    CHUNKS = chunks
    PARTS = 1 + exact_weights
    INPUTS = 1 + exact_input
    TILE = 128 * 64
    WEIGHTS = chunks * PARTS * TILE
    WBYTES = WEIGHTS * 2
    STAGE = INPUTS * TILE
    XBYTES = STAGE * 2
    LOWCOLUMN = chunks * 64
    stages = min(4, (_SHARED_LIMIT - 256 - WBYTES) // XBYTES)
    assert stages >= 2
    S = stages
    FULL = WEIGHTS + S * STAGE
    EMPTY = FULL + 4 * S
    READY = EMPTY + 4 * S
    LOW = int(exact_input)
    steps = [(0, k * 2, k * 2) for k in range(4)]
    if exact_weights:
        steps += [(0, TILE // 8 + k * 2, k * 2) for k in range(4)]
    if exact_input:
        steps += [(0, k * 2, TILE // 8 + k * 2) for k in range(4)]
    first_block = make_wgmma_block(128, steps, fresh=True)
    next_block = make_wgmma_block(128, steps)
    pin = make_pin(64)
    store = make_store_gates(True, 1, 16)
    DESCRIPTOR = wgmma_descriptor(128)
    CHUNK16 = PARTS * TILE // 8
    STAGE16 = STAGE // 8
    name = f"lstm_input_hopper_k{chunks * 64}_w{PARTS}_x{INPUTS}_s{stages}"

    @unroll(name=name)
    def product(xmap, weights, bias, gates, tiles):
        if SIMULATOR:  # noqa: SIM108
            sm = cuda.shared.array(0, float16)
        else:
            sm = cuda.shared.array(0, float16, alignment=1024)
        tid = int32(cuda.threadIdx.x)
        block = int32(cuda.blockIdx.x & 7)
        tile = int32(cuda.blockIdx.x >> 3)
        stride = int32(cuda.gridDim.x >> 3)
        if tid == 0:
            for i in static_range(S):
                mbar_init(sm, FULL + 4 * i, 1)
                mbar_init(sm, EMPTY + 4 * i, 8)
            mbar_init(sm, READY, 1)
            fence_mbar_init()
        cuda.syncthreads()
        if tid >= 256:
            if tid == 256:
                mbar_expect_tx(sm, READY, WBYTES)
                for i in range(CHUNKS * PARTS):
                    at = int32(int32(i) * TILE)
                    bulk_g2s(sm, at, weights, int64(block * WEIGHTS + at), sm, READY, TILE * 2)
                stage = int32(0)
                phase = int32(1)
                while tile < tiles:
                    for chunk in range(CHUNKS):
                        column = int32(int32(chunk) * 64)
                        to = int32(WEIGHTS + stage * STAGE)
                        mbar_wait(sm, EMPTY + 4 * stage, phase)
                        mbar_expect_tx(sm, FULL + 4 * stage, XBYTES)
                        tma_load_4d(sm, to, xmap, column, 0, tile, 0, sm, FULL + 4 * stage)
                        if LOW:
                            tma_load_4d(sm, to + TILE, xmap, column + LOWCOLUMN, 0, tile, 0, sm, FULL + 4 * stage)
                        stage = int32(stage + 1)
                        if stage == S:
                            stage = int32(0)
                            phase = int32(phase ^ 1)
                    tile = int32(tile + stride)
        else:
            acc = cuda.local.array(64, float32)
            added = cuda.local.array(2, float32)
            group = uniform32(int32(tid >> 7))
            lane = int32(tid & 31)
            warp = int32((tid >> 5) & 3)
            row = int32(block * 128 + group * 64 + warp * 16 + (lane >> 2))
            added[0] = bias[row]
            added[1] = bias[row + 8]
            part = int32(block * 1024 + group * 512 + warp * 128 + lane * 4)
            da = int64(((smem_addr(sm, 0) & 0x3FFFF) >> 4) + group * 512) | DESCRIPTOR
            db = int64((smem_addr(sm, WEIGHTS) & 0x3FFFF) >> 4) | DESCRIPTOR
            stage = int32(0)
            phase = int32(0)
            before = int32(0)
            mbar_wait(sm, READY, 0)
            while tile < tiles:
                for chunk in static_range(CHUNKS):
                    mbar_wait(sm, FULL + 4 * stage, phase)
                    wgmma_fence()
                    if chunk == 0:
                        first_block(acc, sm, da, db + stage * STAGE16)
                    else:
                        next_block(acc, sm, da + chunk * CHUNK16, db + stage * STAGE16)
                    wgmma_commit()
                    if chunk > 0:
                        # The products of the chunk before are complete, its inputs may be overwritten.
                        wgmma_wait1()
                        if lane == 0:
                            mbar_arrive(sm, EMPTY + 4 * before)
                    before = int32(stage)
                    stage = int32(stage + 1)
                    if stage == S:
                        stage = int32(0)
                        phase = int32(phase ^ 1)
                wgmma_wait0()
                pin(acc)
                if lane == 0:
                    mbar_arrive(sm, EMPTY + 4 * before)
                store(acc, added, gates, int64(tile) * 131072 + part)
                tile = int32(tile + stride)

    return Kernel(name, product, "mhffi", 288, (READY + 4) * 2, 1, (9, 0), True)
