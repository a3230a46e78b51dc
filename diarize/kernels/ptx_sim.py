# mypy: disallow-untyped-defs=False
"""Python twins of the intrinsics in `ptx_device`, for kernels that run in the CUDA simulator.

Memory operations take (array, index), so numpy arrays stand in for memory. A warp collective makes the 32 Python
threads of a warp meet; the last to arrive computes all lanes. Asynchronous copies are immediate: the simulator checks
indices, layouts and barrier phases, not races.
"""

from __future__ import annotations

import threading

import numpy as np

# The simulator wants an instance of dtype for float16 arrays.
float16 = np.dtype(np.float16)
float32_item = np.dtype(np.float32)
float32, int32, int64 = np.float32, np.int32, np.int64

MEETING_SECONDS = 240
"""A warp or barrier that does not complete within this time is a deadlock."""


class _Warp:
    def __init__(self) -> None:
        self.arguments: list = [None] * 32
        self.results: list = []
        self.barrier = threading.Barrier(32, timeout=MEETING_SECONDS)


_warps: dict = {}
_barriers: dict = {}
_lock = threading.Lock()


def block_key():
    """What tells this simulated block from another."""
    return id(threading.current_thread()._manager)


def thread_id():
    """Number of this thread in its block."""
    return threading.current_thread().thread_id


