"""Which device is taken, and what is said about it: a driver made of Python stands in for the real one."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from diarize.backend.cuda_devices import Discovery, discover, has_kernels, kernel_set
from diarize.backend.select import choose_device
from diarize.errors import BackendError, OptionError
from diarize.hardware import Device

H200 = Device("cuda", "NVIDIA H200", 0, (9, 0), 132, 150 * 10**9, "580.1", "13.0")
T4 = Device("cuda", "Tesla T4", 0, (7, 5), 40, 16 * 10**9, "580.1", "13.0")
OLD = Device("cuda", "Tesla V100", 0, (7, 0), 80, 16 * 10**9, "580.1", "13.0")


class FakeDriver:
    """The calls of libcuda and the management library that discovery makes."""

    def __init__(self, names: list[str], capability: tuple[int, int] = (9, 0), version: int = 13000, start: int = 0):
        self.names, self.capability, self.version, self.start = names, capability, version, start

    def load(self, name: str) -> Any:
        if name not in ("libcuda.so.1", "libnvidia-ml.so.1"):
            raise OSError(name)
        return self

    def cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = self.version
        return 0

    def cuInit(self, flags: int) -> int:
        return self.start

    def cuDeviceGetCount(self, out: Any) -> int:
        out._obj.value = len(self.names)
        return 0

    def cuDeviceGet(self, out: Any, index: int) -> int:
        out._obj.value = index + 40
        return 0

    def cuDeviceGetName(self, out: Any, size: int, handle: ctypes.c_int) -> int:
        out.value = self.names[handle.value - 40].encode()
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, handle: ctypes.c_int) -> int:
        out._obj.value = 150 * 10**9
        return 0

    def cuDeviceGetAttribute(self, out: Any, number: int, handle: ctypes.c_int) -> int:
        out._obj.value = {16: 132, 75: self.capability[0], 76: self.capability[1]}[number]
        return 0

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlSystemGetDriverVersion(self, out: Any, size: int) -> int:
        out.value = b"580.1"
        return 0

    def nvmlShutdown(self) -> int:
        return 0


def test_gpus_are_described() -> None:
    found = discover(FakeDriver(["NVIDIA H200", "NVIDIA H200"]).load)
    assert found.problem == ""
    assert [str(gpu) for gpu in found.gpus] == ["cuda:0", "cuda:1"]
    assert found.gpus[0] == H200
    assert (found.driver, found.runtime) == ("580.1", "13.0")


def test_no_driver() -> None:
    def load(name: str) -> Any:
        raise OSError(name)

    found = discover(load)
    assert found.gpus == ()
    assert "no NVIDIA driver is installed" in found.problem


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (FakeDriver([], start=100), "sees no GPU"),
        (FakeDriver([]), "sees no GPU"),
        (FakeDriver([], start=999), r"does not start \(CUDA error 999\)"),
        (FakeDriver(["NVIDIA A100"], version=12080), "supports CUDA 12.8; 13.0 or newer is needed"),
    ],
)
def test_what_stands_in_the_way(driver: FakeDriver, words: str) -> None:
    found = discover(driver.load)
    with pytest.raises(BackendError, match=words):
        choose_device("cuda", find=lambda: found, missing=tuple)


def test_which_kernels() -> None:
    assert has_kernels(H200)
    assert has_kernels(T4)
    assert not has_kernels(OLD)
    assert "measurement" in kernel_set(H200)
    assert kernel_set(Device("cuda", "x", 0, (8, 6))) == "portable"
    assert kernel_set(T4) == "portable"
    assert kernel_set(OLD) == "none: compute capability 7.5 or newer is needed"


def choose(name: str, *gpus: Device, missing: tuple[str, ...] = (), problem: str = "") -> Any:
    return choose_device(name, lambda: Discovery(gpus, "580.1", "13.0", problem), lambda: missing)


def test_automatic_takes_a_gpu_and_says_so() -> None:
    choice = choose("auto", H200)
    assert choice.gpu == H200
    assert choice.notes == ("device cuda:0, NVIDIA H200 (automatic)",)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"problem": "no NVIDIA driver is installed"}, "no NVIDIA driver"),
        ({"missing": ("numba-cuda",)}, "numba-cuda cannot be imported"),
    ],
)
def test_automatic_takes_the_cpu_and_says_why(arguments: dict[str, Any], why: str) -> None:
    choice = choose("auto", H200, **arguments)
    assert choice.gpu is None
    assert len(choice.notes) == 1
    assert why in choice.notes[0]


def test_automatic_leaves_an_old_gpu_alone() -> None:
    choice = choose("auto", OLD)
    assert choice.gpu is None
    assert "compute capability 7.0" in choice.notes[0]


def test_a_named_gpu() -> None:
    assert choose("cuda", H200).gpu == H200
    assert choose("cpu", H200).gpu is None


@pytest.mark.parametrize(
    ("name", "gpus", "words"),
    [
        ("cuda:1", (H200,), "there is no GPU 1; there is one, cuda:0"),
        ("cuda:5", (H200, H200), "there are 2, cuda:0 to cuda:1"),
        ("cuda", (OLD,), "Tesla V100 has compute capability 7.0"),
    ],
)
def test_a_gpu_that_cannot_be_used(name: str, gpus: tuple[Device, ...], words: str) -> None:
    with pytest.raises(BackendError, match=words) as caught:
        choose(name, *gpus)
    assert "\n" not in str(caught.value)
    assert "--device cpu" in str(caught.value)


def test_wrong_names() -> None:
    with pytest.raises(OptionError, match="allowed are auto, cpu, cuda and cuda:N"):
        choose("gpu", H200)
