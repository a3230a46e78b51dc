"""Checks and times the segmentation network on this machine's GPU.

`python tests/benchmarks/cuda/pyannet.py --speech FILE.npz --out DIR`, the file holding 16-bit mono `samples` at 16 kHz
and, optionally, the CPU backend's `classes` at a step of one second. Needs torch with CUDA for the float32 reference
and for cuDNN's times; the kernels themselves do not use it. Correctness comes first, then speed: medians of CUDA-graph
replays.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from trunk import Bench, put, rel

from diarize.backend.cuda_build import build
from diarize.backend.cuda_pyannet import PyanNetKernels, hopper_choice, portable_choice
from diarize.framing import FRAMES_PER_WINDOW, WINDOW_SAMPLES
from diarize.model.segmentation import segmentation_layers
from diarize.model.weights import load_segmentation


class TorchPyanNet:
    """The network in torch, in any precision, for references."""

    def __init__(self, weights: dict[str, np.ndarray], dtype: torch.dtype = torch.float32) -> None:
        self.w = {name: torch.from_numpy(np.array(value)).cuda().to(dtype) for name, value in weights.items()}
        self.dtype = dtype
        self.lstm = torch.nn.LSTM(60, 128, num_layers=4, bidirectional=True)
        state = {name[5:]: torch.from_numpy(np.array(v)) for name, v in weights.items() if name.startswith("lstm.")}
        self.lstm.load_state_dict(state)
        self.lstm = self.lstm.cuda().to(dtype).eval()
        self.lstm.flatten_parameters()

    def front(self, windows: torch.Tensor) -> dict[str, torch.Tensor]:
        """(B, 160000) samples to pooled activations (B, C, T) and LSTM inputs (T, B, 60)."""
        w = self.w
        out = {}
        x = F.instance_norm(windows[:, None].to(self.dtype), weight=w["wav_norm.weight"], bias=w["wav_norm.bias"])
        x = F.max_pool1d(F.conv1d(x, w["conv0.weight"], stride=10).abs(), 3)
        out["sinc_pool"] = x
        x = F.leaky_relu(F.instance_norm(x, weight=w["norm0.weight"], bias=w["norm0.bias"]))
        for i in (1, 2):
            x = F.max_pool1d(F.conv1d(x, w[f"conv{i}.weight"], w[f"conv{i}.bias"]), 3)
            out[f"conv{i}"] = x
            x = F.leaky_relu(F.instance_norm(x, weight=w[f"norm{i}.weight"], bias=w[f"norm{i}.bias"]))
        out["features"] = x.permute(2, 0, 1).contiguous()
        return out

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states to scores."""
        w = self.w
        for name in ("lin0", "lin1"):
            hidden = F.leaky_relu(F.linear(hidden, w[f"{name}.weight"], w[f"{name}.bias"]))
        return F.linear(hidden, w["cls.weight"], w["cls.bias"])

    def scores(self, windows: torch.Tensor) -> torch.Tensor:
        """(B, 160000) samples to (B, 589, 7) scores."""
        return self.head(self.lstm(self.front(windows)["features"])[0]).transpose(0, 1)


def stretches(samples: np.ndarray, step: int, batch: int):
    """(first window, samples of the stretch, window count) of one batch after another."""
    total = (len(samples) - WINDOW_SAMPLES) // step + 1
    for first in range(0, total, batch):
        count = min(batch, total - first)
        yield first, samples[first * step : (first + count - 1) * step + WINDOW_SAMPLES], count


def views(stretch: torch.Tensor, count: int, step: int) -> torch.Tensor:
    """Overlapping windows of a stretch."""
    return stretch.as_strided((count, WINDOW_SAMPLES), (step, 1))


def reference(samples: np.ndarray, net: TorchPyanNet, step: int) -> np.ndarray:
    """Float32 (or other) torch classes of all windows."""
    rows = []
    for _, stretch, count in stretches(samples, step, 64):
        device = torch.from_numpy(stretch).cuda()
        rows.append(net.scores(views(device, count, step)).argmax(2).byte().cpu().numpy())
    return np.concatenate(rows)


