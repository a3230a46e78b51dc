"""The number of threads of numpy's matrix products, as the library itself reports it."""

from __future__ import annotations

import pytest

from diarize.backend.blas import _libraries, one_blas_thread


def counts() -> list[int]:
    return [library[0]() for library in _libraries() if library is not None]


def test_one_thread_inside_and_as_before_outside() -> None:
    if not counts():
        pytest.skip("numpy comes with another BLAS")
    before = counts()
    with one_blas_thread():
        assert set(counts()) == {1}
    assert counts() == before


def test_errors_restore_it_too() -> None:
    before = counts()
    with pytest.raises(ValueError, match="inside"), one_blas_thread():
        raise ValueError("inside")
    assert counts() == before
