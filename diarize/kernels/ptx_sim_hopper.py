# mypy: disallow-untyped-defs=False
"""Python twins of the intrinsics in `ptx_hopper`, for kernels that run in the CUDA simulator.

Barriers keep their phase and byte count, so a wrong parity or a missing arrival shows as a failed assertion or a
time-out. wgmma reads its operands through the descriptors, swizzle included.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from .ptx_sim import MEETING_SECONDS, all_bytes, block_key, byte_range, collective, ndarray, thread_id

_barriers: dict = {}
_lock = threading.Lock()

TENSOR_MAPS: dict = {}
"""Tensor maps of the simulator: number -> (NHWC array, box of channels, columns and rows)."""


def wgmma_fence():
    pass


wgmma_commit = fence_async = fence_mbar_init = launch_dependents = wait_prerequisites = wgmma_fence


def wgmma_wait0():
    # The lanes of a warp leave together, as on the card.
    collective(lambda arguments: [None] * 32)


wgmma_wait1 = wgmma_wait0


def make_setmaxnreg(count, increase):
    return wgmma_fence


def make_pin(count):
    def pin(acc):
        pass

    return pin


def _key(barrier, index):
    return block_key(), int(index) * ndarray(barrier).itemsize


def _complete_phase(state):
    if state["pending"] == 0 and state["bytes"] == 0:
        state["phase"] += 1
        state["pending"] = state["count"]


def mbar_init(barrier, index, count):
    with _lock:
        _barriers[_key(barrier, index)] = {"count": int(count), "pending": int(count), "phase": 0, "bytes": 0}


def mbar_arrive(barrier, index):
    mbar_expect_tx(barrier, index, 0)


def mbar_expect_tx(barrier, index, count):
    with _lock:
        state = _barriers[_key(barrier, index)]
        assert state["pending"] > 0, "more arrivals than the barrier expects"
        state["bytes"] += int(count)
        state["pending"] -= 1
        _complete_phase(state)


def _deliver(barrier, index, count):
    with _lock:
        state = _barriers[_key(barrier, index)]
        state["bytes"] -= int(count)
        assert state["bytes"] >= 0, "more bytes than the barrier expects"
        _complete_phase(state)


def mbar_wait(barrier, index, parity):
    key, start = _key(barrier, index), time.monotonic()
    while True:
        with _lock:
            state = dict(_barriers[key])
        if (state["phase"] & 1) != (int(parity) & 1):
            return
        time.sleep(0.0005)
        assert time.monotonic() - start < MEETING_SECONDS, f"barrier {key} parity {parity} stays at {state}"


def bulk_g2s(shared, si, source, gi, barrier, bi, size):
    byte_range(shared, si, int(size))[:] = byte_range(source, gi, int(size))
    _deliver(barrier, bi, size)


def _swizzle(address, row_bytes):
    """16-byte unit number ^= address bits from 7 on, within a row of the swizzle."""
    return address ^ (((address >> 7) & (7 if row_bytes == 128 else 3)) << 4)


def tma_load_4d(shared, si, tensor_map, c, x, y, n, barrier, bi):
    array, (box_c, box_x, box_y) = TENSOR_MAPS[int(ndarray(tensor_map).reshape(-1)[0])]
    _, height, width, _ = array.shape
    out = np.zeros((box_y, box_x, box_c), np.float16)
    for j in range(box_y):
        for i in range(box_x):
            row, column = y + j, x + i
            if 0 <= row < height and 0 <= column < width:
                out[j, i] = array[n, row, column, c : c + box_c]
    row_bytes = box_c * 2
    units = row_bytes // 16
    base = int(si) * 2
    assert base % 1024 == 0, "a swizzled box must start at a multiple of 1024 bytes"
    at = base + np.arange(box_y * box_x)[:, None] * row_bytes + np.arange(units)[None] * 16
    memory = all_bytes(shared)
    memory[_swizzle(at, row_bytes)[..., None] + np.arange(16)] = out.reshape(-1, units, 8).view(np.uint8)
    _deliver(barrier, bi, box_y * box_x * row_bytes)


def tma_prefetch_4d(tensor_map, c, x, y, n):
    pass


def _operand(memory, descriptor, rows, row_bytes):
    start, stride, swizzle = descriptor & 0x3FFF, (descriptor >> 32) & 0x3FFF, (descriptor >> 62) & 3
    assert swizzle == {128: 1, 64: 2}[row_bytes], "descriptor and row length disagree"
    i = np.arange(rows)
    at = start * 16 + (i // 8) * stride * 16 + (i % 8) * row_bytes
    at = _swizzle(at[:, None] + np.arange(2)[None] * 16, row_bytes)
    halves = np.ascontiguousarray(memory[at[..., None] + np.arange(16)].reshape(rows, 32)).view(np.float16)
    return halves.astype(np.float32)


def make_wgmma_block(width, steps, row_bytes=128, fresh=False):
    def wgblock(acc, sm, da, db):
        lane, memory, a = thread_id() % 128, all_bytes(sm), ndarray(acc)
        warp, g, q = lane // 32, (lane % 32) // 4, lane % 4
        own = (8 * np.arange(width // 8)[:, None] + 2 * q + np.arange(2)).reshape(-1)
        for number, (start, a_offset, b_offset) in enumerate(steps):
            A = _operand(memory, int(da) + a_offset, 64, row_bytes)
            B = _operand(memory, int(db) + b_offset, width, row_bytes)
            D = A[[16 * warp + g, 16 * warp + g + 8]] @ B.T
            # Fragment order: four values an eight-column block, two of the upper row, two of the lower.
            values = D[:, own].reshape(2, width // 8, 2).transpose(1, 0, 2).reshape(-1)
            if fresh and number == 0:
                a[start : start + width // 2] = 0
            a[start : start + width // 2] += values

    return wgblock


def make_roll_rows(channels):
    n = channels // 2
    index = np.arange(n)
    own = (index // 16) * 8 + ((index % 16) // 4) * 2 + index % 2

    def roll(first, second, products, bias, out):
        a, b, p, o = ndarray(first), ndarray(second), ndarray(products), ndarray(out)
        start = ndarray(bias)[own]
        o[:n], a[:n], b[:n] = a[:n] + p[:n], b[:n] + p[n : 2 * n], start + p[2 * n : 3 * n]

    return roll
