"""Checks and times Winograd convolutions on this machine's GPU: `python tests/benchmarks/cuda/winograd.py --out DIR`.

For every layer shape of the ResNet34 trunk: each variant against a float64 convolution of the same float16 input, then
medians of CUDA-graph replays in turn, on 32 and 128 windows. Needs torch with CUDA for the reference. A kernel that is
wrong is not timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from candidates import SAME
from trunk import SIZES, Bench, poison

from diarize.backend.cuda_build import build
from diarize.backend.cuda_compile import KernelCache
from diarize.backend.cuda_driver import check
from diarize.backend.cuda_resnet34 import float32_choice, hopper_choice, portable_choice
from diarize.candidates import Request

LARGEST_ERROR = {"fp16": 1e-3, "fp32": 1e-5}


def _half(channels: int, **parameters: Any) -> Request:
    return Request("conv_winograd:make_conv_winograd", {"c_in": channels, "c_out": channels, **parameters})


def _single(channels: int, **parameters: Any) -> Request:
    return Request("conv_winograd_f32:make_conv_winograd_f32", {"c_in": channels, "c_out": channels, **parameters})


def _hopper(channels: int, **parameters: Any) -> Request:
    """F(2,3) with wgmma: compute capability 9.0 only, 64 or 128 channels."""
    return Request(
        "conv_winograd_hopper:make_conv_winograd_hopper", {"c_in": channels, "c_out": channels, **parameters}
    )


def square_tiles(channels: int) -> list[dict[str, Any]]:
    """Variants of F(2x2,3x3)."""
    tiles = [
        {"warps_across": 4, "warps_n": 2, "stages": 3},
        {"warps_across": 2, "warps_n": 2, "stages": 3, "min_blocks": 2},
        {"octet_rows": 1, "octet_columns": 2, "warps_across": 4, "warps_n": 2, "stages": 2},
    ]
    if channels > 32:
        tiles.append({"warps_across": 2, "warps_n": 4, "stages": 2})
    if channels < 256:
        tiles.append({"warps_down": 2, "warps_across": 2, "warps_n": 2, "stages": 3})
    return tiles


def column_tiles(channels: int) -> list[dict[str, Any]]:
    """Variants of F(2,3)."""
    base = {"square": False, "octet_rows": 4, "octet_columns": 1, "warp_n": 32, "stages": 2}
    tiles = [{**base, "warps_across": 4, "warps_n": 1, "min_blocks": 2}, {**base, "warps_across": 8, "warps_n": 1}]
    if channels == 32:
        return [*tiles, {**base, "warps_down": 2, "warps_across": 2, "warps_n": 1, "min_blocks": 2, "tile_k": 32}]
    wide = {**base, "warps_across": 4, "warps_n": 2}
    flat = {**wide, "octet_rows": 2, "octet_columns": 2}
    narrow = {**base, "warps_across": 2, "warps_n": 2, "min_blocks": 2}
    small = {**narrow, "warp_n": 16, "min_blocks": 3}
    return [*tiles, wide, {**wide, "stages": 3}, {**wide, "tile_k": 32}, flat, narrow, {**narrow, "stages": 3}, small]


def candidates(channels: int, role: str) -> dict[str, list[Request]]:
    """Kernels of a layer by precision: the direct ones first."""
    more = {"residual": True} if role == "outer" else {}
    hopper = getattr(hopper_choice(), role).get(channels)
    best = next(r for r in SAME[f"32 {role}"] if "resident" in r.factory) if channels == 32 else hopper
    half = [best, getattr(portable_choice(), role)[channels]]
    half += [_half(channels, **more, **tile) for tile in square_tiles(channels) + column_tiles(channels)]
    half += [_hopper(channels, **more, stages=s) for s in {64: (3, 4), 128: (2,)}.get(channels, ())]
    single = [getattr(float32_choice(), role)[channels], getattr(float32_choice(True), role)[channels]]
    single += [_single(channels, **more, tile_rows=rows) for rows in (2, 4)]
    return {"fp16": half, "fp32": single}


class Layer:
    """Random data of one layer and batch, shared by every candidate."""

    def __init__(self, bench: Bench, channels: int, role: str, precision: str, windows: int) -> None:
        self.bench, self.windows, self.channels = bench, windows, channels
        self.height, self.width = SIZES[channels]
        self.dtype = np.float16 if precision == "fp16" else np.float32
        generator = torch.Generator(device="cuda").manual_seed(11)
        shape = (windows, self.height, self.width, channels)

        def random(*size: int) -> torch.Tensor:
            return torch.randn(size, device="cuda", generator=generator)

        kind = torch.half if precision == "fp16" else torch.float
        self.x_twin, self.r_twin = random(*shape).to(kind), random(*shape).to(kind)
        self.weight = (random(channels, channels, 3, 3) / (3 * channels**0.5)).half().float()
        self.bias = random(channels)
        self.residual = role == "outer"
        self.x, self.r, self.y = (bench.memory.empty(shape, self.dtype) for _ in range(3))
        torch.cuda.synchronize()
        for array, twin in ((self.x, self.x_twin), (self.r, self.r_twin)):
            check(bench.gpu.driver.cuMemcpyDtoD(array.address, twin.data_ptr(), array.nbytes))
        self.flag = bench.memory.put(np.zeros(1, np.int32))
        self.held = [self.x, self.r, self.y, self.flag]

    def bind(self, spec: Any, loaded: Any) -> Any:
        """The launch of a kernel on this data."""
        put, memory = self.bench.memory.put, self.bench.memory
        packed, bias = put(spec.pack(self.weight.cpu().numpy())), put(self.bias.cpu().numpy())
        self.held += [packed, bias]
        grid = spec.grid(self.windows, self.height, self.width, self.bench.gpu.multiprocessors)
        size = (self.height, self.width)
        if spec.persistent and spec.box is None:
            return loaded.bind(grid, self.x, packed, bias, self.r, self.y, self.flag, *size, self.windows, 0)
        if spec.box is None:
            return loaded.bind(grid, self.x, packed, bias, self.r, self.y, self.flag, *size, *size)
        maps = (memory.tensor_map(self.x, spec.box), memory.tensor_map(self.r, spec.residual_box))
        tiles = spec.tiles(self.windows, self.height, self.width)
        return loaded.bind(grid, *maps, packed, bias, self.r, self.y, self.flag, *size, *tiles)

    def expected(self) -> torch.Tensor:
        """Float64 output, NHWC."""
        x = self.x_twin.permute(0, 3, 1, 2).double()
        y = F.conv2d(x, self.weight.double(), self.bias.double(), padding=1).permute(0, 2, 3, 1)
        return F.relu(y + self.r_twin.double() if self.residual else y)

    def error(self, wanted: torch.Tensor) -> float:
        """Relative L2 error of the output; poisoned places count as NaN."""
        got = torch.empty(wanted.shape, dtype=torch.half if self.dtype == np.float16 else torch.float, device="cuda")
        self.bench.gpu.synchronize()
        check(self.bench.gpu.driver.cuMemcpyDtoD(got.data_ptr(), self.y.address, self.y.nbytes))
        torch.cuda.synchronize()
        return float((got.double() - wanted).norm() / wanted.norm())

    def close(self) -> None:
        """Give the memory back."""
        for array in self.held:
            self.bench.memory.free(array)
        self.bench.memory.trim()


def measure(bench: Bench, cache: KernelCache, channels: int, role: str, precision: str, batches: list[int]) -> None:
    """Check every candidate on three windows, then time the good ones at each batch size."""
    good = {}
    layer = Layer(bench, channels, role, precision, 3)
    wanted = layer.expected()
    for request in candidates(channels, role)[precision]:
        spec = request.make()
        name = spec.kernel.name
        loaded = bench.gpu.load(cache.get(spec.kernel, bench.gpu.capability), spec.kernel)
        launch = layer.bind(spec, loaded)
        poison(bench, layer.y)
        launch(bench.stream)
        bench.stream.synchronize()
        error, flag = layer.error(wanted), int(bench.memory.get(layer.flag)[0])
        limit = 1e-3 if spec.precision == "tf32" else LARGEST_ERROR[precision]
        bench.rows.append({"kind": "check", "channels": channels, "role": role, "name": name, "error": error})
        if error < limit and flag == 0:
            good[name] = (spec, loaded, error)
        else:
            print(f"WRONG {name}: error {error}, flag {flag}", flush=True)
    layer.close()
    for windows in batches:
        layer = Layer(bench, channels, role, precision, windows)
        calls = {name: layer.bind(spec, loaded) for name, (spec, loaded, _) in good.items()}
        samples = bench.interleaved(calls, {}, inner=5 if precision == "fp16" else 2, rounds=15)
        row = []
        for name, values in samples.items():
            median = statistics.median(values) * 1e6
            key = {"kind": "time", "channels": channels, "role": role, "windows": windows, "precision": precision}
            bench.rows.append({**key, "name": name, "us": median, "error": good[name][2], "samples": values})
            short = name.replace(f"_ci{channels}", "").replace(f"_co{channels}", "").replace("conv_", "")
            row.append(f"{short.replace('_relu', '').replace('_res', '')} {median:.1f}")
        print(f"{channels} {role} {precision} {windows}: " + ", ".join(row), flush=True)
        layer.close()
    del wanted
    torch.cuda.empty_cache()


def main() -> None:
    """Parse, build, check, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--batches", default="32,128")
    parser.add_argument("--channels", default="32,64,128,256")
    parser.add_argument("--roles", default="inner,outer")
    parser.add_argument("--precisions", default="fp16,fp32")
    options = parser.parse_args()
    channels = [int(v) for v in options.channels.split(",")]
    roles, precisions = options.roles.split(","), options.precisions.split(",")
    start = time.time()
    bench = Bench()
    requests = [r for c in channels for role in roles for p in precisions for r in candidates(c, role)[p]]
    build([*{r.key: r for r in requests}.values()], bench.gpu.capability)
    print(f"built {len(requests)} kernels in {time.time() - start:.1f} s", flush=True)
    cache = KernelCache()
    for precision in precisions:
        batches = [int(v) for v in options.batches.split(",")][: None if precision == "fp16" else 1]
        for c in channels:
            for role in roles if precision == "fp16" else roles[-1:]:
                measure(bench, cache, c, role, precision, batches)
                (options.out / "winograd.json").write_text(json.dumps(bench.rows))
    errors: dict[str, list[float]] = {}
    for row in bench.rows:
        if row["kind"] == "check":
            errors.setdefault("_".join(row["name"].split("_")[:3]).split("_ci")[0], []).append(row["error"])
    for family, values in errors.items():
        print(f"{family}: error {min(values):.3g} to {max(values):.3g}")
    print(f"total {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
