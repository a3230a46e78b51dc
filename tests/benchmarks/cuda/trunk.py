"""Checks and times the ResNet34 kernels on this machine's GPU: `python tests/benchmarks/cuda/trunk.py --out DIR`.

Needs torch with CUDA for the float32 reference and for cuDNN's times; the kernels themselves do not use it.
Correctness comes first: a kernel that is wrong is not timed. Times are medians of CUDA-graph replays.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from candidates import BLOCK, DOWN, SAME

from diarize.backend.cuda_build import build
from diarize.backend.cuda_conv import PARITIES
from diarize.backend.cuda_driver import Gpu, MemoryPool
from diarize.backend.cuda_resnet34 import (
    ResNet34Kernels,
    float32_choice,
    hopper_choice,
    portable_choice,
)
from diarize.candidates import Request
from diarize.layers import Layer, Op

SIZES = {32: (80, 998), 64: (40, 499), 128: (20, 250), 256: (10, 125)}
REPLAYS = 20


def random_layers(seed: int = 0) -> list[Layer]:
    """A seeded ResNet34 with folded weights whose activations stay below about 60."""
    rng = np.random.default_rng(seed)

    def conv(name: str, c_in: int, c_out: int, k: int, stride: int, gain: float) -> Layer:
        weight = rng.standard_normal((c_out, c_in, k, k)) * gain * (2.0 / (c_in * k * k)) ** 0.5
        bias = rng.standard_normal(c_out) * 0.1
        weights = {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}
        return Layer(name, Op.CONV2D, weights, {"stride_h": stride, "stride_w": stride})

    layers = [conv("conv1", 1, 32, 3, 1, 0.3)]
    channels = 32
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            name, out = f"layer{stage}.{block}", 32 << (stage - 1)
            stride = 2 if block == 0 and stage > 1 else 1
            layers.append(conv(f"{name}.conv1", channels, out, 3, stride, 1.0))
            if stride == 2:
                layers.append(conv(f"{name}.shortcut", channels, out, 1, stride, 0.7))
            layers.append(conv(f"{name}.conv2", out, out, 3, 1, 0.4))
            channels = out
    final = {"weight": rng.standard_normal((256, 5120)) / 5120**0.5, "bias": rng.standard_normal(256) * 0.2}
    layers.append(Layer("seg_1", Op.LINEAR, {k: v.astype(np.float32) for k, v in final.items()}))
    return layers


def random_features(windows: int, seed: int = 1) -> np.ndarray:
    """(windows, 998, 80) float32 like log-mel values: smooth over time and mel, spread about 4."""
    rng = np.random.default_rng(seed)
    coarse = rng.standard_normal((windows, 100, 12)).astype(np.float32)
    smooth = np.repeat(np.repeat(coarse, 10, 1), 7, 2)[:, :998, :80]
    return 3.5 * smooth + 2.0 * rng.standard_normal((windows, 998, 80)).astype(np.float32) - 8.0


def torch_trunk(layers: list[Layer], features: torch.Tensor) -> dict[str, torch.Tensor]:
    """Float32 outputs of every convolution, NCHW with rows = mel."""
    by_id = {layer.id: layer for layer in layers}

    def conv(name: str, x: torch.Tensor) -> torch.Tensor:
        layer = by_id[name]
        weight = torch.from_numpy(np.ascontiguousarray(layer.weights["weight"].transpose(0, 1, 3, 2))).cuda()
        bias = torch.from_numpy(layer.weights["bias"]).cuda()
        return F.conv2d(x, weight, bias, int(layer.params["stride_h"]), (weight.shape[2] - 1) // 2)

    x = (features - features.mean(1, keepdim=True)).transpose(1, 2)[:, None]
    x = F.relu(conv("conv1", x))
    out = {"conv1": x}
    for layer in layers:
        if layer.id.endswith(".conv1"):
            block = layer.id[: -len(".conv1")]
            inside = F.relu(conv(layer.id, x))
            residual = conv(f"{block}.shortcut", x) if f"{block}.shortcut" in by_id else x
            x = F.relu(conv(f"{block}.conv2", inside) + residual)
            out[layer.id], out[f"{block}.conv2"] = inside, x
    return out


def torch_embeddings(layers: list[Layer], x: torch.Tensor, masks: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Float64 pooling and last layer; weights ordered by mel, then channel."""
    x = x.double().permute(0, 2, 1, 3).reshape(x.shape[0], -1, x.shape[3]).cpu().numpy()[window]
    w = masks[:, None].astype(np.float64)
    v1, v2 = w.sum(2) + 1e-8, (w**2).sum(2)
    mean = (x * w).sum(2) / v1
    deviation = np.sqrt((w * (x - mean[..., None]) ** 2).sum(2) / (v1 - v2 / v1 + 1e-8))
    final = layers[-1].weights
    return np.concatenate([mean, deviation], 1) @ final["weight"].T.astype(np.float64) + final["bias"]


