"""The LSTM kernels on the GPU: simulated against float64, and compiled without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_support import assembled, needs_numba_cuda, quick_first, simulate, slow

from diarize.backend.cuda_pyannet import PyanNetChoice, hopper_choice, named_choice, portable_choice
from diarize.candidates import Request
from diarize.errors import BackendError
from diarize.kernels.lstm_pack import gate_rows, split_half
from diarize.registry.pyannet import PRECISIONS

# Case, which run it is in, tolerance.
CASES = [
    ("input hopper", "quick", 2e-6),
    ("recurrence exact", "quick", 2e-6),
    pytest.param("input exact", "slow", 2e-6, marks=slow),
    pytest.param("recurrence cache", "slow", 2e-6, marks=slow),
    pytest.param("recurrence interleaved", "slow", 2e-6, marks=slow),
    pytest.param("recurrence weights", "slow", 5e-4, marks=slow),
    pytest.param("input in two stages", "slow", 2e-6, marks=slow),
    pytest.param("recurrence ahead", "slow", 2e-6, marks=slow),
]


@needs_numba_cuda
@pytest.mark.parametrize(("case", "speed", "tolerance"), CASES)
def test_simulated(case: str, speed: str, tolerance: float) -> None:
    error = simulate("simulated_lstm.py", speed)[case]["out"]
    assert error < tolerance
    # Where low parts are left out the error shows that: the two variants are not the same kernel.
    assert (error > 1e-5) == (tolerance > 1e-5)


def test_gate_rows_are_a_permutation() -> None:
    assert sorted(gate_rows()) == list(range(512))


def test_pairs_hold_22_bits() -> None:
    values = np.random.default_rng(0).standard_normal(10_000)
    high, low = split_half(values)
    error = np.abs(high.astype(np.float64) + low.astype(np.float64) - values)
    assert (error <= np.maximum(np.abs(values) * 2.0**-22, 2.0**-25)).all()


def test_unknown_precision_is_named() -> None:
    with pytest.raises(BackendError, match=r"bf16.*split"):
        portable_choice("bf16")


def resident_choice(precision: str = "split") -> PyanNetChoice:
    """The choice for GPUs whose blocks may take 227 KB of shared memory."""
    return named_choice("mma", "resident8or16", precision)


def turing_choice(precision: str = "split") -> PyanNetChoice:
    """The LSTM stack for compute capability 7.5."""
    return named_choice("mma_s2", "ahead8", precision)


CHOICES = {"hopper": hopper_choice, "resident": resident_choice, "portable": portable_choice, "turing": turing_choice}
ONLY = {"turing": [(7, 5)], "hopper": [(9, 0)]}
"""Capabilities of choices that are for one generation."""


def lstm_requests(choice: PyanNetChoice) -> list[Request]:
    return [choice.input_product(0), choice.input_product(1), *choice.recurrences.values()]


def check_compiles(choice: PyanNetChoice, capabilities: list[tuple[int, int]]) -> None:
    for request in lstm_requests(choice):
        for capability in capabilities:
            image = assembled(request, capability)
            assert (image.spilled_bytes, image.stack_bytes) == (0, 0), image.name


@needs_numba_cuda
@pytest.mark.parametrize("name", quick_first(["hopper"], list(CHOICES)))
def test_default_compiles_without_spills(name: str) -> None:
    check_compiles(CHOICES[name](), ONLY.get(name, [(8, 0), (9, 0)]))


@needs_numba_cuda
@slow
@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "split"])
@pytest.mark.parametrize("name", CHOICES)
def test_others_compile_without_spills(name: str, precision: str) -> None:
    check_compiles(CHOICES[name](precision), ONLY.get(name, [(9, 0)]))


@needs_numba_cuda
def test_portable_choice_fits_the_smallest_shared_memory() -> None:
    for request in portable_choice().requests():
        # 99 KB is what compute capability 8.6, 8.9 and 12.0 give a block; some of it may be static.
        assert request.make().shared_bytes <= 99 * 1024
