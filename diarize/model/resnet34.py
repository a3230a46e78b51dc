"""ResNet34 speaker embeddings: WeSpeaker's network on log-mel features, one pass a window for its three speakers.

Images are (time, mel, channel), so that a step in time is one contiguous block. Batch norm is folded into the
convolutions at load.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from ..backend.base import Backend, BoundLayer, Buffer
from ..errors import ModelError
from ..framing import FRAMES_PER_WINDOW, LOCAL_SPEAKERS, WINDOW_SAMPLES
from ..layers import Layer, Op
from .fbank import FRAME_STEP, NUM_MELS, Filterbank, num_frames

DIMENSION = 256
BLOCKS = (3, 4, 6, 3)
CHANNELS = (32, 64, 128, 256)
WINDOW_FRAMES = num_frames(WINDOW_SAMPLES)
TRUNK_STEPS = 125
TRUNK_MELS = 10
_BATCH_NORM_EPSILON = 1e-5


def resnet34_layers(weights: Mapping[str, np.ndarray]) -> list[Layer]:
    """Every layer of the network, as `each_resnet34_layer` makes them."""
    return list(each_resnet34_layer(weights))


def each_resnet34_layer(weights: Mapping[str, np.ndarray]) -> Iterator[Layer]:
    """One layer after the other in the order of the forward pass, batch norms folded.

    `weights` are the checkpoint's tensors, with or without the prefix `resnet.`. Ids are the checkpoint's names:
    `conv1`, `layer{1..4}.{i}.{conv1,shortcut,conv2}`, then `pool` and `seg_1`. `shortcut` exists where shapes change
    and gives the residual of `conv2`. Weights are (C_out, C_in, time, mel).

    Raises
    ------
    ModelError
        A tensor is missing.
    """
    prefix = "resnet." if "resnet.conv1.weight" in weights else ""

    def tensor(name: str) -> np.ndarray:
        if prefix + name not in weights:
            raise ModelError(f"ResNet34 weights: no tensor {prefix + name!r}; the file is not a WeSpeaker ResNet34")
        return np.asarray(weights[prefix + name], np.float64)

    def convolution(name: str, norm: str, stride: int, activation: str, residual: bool = False, to: str = "") -> Layer:
        scale = tensor(f"{norm}.weight") / np.sqrt(tensor(f"{norm}.running_var") + _BATCH_NORM_EPSILON)
        kernel = tensor(f"{name}.weight") * scale[:, None, None, None]
        bias = tensor(f"{norm}.bias") - tensor(f"{norm}.running_mean") * scale
        # The checkpoint's images are (mel, time).
        folded = {"weight": kernel.transpose(0, 1, 3, 2).astype(np.float32), "bias": bias.astype(np.float32)}
        fixed = {"stride_h": stride, "stride_w": stride, "activation": activation, "residual": residual}
        return Layer(to or name, Op.CONV2D, folded, cast(dict[str, int | float | str | bool], fixed))

    yield convolution("conv1", "bn1", 1, "relu")
    for stage, blocks in enumerate(BLOCKS, start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            yield convolution(f"{name}.conv1", f"{name}.bn1", stride, "relu")
            if stride == 2:
                shortcut = f"{name}.shortcut"
                yield convolution(f"{shortcut}.0", f"{shortcut}.1", stride, "none", to=shortcut)
            yield convolution(f"{name}.conv2", f"{name}.bn2", 1, "relu", residual=True)
    yield Layer("pool", Op.MASKED_STATISTICS)
    # The checkpoint's statistics are ordered by channel, then mel; ours by mel, then channel.
    weight = tensor("seg_1.weight").reshape(DIMENSION, 2, CHANNELS[-1], TRUNK_MELS).transpose(0, 1, 3, 2)
    final = {
        "weight": weight.reshape(DIMENSION, -1).astype(np.float32),
        "bias": tensor("seg_1.bias").astype(np.float32),
    }
    yield Layer("seg_1", Op.LINEAR, final, {"activation": "none"})


def trunk_masks(masks: np.ndarray) -> np.ndarray:
    """(..., 125) float32 weights of the trunk's steps from masks (..., 589): step i takes frame floor(i 589 / 125)."""
    frames = np.arange(TRUNK_STEPS) * FRAMES_PER_WINDOW // TRUNK_STEPS
    return np.ascontiguousarray(masks[..., frames], np.float32)


@dataclass(frozen=True)
class _Stage:
    """One window's two images of a stage: the running sum and the inside of a block."""

    image: Buffer
    inner: Buffer


