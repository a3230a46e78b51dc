"""Recordings sent to a dask.distributed cluster of two local workers, one of which is killed at work."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from .conftest import RATE, Finished, command

pytest.importorskip("distributed")


class Cluster:
    """A scheduler and its workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._scheduler = self._start("scheduler", "--port", "0", "--no-dashboard", "--host", "127.0.0.1")
        self.address = self._wait_for(r"Scheduler at:\s+(tcp://\S+)")
        self.workers = [self.add_worker(), self.add_worker()]

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self._folder / "log", "ab") as log:
            return subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]],
                                    stdout=log, stderr=log, cwd=self._folder)  # fmt: skip

    def _wait_for(self, pattern: str) -> str:
        for _ in range(300):
            found = re.search(pattern, (self._folder / "log").read_text())
            if found:
                return found[1]
            time.sleep(0.1)
        raise AssertionError((self._folder / "log").read_text())

    def add_worker(self) -> subprocess.Popen[bytes]:
        return self._start("worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard")

    def close(self) -> None:
        for process in (*self.workers, self._scheduler):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def recordings(speech: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five short recordings."""
    folder = tmp_path_factory.mktemp("recordings")
    for number in range(5):
        soundfile.write(folder / f"r{number}.wav", speech[: (3 + number) * RATE], RATE, "PCM_16")
    return [folder / f"r{number}.wav" for number in range(5)]


def test_a_cluster_gives_what_this_machine_gives_though_a_worker_dies(
    cli: Callable[..., Finished], cluster: Cluster, recordings: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "text.wav").write_text("hello\n")
    paths = [*recordings, tmp_path / "text.wav", tmp_path / "missing.wav"]
    here = cli("run", *recordings, "-q", "--device", "cpu", "--model", "campplus")
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(
            "run", *paths, "-o", f"{out}/", "--scheduler", cluster.address, "--device", "cpu", "--model", "campplus"
        ),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    # As soon as one result is there, a worker goes while it has others in hand.
    for _ in range(600):
        if out.exists() and any(name.endswith(".rttm") for name in os.listdir(out)):
            break
        time.sleep(0.05)
    cluster.workers[0].send_signal(signal.SIGKILL)
    lines = process.stderr.read().splitlines()
    process.stderr.close()
    assert process.wait() == 1
    assert sorted(os.listdir(out)) == [f"r{number}.rttm" for number in range(5)]
    assert "".join((out / f"r{number}.rttm").read_text() for number in range(5)) == here.out
    failed = [line for line in lines if line.startswith("diarize: failed: ")]
    assert len(failed) == 2
    assert any("text.wav: is a text file" in line for line in failed)
    assert any("missing.wav: no such file; check the path" in line for line in failed)
    assert lines[-1] == "diarize: error: 2 of 7 recordings failed"


def test_what_does_not_lie_at_the_same_path_is_sent(
    cluster: Cluster, recordings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from diarize import remote
    from diarize.pipeline import Setup

    cluster.workers.append(cluster.add_worker())
    # Another time of change than the file has where the worker looks: to it, the file is another one.
    stat = os.stat
    mark = remote._Mark
    monkeypatch.setattr(remote, "_Mark", lambda size, changed: mark(size, changed + 1))
    setup = Setup("campplus", "cpu", "exact", 1)
    found = list(remote.run(cluster.address, setup, recordings[:2], {"num_speakers": 1}, [1, 0]))
    assert {outcome.position for outcome in found} == {0, 1}
    assert [outcome.get().name for outcome in sorted(found, key=lambda o: o.position)] == ["r0", "r1"]
    assert all(outcome.path == recordings[outcome.position] for outcome in found)
    assert stat is os.stat


def test_a_scheduler_that_is_not_there_is_one_line(
    cli: Callable[..., Finished], recordings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from diarize import remote

    monkeypatch.setattr(remote, "_CONNECT_S", 0.5)
    done = cli("run", recordings[0], "--scheduler", "tcp://127.0.0.1:9", "-q")
    assert (done.code, done.out) == (1, "")
    assert done.errors()[-1].startswith("diarize: error: scheduler tcp://127.0.0.1:9 cannot be reached")


def test_without_dask_one_line_says_what_to_install(
    cli: Callable[..., Finished], recordings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = cli("run", recordings[0], "--scheduler", "tcp://127.0.0.1:9", "-q")
    assert (done.code, done.out) == (2, "")
    assert "pip install 'diarize-cuda[cluster]'" in done.errors()[-1]
