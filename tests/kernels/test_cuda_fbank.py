"""The filterbank on the GPU: simulated against float64, and compiled without a GPU."""

from __future__ import annotations

import pytest
from cuda_support import assembled, needs_numba_cuda, simulate

from diarize.backend.cuda_fbank import KERNELS

pytestmark = needs_numba_cuda


@pytest.mark.parametrize("case", ["hamming", "povey", "one frame", "silence"])
def test_simulated(case: str) -> None:
    errors = simulate("simulated_fbank.py")[case]
    assert max(errors.values()) < 1e-4


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_compiles_without_spills(name: str, capability: tuple[int, int]) -> None:
    assert assembled(KERNELS[name], capability).spilled_bytes == 0
