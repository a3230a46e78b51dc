"""Write the nine-file folder that speakrs 0.7.0 loads, from the bundled segmentation and a random ResNet34.

    PEER_PYTHON tests/benchmarks/peers/speakrs_model.py OUT --shared DIR [--seed 0]

PEER_PYTHON is an interpreter that holds pyannote.audio 4.0.7, torch, onnx and safetensors. The folder's turns mean
nothing, since the embeddings are random; its speed does. speakrs reads the initializers of a legacy ONNX export of
PyanNet by name, so that export is made here; our bank of realised sinc filters is first turned back into cut-offs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tests.tools.random_resnet34 import random_resnet34  # noqa: E402

RENAMED = {
    "wav_norm": "sincnet.wav_norm1d",
    "norm0": "sincnet.norm1d.0",
    "norm1": "sincnet.norm1d.1",
    "norm2": "sincnet.norm1d.2",
    "conv1": "sincnet.conv1d.1",
    "conv2": "sincnet.conv1d.2",
    "lin0": "linear.0",
    "lin1": "linear.1",
    "cls": "classifier",
}


def cut_offs(bank: np.ndarray) -> np.ndarray:
    """Low and high cut-off in Hz (40, 2) of the even filters of a realised bank (80, 251), by least squares."""
    from scipy.optimize import least_squares

    half = np.hamming(251)[:125]
    t = 2 * np.pi * np.arange(-125, 0) / 16_000
    frequencies = np.fft.rfftfreq(16_384, 1 / 16_000)

    def realise(edges: np.ndarray) -> np.ndarray:
        low, high = edges
        left = (np.sin(high * t) - np.sin(low * t)) / (t / 2) * half
        return np.concatenate([left, [2 * (high - low)], left[::-1]]) / (2 * (high - low))

    found = []
    for wanted in bank[:40].astype(np.float64):
        spectrum = np.abs(np.fft.rfft(wanted, 16_384))
        band = frequencies[spectrum > spectrum.max() / 2]
        starts = [(max(50.0, band[0] + shift), band[-1] + 0.1) for shift in (0, -20, 20)]
        fits = [least_squares(lambda e, w=wanted: realise(e) - w, start, x_scale=10) for start in starts]
        best = min(fits, key=lambda fit: fit.cost)
        assert best.cost < 1e-9, "a sinc filter did not fit its formula"
        found.append(best.x)
    return np.array(found)


def pyannet(weights: dict[str, np.ndarray]) -> torch.nn.Module:
    """pyannote's PyanNet with the weights of `segmentation-3.0.safetensors`."""
    import torch
    from pyannote.audio.core.task import Problem, Resolution, Specifications
    from pyannote.audio.models.segmentation import PyanNet

    model = PyanNet(
        sincnet={"stride": 10},
        lstm={"hidden_size": 128, "num_layers": 4, "bidirectional": True, "monolithic": True},
        linear={"hidden_size": 128, "num_layers": 2},
    )
    model.specifications = Specifications(
        problem=Problem.MONO_LABEL_CLASSIFICATION,
        resolution=Resolution.FRAME,
        duration=10.0,
        classes=["a", "b", "c"],
        powerset_max_classes=2,
        permutation_invariant=True,
    )
    model.build()
    edges = cut_offs(weights["conv0.weight"][:, 0])
    state = model.state_dict()
    filters = "sincnet.conv1d.0.filterbank."
    state[filters + "low_hz_"] = torch.tensor(edges[:, :1] - 50, dtype=torch.float32)
    state[filters + "band_hz_"] = torch.tensor(edges[:, 1:] - edges[:, :1] - 50, dtype=torch.float32)
    for name, tensor in weights.items():
        part, _, rest = name.partition(".")
        if name != "conv0.weight":
            state[f"{RENAMED.get(part, part)}.{rest}"] = torch.tensor(np.asarray(tensor, np.float32))
    model.load_state_dict(state)
    return model.eval()


def segmentation_initializers(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Initializers, by name, of the legacy ONNX export (opset 14) of PyanNet with these weights."""
    import onnx
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "segmentation.onnx"
        torch.onnx.export(
            pyannet(weights),
            torch.zeros(1, 1, 160_000),
            str(path),
            opset_version=14,
            dynamo=False,
            input_names=["input"],
            output_names=["output"],
            dynamic_axes={"input": {0: "batch"}},
        )
        graph = onnx.load(str(path)).graph
    return {item.name: np.ascontiguousarray(onnx.numpy_helper.to_array(item)) for item in graph.initializer}


def embedding_tensors(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The 74 tensors of the embedding file: 36 convolutions with batch norm folded, and `seg_1`."""
    out: dict[str, np.ndarray] = {}
    for name in [key for key in weights if key.endswith(".weight") and weights[key].ndim == 4]:
        conv = name.removesuffix(".weight")
        norm = conv.replace("shortcut.0", "shortcut.1").replace("conv", "bn")
        scale = weights[f"{norm}.weight"] / np.sqrt(weights[f"{norm}.running_var"] + 1e-5)
        out[f"{conv}.weight"] = np.ascontiguousarray(weights[name] * scale[:, None, None, None], np.float32)
        bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
        out[f"{conv}.weight_bias"] = np.ascontiguousarray(bias, np.float32)
    out |= {f"resnet.seg_1.{part}": weights[f"resnet.seg_1.{part}"] for part in ("weight", "bias")}
    assert len(out) == 74
    return out


def main() -> None:
    """Write the folder named on the command line."""
    from safetensors.numpy import load_file, save_file

    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    segmentation = load_file(options.shared / "models" / "segmentation-3.0.safetensors")
    save_file(segmentation_initializers(segmentation), options.out / "segmentation-3.0.safetensors")
    embedding = embedding_tensors(random_resnet34(options.seed))
    save_file(embedding, options.out / "wespeaker-multimask-tail.safetensors")
    for file in ("xvec_transform", "plda"):
        with np.load(options.shared / "models" / "plda" / f"{file}.npz") as archive:
            for key in archive.files:
                np.save(options.out / f"plda_{key}.npy", archive[key])
    (options.out / "wespeaker-voxceleb-resnet34.min_num_samples.txt").write_text("400\n")


if __name__ == "__main__":
    main()