def ours(bench: Bench, kernels: PyanNetKernels, samples: np.ndarray, step: int, batch: int) -> np.ndarray:
    """Classes of all windows by our kernels, in batches."""
    rows = []
    plans = {}
    for _, stretch, count in stretches(samples, step, batch):
        if count not in plans:
            plans[count] = kernels.plan(count, step)
        plan = plans[count]
        put(bench, plan.samples, stretch)
        plan.run(bench.stream)
        rows.append(bench.memory.get(plan.classes))
        assert int(bench.memory.get(plan.flag)[0]) == 0
    for plan in plans.values():
        plan.close()
    return np.concatenate(rows)


def check_layers(bench: Bench, kernels: PyanNetKernels, samples: np.ndarray, net64: TorchPyanNet, count: int) -> None:
    """Each stage of one batch against float64."""
    step = 16000
    stretch = samples[: (count - 1) * step + WINDOW_SAMPLES]
    plan = kernels.plan(count, step)
    put(bench, plan.samples, stretch)
    plan.run(bench.stream)
    windows = views(torch.from_numpy(stretch).cuda(), count, step)
    front = net64.front(windows.double())
    errors = {}
    for name in ("sinc_pool", "conv1", "conv2"):
        got = bench.memory.get(plan.outputs[name])
        expected = front[name].transpose(1, 2).cpu().numpy()
        errors[name] = rel(got[..., : expected.shape[2]], expected)
    hidden = net64.lstm(front["features"])[0].cpu().numpy()
    got = bench.memory.get(plan.outputs["lstm"]).astype(np.float64)[: FRAMES_PER_WINDOW * plan.padded]
    got = got.reshape(FRAMES_PER_WINDOW, plan.padded, -1)[:, :count]
    got = got[..., :256] + (got[..., 256:] if got.shape[2] == 512 else 0)
    errors["lstm"] = rel(got, hidden)
    classes = net64.head(torch.from_numpy(hidden).cuda()).argmax(2).T.byte().cpu().numpy()
    flips = int((classes != bench.memory.get(plan.classes)).sum())
    bench.record(kind="layers", precision=kernels.choice.precision, windows=count, flips64=flips, **errors)
    plan.close()


def time_network(bench: Bench, kernels: PyanNetKernels, samples: np.ndarray, batches: list[int]) -> None:
    """Windows per second of the whole network at a step of one second, and each launch alone."""
    step = 16000
    for windows in batches:
        length = (windows - 1) * step + WINDOW_SAMPLES
        for block in kernels.choice.block_windows:
            plan = kernels.plan(windows, step, block)
            put(bench, plan.samples, np.resize(samples, length))
            samples_s = bench.seconds(plan.run, inner=1, replays=10)
            median = statistics.median(samples_s)
            row = {"precision": kernels.choice.precision, "windows": windows, "block": block}
            row["hopper"] = kernels.choice.other.factory.startswith("lstm_hopper")
            parts: dict[str, float] = {}
            for name, launch in plan.steps:
                us = statistics.median(bench.seconds(launch, 1, 5)) * 1e6
                key = "lstm input" if name.endswith(".input") else "recurrence" if "recurrence" in name else name
                key = "merge" if key.endswith("merge") else key
                parts[key] = round(parts.get(key, 0.0) + us, 1)
            bench.record(kind="network", samples=samples_s, per_second=windows / median, parts=parts, **row)
            plan.close()
        bench.memory.trim()


