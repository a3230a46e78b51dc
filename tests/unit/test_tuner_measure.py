"""Measuring in turns, and comparing with twins, without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from diarize.backend.cuda_driver import OutOfMemoryError
from diarize.candidates import SEPARATE, Candidate
from diarize.errors import BackendError
from diarize.registry import candidates
from diarize.tuner.measure import Effort, measure, rotated
from diarize.tuner.site import Failure, FailureKind
from diarize.tuner.trunk import kind_of
from diarize.tuner.verify import TOLERANCES, compare, compare_classes, digest_of


class Clock:
    """Replays that take what they are told; keeps the order of every round."""

    def __init__(self, seconds: dict[str, float], fault: dict[str, Exception] | None = None) -> None:
        self.seconds, self.fault = seconds, fault or {}
        self.orders: list[list[str]] = []
        self.released: list[str] = []

    def prepare(self, launches: Sequence[Any]) -> str:
        if launches[0] in self.fault:
            raise self.fault[launches[0]]
        return launches[0]

    def round(self, prepared: Sequence[str]) -> list[float]:
        self.orders.append(list(prepared))
        return [self.seconds[name] for name in prepared]

    def release(self, prepared: Iterable[str]) -> None:
        self.released += list(prepared)


def measured(clock: Clock, **effort: Any) -> dict[str, Any]:
    return measure(clock, {name: [name] for name in clock.seconds}, Effort(**effort))  # type: ignore[list-item]


def test_rounds_rotate_and_reverse_and_warm_ups_do_not_count() -> None:
    clock = Clock({"a": 1e-6, "b": 1.2e-6, "c": 1.3e-6})
    found = measured(clock)
    assert {name: len(values) for name, values in found.items()} == {"a": 7, "b": 7, "c": 7}
    assert found["b"] == (1.2,) * 7
    assert len(clock.orders) == 8
    assert len({tuple(order) for order in clock.orders}) >= 5
    first = [order[0] for order in clock.orders]
    assert all(first.count(name) >= 2 for name in "abc")
    assert sorted(clock.released) == ["a", "b", "c"]


def test_every_name_is_first_and_last_in_some_round() -> None:
    names = ["a", "b", "c", "d", "e"]
    orders = [rotated(names, turn) for turn in range(10)]
    assert all(sorted(order) == names for order in orders)
    assert {order[0] for order in orders} == {order[-1] for order in orders} == set(names)


def test_the_hopeless_stop_early_but_their_samples_stay() -> None:
    found = measured(Clock({"slow": 1.6e-6, "fast": 1e-6, "near": 1.4e-6}))
    assert [len(found[name]) for name in ("slow", "fast", "near")] == [3, 7, 7]


def test_close_ones_are_replayed_longer() -> None:
    found = measured(Clock({"a": 1e-6, "b": 1.01e-6, "c": 1.2e-6}))
    assert [len(found[name]) for name in "abc"] == [15, 15, 15]


def test_what_cannot_be_replayed_is_a_failure_and_the_others_go_on() -> None:
    clock = Clock({"a": 1e-6, "b": 1e-6, "c": 1e-6}, {"a": BackendError("refused"), "b": OutOfMemoryError("full")})
    found = measured(clock)
    assert found["a"] == Failure(FailureKind.LAUNCH, "refused")
    assert found["b"] == Failure(FailureKind.MEMORY, "full")
    assert len(found["c"]) == 7


def test_a_lost_device_ends_it_and_replays_are_released() -> None:
    clock = Clock({"a": 1e-6, "b": 1e-6}, {"b": BackendError("refused")})

    def lost() -> None:
        raise BackendError("illegal address")

    with pytest.raises(BackendError, match="illegal address"):
        measure(clock, {"a": ["a"], "b": ["b"]}, None, lost)  # type: ignore[list-item]
    assert clock.released == ["a"]


def test_nothing_to_measure() -> None:
    assert measured(Clock({})) == {}


TWIN = np.random.default_rng(1).standard_normal((3, 8, 20, 4)).astype(np.float32)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_rounding_passes_and_the_error_is_that_of_the_largest_value(precision: str) -> None:
    bits = {"fp32": 23, "tf32": 10, "fp16": 10}[precision]
    rounded = (TWIN * (1 + 2.0**-bits * np.random.default_rng(2).uniform(-0.5, 0.5, TWIN.shape))).astype(np.float32)
    error = compare([rounded], [TWIN], precision)
    assert isinstance(error, float)
    assert error == pytest.approx(np.abs(rounded - TWIN).max() / np.abs(TWIN).max())


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "split", "campplus"])
def test_one_wrong_pixel_is_wrong(precision: str) -> None:
    wrong = TWIN.copy()
    wrong[1, 3, 5] += 0.05 * TWIN.max()
    error = compare([TWIN, wrong], [TWIN, TWIN], precision)
    assert isinstance(error, Failure)
    assert error.kind is FailureKind.WRONG


def test_what_was_not_written_is_wrong() -> None:
    half = TWIN.astype(np.float16)
    half[2, 7, 19, 3] = np.nan
    error = compare([half], [TWIN], "fp16")
    assert isinstance(error, Failure)
    assert "1 of 1920 values" in error.reason


def test_another_shape_is_wrong() -> None:
    assert isinstance(compare([TWIN[:2]], [TWIN], "fp32"), Failure)


def test_copies_must_be_exact() -> None:
    assert compare([TWIN], [TWIN], "exact") == 0.0
    assert isinstance(compare([np.nextafter(TWIN, 9)], [TWIN], "exact"), Failure)


def test_classes() -> None:
    twin = np.tile(np.arange(7, dtype=np.uint8), 300)
    assert compare_classes(twin, twin, True) == 0.0
    one = twin.copy()
    one[5] = 0
    assert compare_classes(one, twin, True) == pytest.approx(1 / 2100)
    one[:30] = 6
    assert isinstance(compare_classes(one, twin, True), Failure)
    one[7] = 255
    error = compare_classes(one, twin, False)
    assert isinstance(error, Failure)
    assert "1 of 2100 frames were not written" in error.reason


def test_every_tolerance_has_a_reason() -> None:
    assert all(t.reason and t.distance <= t.spike for t in TOLERANCES.values())


CONVOLUTIONS = [c for c in candidates("resnet34") if c.name != SEPARATE and c.layer.startswith("resnet34.layer")]


@pytest.mark.parametrize("candidate", CONVOLUTIONS, ids=lambda c: f"{c.layer}-{c.name}")
def test_a_tolerance_allows_the_rounding_of_what_is_stored_and_no_wrong_pixel(candidate: Candidate) -> None:
    twin = np.random.default_rng(1).standard_normal((40, 50, 64)).astype(np.float32)
    stored = twin.astype(np.float16 if candidate.storage == "half" else np.float32)
    kind = kind_of(candidate, {})
    assert isinstance(compare([stored], [twin], kind), float)
    stored[7, 9] = 0
    assert isinstance(compare([stored], [twin], kind), Failure)


def test_parts_have_the_tolerance_of_the_least_exact() -> None:
    parts = {c.name: c for c in CONVOLUTIONS if c.layer == "resnet34.layer2.conv1"}
    separate = next(c for c in candidates("resnet34.layer2.entry") if c.name == SEPARATE)
    wanted = {("fp32", "tf32"): "tf32", ("fp32", "fp32_half"): "fp32 half", ("roll_r20", "fp32"): "fp16"}
    for names, kind in wanted.items():
        assert kind_of(separate, {separate.storage: {name: parts[name] for name in names}}) == kind


def test_digests_tell_bytes_apart() -> None:
    assert digest_of(TWIN) == digest_of(TWIN.copy())
    assert digest_of(np.array([0.0])) != digest_of(np.array([-0.0]))
    assert digest_of(TWIN[:, ::2]) == digest_of(np.ascontiguousarray(TWIN[:, ::2]))
