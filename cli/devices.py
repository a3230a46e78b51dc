"""`diarize devices`: the GPUs of this machine, and what would run on them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._output import exit_codes, printable, say, write_stdout

if TYPE_CHECKING:
    from ..backend.cuda_devices import Discovery
    from ..hardware import Device
    from ..recipe_lookup import Lookup

_SCHEMA = 1


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True, help="Say more; -vv with tracebacks.")] = 0,
) -> None:
    """Print every GPU: name, compute capability, multiprocessors, memory, driver, and which kernels it would run.

    kernels says where the choice of each layer comes from (see diarize cuda recipes), with the model that is taken
    without --model; tune file, whether diarize cuda tune has written one for this GPU, and where it is looked for.
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

    found = _choices(gpu)
    return {
        "device": str(gpu),
        "name": gpu.name,
        "compute_capability": list(gpu.compute_capability or ()),
        "multiprocessors": gpu.multiprocessors,
        "memory_bytes": gpu.memory_bytes,
        "driver": gpu.driver or None,
        "has_kernels": has_kernels(gpu),
        "kernels": kernel_set(gpu) if found is None else found.summary(),
        "source": None if found is None else found.source,
        "tune_file": None if found is None or found.refused or not os.path.isfile(found.tune_file) else found.tune_file,
        "tune_file_path": None if found is None else found.tune_file,
        "tune_file_refused": None if found is None else found.refused or None,
        "layers": {} if found is None else _layers_as_json(found),
    }


def _layers_as_json(found: Lookup) -> dict[str, Any]:
    origins = found.selection.origins
    return {layer: {"candidate": chosen, "from": origins[layer]} for layer, chosen in found.layers.items()}


def _as_text(gpu: Device) -> str:
    from ..backend.cuda_devices import kernel_set

    capability = ".".join(map(str, gpu.compute_capability or ()))
    facts = [
        f"compute capability {capability}",
        f"{gpu.multiprocessors} multiprocessors",
        f"{gpu.memory_bytes / 1e9:.1f} GB",
        f"driver {gpu.driver or 'of unknown release'} (CUDA {gpu.runtime})",
    ]
    found = _choices(gpu)
    lines = [f"{gpu}  {gpu.name}", f"  {', '.join(facts)}"]
    if found is None:
        lines.append(f"  kernels: {kernel_set(gpu)}")
    else:
        lines += [f"  kernels: {found.summary()}", f"  tune file: {_tune_file(found)}"]
        lines += [f"  {warning}" for warning in found.warnings]
    return "".join(f"{printable(line)}\n" for line in lines)


def _tune_file(found: Lookup) -> str:
    if found.refused:
        return f"{found.tune_file}, which is not used"
    return found.tune_file if os.path.isfile(found.tune_file) else f"none in {found.tune_file}"


def _choices(gpu: Device) -> Lookup | None:
    """What `--model auto` would use on a GPU, None where not every layer has a kernel."""
    from ..backend.cuda_devices import has_kernels
    from ..backend.cuda_key import choices
    from ..model.registry import COMMUNITY, resolve

    if not has_kernels(gpu):
        return None
    embedding = "resnet34" if resolve("auto") == COMMUNITY else "campplus"
    return choices(gpu, ("fbank", "pyannet", embedding), _checksums)


def _checksums() -> Mapping[str, str]:
    from ..model.checksums import network_checksums
    from ..model.weights import load_model

    return network_checksums(load_model("auto"))