def rel(a: np.ndarray, b: np.ndarray) -> float:
    """Relative L2 distance of a from b."""
    return float(np.linalg.norm(a.astype(np.float64) - b) / np.linalg.norm(b.astype(np.float64)))


class Bench:
    """The GPU, its memory and a stream."""

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self.gpu = Gpu()
        self.memory = MemoryPool(self.gpu)
        self.stream = self.gpu.stream()
        self.rows: list[dict] = []

    def seconds(self, call, inner: int = 5, replays: int = REPLAYS) -> list[float]:
        """Seconds of one call(stream), one value a replay of a graph of `inner` calls."""
        call(self.stream)
        self.stream.synchronize()
        self.stream.begin_capture()
        for _ in range(inner):
            call(self.stream)
        graph = self.stream.end_capture()
        for _ in range(3):
            graph.launch(self.stream)
        events = [self.stream.record()]
        for _ in range(replays):
            graph.launch(self.stream)
            events.append(self.stream.record())
        self.stream.synchronize()
        return [b.seconds_since(a) / inner for a, b in pairwise(events)]

    def torch_graph(self, call, inner: int = 5):
        """A torch graph of `inner` calls."""
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            for _ in range(inner):
                call()
        return graph

    def interleaved(self, calls: dict, torch_calls: dict, inner: int = 5, rounds: int = 15) -> dict[str, list[float]]:
        """Seconds of one call of each, from graphs replayed in turn in an order that rotates.

        Candidates then see the same clocks, which move with the card's power within milliseconds.
        """
        graphs = {}
        for name, call in calls.items():
            call(self.stream)
            self.stream.synchronize()
            self.stream.begin_capture()
            for _ in range(inner):
                call(self.stream)
            graphs[name] = self.stream.end_capture()
        wrapped = torch.cuda.ExternalStream(int(self.stream.handle))
        replay = {name: (lambda g=graph: g.launch(self.stream)) for name, graph in graphs.items()}
        kept = {name: self.torch_graph(call, inner) for name, call in torch_calls.items()}
        replay.update({name: graph.replay for name, graph in kept.items()})
        names = list(replay)
        marks: dict[str, list] = {name: [] for name in names}
        with torch.cuda.stream(wrapped):
            for turn in range(rounds + 2):
                for i in range(len(names)):
                    name = names[(i + turn) % len(names)]
                    before = self.stream.record()
                    replay[name]()
                    marks[name].append((before, self.stream.record()))
        self.stream.synchronize()
        return {name: [b.seconds_since(a) / inner for a, b in pairs[2:]] for name, pairs in marks.items()}

    def record(self, **row) -> None:
        """Keep a row and print its short form."""
        if "samples" in row:
            row["us"] = statistics.median(row["samples"]) * 1e6
            row["n"] = len(row["samples"])
        self.rows.append(row)
        short = {k: (round(v, 6) if isinstance(v, float) else v) for k, v in row.items() if k != "samples"}
        print(json.dumps(short), flush=True)


def check_trunk(
    bench: Bench, kernels: ResNet34Kernels, layers: list[Layer], choice: str = "default", windows: int = 5
) -> None:
    """Every layer and the embeddings against float32."""
    slots = 2 * windows
    rng = np.random.default_rng(5)
    features = random_features(windows)
    masks = (rng.random((slots, 125)) < 0.6).astype(np.float32)
    masks[-1] = 0
    window = np.sort(rng.integers(0, windows, slots)).astype(np.int32)
    plan = kernels.plan(windows, slots)
    put(bench, plan.features, features)
    put(bench, plan.mean, features.mean(1))
    put(bench, plan.masks, masks)
    put(bench, plan.slot_window, window)
    expected = torch_trunk(layers, torch.from_numpy(features).cuda())
    worst = 0.0
    for name, launch, output in plan.steps:
        launch(bench.stream)
        bench.stream.synchronize()
        if name in expected:
            error = rel(bench.memory.get(output), expected[name].permute(0, 2, 3, 1).cpu().numpy())
            worst = max(worst, error) if error == error else float("nan")
            bench.record(kind="trunk layer", choice=choice, layer=name, error=error, peak=float(expected[name].max()))
    reference = torch_embeddings(layers, expected["layer4.2.conv2"], masks, window)
    got = bench.memory.get(plan.embeddings)
    flag = int(bench.memory.get(plan.flag)[0])
    each = [rel(a, b) for a, b in zip(got, reference, strict=True)]
    bench.record(
        kind="embedding",
        choice=choice,
        error=rel(got, reference),
        worst=max(each),
        empty=each[-1],
        layer_worst=worst,
        flag=flag,
    )
    plan.close()


