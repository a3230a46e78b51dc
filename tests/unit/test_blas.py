"""The number of threads of numpy's matrix products, as the library itself reports it."""

from __future__ import annotations

import pytest

from diarize.backend.blas import _libraries, one_blas_thread


def counts() -> list[int]:
    return [get() for get, _ in _libraries()]


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


def test_the_last_of_several_threads_restores_it() -> None:
    before = counts()
    first, second = one_blas_thread(), one_blas_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert counts() == [1] * len(before)
    second.__exit__(None, None, None)
    assert counts() == before
