"""Device memory by size class, on a driver that is host memory: small arrays share blocks, everything goes back."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tools.host_gpu import HostDriver, view

from diarize.backend.cuda_driver import DeviceArray, Gpu, MemoryPool, OutOfMemoryError


def pool_of(capacity: int = 1 << 24) -> tuple[MemoryPool, HostDriver]:
    gpu = object.__new__(Gpu)
    gpu.driver, gpu.context = HostDriver(capacity), None
    return MemoryPool(gpu), gpu.driver


def test_small_arrays_share_a_block_and_do_not_overlap() -> None:
    pool, driver = pool_of()
    arrays = [pool.put(np.full(100 + index, index, np.float32)) for index in range(300)]
    assert len(driver.blocks) == 1
    for index, array in enumerate(arrays):
        assert np.array_equal(view(array), np.full(100 + index, index, np.float32))
    more = [pool.empty((4000,), np.float32) for _ in range(60)]
    assert len(driver.blocks) == 2
    places = sorted((a.address, a.address + a.nbytes) for a in [*arrays, *more])
    assert all(end <= start for (_, end), (start, _) in pairwise(places))


def test_what_is_freed_is_used_again() -> None:
    pool, _ = pool_of()
    for shape in ((10,), (100_000,), (400_000,)):
        first = pool.empty(shape, np.float32)
        pool.free(first)
        assert pool.empty(shape, np.float32).address == first.address
        assert pool.empty(shape, np.float32).address != first.address


def test_trim_gives_back_large_blocks_alone_and_close_everything() -> None:
    pool, driver = pool_of()
    small, large, kept = (pool.empty(shape, np.float32) for shape in ((10,), (400_000,), (500_000,)))
    held = pool.held_bytes
    pool.free(small)
    pool.free(large)
    pool.trim()
    assert pool.held_bytes == held - (2 << 20)
    assert large.address not in driver.blocks
    assert kept.address in driver.blocks
    # The slab of the small one stays, and serves again.
    assert pool.empty((10,), np.float32).address == small.address
    pool.close()
    assert (pool.held_bytes, driver.blocks) == (0, {})
    assert isinstance(pool.empty((10,), np.float32), DeviceArray)


def test_memory_that_is_kept_for_reuse_goes_back_when_it_runs_out() -> None:
    pool, _ = pool_of(3 << 20)
    pool.free(pool.empty((2 << 20,), np.uint8))
    assert pool.empty((3 << 20,), np.uint8).nbytes == 3 << 20
    with pytest.raises(OutOfMemoryError):
        pool.empty((10,), np.uint8)