def time_pairs(bench: Bench, kernels: PyanNetKernels, samples: np.ndarray, batches: list[int]) -> None:
    """Windows per second of two batches at a time, each on a stream of its own: recurrences leave processors idle."""
    step = 16000
    for windows in batches:
        plans = [kernels.plan(windows, step) for _ in range(2)]
        streams = [bench.gpu.stream() for _ in range(2)]
        graphs = []
        for plan, stream in zip(plans, streams, strict=True):
            put(bench, plan.samples, np.resize(samples, (windows - 1) * step + WINDOW_SAMPLES))
            stream.begin_capture()
            plan.run(stream)
            graphs.append(stream.end_capture())
        rounds, seconds = 8, []
        for _ in range(4):
            start = time.perf_counter()
            for _ in range(rounds):
                for graph, stream in zip(graphs, streams, strict=True):
                    graph.launch(stream)
            bench.gpu.synchronize()
            seconds.append((time.perf_counter() - start) / rounds)
        median = statistics.median(seconds)
        bench.record(kind="pair", precision=kernels.choice.precision, windows=windows, per_second=2 * windows / median)
        for plan in plans:
            plan.close()
        bench.memory.trim()


def time_torch(bench: Bench, weights: dict[str, np.ndarray], samples: np.ndarray, batches: list[int]) -> None:
    """The same network in torch with cuDNN, float32 without TF32 and float16."""
    for dtype, name in ((torch.float32, "float32"), (torch.float16, "float16")):
        net = TorchPyanNet(weights, dtype)
        for windows in batches:
            stretch = torch.from_numpy(np.resize(samples, (windows - 1) * 16000 + WINDOW_SAMPLES)).cuda()
            for _ in range(2):
                net.scores(views(stretch, windows, 16000).to(dtype)).argmax(2)
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(3):
                net.scores(views(stretch, windows, 16000).to(dtype)).argmax(2)
            torch.cuda.synchronize()
            seconds = (time.perf_counter() - start) / 3
            bench.record(kind="torch", precision=name, windows=windows, per_second=windows / seconds)


def main() -> None:
    """Parse, build, check, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--batches", default="32,128,256")
    parser.add_argument("--precisions", default="split,wxsplit,wsplit")
    parser.add_argument("--portable", default="", help="precisions to run with the kernels of every GPU")
    parser.add_argument("--no-torch", action="store_true")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    start = time.time()
    bench = Bench()
    batches = [int(v) for v in options.batches.split(",")]
    choices = [hopper_choice(name) for name in options.precisions.split(",")]
    choices += [portable_choice(name) for name in options.portable.split(",") if name]
    requests = {repr((r.factory, sorted(r.parameters.items()))): r for c in choices for r in c.requests()}
    build([*requests.values()], bench.gpu.capability)
    print(f"built {len(requests)} kernels in {time.time() - start:.1f} s", flush=True)
    device = bench.gpu.describe()
    bench.record(kind="device", name=device.name, driver=device.driver, runtime=device.runtime, torch=torch.__version__)
    speech = np.load(options.speech)
    samples = (speech["samples"] / 32768).astype(np.float32)
    weights = load_segmentation()
    layers = segmentation_layers(weights)
    net64 = TorchPyanNet(weights, torch.float64)
    expected = reference(samples, TorchPyanNet(weights), 8000)
    for choice in choices:
        kernels = PyanNetKernels(bench.gpu, bench.memory, layers, choice)
        for windows in (13, 1):
            check_layers(bench, kernels, samples[160000 * 20 :], net64, windows)
        got = ours(bench, kernels, samples, 8000, 256)
        flips = int((got != expected).sum())
        row = {
            "precision": choice.precision,
            "hopper": choice.other.factory.startswith("lstm_hopper"),
            "flips": flips,
            "frames": got.size,
        }
        twice = ours(bench, kernels, samples, 16000, 37)
        row["batch_dependent"] = int((twice != got[::2][: len(twice)]).sum())
        if "classes" in speech:
            row["flips_cpu"] = int((twice != speech["classes"]).sum())
            row["torch_flips_cpu"] = int((expected[::2][: len(twice)] != speech["classes"]).sum())
        bench.record(kind="flips", per_50000=flips * 50000 / got.size, **row)
        time_network(bench, kernels, samples, batches)
        time_pairs(bench, kernels, samples, batches)
    if not options.no_torch:
        time_torch(bench, weights, samples, batches)
    (options.out / "pyannet.json").write_text(json.dumps(bench.rows, indent=1))
    print(f"total {time.time() - start:.0f} s, peak {bench.memory.peak_bytes / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
