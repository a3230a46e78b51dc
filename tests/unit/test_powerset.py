"""Powerset classes and local speakers translate into each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from diarize.powerset import NUM_CLASSES, SPEAKERS_IN_CLASS, from_local, to_local


def test_table() -> None:
    expected = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]]
    assert to_local(np.arange(NUM_CLASSES)).tolist() == expected
    assert SPEAKERS_IN_CLASS.tolist() == [0, 1, 1, 1, 2, 2, 2]


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=2, max_side=30), elements=st.integers(0, 6)))
def test_round_trip(classes: np.ndarray) -> None:
    local = to_local(classes)
    assert local.shape == (*classes.shape, 3)
    assert local.dtype == np.uint8
    assert np.array_equal(from_local(local), classes)


def test_three_at_once_is_refused() -> None:
    with pytest.raises(ValueError, match="at most two"):
        from_local(np.array([[0, 1, 0], [1, 1, 1]]))


def test_four_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="4 columns"):
        from_local(np.zeros((5, 4)))
