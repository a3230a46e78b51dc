"""`diarize devices`, with and without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from diarize.backend import cuda_devices
from diarize.backend.cuda_devices import Discovery
from diarize.hardware import Device

from .conftest import Finished

H200 = Device("cuda", "NVIDIA H200", 0, (9, 0), 132, 150_754_820_096, "580.159.04", "13.0")


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a tune file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DIARIZE_TUNE_FILE", raising=False)


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_devices, "discover", lambda: Discovery(problem="no NVIDIA driver is installed"))


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_devices, "discover", lambda: Discovery((H200,), "580.159.04", "13.0"))
    monkeypatch.setattr(cuda_devices, "missing_packages", tuple)


def test_without_a_driver_it_says_so(cli: Callable[..., Finished], nothing: None) -> None:
    done = cli("devices")
    assert done.code == 0
    assert done.out == ""
    assert "no NVIDIA driver is installed" in done.err[0]


def test_without_a_driver_in_json(cli: Callable[..., Finished], nothing: None) -> None:
    done = cli("devices", "--json")
    content = json.loads(done.out)
    assert done.code == 0
    assert content["auto"] == "cpu"
    assert content["gpus"] == []
    assert content["problem"] == "no NVIDIA driver is installed"


def test_a_gpu(cli: Callable[..., Finished], one: None) -> None:
    done = cli("devices")
    assert done.code == 0
    for words in ("cuda:0  NVIDIA H200", "capability 9.0", "132 multiprocessors", "150.8 GB", "driver 580.159.04"):
        assert words in done.out
    assert "tune file: none in " in done.out


def test_a_gpu_in_json(cli: Callable[..., Finished], one: None) -> None:
    content = json.loads(cli("devices", "--json").out)
    assert content["auto"] == "cuda:0"
    (gpu,) = content["gpus"]
    assert gpu["compute_capability"] == [9, 0]
    assert gpu["has_kernels"] is True
    assert gpu["tune_file"] is None
