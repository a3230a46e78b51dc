"""The dense layers on the GPU: simulated against float64, and compiled without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_support import assembled, needs_numba_cuda, simulate, slow

from diarize.candidates import Request
from diarize.kernels.split_pack import fits_split, pack_split


@needs_numba_cuda
def test_simulated_with_a_flag_for_infinities() -> None:
    assert simulate("simulated_lstm.py")["dense"] == {"wrong": 0, "flag": 0, "flag of an infinite input": 1}


@needs_numba_cuda
@slow
@pytest.mark.parametrize("case", ["dense exact", "dense in pieces"])
def test_simulated_exact(case: str) -> None:
    expected = {"wrong": 0, "flag": 0, "flag of an infinite input": 0}
    assert simulate("simulated_lstm.py", "slow")[case] == expected


@needs_numba_cuda
@pytest.mark.parametrize("low", [True, pytest.param(False, marks=slow)])
def test_compiles_without_spills(low: bool) -> None:
    for capability in ((8, 0), (9, 0)):
        assert assembled(Request("dense:make_dense", {"low": low}), capability).spilled_bytes == 0


def test_pack_split_places_fragments() -> None:
    weight = np.random.default_rng(0).standard_normal((11, 48))
    packed = pack_split(weight).reshape(3, 2, 32, 2, 4).astype(np.float64).sum(3)
    for step, block, lane, i in ((0, 0, 0, 0), (2, 1, 11, 3), (1, 0, 30, 2)):
        output, value = 8 * block + lane // 4, 16 * step + 2 * (lane % 4) + (0, 1, 8, 9)[i]
        expected = weight[output, value] if output < 11 else 0.0
        assert packed[step, block, lane, i] == pytest.approx(expected, abs=1e-6)


def test_fits_split_refuses_what_float16_cannot_hold() -> None:
    assert fits_split(np.array([3.0, -32000.0]))
    assert not fits_split(np.array([40000.0]))
    assert not fits_split(np.array([np.nan]))
