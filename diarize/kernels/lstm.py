"""Bidirectional LSTM layers of 128 hidden units on tensor cores: the input product and the persistent recurrence.

`make_lstm_input` multiplies all time steps by the input weights of both directions and adds the bias. The gates leave
in the order of the recurrence's accumulators, so that each of its lanes reads 16-byte words, coalesced.
`make_lstm_recurrence` runs all time steps in one launch: a block owns eight or more windows of one direction, with the
recurrent weights as fragments in registers (128 a thread, 8 warps); the hidden state passes through shared memory, in
two buffers with one barrier a step.

Operands are float16, or pairs of float16 (high and low part, about 22 bits) where `exact_...` says so; sums, cells and
non-linearities are float32. A window's result does not depend on the others.

Layouts: inputs [time * windows + window][pitch] with up to 256 high parts, then the low parts at half the pitch; gates
[row / 8][direction][warp][16-byte words][lane].
"""

from __future__ import annotations

from .lstm_pack import STATE_PITCH
from .ptx import (
    SIMULATOR,
    cp_async16,
    cp_async_commit,
    cp_async_wait0,
    cp_async_wait1,
    cp_async_wait2,
    cp_async_wait3,
    cuda,
    float16,
    float32,
    int32,
    int64,
    ldg128f,
    load_recurrent,
    make_cells,
    make_fill,
    make_kstep,
    make_load_gates,
    make_product_cells,
    make_recurrent_product,
    make_store_gates,
    sts128,
)
from .spec import Kernel, lowest_capability
from .unroll import static_range, unroll

ROW_TILE = 128
"""Rows (time * windows) a block of the input product; row counts are padded to it."""

_WAITS = (cp_async_wait0, cp_async_wait1, cp_async_wait2, cp_async_wait3)


