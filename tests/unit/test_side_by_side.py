"""Several recordings at once in one process: outcomes in order, reports from the caller's thread, errors as values."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from diarize.batch import run_here
from diarize.errors import AudioError
from diarize.pipeline import Cancelled


class FakePipeline:
    """Takes as long for a recording as others need to overtake it; "bad" fails."""

    engine = SimpleNamespace(recordings=3)

    def __init__(self) -> None:
        self.together = threading.Barrier(3)
        self.most = 0

    def diarize(self, path: str, *, progress: Any, cancelled: Any) -> str:
        progress("analyse", 1.0, 2.0)
        if path == "bad":
            raise AudioError("bad: cannot be read")
        if path.startswith("together"):
            # Passes only when three are here at once.
            self.together.wait(10)
        if path == "endless":
            while not cancelled():
                threading.Event().wait(0.01)
            raise Cancelled
        return path


def test_order_and_errors() -> None:
    paths = ["together1", "together2", "together3", "bad", "last"]
    outcomes = list(run_here(FakePipeline(), paths, {}))
    assert [outcome.path for outcome in outcomes] == paths
    assert [outcome.position for outcome in outcomes] == [0, 1, 2, 3, 4]
    assert isinstance(outcomes[3].error, AudioError)
    assert outcomes[4].result == "last"


def test_reports_come_from_the_thread_that_asks() -> None:
    heard = []

    def report(path: Any, stage: str, done: float, total: float | None) -> None:
        heard.append((path, threading.current_thread() is threading.main_thread()))

    list(run_here(FakePipeline(), ["a", "b", "c", "d", "e"], {}, report))
    assert {path for path, _ in heard} >= {"a", "b"}
    assert all(own for _, own in heard)


def test_leaving_early_ends_what_is_under_way() -> None:
    outcomes = run_here(FakePipeline(), ["a", "endless", "endless", "endless"], {})
    assert next(outcomes).result == "a"
    outcomes.close()
    assert threading.active_count() < 10


def test_cancelling_ends_all() -> None:
    with pytest.raises(Cancelled):
        list(run_here(FakePipeline(), ["endless", "endless"], {}, None, lambda: True))
