"""The front of the segmentation network on the GPU: simulated against float64, and compiled without a GPU."""

from __future__ import annotations

import pytest
from cuda_support import assembled, needs_numba_cuda, quick_first, simulate, slow

from diarize.backend.cuda_pyannet import FRONT

pytestmark = needs_numba_cuda

CASES = [("wave", "quick"), ("silence", "quick"), ("sinc", "quick"), ("pool", "quick"), ("conv1", "quick")]


SLOW = [pytest.param(case, "slow", marks=slow) for case in ("conv2", "sinc in passes", "conv2 in passes")]


@pytest.mark.parametrize(("case", "speed"), [*CASES, *SLOW])
def test_simulated(case: str, speed: str) -> None:
    errors = simulate("simulated_sincnet.py", speed)[case]
    assert errors
    # Pairs of float16 hold 22 bits; float32 itself has 24.
    assert max(errors.values()) < 2e-6


def test_constant_channel_is_exact() -> None:
    assert simulate("simulated_sincnet.py")["silence"]["mean"] == 0.0


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)], ids=str)
@pytest.mark.parametrize("name", quick_first(["conv1", "sinc"], list(FRONT)))
def test_compiles_without_spills(name: str, capability: tuple[int, int]) -> None:
    image = assembled(FRONT[name], capability)
    assert image.spilled_bytes == 0
    assert 0 < image.registers <= 255