class ResNet34Embedder:
    """Embeds the local speakers of windows; `dimension` is 256, `filterbank` makes its features.

    Safe to use from several threads; each keeps its own images (20 MB). A window's embeddings are the same bytes
    whatever else is embedded with it.

    Raises
    ------
    ModelError
        A tensor is missing from `weights`.

    References
    ----------
    Wang et al. 2023, WeSpeaker; Zeinali et al. 2019, BUT system description to VoxCeleb (the ResNet34).
    """

    dimension = DIMENSION

    def __init__(self, weights: Mapping[str, np.ndarray], backend: Backend) -> None:
        self._backend = backend
        self.filterbank = Filterbank("hamming", backend)
        self._bound: dict[str, BoundLayer] = {
            layer.id: backend.prepare(layer) for layer in each_resnet34_layer(weights)
        }
        self._local = threading.local()

    def embed(self, samples: np.ndarray, num_windows: int, step_samples: int, masks: np.ndarray) -> np.ndarray:
        """Embeddings of every window's local speakers.

        Parameters
        ----------
        samples
            (num_samples,) float32, 16 kHz, from the first window's start on; zeros are added where the last window
            reaches past the end.
        num_windows, step_samples
            Window w starts at sample w * step_samples.
        masks
            (num_windows, 3, 589) bool, the frames to embed each local speaker from; nothing set: no embedding.

        Returns
        -------
        np.ndarray
            (num_windows, 3, 256) float32, not normalised; NaN rows where the mask is empty.
        """
        embeddings = np.full((num_windows, LOCAL_SPEAKERS, DIMENSION), np.nan, np.float32)
        active = np.asarray(masks.any(axis=2))
        if not active.any():
            return embeddings
        features = _WindowFeatures(self.filterbank, samples, num_windows, step_samples)
        weights = trunk_masks(masks)
        statistics = []
        for w in np.flatnonzero(active.any(axis=1)):
            chosen = np.ascontiguousarray(weights[w, active[w]])
            statistics.append(self.statistics(features[int(w)], chosen))
        embeddings[active] = self.project(np.concatenate(statistics))
        return embeddings

    def statistics(self, features: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """(num_speakers, 5120) float32 means, then deviations, of one window's trunk under each speaker's weights.

        features (num_frames, 80) float32, mean already subtracted; weights (num_speakers, num_frames / 8, rounded up)
        float32, so (998, 80) and (num_speakers, 125) for a window.
        """
        trunk = self._trunk(features)
        out = self._backend.put(np.empty((1, len(weights), 2 * TRUNK_MELS * CHANNELS[-1]), np.float32))
        self._bound["pool"]([trunk, self._backend.put(weights[None])], [out])
        return self._backend.get(out)[0]

    def project(self, statistics: np.ndarray) -> np.ndarray:
        """(rows, 256) float32 embeddings of (rows, 5120) float32 statistics: the last, linear layer."""
        out = self._backend.put(np.empty((len(statistics), DIMENSION), np.float32))
        self._bound["seg_1"]([self._backend.put(statistics)], [out])
        return self._backend.get(out)

    def _trunk(self, features: np.ndarray) -> Buffer:
        """(1, num_frames / 8, 2560) output of the convolutions, in this thread's own memory."""
        run = self._bound
        stages = self._images(len(features))
        image = stages[0].image
        run["conv1"]([self._backend.put(features[None, :, :, None])], [image])
        for number, (blocks, stage) in enumerate(zip(BLOCKS, stages, strict=True), start=1):
            for block in range(blocks):
                name = f"layer{number}.{block}"
                run[f"{name}.conv1"]([image], [stage.inner])
                if f"{name}.shortcut" in run:
                    run[f"{name}.shortcut"]([image], [stage.image])
                image = stage.image
                # In place: the sum replaces the residual that it was made from.
                run[f"{name}.conv2"]([stage.inner, image], [image])
        return image.reshape(1, -1, TRUNK_MELS * CHANNELS[-1])

    def _images(self, frames: int) -> list[_Stage]:
        """This thread's images for inputs of `frames` frames, kept until another size is asked for.

        Two flat buffers hold them all: a stage's two images lie in the one that the stage before does not read from.
        """
        if getattr(self._local, "frames", None) != frames:
            shapes = [(1, -(-frames // 2**i), NUM_MELS // 2**i, channels) for i, channels in enumerate(CHANNELS)]
            first = math.prod(shapes[0])
            rest = 2 * max(math.prod(shape) for shape in shapes[1:])
            flat = [self._backend.put(np.zeros(max(first, rest), np.float32)) for _ in range(2)]
            stages = [_Stage(flat[0][:first].reshape(shapes[0]), flat[1][:first].reshape(shapes[0]))]
            for i, shape in enumerate(shapes[1:], start=1):
                size = math.prod(shape)
                halves = flat[i % 2][:size], flat[i % 2][size : 2 * size]
                stages.append(_Stage(halves[0].reshape(shape), halves[1].reshape(shape)))
            self._local.frames, self._local.stages = frames, stages
        held: list[_Stage] = self._local.stages
        return held


class _WindowFeatures:
    """Mean-subtracted features of each window, the filterbank computed once where windows start on its frames."""

    def __init__(self, filterbank: Filterbank, samples: np.ndarray, num_windows: int, step_samples: int) -> None:
        missing = (num_windows - 1) * step_samples + WINDOW_SAMPLES - len(samples)
        self._samples = np.pad(samples, (0, missing)) if missing > 0 else samples
        self._step = step_samples
        self._filterbank = filterbank
        self._whole = filterbank.features(self._samples) if step_samples % FRAME_STEP == 0 else None

    def __getitem__(self, window: int) -> np.ndarray:
        start = window * self._step
        if self._whole is None:
            features = self._filterbank.features(self._samples[start : start + WINDOW_SAMPLES])
        else:
            features = self._whole[start // FRAME_STEP : start // FRAME_STEP + WINDOW_FRAMES]
        return features - features.mean(0, dtype=np.float64).astype(np.float32)
