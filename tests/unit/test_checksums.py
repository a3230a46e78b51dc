"""Checksums of networks, as the keys of tune files name them."""

from __future__ import annotations

import numpy as np

from diarize.model.checksums import network_checksums, weights_checksum
from diarize.model.weights import load_campplus_model

A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(2, np.float32)


def test_the_order_and_the_layout_do_not_matter() -> None:
    expected = weights_checksum({"a": A, "b": B})
    assert weights_checksum({"b": B, "a": A}) == expected
    assert weights_checksum({"a": np.asfortranarray(A), "b": B}) == expected


def test_names_shapes_types_and_values_do() -> None:
    changed = A.copy()
    changed[1, 2] += 1
    others: list[dict[str, np.ndarray]] = [
        {"a": A},
        {"c": A, "b": B},
        {"a": A.T, "b": B},
        {"a": A.astype(np.float64), "b": B},
        {"a": changed, "b": B},
    ]
    assert len({weights_checksum(tensors) for tensors in ({"a": A, "b": B}, *others)}) == len(others) + 1


def test_a_model_has_one_for_each_network() -> None:
    sums = network_checksums(load_campplus_model())
    assert list(sums) == ["pyannet", "campplus"]
    assert all(len(checksum) == 64 for checksum in sums.values())
    assert len(set(sums.values())) == 2