def put(bench: Bench, array, values: np.ndarray) -> None:
    """Fill a device array."""
    from diarize.backend.cuda_driver import check

    source = np.ascontiguousarray(values, array.dtype)
    assert source.nbytes == array.nbytes
    check(bench.gpu.driver.cuMemcpyHtoD(array.address, source.ctypes.data, source.nbytes))


def half_tensor(bench: Bench, shape, seed: int):
    """A random float16 device array and its torch twin."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    twin = torch.randn(shape, device="cuda", generator=generator).half()
    array = bench.memory.empty(shape, np.float16)
    from diarize.backend.cuda_driver import check

    torch.cuda.synchronize()
    check(bench.gpu.driver.cuMemcpyDtoD(array.address, twin.data_ptr(), array.nbytes))
    return array, twin


def compare(bench: Bench, array, expected: torch.Tensor) -> float:
    """Relative L2 error of a device array (NHWC) to an NCHW tensor; poisoned places count as NaN."""
    from diarize.backend.cuda_driver import check

    bench.gpu.synchronize()
    got = torch.empty(array.shape, dtype=torch.float16, device="cuda")
    check(bench.gpu.driver.cuMemcpyDtoD(got.data_ptr(), array.address, array.nbytes))
    torch.cuda.synchronize()
    difference = got.permute(0, 3, 1, 2).double() - expected.double()
    return float(difference.norm() / expected.double().norm())


def poison(bench: Bench, array) -> None:
    """Fill with NaN."""
    from diarize.backend.cuda_driver import check

    check(bench.gpu.driver.cuMemsetD16(array.address, 0x7E00, array.nbytes // 2))
    bench.gpu.synchronize()


def time_candidates(bench: Bench, kernels: ResNet34Kernels, batches: list[int], only: list[str]) -> None:
    """Every candidate of every role: checked on three windows, then timed; cuDNN's fused convolution beside it."""
    for role, requests in {**SAME, **DOWN, **BLOCK}.items():
        if only and role not in only:
            continue
        channels, kind = int(role.split()[0]), role.split()[1]
        good = [r for r in requests if check_candidate(bench, kernels, role, channels, kind, r)]
        for windows in batches:
            bound = [binder(bench, kernels, request, channels, windows, seed=3) for request in good]
            calls = {b[2]: b[0] for b in bound}
            samples = bench.interleaved(calls, {"cudnn": cudnn(channels, kind, windows)})
            for name, values in samples.items():
                bench.record(kind="candidate", role=role, windows=windows, name=name, samples=values)
            for b in bound:
                for array in b[1]:
                    bench.memory.free(array)
            bench.memory.trim()
            torch.cuda.empty_cache()


def binder(bench: Bench, kernels: ResNet34Kernels, request: Request, channels: int, windows: int, seed: int):
    """(launch, arrays, name, outputs, twins) of a candidate on random data."""
    spec, loaded = kernels.loader.kernel(request)
    height, width = SIZES[channels]
    if not hasattr(spec, "stride"):
        return bind_block(bench, spec, loaded, windows, seed)
    x, tx = half_tensor(bench, (windows, height, width, channels), seed)
    generator = torch.Generator(device="cuda").manual_seed(9)
    weight = torch.randn((spec.c_out, channels, 3, 3), device="cuda", generator=generator) / (3 * channels**0.5)
    weight = weight.half().float()
    bias = torch.randn(spec.c_out, device="cuda", generator=generator)
    flag = bench.memory.put(np.zeros(1, np.int32))
    rows, columns = spec.output_size(height, width)
    y = bench.memory.empty((windows, rows, columns, spec.c_out), np.float16)
    across, down, count = spec.tiles(windows, height, width)
    grid = spec.grid(windows, height, width, bench.gpu.multiprocessors)
    put_bias = bench.memory.put(bias.cpu().numpy())
    if spec.stride == 2:
        shortcut = torch.randn((spec.c_out, channels, 1, 1), device="cuda", generator=generator) / channels**0.5
        shortcut = shortcut.half().float()
        packed = bench.memory.put(spec.pack(weight.cpu().numpy(), shortcut.cpu().numpy()))
        s = bench.memory.empty(y.shape, np.float16)
        maps = [bench.memory.tensor_map(x, spec.box, parity) for parity in PARITIES]
        values = (*maps, packed, put_bias, put_bias, y, s, flag, rows, columns, across, down, count)
        arrays, outputs, twins = [x, y, s, packed], (y, s), (tx, weight, bias, None, shortcut)
    else:
        r, tr = half_tensor(bench, y.shape, seed + 1)
        packed = bench.memory.put(spec.pack(weight.cpu().numpy()))
        maps = (bench.memory.tensor_map(x, spec.box), bench.memory.tensor_map(r, spec.residual_box))
        values = (*maps, packed, put_bias, r, y, flag, rows, columns, across, down, count)
        arrays, outputs, twins = [x, y, r, packed], (y,), (tx, weight, bias, tr, None)
    return loaded.bind(grid, *values), arrays, spec.kernel.name, outputs, twins


