"""Offline compilation: every kernel assembles without a GPU, without spills and without lost wgmma pipelining."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from cuda_support import assert_clean

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'diarize-cuda[cuda]'")

from diarize import registry
from diarize.backend import cuda_compile
from diarize.backend.cuda_compile import Image, KernelCache, architecture, assemble, compile_ptx
from diarize.backend.cuda_resnet34 import TrunkChoice, float32_choice, hopper_choice, portable_choice
from diarize.candidates import Request
from diarize.errors import BackendError
from diarize.kernels.spec import Kernel

HOPPER = hopper_choice()
# One kernel of each kind in the default run; the rest are marked slow.
QUICK = [
    (HOPPER.block[32], (9, 0)),
    (HOPPER.outer[64], (9, 0)),
    (HOPPER.outer[128], (9, 0)),
    (HOPPER.down[64], (9, 0)),
    (HOPPER.stem, (8, 0)),
    (portable_choice().outer[64], (8, 0)),
    (float32_choice().inner[64], (7, 5)),
]
CAPABILITIES = {
    "hopper": (HOPPER, [(9, 0)]),
    "portable": (portable_choice(), [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]),
    "tf32": (float32_choice(True), [(8, 0), (9, 0), (12, 0)]),
    "fp32": (float32_choice(), [(7, 5), (8, 0), (12, 0)]),
}


def unique(choice: TrunkChoice) -> list[Request]:
    """The kernels of a choice, each once."""
    return list({repr(request): request for request in choice.requests()}.values())


ALL = [(r, cc) for choice, ccs in CAPABILITIES.values() for cc in ccs for r in unique(choice)]


def label(value: object) -> str:
    return value.factory.split(":")[0] if isinstance(value, Request) else str(value).replace(" ", "")


@pytest.mark.parametrize(("request_", "capability"), QUICK, ids=label)
def test_default_kernels_do_not_spill(request_: Request, capability: tuple[int, int]) -> None:
    assert_clean(request_, capability)


@pytest.mark.slow
@pytest.mark.parametrize(("request_", "capability"), ALL, ids=label)
def test_every_kernel_compiles_where_it_claims(request_: Request, capability: tuple[int, int]) -> None:
    made = request_.make()
    kernel = getattr(made, "kernel", made)
    if not kernel.runs_on(capability):
        pytest.skip(f"{kernel.name} does not claim {capability}")
    assert_clean(request_, capability)


TURING = [request for candidate in registry.portable((7, 5)).candidates() for request in candidate.requests]
_TURING_QUICK = {
    "lstm_recurrence_n8_w2_h2_o2_f32_ahead_cache",
    "conv_mma_ci32_co32_st1_4x48_n32_k32_w4x1_b2_res_relu",
    "cam_conv_k3_s2_relu_passes2",
}


def turing_cases() -> list[object]:
    """Every kernel that compute capability 7.5 gets, by name; most of them marked slow."""
    made = {request.key: request.make() for request in TURING}
    kernels = [getattr(m, "kernel", m) for m in made.values()]
    assert {kernel.name for kernel in kernels} >= _TURING_QUICK
    return [
        pytest.param(kernel, id=kernel.name, marks=() if kernel.name in _TURING_QUICK else pytest.mark.slow)
        for kernel in kernels
    ]


@pytest.mark.parametrize("kernel", turing_cases())
def test_default_kernels_of_turing(kernel: Kernel) -> None:
    ptx = compile_ptx(kernel, (7, 5))
    static = sum(int(size) for size in re.findall(r"\.shared [^;\n]*\[(\d+)\];", ptx))
    assert kernel.shared_bytes + static <= 64 * 1024
    image = assemble(kernel.name, ptx, architecture(kernel, (7, 5)))
    if not image.assembled:
        pytest.skip("no ptxas on this machine: install nvidia-cuda-nvcc")
    assert (image.spilled_bytes, image.stack_bytes) == (0, 0)
    # A multiprocessor has 64K registers and room for 1024 threads.
    assert 0 < image.registers * kernel.threads * kernel.min_blocks <= 65536
    assert kernel.threads * kernel.min_blocks <= 1024


def test_portable_tiles_fit_the_smallest_shared_memory() -> None:
    for request in portable_choice().requests():
        made = request.make()
        # 99 KB is what compute capability 8.6, 8.9 and 12.0 give a block.
        assert getattr(made, "kernel", made).shared_bytes <= 99 * 1024


def test_a_hopper_kernel_is_refused_elsewhere() -> None:
    kernel = HOPPER.block[32].make().kernel
    assert architecture(kernel, (9, 0)) == "sm_90a"
    for capability in ((8, 0), (10, 0)):
        with pytest.raises(BackendError, match=r"needs exactly 9\.0"):
            architecture(kernel, capability)


class TestCache:
    def test_a_kernel_is_compiled_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[str] = []

        def compiled(name: str, ptx: str, target: str) -> Image:
            calls.append(name)
            return Image(name, target, "entry", True, b"code", 40, 0, 0, ("note",))

        monkeypatch.setattr(cuda_compile, "compile_ptx", lambda kernel, capability: "ptx")
        monkeypatch.setattr(cuda_compile, "assemble", compiled)
        kernel = HOPPER.stem.make()
        first = KernelCache(tmp_path).get(kernel, (9, 0))
        assert KernelCache(tmp_path).get(kernel, (9, 0)) == first
        assert calls == [kernel.name]
        path = KernelCache(tmp_path).path(kernel, (9, 0))
        path.write_bytes(path.read_bytes()[:-1])
        assert KernelCache(tmp_path).get(kernel, (9, 0)) == first
        assert calls == [kernel.name] * 2
        assert not list(path.parent.glob(".new-*"))

    def test_the_key_covers_shape_target_and_sources(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kernel = HOPPER.stem.make()
        keys = {cuda_compile.cache_key(kernel, target) for target in ("sm_80", "sm_90")}
        changes = {"name": "other", "threads": 128, "shared_bytes": 16, "min_blocks": 7, "arguments": "f"}
        keys |= {cuda_compile.cache_key(replace(kernel, **{k: v}), "sm_80") for k, v in changes.items()}
        monkeypatch.setattr(cuda_compile, "source_digest", lambda: "changed")
        keys.add(cuda_compile.cache_key(kernel, "sm_80"))
        assert len(keys) == 2 + len(changes) + 1

    def test_names_of_configurations_differ(self) -> None:
        # numba cannot tell two kernels apart that differ only in constants, so the name must.
        made = {repr(r): r.make() for choice, _ in CAPABILITIES.values() for r in choice.requests()}
        names = [getattr(m, "kernel", m).name for m in made.values()]
        assert len(set(names)) == len(names)
