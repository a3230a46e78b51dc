"""The front of the segmentation network on the GPU: simulated against float64, and compiled without a GPU."""

from __future__ import annotations

import pytest
from cuda_support import assembled, needs_numba_cuda, simulate

from diarize.backend.cuda_pyannet import FRONT

pytestmark = needs_numba_cuda

CASES = ("wave", "silence", "sinc", "pool", "conv1", "conv2")


@pytest.mark.parametrize("case", CASES)
def test_simulated(case: str) -> None:
    errors = simulate("simulated_sincnet.py")[case]
    assert errors
    # Pairs of float16 hold 22 bits; float32 itself has 24.
    assert max(errors.values()) < 2e-6


def test_constant_channel_is_exact() -> None:
    assert simulate("simulated_sincnet.py")["silence"]["mean"] == 0.0


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)], ids=str)
@pytest.mark.parametrize("name", FRONT)
def test_compiles_without_spills(name: str, capability: tuple[int, int]) -> None:
    image = assembled(FRONT[name], capability)
    assert image.spilled_bytes == 0
    assert 0 < image.registers <= 255