def bind_block(bench: Bench, spec, loaded, windows: int, seed: int):
    """As `binder`, for a fused block of 32 channels."""
    from diarize.kernels.block32 import pack_block

    height, width = SIZES[32]
    x, tx = half_tensor(bench, (windows, height, width, 32), seed)
    generator = torch.Generator(device="cuda").manual_seed(9)
    weight = (torch.randn((2, 32, 32, 3, 3), device="cuda", generator=generator) / (3 * 32**0.5)).half().float()
    bias = torch.randn(64, device="cuda", generator=generator)
    flag = bench.memory.put(np.zeros(1, np.int32))
    y = bench.memory.empty((windows, height, width, 32), np.float16)
    packed = bench.memory.put(pack_block(*weight.cpu().numpy()))
    rows = spec.rows(windows, height, width, bench.gpu.multiprocessors)
    across, down, count = spec.tasks(windows, height, width, rows)
    values = (bench.memory.tensor_map(x, spec.box), packed, bench.memory.put(bias.cpu().numpy()), y, flag)
    grid = spec.grid(count, bench.gpu.multiprocessors)
    launch = loaded.bind(grid, *values, height, width, across, down, count, rows)
    return launch, [x, y, packed], f"{spec.kernel.name}_r{rows}", (y,), (tx, weight, bias, None, None)


def check_candidate(bench: Bench, kernels, role: str, channels: int, kind: str, request: Request) -> bool:
    """Whether a candidate agrees with float32 on three windows, twice the same."""
    name = repr(request.parameters)
    try:
        launch, arrays, name, outputs, twins = binder(bench, kernels, request, channels, 3, 7)
        tx, weight, bias, tr, shortcut = twins
        for output in outputs:
            poison(bench, output)
        launch(bench.stream)
        bench.stream.synchronize()
        x = tx.permute(0, 3, 1, 2).float()
        if kind == "block":
            inside = F.relu(F.conv2d(x, weight[0], bias[:32], padding=1)).half().float()
            expected = [F.relu(F.conv2d(inside, weight[1], bias[32:], padding=1) + x)]
        elif kind == "down":
            expected = [F.relu(F.conv2d(x, weight, bias, 2, 1)), F.conv2d(x, shortcut, bias, 2)]
        else:
            added = tr.permute(0, 3, 1, 2).float() if kind == "outer" else 0.0
            expected = [F.relu(F.conv2d(x, weight, bias, padding=1) + added)]
        errors = [compare(bench, o, e) for o, e in zip(outputs, expected, strict=True)]
        bench.record(kind="check", role=role, name=name, errors=errors)
        for array in arrays:
            bench.memory.free(array)
        return all(e < 1e-3 for e in errors)
    except Exception as error:  # a failed candidate is a row, not the end
        bench.record(kind="check", role=role, name=name, failed=repr(error)[:300])
        return False


