"""Checks and times the float32 and TF32 convolutions: `python tests/benchmarks/cuda/full_precision.py --out DIR`.

Every variant of every layer runs on float32 and on float16 activations, is checked against float64 and then timed at 32
windows, replayed in turn with the others and with cuDNN in float32 and in TF32. The fastest of each layer make whole
trunks, which are checked and timed too. `--offline 9.0` only compiles, without a GPU, and lists registers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from diarize.backend.cuda_build import build
from diarize.backend.cuda_compile import architecture, assemble, compile_ptx
from diarize.candidates import Request

SIZES = {32: (80, 998), 64: (40, 499), 128: (20, 250), 256: (10, 125)}
WINDOWS = 32
KINDS = [(storage, tf32) for storage in ("float", "half") for tf32 in (False, True)]
BOUNDS = {("float", False): 2e-6, ("float", True): 5e-4, ("half", False): 5e-4, ("half", True): 6e-4}
"""Largest relative L2 distance to float64 at which a variant is timed."""


def problems() -> dict[str, dict[str, Any]]:
    """What each layer computes, by name."""
    same = {f"{c} outer": {"c_in": c, "c_out": c, "residual": True} for c in SIZES}
    down = {f"{c} down": {"c_in": c, "c_out": 2 * c, "stride": 2} for c in (32, 64, 128)}
    short = {
        f"{c} shortcut": {"c_in": c, "c_out": 2 * c, "stride": 2, "relu": False, "kernel_size": 1}
        for c in (32, 64, 128)
    }
    return {**same, **down, **short}


def tiles(role: str, storage: str, tf32: bool) -> list[dict[str, int]]:
    """Tile parameters to try; the first, empty, is the default."""
    channels, kind = int(role.split()[0]), role.split()[1]
    if kind == "shortcut":
        return [{}]
    if tf32:
        return [{}, {"tile_columns": 32, "warps_m": 4, "min_blocks": 2}] if role == "32 down" else [{}]
    # 125 columns of the last stage suit tiles of 64.
    last = channels * (2 if kind == "down" else 1) == 256
    long = {"pixels": 16, "min_blocks": 4} if last else {"pixels": 12, "tile_columns": 36, "min_blocks": 4}
    if kind == "down":
        return [{}, long | {"min_blocks": 3}, {"stages": 2, "min_blocks": 2, "inner": 1}]
    found = [{}, long, {**long, "inner": 1}]
    if storage == "float":
        found += [{"stages": 2, "min_blocks": 3, "inner": 1}, {"pixels": 16, "min_blocks": 4, "inner": 1}]
        if last:
            found[-1] = {"pixels": 12, "tile_columns": 36, "tile_rows": 4, "min_blocks": 4}
    return found


def request(role: str, storage: str, tf32: bool, tile: dict[str, int]) -> Request:
    """A variant of a layer."""
    return Request("conv_f32:make_conv_f32", {**problems()[role], "storage": storage, "tf32": tf32, **tile})


def offline(capability: tuple[int, int]) -> None:
    """Compile every variant; one line each with registers, spills and shared memory."""
    for role in problems():
        for storage, tf32 in KINDS:
            for tile in tiles(role, storage, tf32):
                kernel = request(role, storage, tf32, tile).make().kernel
                if kernel.runs_on(capability):
                    image = assemble(kernel.name, compile_ptx(kernel, capability), architecture(kernel, capability))
                    blocks = 65536 // (-(-image.registers // 8) * 8 * kernel.threads)
                    print(
                        f"{kernel.name}: {image.registers} registers, {blocks} blocks by registers, "
                        f"{233472 // (kernel.shared_bytes + 1024)} by shared memory ({kernel.shared_bytes} bytes)"
                        + (f", SPILLS {image.spilled_bytes}" if image.spilled_bytes or image.stack_bytes else ""),
                        flush=True,
                    )


class Layers:
    """Single layers on the GPU: data, launches, checks."""

    def __init__(self, bench: Any) -> None:
        from diarize.backend.cuda_conv import ConvolutionLoader

        self.bench = bench
        self.loader = ConvolutionLoader(bench.gpu, bench.memory)

    def tensor(self, shape: tuple[int, ...], seed: int, storage: str) -> tuple[Any, Any]:
        """A random device array and its torch twin, NHWC."""
        import numpy as np
        import torch

        from diarize.backend.cuda_driver import check

        generator = torch.Generator(device="cuda").manual_seed(seed)
        dtype = torch.half if storage == "half" else torch.float32
        twin = torch.randn(shape, device="cuda", generator=generator).to(dtype)
        array = self.bench.memory.empty(shape, np.float16 if storage == "half" else np.float32)
        torch.cuda.synchronize()
        check(self.bench.gpu.driver.cuMemcpyDtoD(array.address, twin.data_ptr(), array.nbytes))
        return array, twin

    def bind(self, wanted: Request, x: Any, residual: Any, y: Any, windows: int) -> tuple[Any, Any, Any, list[Any]]:
        """(launch, weight, bias, arrays held) of a variant."""
        import numpy as np
        import torch

        spec, loaded = self.loader.kernel(wanted)
        generator = torch.Generator(device="cuda").manual_seed(9)
        k = spec.kernel_size
        weight = torch.randn((spec.c_out, spec.c_in, k, k), device="cuda", generator=generator) / (k * spec.c_in**0.5)
        bias = torch.randn(spec.c_out, device="cuda", generator=generator)
        memory = self.bench.memory
        held = [memory.put(v) for v in (spec.pack(weight.cpu().numpy()), bias.cpu().numpy())]
        flag = memory.put(np.zeros(1, np.int32))
        height, width = SIZES[spec.c_in]
        grid = spec.grid(windows, height, width, self.bench.gpu.multiprocessors)
        sizes = (height, width, *spec.output_size(height, width))
        launch = loaded.bind(grid, x, held[0], held[1], residual, y, flag, *sizes)
        return launch, weight, bias, [*held, flag]

    def check(self, role: str, storage: str, tf32: bool, tile: dict[str, int]) -> bool:
        """Whether a variant agrees with float64 on two windows and leaves the flag alone."""
        import torch
        import torch.nn.functional as F

        from diarize.backend.cuda_driver import check

        wanted = request(role, storage, tf32, tile)
        bench, name = self.bench, repr(tile)
        try:
            spec, _ = self.loader.kernel(wanted)
            name = spec.kernel.name
            height, width = SIZES[spec.c_in]
            rows, columns = spec.output_size(height, width)
            x, tx = self.tensor((2, height, width, spec.c_in), 1, storage)
            r, tr = self.tensor((2, rows, columns, spec.c_out), 2, storage)
            y, ty = self.tensor((2, rows, columns, spec.c_out), 3, storage)
            # NaN as float32 and as float16.
            check(bench.gpu.driver.cuMemsetD32(y.address, 0x7FC07FC0, y.nbytes // 4))
            launch, weight, bias, held = self.bind(wanted, x, r, y, 2)
            launch(bench.stream)
            bench.stream.synchronize()
            check(bench.gpu.driver.cuMemcpyDtoD(ty.data_ptr(), y.address, y.nbytes))
            torch.cuda.synchronize()
            pad = (spec.kernel_size - 1) // 2
            wide = F.conv2d(tx.permute(0, 3, 1, 2).double(), weight.double(), bias.double(), spec.stride, pad)
            if spec.residual:
                wide = wide + tr.permute(0, 3, 1, 2).double()
            wide = F.relu(wide) if spec.relu else wide
            error = float((ty.permute(0, 3, 1, 2).double() - wide).norm() / wide.norm())
            flag = int(bench.memory.get(held[2])[0])
            for array in (x, r, y, *held):
                bench.memory.free(array)
            good = error < BOUNDS[storage, tf32] and flag == 0
            bench.record(kind="check", role=role, name=name, error=error, flag=flag, good=good)
            return good
        except Exception as error:  # a failed variant is a row, not the end
            bench.record(kind="check", role=role, name=name, failed=repr(error)[:300], good=False)
            return False

    def time(self, role: str, wanted: dict[str, Request]) -> dict[str, float]:
        """Median seconds of each variant (by key) and of cuDNN."""
        import torch

        storages = {r.parameters["storage"] for r in wanted.values()}
        launches, held = {}, []
        for storage in sorted(storages):
            spec, _ = self.loader.kernel(next(r for r in wanted.values() if r.parameters["storage"] == storage))
            height, width = SIZES[spec.c_in]
            shape = (WINDOWS, *spec.output_size(height, width), spec.c_out)
            x, _ = self.tensor((WINDOWS, height, width, spec.c_in), 1, storage)
            r, _ = self.tensor(shape, 2, storage)
            y, _ = self.tensor(shape, 3, storage)
            held += [x, r, y]
            for key, variant in wanted.items():
                if variant.parameters["storage"] == storage:
                    launches[key], _, _, own = self.bind(variant, x, r, y, WINDOWS)
                    held += own
        beside = {
            f"cudnn {p} {layout}": cudnn(role, p, layout) for p in ("fp32", "tf32") for layout in ("nchw", "nhwc")
        }
        samples = self.bench.interleaved(launches, beside, inner=3, rounds=9)
        for array in held:
            self.bench.memory.free(array)
        self.bench.memory.trim()
        torch.cuda.empty_cache()
        torch.backends.cudnn.allow_tf32 = False
        for key, values in samples.items():
            self.bench.record(kind="layer", role=role, key=key, samples=values)
        return {key: statistics.median(values) for key, values in samples.items()}


def cudnn(role: str, precision: str, layout: str) -> Any:
    """A call of cuDNN's fused convolution with bias, ReLU and the residual, if any; the shortcut has no ReLU."""
    import torch
    import torch.nn.functional as F

    p = problems()[role]
    height, width = SIZES[p["c_in"]]
    stride, k = p.get("stride", 1), p.get("kernel_size", 3)
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    x = torch.randn(WINDOWS, p["c_in"], height, width, device="cuda").contiguous(memory_format=form)
    w = torch.randn(p["c_out"], p["c_in"], k, k, device="cuda").contiguous(memory_format=form) / (k * p["c_in"] ** 0.5)
    b = torch.randn(p["c_out"], device="cuda")
    shape = (WINDOWS, p["c_out"], -(-height // stride), -(-width // stride))
    r = torch.randn(*shape, device="cuda").contiguous(memory_format=form)
    pad = (k - 1) // 2

    def fused() -> None:
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        if p.get("residual"):
            torch.cudnn_convolution_add_relu(x, w, r, 1.0, b, (1, 1), (1, 1), (1, 1), 1)
        elif k == 3:
            torch.cudnn_convolution_relu(x, w, b, (stride, stride), (pad, pad), (1, 1), 1)
        else:
            F.conv2d(x, w, b, stride, pad)

    def separate() -> None:
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        y = F.conv2d(x, w, b, stride, pad)
        F.relu_(y.add_(r) if p.get("residual") else y)

    try:
        fused()
        return fused
    except RuntimeError:
        return separate


def trunk_choice(storage: str, tf32: bool, best: dict[str, dict[str, int]]) -> Any:
    """The choice of kernels of a whole trunk, from the best tile of each layer."""
    from diarize.backend.cuda_resnet34 import float32_choice, portable_choice

    base = portable_choice() if storage == "half" else float32_choice(tf32)

    def one(role: str, **more: Any) -> Request:
        found = request(role, storage, tf32, best.get(role, {}))
        return Request(found.factory, {**found.parameters, **more})

    return replace(
        base,
        inner={c: one(f"{c} outer", residual=False) for c in SIZES},
        outer={c: one(f"{c} outer") for c in SIZES},
        down={c: one(f"{c} down") for c in (32, 64, 128)},
        shortcut={c: one(f"{c} shortcut") for c in (32, 64, 128)},
        block={},
    )


def main() -> None:
    """Parse, build, check, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--offline", default="", help="compute capability to compile for, such as 9.0")
    parser.add_argument("--roles", default="", help="layers to time, such as '64 outer,32 down'; all if empty")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further layer after this time")
    options = parser.parse_args()
    if options.offline:
        major, minor = options.offline.split(".")
        offline((int(major), int(minor)))
        return
    from trunk import Bench, check_trunk, random_layers, time_trunk

    from diarize.backend.cuda_resnet34 import ResNet34Kernels

    start = time.time()
    roles = [r for r in options.roles.split(",") if r] or list(problems())
    variants = {(role, *kind, i): tile for role in roles for kind in KINDS for i, tile in enumerate(tiles(role, *kind))}
    bench = Bench()
    build([request(*key[:3], tile) for key, tile in variants.items()], bench.gpu.capability)
    print(f"built {len(variants)} kernels in {time.time() - start:.1f} s", flush=True)
    device = bench.gpu.describe()
    bench.record(kind="device", name=device.name.strip("\0 "), driver=device.driver, runtime=device.runtime)
    layers = Layers(bench)
    best: dict[tuple[str, bool], dict[str, dict[str, int]]] = {kind: {} for kind in KINDS}
    table = []
    for role in roles:
        if time.time() - start > options.seconds:
            break
        good = {key: tile for key, tile in variants.items() if key[0] == role and layers.check(*key[:3], tile)}
        medians = layers.time(role, {repr((*key[1:3], tile)): request(*key[:3], tile) for key, tile in good.items()})
        row = [role]
        for kind in KINDS:
            mine = {repr(tile): medians[repr((*kind, tile))] for key, tile in good.items() if key[1:3] == kind}
            if mine:
                name = min(mine, key=lambda n: mine[n])
                best[kind][role] = next(t for k, t in good.items() if k[1:3] == kind and repr(t) == name)
                row.append(f"{kind[0]} {'tf32' if kind[1] else 'fp32'} {mine[name] * 1e6:.0f} us {name}")
        row += [
            f"cudnn {p} {min(v for k, v in medians.items() if k.startswith(f'cudnn {p}')) * 1e6:.0f}"
            for p in ("fp32", "tf32")
        ]
        table.append(" | ".join(row))
        (options.out / "full_precision.json").write_text(json.dumps(bench.rows, indent=1))
    print("\n".join(table), flush=True)
    choices = {kind: trunk_choice(*kind, best[kind]) for kind in KINDS}
    build([r for choice in choices.values() for r in choice.requests()], bench.gpu.capability)
    random = random_layers()
    for kind, choice in choices.items():
        kernels = ResNet34Kernels(bench.gpu, bench.memory, random, choice)
        bench.record(kind="choice", storage=kind[0], tf32=kind[1], tiles=best[kind])
        check_trunk(bench, kernels, random, repr(kind))
        time_trunk(bench, kernels, [WINDOWS], [])
        (options.out / "full_precision.json").write_text(json.dumps(bench.rows, indent=1))
    print(f"total {time.time() - start:.0f} s, peak {bench.memory.peak_bytes / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