def collective(function, *arguments):
    """All 32 lanes give arguments; `function` turns the list of 32 tuples into the list of 32 results."""
    lane, key = thread_id() % 32, (block_key(), thread_id() // 32)
    with _lock:
        warp = _warps.setdefault(key, _Warp())
    warp.arguments[lane] = arguments
    if warp.barrier.wait() == 0:
        warp.results = function(warp.arguments)
    warp.barrier.wait()
    result = warp.results[lane]
    warp.barrier.wait()
    return result


def ndarray(array):
    """The numpy array behind a simulator array."""
    return getattr(array, "_ary", array)


def all_bytes(array):
    """The array's memory as bytes."""
    return ndarray(array).reshape(-1).view(np.uint8)


def byte_range(array, index, count=16):
    """`count` bytes from element `index` on."""
    start = int(index) * ndarray(array).itemsize
    return all_bytes(array)[start : start + count]


def _load(array, index):
    return tuple(int(v) for v in byte_range(array, index).view(np.int32))


def _store(array, index, *values):
    byte_range(array, index)[:] = np.array([int(x) & 0xFFFFFFFF for x in values], np.uint32).view(np.uint8)


ldg128 = ldg128_nc = lds128 = _load
stg128 = sts128 = _store


def ldg128f(array, index):
    return tuple(np.float32(v) for v in byte_range(array, index).view(np.float32))


lds128f = ldg128f


def stg128f(array, index, *values):
    byte_range(array, index)[:] = np.array(values, np.float32).view(np.uint8)


def cp_async16(shared, si, source, gi, count):
    byte_range(shared, si)[:] = byte_range(source, gi) if count else 0


def cp_async_commit():
    pass


cp_async_wait0 = cp_async_wait1 = cp_async_wait2 = cp_async_wait3 = cp_async_commit


def warp_sync():
    collective(lambda arguments: [None] * 32)


def _all_ldmatrix(arguments):
    out = [[0] * 4 for _ in range(32)]
    for matrix in range(4):
        rows = np.stack([byte_range(*arguments[8 * matrix + r]).view(np.uint16) for r in range(8)])
        words = np.ascontiguousarray(rows).view(np.int32)
        for lane in range(32):
            out[lane][matrix] = int(words[lane // 4, lane % 4])
    return [tuple(o) for o in out]


def _halves(word):
    return np.array([int(word) & 0xFFFFFFFF], np.uint32).view(np.float16)


def _all_mma_f16(arguments):
    A, B, C = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32), np.zeros((16, 8), np.float32)
    for lane, v in enumerate(arguments):
        g, t = lane // 4, lane % 4
        for i, (row, column) in enumerate([(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)]):
            A[row, column : column + 2] = _halves(v[i])
        B[2 * t : 2 * t + 2, g] = _halves(v[4])
        B[2 * t + 8 : 2 * t + 10, g] = _halves(v[5])
        C[g, 2 * t : 2 * t + 2], C[g + 8, 2 * t : 2 * t + 2] = v[6:8], v[8:10]
    return _fragment_rows(A @ B + C)


def _fragment_rows(D):
    lanes = [(lane // 4, 2 * (lane % 4)) for lane in range(32)]
    return [(D[g, t], D[g, t + 1], D[g + 8, t], D[g + 8, t + 1]) for g, t in lanes]


def mma_f16_16816(*values):
    return collective(_all_mma_f16, *values)


def _all_mma_tf32(arguments):
    A, B, C = np.zeros((16, 8), np.float32), np.zeros((8, 8), np.float32), np.zeros((16, 8), np.float32)
    for lane, v in enumerate(arguments):
        g, t = lane // 4, lane % 4
        for i, (row, column) in enumerate([(g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)]):
            A[row, column] = bits_f32(v[i])
        B[t, g], B[t + 4, g] = bits_f32(v[4]), bits_f32(v[5])
        C[g, 2 * t : 2 * t + 2], C[g + 8, 2 * t : 2 * t + 2] = v[6:8], v[8:10]
    return _fragment_rows(A @ B + C)


def cvt_tf32(x):
    """Round to 10 mantissa bits, ties away from zero, as cvt.rna does."""
    bits = (int(np.float32(x).view(np.uint32)) + 0x1000) & 0xFFFFE000
    return int(np.array([bits], np.uint32).view(np.int32)[0])


def sqrt_rn(x):
    return np.sqrt(np.float32(x))


def pack_half2(low, high):
    with np.errstate(over="ignore"):
        return int(np.array([low, high], np.float32).astype(np.float16).view(np.int32)[0])


def unpack_half2(word):
    low, high = _halves(word).astype(np.float32)
    return low, high


def hmax2_nan(a, b):
    return int(np.maximum(_halves(a), _halves(b)).view(np.int32)[0])


def f32_bits(x):
    return int(np.float32(x).view(np.int32))


def bits_f32(x):
    return np.array([int(x) & 0xFFFFFFFF], np.uint32).view(np.float32)[0]


def bar_sync(number, count):
    key = (block_key(), int(number))
    with _lock:
        barrier = _barriers.setdefault(key, threading.Barrier(int(count), timeout=MEETING_SECONDS))
    barrier.wait()


def tid_x_again():
    return int(threading.current_thread().threadIdx.x)


def ctaid_x_again():
    return int(threading.current_thread().blockIdx.x)


def ctaid_y_again():
    return int(threading.current_thread().blockIdx.y)


def ctaid_z_again():
    return int(threading.current_thread().blockIdx.z)


def nctaid_x_again():
    return int(threading.current_thread()._manager._grid_dim[0])


def opaque32(x):
    return x


uniform32 = opaque32


def udiv32(a, b):
    return int(a) // int(b)


def umod32(a, b):
    return int(a) % int(b)


def smem_addr(shared, index):
    return int(index) * ndarray(shared).itemsize


def make_kstep(a_offsets, b_offsets):
    count_m, count_n = len(a_offsets), 2 * len(b_offsets)

    def work(arguments):
        a_words = [_all_ldmatrix([(sm, a + offset) for _, sm, a, _ in arguments]) for offset in a_offsets]
        b_words = [_all_ldmatrix([(sm, b + offset) for _, sm, _, b in arguments]) for offset in b_offsets]
        for m in range(count_m):
            for n in range(count_n):
                base, pair = (m * count_n + n) * 4, 2 * (n % 2)
                lanes = [
                    (*a_words[m][lane], *b_words[n // 2][lane][pair : pair + 2], *arguments[lane][0][base : base + 4])
                    for lane in range(32)
                ]
                for lane, values in enumerate(_all_mma_f16(lanes)):
                    arguments[lane][0][base : base + 4] = values
        return [None] * 32

    def kstep(acc, sm, a, b):
        collective(work, ndarray(acc), sm, int(a), int(b))

    return kstep


def make_fill(count):
    def fill(acc):
        ndarray(acc)[:count] = 0

    return fill


def make_fill_bias(rows, width):
    def fill_bias(acc, bias, channel):
        a, b = ndarray(acc), ndarray(bias)
        for group in range(width // 32):
            for row in range(rows):
                for half in range(2):
                    for j in range(8):
                        index = (row * (width // 8) + group * 4) * 4 + half * 2 + (j // 2) * 4 + j % 2
                        a[index] = b[channel + group * 32 + j]

    return fill_bias


def residual_load(words, k, residual, index, offset, valid):
    ndarray(words)[k : k + 4] = byte_range(residual, index + offset).view(np.int32) if valid else 0


residual_load_ordered = residual_load


def _pack8(acc, k, added, relu):
    a = ndarray(acc)
    values = np.array([a[k + (j // 2) * 4 + j % 2] for j in range(8)], np.float32) + added
    with np.errstate(over="ignore"):
        return (np.maximum(values, 0) if relu else values).astype(np.float16)


def _note_top(top, packed):
    highest = ndarray(top)
    for word in np.abs(packed).view(np.int32):
        highest[0] = hmax2_nan(highest[0], word)


def make_finish8(residual, relu, guarded=False):
    def finish8(acc, k, words, kr, y, index, offset, valid, top):
        added = ndarray(words)[kr : kr + 4].view(np.float16).astype(np.float32) if residual else np.float32(0)
        packed = _pack8(acc, k, added, relu)
        if valid or not guarded:
            _note_top(top, packed)
        if valid:
            byte_range(y, index + offset)[:] = packed.view(np.uint8)

    return finish8


def hidden8(acc, k, sm, index, keep, top):
    packed = _pack8(acc, k, np.float32(0), True) if keep else np.zeros(8, np.float16)
    _note_top(top, packed)
    byte_range(sm, index)[:] = packed.view(np.uint8)


def raise_flag(top, flag):
    if not np.isfinite(_halves(ndarray(top)[0])).all():
        ndarray(flag).reshape(-1)[0] = 1


def make_weighted_sum(count, squared):
    def add(acc, words, weight, mean):
        x = ndarray(words)[: 4 * count].view(np.float16).astype(np.float32).reshape(count, 8)
        terms = (x - ndarray(mean)[:8]) ** 2 if squared else x
        for factor, term in zip(ndarray(weight)[:count], terms, strict=True):
            ndarray(acc)[:8] += factor * term

    return add
