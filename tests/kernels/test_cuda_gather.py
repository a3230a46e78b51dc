"""Gathering of windows on the GPU: simulated against slices, and compiled without a GPU."""

from __future__ import annotations

import pytest
from cuda_support import assembled, needs_numba_cuda, simulate

from diarize.backend.cuda_networks import GATHER

pytestmark = needs_numba_cuda


@pytest.mark.parametrize("case", ["one", "gaps", "all"])
def test_simulated(case: str) -> None:
    errors = simulate("simulated_gather.py")[case]
    assert max(errors.values()) == 0


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)], ids=str)
def test_compiles_without_spills(capability: tuple[int, int]) -> None:
    assert assembled(GATHER, capability).spilled_bytes == 0