def cudnn(channels: int, kind: str, windows: int):
    """A call of cuDNN's fused float16 convolution (+ residual) + bias + ReLU in channels-last layout."""
    height, width = SIZES[channels]
    out = 2 * channels if kind == "down" else channels
    stride = 2 if kind == "down" else 1
    x = torch.randn(windows, height, width, channels, device="cuda").half().permute(0, 3, 1, 2)
    make = {"dtype": torch.half, "device": "cuda"}
    w = torch.randn(out, channels, 3, 3, **make).contiguous(memory_format=torch.channels_last) / (3 * channels**0.5)
    b = torch.randn(out, **make)
    size = (windows, -(-height // stride), -(-width // stride), out)
    r = torch.randn(*size, device="cuda").half().permute(0, 3, 1, 2)
    if kind == "block":

        def call():
            inside = torch.cudnn_convolution_relu(x, w, b, (1, 1), (1, 1), (1, 1), 1)
            torch.cudnn_convolution_add_relu(inside, w, r, 1.0, b, (1, 1), (1, 1), (1, 1), 1)
    elif kind == "outer":

        def call():
            torch.cudnn_convolution_add_relu(x, w, r, 1.0, b, (1, 1), (1, 1), (1, 1), 1)
    elif kind == "inner":

        def call():
            torch.cudnn_convolution_relu(x, w, b, (1, 1), (1, 1), (1, 1), 1)
    else:
        ws = torch.randn(out, channels, 1, 1, **make).contiguous(memory_format=torch.channels_last) / channels**0.5

        def call():
            torch.cudnn_convolution_relu(x, w, b, (2, 2), (1, 1), (1, 1), 1)
            F.conv2d(x, ws, b, 2)

    return call


def time_trunk(bench: Bench, kernels: ResNet34Kernels, batches: list[int], detail: list[int]) -> None:
    """Windows per second of the whole trunk, pooling and last layer, and each launch alone at the sizes of `detail`."""
    for windows in batches:
        slots = -(-windows * 3 // 2)
        plan = kernels.plan(windows, slots)
        put(bench, plan.features, random_features(min(windows, 8))[np.arange(windows) % min(windows, 8)])
        put(bench, plan.mean, np.full((windows, 80), -8.0))
        put(bench, plan.masks, (np.random.default_rng(0).random((slots, 125)) < 0.6).astype(np.float32))
        put(bench, plan.slot_window, np.arange(slots) * windows // slots)
        samples = bench.seconds(plan.run, inner=1, replays=30)
        median = statistics.median(samples)
        precision = f"{kernels.choice.precision} {'fused' if kernels.choice.block else 'plain'}"
        bench.record(kind="trunk", windows=windows, samples=samples, per_second=windows / median, choice=precision)
        if windows in detail:
            for name, launch, _ in plan.steps:
                bench.record(kind="layer", windows=windows, layer=name, samples=bench.seconds(launch, 5, 10))
        plan.close()
        bench.memory.trim()


def main() -> None:
    """Parse, build, check, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--batches", default="32,64,128")
    parser.add_argument("--candidate-batches", default="32,128")
    parser.add_argument("--roles", default="")
    parser.add_argument("--parts", default="check,trunk,fallbacks,candidates")
    options = parser.parse_args()
    parts = options.parts.split(",")
    batches = [int(v) for v in options.batches.split(",")]
    start = time.time()
    bench = Bench()
    choice = hopper_choice()
    roles = [r for r in options.roles.split(",") if r]
    tables = {**SAME, **DOWN, **BLOCK}
    fallbacks = {"portable": portable_choice(), "tf32": float32_choice(True), "fp32": float32_choice()}
    wanted = list(choice.requests())
    if "fallbacks" in parts:
        wanted += [request for other in fallbacks.values() for request in other.requests()]
    if "candidates" in parts:
        wanted += [r for role, rs in tables.items() if not roles or role in roles for r in rs]
    unique = {repr((r.factory, sorted(r.parameters.items()))): r for r in wanted}
    build([*unique.values()], bench.gpu.capability)
    print(f"built {len(unique)} kernels in {time.time() - start:.1f} s", flush=True)
    layers = random_layers()
    kernels = ResNet34Kernels(bench.gpu, bench.memory, layers, choice)
    device = bench.gpu.describe()
    bench.record(
        kind="device",
        name=device.name.strip("\0 "),
        driver=device.driver,
        runtime=device.runtime,
        torch=torch.__version__,
    )
    if "check" in parts:
        check_trunk(bench, kernels, layers)
    if "trunk" in parts:
        time_trunk(bench, kernels, batches, [batches[0], batches[-1]])
    if "fallbacks" in parts:
        for name, other in fallbacks.items():
            twin = ResNet34Kernels(bench.gpu, bench.memory, layers, other)
            check_trunk(bench, twin, layers, name)
            time_trunk(bench, twin, batches[:1], batches[:1] if name == "portable" else [])
    if "candidates" in parts:
        time_candidates(bench, kernels, [int(v) for v in options.candidate_batches.split(",")], roles)
    (options.out / "trunk.json").write_text(json.dumps(bench.rows, indent=1))
    print(f"total {time.time() - start:.0f} s, peak {bench.memory.peak_bytes / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
