"""The CAM++ kernels on the GPU: simulated against float64, and compiled without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_support import assembled, needs_numba_cuda, quick_first, simulate

from diarize.backend.cuda_campplus import KERNELS, columns_for, lay_out
from diarize.errors import BackendError

# Bottlenecks are rounded to float16, half a unit in the last of 11 bits: a relative L2 distance of 2.1e-4.
ROUNDED = 2.5e-4
SLOW = ("stem", "strided", "outer", "head", "transit", "strided in passes")


@needs_numba_cuda
@pytest.mark.parametrize("case", quick_first(["shortcut", "norm", "taps"], SLOW))
def test_simulated(case: str) -> None:
    result = simulate("simulated_campplus.py", "slow" if case in SLOW else "quick")[case]
    assert result["out"] < (ROUNDED if case == "norm" else 2e-6)
    assert result.get("flag", 0) == 0


@needs_numba_cuda
def test_context_and_statistics_are_float32() -> None:
    assert max(simulate("simulated_campplus.py")["context"].values()) < 2e-6


@needs_numba_cuda
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)], ids=str)
@pytest.mark.parametrize("name", quick_first(["taps", "shortcut"], list(KERNELS)))
def test_compiles_without_spills(name: str, capability: tuple[int, int]) -> None:
    assert assembled(KERNELS[name], capability).spilled_bytes == 0


def test_layout_leaves_free_places_around_every_sequence() -> None:
    lengths = (20, 21, 203, 998)
    layout = lay_out([np.arange(n) for n in lengths], 1400, 5)
    assert columns_for(lengths) <= 1400
    assert [tuple(row) for row in layout.columns[:4]] == [(4, 20), (28, 21), (56, 203), (264, 998)]
    for index, (first, length) in enumerate(layout.columns[:4]):
        assert (layout.item[first : first + length] == index).all()
        assert (layout.item[first - 4 : first] == -1).all()
        assert (layout.source[first : first + length] == np.arange(length)).all()
    assert (layout.item[264 + 998 :] == -1).all()
    # Rows of 20 ms; the third sequence has 102 of them, so two parts of at most 100.
    assert [tuple(row) for row in layout.rows[:4]] == [(2, 10, 0), (14, 11, 1), (28, 102, 2), (132, 499, 4)]
    assert list(layout.part[[28, 127, 128, 129, 130]]) == [2, 2, 3, 3, -1]


def test_layout_refuses_what_does_not_fit() -> None:
    with pytest.raises(BackendError, match="3 sequences need 88 columns"):
        lay_out([np.arange(21)] * 3, 88, 2)
