"""A ResNet34 with seeded random weights that behaves like a trained one: same layout, bounded activations.

The real speaker network cannot be shipped with the tests. Speed and numerics do not depend on its values, as long as
activations keep a natural size: convolutions are drawn by He's rule, and each batch norm's running statistics are those
of its input on synthetic log-mel features with the ups and downs of speech.

    python tests/tools/random_resnet34.py DIR [SEED]

writes a model folder for `--model DIR`, with the PLDA of the test material.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np


def random_resnet34(seed: int, prefix: str = "resnet.") -> dict[str, np.ndarray]:
    """Float32 tensors of a random ResNet34 in pyannote's layout: `resnet.conv1.weight` and so on.

    Equal seeds give equal convolutions, and batch norms equal to rounding. `num_batches_tracked` (int64) is included,
    as in real checkpoints. The bias of `seg_1` has norm 3. With batch norms folded, activations on 20 windows of
    real and synthetic speech stay below 28 (seed 0), 65 (seed 1) and 59 (seed 2).
    """
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}

    def convolution(name: str, x: np.ndarray, out_channels: int, size: int, stride: int) -> np.ndarray:
        in_channels = x.shape[2]
        spread = math.sqrt(2.0 / (in_channels * size * size))
        weight = (rng.standard_normal((out_channels, in_channels, size, size)) * spread).astype(np.float32)
        tensors[f"{name}.weight"] = weight
        return _convolve(x, weight, stride)

    def batch_norm(name: str, x: np.ndarray) -> np.ndarray:
        channels = x.shape[2]
        values = {
            "weight": rng.uniform(0.2, 0.5, channels),
            "bias": rng.normal(0.0, 0.2, channels),
            "running_mean": x.mean((0, 1), dtype=np.float64),
            "running_var": x.var((0, 1), dtype=np.float64),
        }
        tensors.update({f"{name}.{part}": value.astype(np.float32) for part, value in values.items()})
        tensors[f"{name}.num_batches_tracked"] = np.array(1000, np.int64)
        scale = (values["weight"] / np.sqrt(values["running_var"] + 1e-5)).astype(np.float32)
        return (x - tensors[f"{name}.running_mean"]) * scale + tensors[f"{name}.bias"]

    x = _speech_like_features(rng)[:, :, None]
    x = np.maximum(batch_norm("bn1", convolution("conv1", x, 32, 3, 1)), 0)
    for stage, (blocks, width) in enumerate(zip((3, 4, 6, 3), (32, 64, 128, 256), strict=True), start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            inner = np.maximum(batch_norm(f"{name}.bn1", convolution(f"{name}.conv1", x, width, 3, stride)), 0)
            branch = batch_norm(f"{name}.bn2", convolution(f"{name}.conv2", inner, width, 3, 1))
            if x.shape[2] != width:
                x = batch_norm(f"{name}.shortcut.1", convolution(f"{name}.shortcut.0", x, width, 1, stride))
            x = np.maximum(x + branch, 0)
    tensors["seg_1.weight"] = (rng.standard_normal((256, 5120)) * math.sqrt(1.0 / 5120)).astype(np.float32)
    bias = rng.standard_normal(256)
    tensors["seg_1.bias"] = (3.0 * bias / np.linalg.norm(bias)).astype(np.float32)
    return {prefix + name: tensor for name, tensor in tensors.items()}


def write_model_folder(folder: Path, plda_folder: Path, seed: int = 0) -> Path:
    """Write a community-1 model folder with a random ResNet34 and give its path, usable with `--model`.

    `plda_folder` holds `plda.npz` and `xvec_transform.npz`. Segmentation is the bundled one.
    """
    from diarize.model.folder import write_folder
    from diarize.model.shapes import resnet34_shapes
    from diarize.model.weights import EmbeddingNetwork

    plda: dict[str, np.ndarray] = {}
    for name in ("xvec_transform.npz", "plda.npz"):
        with np.load(plda_folder / name) as archive:
            plda |= {key: archive[key] for key in archive.files}
    tensors = random_resnet34(seed, prefix="")
    write_folder(
        folder,
        EmbeddingNetwork.RESNET34,
        embedding={name: tensors[name] for name in resnet34_shapes()},
        plda=plda,
        segmentation=None,
        sources=[{"part": "embedding", "origin": f"random ResNet34, seed {seed}"}],
        licences=["plda: CC BY 4.0, BUT Speech@FIT"],
    )
    return folder


def _speech_like_features(rng: np.random.Generator, num_frames: int = 256) -> np.ndarray:
    """Log-mel features (80, num_frames) float32 of mean 0 by row, with pauses, syllables and moving resonances."""
    time, mel = np.arange(num_frames), np.arange(80)[:, None]
    # Pauses are some 14 log units below speech and last a third of the time, syllables come five times a second.
    loudness = np.where(np.sin(2 * math.pi * time / 110 + rng.uniform(0, 6)) > -0.5, 0.0, -14.0)
    loudness = np.convolve(loudness, np.ones(7) / 7, "same") + 2.0 * np.sin(2 * math.pi * time / 20)
    features = loudness[None, :] * np.linspace(1.2, 0.6, 80)[:, None]
    for centre, width in ((12, 6), (28, 7), (45, 8), (62, 9)):
        track = centre + 6 * np.interp(time, time[::16], rng.standard_normal(num_frames // 16))
        features += 3.0 * np.exp(-(((mel - track[None, :]) / width) ** 2))
    # The logarithm of a periodogram's exponential scatter.
    features += np.log(rng.exponential(1.0, features.shape))
    return (features - features.mean(1, keepdims=True)).astype(np.float32)


def _convolve(x: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    """Zero-padded convolution of `x` (rows, columns, channels) with `weight` (out, in, k, k), k odd."""
    size = weight.shape[2]
    margin = size // 2
    padded = np.pad(x, ((margin, margin), (margin, margin), (0, 0)))
    rows, columns = -(-x.shape[0] // stride), -(-x.shape[1] // stride)
    total = np.zeros((rows, columns, weight.shape[0]), np.float32)
    for i in range(size):
        for j in range(size):
            taps = padded[i : i + (rows - 1) * stride + 1 : stride, j : j + (columns - 1) * stride + 1 : stride]
            total += taps @ weight[:, :, i, j].T
    return total


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.conftest import shared_folder

    write_model_folder(Path(sys.argv[1]), shared_folder() / "models" / "plda", int((sys.argv[2:] or ["0"])[0]))