def make_lstm_input(
    chunks: int, exact_weights: bool, exact_input: bool, float_gates: bool = True, stages: int = 3
) -> Kernel:
    """Gates of all rows: 128 rows by 128 gates a block of four warps, k in steps of 64 through `stages` buffers.

    Arguments: inputs (rows, 64 chunks, times two if `exact_input`), packed weights, bias (1024), gates. Grid
    (8, rows / 128). `chunks` is the number of inputs over 64. Gates are float32 or float16.
    """
    terms = 1 + exact_weights + exact_input
    COUNT = chunks * terms
    TERMS = terms
    PITCH = chunks * 64 * (2 if exact_input else 1)
    # Column of the input's part in each term: high with high weights, high with low weights, low with high weights.
    SECOND = 0 if exact_weights else PITCH // 2
    THIRD = PITCH // 2
    TILE = 128 * 64
    STAGES = stages
    AHEAD = stages - 1
    FIRST = min(AHEAD, COUNT)
    kstep = make_kstep([m * 1024 for m in range(4)], [n * 1024 for n in range(4)])
    fill = make_fill(128)
    store = make_store_gates(float_gates)
    wait = _WAITS[stages - 2]
    WORDS = 4 if float_gates else 2
    LANE = 4 if float_gates else 8
    name = (
        f"lstm_input_k{chunks * 64}_w{1 + exact_weights}_x{1 + exact_input}_{'f32' if float_gates else 'f16'}_s{stages}"
    )

    @unroll(name=name)
    def product(x, weights, bias, gates):
        if SIMULATOR:  # noqa: SIM108
            sm = cuda.shared.array(0, float16)
        else:
            sm = cuda.shared.array(0, float16, alignment=128)
        tid = int32(cuda.threadIdx.x)
        lane = int32(tid & 31)
        warp = int32(tid >> 5)
        wm = int32(warp & 1)
        wn = int32(warp >> 1)
        block = int32(cuda.blockIdx.x)
        n0 = int64(cuda.blockIdx.y) * 128
        unit = int32(tid & 7)
        row = int32(tid >> 3)
        to = int32(row * 64 + ((unit ^ (row & 7)) << 3))
        source = (n0 + row) * PITCH + unit * 8
        wsource = int64(block * (COUNT * TILE) + tid * 8)
        acc = cuda.local.array(128, float32)
        fill(acc)
        for s in static_range(FIRST):
            for i in range(8):
                cp_async16(sm, s * (2 * TILE) + tid * 8 + int32(i) * 1024, weights, wsource + s * TILE + i * 1024, 16)
                column = (s // TERMS) * 64 + (0 if s % TERMS == 0 else (SECOND if s % TERMS == 1 else THIRD))
                cp_async16(sm, s * (2 * TILE) + TILE + to + int32(i) * 1024, x, source + column + i * (16 * PITCH), 16)
            cp_async_commit()
        for _ in static_range(AHEAD - FIRST):
            cp_async_commit()
        ar = int32(wm * 64 + (lane & 15))
        a0 = int32(ar * 64 + (((lane >> 4) ^ (ar & 7)) << 3))
        br = int32(wn * 64 + ((lane >> 4) << 3) + (lane & 7))
        b0 = int32(TILE + br * 64 + ((((lane >> 3) & 1) ^ (lane & 7)) << 3))
        for v in static_range(COUNT):
            wait()
            cuda.syncthreads()
            if v + AHEAD < COUNT:
                for i in range(8):
                    at = ((v + AHEAD) % STAGES) * (2 * TILE)
                    cp_async16(sm, at + tid * 8 + int32(i) * 1024, weights, wsource + (v + AHEAD) * TILE + i * 1024, 16)
                    column = ((v + AHEAD) // TERMS) * 64 + (
                        0 if (v + AHEAD) % TERMS == 0 else (SECOND if (v + AHEAD) % TERMS == 1 else THIRD)
                    )
                    cp_async16(sm, at + TILE + to + int32(i) * 1024, x, source + column + i * (16 * PITCH), 16)
            cp_async_commit()
            for k in static_range(4):
                kstep(acc, sm, (a0 ^ (k * 16)) + (v % STAGES) * (2 * TILE), (b0 ^ (k * 16)) + (v % STAGES) * (2 * TILE))
        added = cuda.local.array(8, float32)
        g = int32(lane >> 2)
        for m in static_range(4):
            added[2 * m] = bias[block * 128 + wm * 64 + m * 16 + g]
            added[2 * m + 1] = bias[block * 128 + wm * 64 + m * 16 + g + 8]
        group = int64(cuda.blockIdx.y) * 16 + wn * 8
        part = int32((block >> 2) * 8 + (block & 3) * 2 + wm)
        store(acc, added, gates, group * 8192 + part * (WORDS * 32 * LANE) + lane * LANE)

    shared = stages * 2 * TILE * 2
    arguments = "hhff" if float_gates else "hhfh"
    return Kernel(name, product, arguments, 128, shared, 2, lowest_capability(shared))


def make_lstm_recurrence(
    windows: int,
    exact_weights: bool,
    exact_state: bool,
    write_low: bool,
    float_gates: bool = True,
    low_shared: bool = True,
    staged: bool = True,
) -> Kernel:
    """All time steps of both directions: a block of 256 threads owns `windows` (8, 16 or 32) windows of one direction.

    Arguments: gates, recurrent weights (high parts, low parts), hidden states out (time * padded windows,
    256, or 512 with `write_low`), steps, padded windows (a multiple of `windows`). Grid (padded windows / windows, 2).
    The low parts of the weights, 128 KB, lie in shared memory; without `low_shared`, for GPUs that have less, they are
    read from the second-level cache at every step. Gates of the next steps wait in shared memory; without `staged`,
    for GPUs without asynchronous copies, those of the next step wait in registers.
    """
    assert staged or (float_gates and not low_shared)
    BLOCKS = windows // 8
    NB = windows
    OUT = 512 if write_low else 256
    WORDS = 4 if float_gates else 2
    LANE = 4 if float_gates else 8
    STAGE = BLOCKS * 8 * WORDS * 256
    BUFFER = windows * STATE_PITCH
    LOW = 2 * BUFFER
    GATES = BUFFER * (4 if exact_state else 2)
    weights_size = 65536 if exact_weights and low_shared else 0
    limit = (227 if low_shared else 99) * 1024
    stages = next(s for s in (4, 2) if 2 * (GATES + s * STAGE + weights_size) <= limit)
    STAGED = int(staged)
    AHEAD = stages - 1
    RING = stages * STAGE * STAGED
    WEIGHTS = GATES + RING
    RESIDENT = int(weights_size > 0)
    load_gates = make_load_gates(BLOCKS, float_gates)
    product = make_recurrent_product(BLOCKS, exact_weights, exact_state, LOW, low_shared)
    cells = make_cells(BLOCKS, OUT, exact_state, write_low, LOW)
    SUMS = 16 * BLOCKS
    CELLS = 4 * BLOCKS
    fill = make_fill(CELLS)
    wait = _WAITS[stages - 1]
    # Gates of eight windows, and of one warp of them.
    GROUP = 8192
    PART = WORDS * 32 * LANE
    NEXT = 32 * LANE
    CLEAR = (GATES + 2047) // 2048
    PITCH = STATE_PITCH
    name = (
        f"lstm_recurrence_n{windows}_w{1 + exact_weights}_h{1 + exact_state}_o{1 + write_low}"
        f"_{'f32' if float_gates else 'f16'}_{f's{stages}' if staged else 'ahead'}"
    ) + ("" if low_shared else "_cache")

    @unroll(name=name)
    def recurrence(gates, high, low, out, steps, padded):
        if SIMULATOR:  # noqa: SIM108
            sm = cuda.shared.array(0, float16)
        else:
            sm = cuda.shared.array(0, float16, alignment=128)
        tid = int32(cuda.threadIdx.x)
        lane = int32(tid & 31)
        w = int32(tid >> 5)
        d = int32(cuda.blockIdx.y)
        bx = int32(cuda.blockIdx.x)
        held = cuda.local.array(128, int32)
        acc = cuda.local.array(SUMS, float32)
        kept = cuda.local.array(CELLS, float32)
        first = int64((d * 8 + w) * 8192 + lane * 8)
        load_recurrent(held, high, first)
        if RESIDENT:
            for f in range(32):
                cp_async16(sm, WEIGHTS + w * 8192 + lane * 8 + int32(f) * 256, low, first + f * 256, 16)
        fill(kept)
        for i in range(CLEAR):
            z = int32(int32(i) * 2048 + tid * 8)
            if z < GATES:
                sts128(sm, z, 0, 0, 0, 0)
        # Gates are staged by the lane that reads them: no barrier.
        place = int32(GATES + w * (WORDS * 256) + lane * 8)
        direction = int32(1) - int32(2) * d
        t0 = int32(d * (steps - 1))
        step_size = int64(padded) * 1024
        move = direction * step_size
        source = t0 * step_size + int64(bx * BLOCKS) * GROUP + (d * 8 + w) * PART + lane * LANE
        if STAGED:
            for s in static_range(AHEAD):
                if s < steps:
                    for n in static_range(BLOCKS):
                        for j in static_range(WORDS):
                            at = place + s * STAGE + (n * 8 * WORDS + j) * 256
                            cp_async16(sm, at, gates, source + (n * GROUP + j * NEXT), 16)
                    source += move
                cp_async_commit()
        else:
            coming = cuda.local.array(SUMS, float32)
            for n in static_range(BLOCKS):
                for j in static_range(WORDS):
                    k = (j * BLOCKS + n) * 4
                    word = ldg128f(gates, source + (n * GROUP + j * NEXT))
                    coming[k], coming[k + 1], coming[k + 2], coming[k + 3] = word
            source += move
        reads = int32((lane & 7) * PITCH + ((lane >> 3) << 3))
        writes = int32((lane & 3) * (2 * PITCH) + w * 16 + ((lane >> 2) << 1))
        lows = int64(WEIGHTS + w * 8192 + lane * 8)
        target = (int64(t0) * padded + bx * NB + (lane & 3) * 2) * OUT + d * 128 + w * 16 + ((lane >> 2) << 1)
        target_move = int64(direction * padded) * OUT
        buffer = int32(0)
        now = int32(0)
        ahead = int32(AHEAD * STAGE)
        for s in range(steps):
            if STAGED:
                if s + AHEAD < steps:
                    for n in static_range(BLOCKS):
                        for j in static_range(WORDS):
                            at = place + ahead + (n * 8 * WORDS + j) * 256
                            cp_async16(sm, at, gates, source + (n * GROUP + j * NEXT), 16)
                    source += move
                cp_async_commit()
                wait()
                load_gates(acc, sm, place + now)
            else:
                for k in static_range(SUMS):
                    acc[k] = coming[k]
                if s + 1 < steps:
                    for n in static_range(BLOCKS):
                        for j in static_range(WORDS):
                            k = (j * BLOCKS + n) * 4
                            word = ldg128f(gates, source + (n * GROUP + j * NEXT))
                            coming[k], coming[k + 1], coming[k + 2], coming[k + 3] = word
                    source += move
            cuda.syncthreads()
            if RESIDENT:
                product(acc, held, sm, reads + buffer, sm, lows)
            else:
                product(acc, held, sm, reads + buffer, low, first)
            buffer = int32(BUFFER - buffer)
            cells(acc, kept, sm, writes + buffer, out, target)
            target += target_move
            ahead = now
            now = int32(now + STAGE)
            if now == RING:
                now = int32(0)

    arguments = "fhhhii" if float_gates else "hhhhii"
    shared = 2 * (WEIGHTS + weights_size)
    return Kernel(name, recurrence, arguments, 256, shared, 1, lowest_capability(shared))


def make_lstm_interleaved(windows: int, exact_weights: bool, exact_state: bool, write_low: bool) -> Kernel:
    """As `make_lstm_recurrence`, the windows of a block (16) in two halves.

    The product of one half runs with the cells of the other, instruction by instruction: more windows a second where
    there are enough of them, at twice the time a step. The state has one buffer, and a step two barriers.
    """
    assert windows == 16
    HALF = 8
    NB = windows
    OUT = 512 if write_low else 256
    WORDS, LANE = 4, 4
    STAGE = 2 * 8 * WORDS * 256
    LOW = windows * STATE_PITCH
    GATES = LOW * (2 if exact_state else 1)
    weights_size = 65536 if exact_weights else 0
    stages = next(s for s in (4, 2) if 2 * (GATES + s * STAGE + weights_size) <= 227 * 1024)
    AHEAD = stages - 1
    RING = stages * STAGE
    WEIGHTS = GATES + RING
    RESIDENT = int(exact_weights)
    load_gates = make_load_gates(1, True)
    both = make_product_cells(1, exact_weights, exact_state, OUT, write_low, LOW)
    cells = make_cells(1, OUT, exact_state, write_low, LOW)
    fill = make_fill(4)
    wait = _WAITS[stages - 1]
    GROUP = 8192
    PART = WORDS * 32 * LANE
    NEXT = 32 * LANE
    PITCH = STATE_PITCH
    SECOND = HALF * STATE_PITCH
    SECONDOUT = HALF * OUT
    SECONDGATES = 8 * WORDS * 256
    name = f"lstm_interleaved_n{windows}_w{1 + exact_weights}_h{1 + exact_state}_o{1 + write_low}_s{stages}"

    @unroll(name=name)
    def recurrence(gates, high, low, out, steps, padded):
        if SIMULATOR:  # noqa: SIM108
            sm = cuda.shared.array(0, float16)
        else:
            sm = cuda.shared.array(0, float16, alignment=128)
        tid = int32(cuda.threadIdx.x)
        lane = int32(tid & 31)
        w = int32(tid >> 5)
        d = int32(cuda.blockIdx.y)
        bx = int32(cuda.blockIdx.x)
        held = cuda.local.array(128, int32)
        sums_a = cuda.local.array(16, float32)
        sums_b = cuda.local.array(16, float32)
        cells_a = cuda.local.array(4, float32)
        cells_b = cuda.local.array(4, float32)
        first = int64((d * 8 + w) * 8192 + lane * 8)
        load_recurrent(held, high, first)
        if RESIDENT:
            for f in range(32):
                cp_async16(sm, WEIGHTS + w * 8192 + lane * 8 + int32(f) * 256, low, first + f * 256, 16)
        fill(cells_a)
        fill(cells_b)
        staged = int32(GATES + w * (WORDS * 256) + lane * 8)
        direction = int32(1) - int32(2) * d
        t0 = int32(d * (steps - 1))
        step_size = int64(padded) * 1024
        move = direction * step_size
        source = t0 * step_size + int64(bx * 2) * GROUP + (d * 8 + w) * PART + lane * LANE
        for s in static_range(AHEAD + 1):
            if s < steps:
                for n in static_range(2):
                    for j in static_range(WORDS):
                        at = staged + s * STAGE + (n * 8 * WORDS + j) * 256
                        cp_async16(sm, at, gates, source + (n * GROUP + j * NEXT), 16)
                source += move
            cp_async_commit()
        reads = int32((lane & 7) * PITCH + ((lane >> 3) << 3))
        writes = int32((lane & 3) * (2 * PITCH) + w * 16 + ((lane >> 2) << 1))
        lows = int64(WEIGHTS + w * 8192 + lane * 8)
        target = (int64(t0) * padded + bx * NB + (lane & 3) * 2) * OUT + d * 128 + w * 16 + ((lane >> 2) << 1)
        target_move = int64(direction * padded) * OUT
        # The state before the first step is zero: no product.
        wait()
        load_gates(sums_a, sm, staged)
        load_gates(sums_b, sm, staged + SECONDGATES)
        cells(sums_a, cells_a, sm, writes, out, target)
        now = int32(STAGE)
        ahead = int32(0)
        for s in range(1, steps):
            if s + AHEAD < steps:
                for n in static_range(2):
                    for j in static_range(WORDS):
                        at = staged + ahead + (n * 8 * WORDS + j) * 256
                        cp_async16(sm, at, gates, source + (n * GROUP + j * NEXT), 16)
                source += move
            cp_async_commit()
            wait()
            load_gates(sums_a, sm, staged + now)
            cuda.syncthreads()
            both(sums_a, held, sm, reads, sm, lows, sums_b, cells_b, writes + SECOND, out, target + SECONDOUT)
            load_gates(sums_b, sm, staged + now + SECONDGATES)
            target += target_move
            cuda.syncthreads()
            both(sums_b, held, sm, reads + SECOND, sm, lows, sums_a, cells_a, writes, out, target)
            ahead = now
            now = int32(now + STAGE)
            if now == RING:
                now = int32(0)
        # Slower warps may still read the last state of this half.
        cuda.syncthreads()
        cells(sums_b, cells_b, sm, writes + SECOND, out, target + SECONDOUT)

    shared = 2 * (WEIGHTS + weights_size)
    return Kernel(name, recurrence, "fhhhii", 256, shared, 1, lowest_capability(shared))
