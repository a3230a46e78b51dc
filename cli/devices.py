"""`diarize devices`: the GPUs of this machine, and what would run on them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._output import exit_codes, say, write_stdout

if TYPE_CHECKING:
    from ..backend.cuda_devices import Discovery
    from ..hardware import Device

_SCHEMA = 1
_NO_TUNE_FILE = "none yet"


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True, help="Say more; -vv with tracebacks.")] = 0,
) -> None:
    """Print every GPU: name, compute capability, multiprocessors, memory, driver, and which kernels it would run.

    Without a GPU or a driver it says so; that is no error.
    """
    with exit_codes(verbose):
        from ..backend.cuda_devices import discover, missing_packages

        found = discover()
        missing = missing_packages()
        if as_json:
            write_stdout(json.dumps(_as_json(found, missing), indent=2) + "\n")
            return
        write_stdout("".join(_as_text(gpu) for gpu in found.gpus))
        if found.problem:
            say(f"{found.problem}; --device cpu works everywhere")
        if missing and found.gpus:
            say(f"{' and '.join(missing)} not installed: pip install 'diarize-cuda[cuda]'")


def _as_json(found: Discovery, missing: tuple[str, ...]) -> dict[str, Any]:
    from ..backend.select import choose_device

    automatic = choose_device("auto", find=lambda: found, missing=lambda: missing)
    return {
        "schema": _SCHEMA,
        "auto": "cpu" if automatic.gpu is None else str(automatic.gpu),
        "driver": found.driver or None,
        "cuda": found.runtime or None,
        "problem": found.problem or None,
        "missing_packages": list(missing),
        "gpus": [_gpu_as_json(gpu) for gpu in found.gpus],
    }


def _gpu_as_json(gpu: Device) -> dict[str, Any]:
    from ..backend.cuda_devices import has_kernels, kernel_set

    return {
        "device": str(gpu),
        "name": gpu.name,
        "compute_capability": list(gpu.compute_capability or ()),
        "multiprocessors": gpu.multiprocessors,
        "memory_bytes": gpu.memory_bytes,
        "driver": gpu.driver or None,
        "has_kernels": has_kernels(gpu),
        "kernels": kernel_set(gpu),
        "tune_file": None,
    }


def _as_text(gpu: Device) -> str:
    from ..backend.cuda_devices import kernel_set

    capability = ".".join(map(str, gpu.compute_capability or ()))
    facts = [
        f"compute capability {capability}",
        f"{gpu.multiprocessors} multiprocessors",
        f"{gpu.memory_bytes / 1e9:.1f} GB",
        f"driver {gpu.driver or 'of unknown release'} (CUDA {gpu.runtime})",
    ]
    return f"{gpu}  {gpu.name}\n  {', '.join(facts)}\n  kernels: {kernel_set(gpu)}; tune file: {_NO_TUNE_FILE}\n"
