"""Tensor names and shapes that each network and back-end must have; it refuses anything that does not fit.

The names are the ones that the product works with: for CAM++ and the ResNet34 those of the original checkpoints, for
the segmentation network the short names listed in `segmentation_shapes`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import ModelError

Shapes = dict[str, tuple[int, ...]]

_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


def segmentation_shapes() -> Shapes:
    """Shapes of the segmentation network: sinc bank, two convolutions, four bidirectional LSTM layers, three linear."""
    shapes: Shapes = {"conv0.weight": (80, 1, 251)}
    for name, shape in (("conv1", (60, 80, 5)), ("conv2", (60, 60, 5)), ("lin0", (128, 256)), ("lin1", (128, 128))):
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    shapes |= {"cls.weight": (7, 128), "cls.bias": (7,)}
    for name, size in (("wav_norm", 1), ("norm0", 80), ("norm1", 60), ("norm2", 60)):
        shapes |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
    for layer in range(4):
        for direction in ("", "_reverse"):
            shapes |= {
                f"lstm.weight_ih_l{layer}{direction}": (512, 60 if layer == 0 else 256),
                f"lstm.weight_hh_l{layer}{direction}": (512, 128),
                f"lstm.bias_ih_l{layer}{direction}": (512,),
                f"lstm.bias_hh_l{layer}{direction}": (512,),
            }
    return shapes


def resnet34_shapes() -> Shapes:
    """Shapes of the ResNet34, names without the `resnet.` prefix."""
    shapes: Shapes = {"conv1.weight": (32, 1, 3, 3), "seg_1.weight": (256, 5120), "seg_1.bias": (256,)}
    shapes |= _batch_norm("bn1", 32)
    previous = 32
    for stage, (blocks, channels) in enumerate(zip((3, 4, 6, 3), (32, 64, 128, 256), strict=True), start=1):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            shapes[f"{prefix}.conv1.weight"] = (channels, previous, 3, 3)
            shapes[f"{prefix}.conv2.weight"] = (channels, channels, 3, 3)
            shapes |= _batch_norm(f"{prefix}.bn1", channels) | _batch_norm(f"{prefix}.bn2", channels)
            if previous != channels:
                shapes[f"{prefix}.shortcut.0.weight"] = (channels, previous, 1, 1)
                shapes |= _batch_norm(f"{prefix}.shortcut.1", channels)
            previous = channels
    return shapes


def campplus_shapes() -> Shapes:
    """Shapes of CAM++ (192-d, 80 mel)."""
    shapes: Shapes = {"head.conv1.weight": (32, 1, 3, 3), "head.conv2.weight": (32, 32, 3, 3)}
    shapes |= _batch_norm("head.bn1", 32) | _batch_norm("head.bn2", 32)
    for stage in ("layer1", "layer2"):
        for block in range(2):
            prefix = f"head.{stage}.{block}"
            for part in ("1", "2"):
                shapes[f"{prefix}.conv{part}.weight"] = (32, 32, 3, 3)
                shapes |= _batch_norm(f"{prefix}.bn{part}", 32)
            if block == 0:
                shapes[f"{prefix}.shortcut.0.weight"] = (32, 32, 1, 1)
                shapes |= _batch_norm(f"{prefix}.shortcut.1", 32)
    shapes["xvector.tdnn.linear.weight"] = (128, 320, 5)
    shapes |= _batch_norm("xvector.tdnn.nonlinear.batchnorm", 128)
    channels = 128
    for block, layers in enumerate((12, 24, 16), start=1):
        for layer in range(1, layers + 1):
            shapes |= _dense_layer(f"xvector.block{block}.tdnnd{layer}", channels)
            channels += 32
        shapes |= _batch_norm(f"xvector.transit{block}.nonlinear.batchnorm", channels)
        shapes[f"xvector.transit{block}.linear.weight"] = (channels // 2, channels, 1)
        channels //= 2
    shapes |= _batch_norm("xvector.out_nonlinear.batchnorm", 512)
    shapes["xvector.dense.linear.weight"] = (192, 1024, 1)
    shapes |= {f"xvector.dense.nonlinear.batchnorm.{part}": (192,) for part in ("running_mean", "running_var")}
    return shapes


def campplus_plda_shapes() -> Shapes:
    """Shapes of the PLDA for CAM++ embeddings."""
    return {"m1": (192,), "lda": (192, 128), "m2": (128,), "tr": (128, 128), "phi": (128,)}


def community_plda_shapes() -> Shapes:
    """Shapes of the PLDA for ResNet34 embeddings: transform (mean1, lda, mean2), then the model (mu, tr, psi)."""
    transform: Shapes = {"mean1": (256,), "mean2": (128,), "lda": (256, 128)}
    return transform | {"mu": (128,), "tr": (128, 128), "psi": (128,)}


def select(tensors: Mapping[str, np.ndarray], shapes: Shapes, source: str, remedy: str) -> dict[str, np.ndarray]:
    """The tensors named in `shapes`, in that order; others are left out.

    `source` says where they come from and `remedy` what the user can do: both end up in the message.

    Raises
    ------
    ModelError
        A tensor is missing, is not of floating point or has another shape.
    """
    chosen = {}
    for name, shape in shapes.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise ModelError(f"{source}: tensor {name} is missing, {len(tensors)} others are there; {remedy}")
        if tensor.shape != shape:
            raise ModelError(f"{source}: tensor {name} has shape {tensor.shape}, expected {shape}; {remedy}")
        if tensor.dtype.kind != "f":
            raise ModelError(f"{source}: tensor {name} is of type {tensor.dtype}, expected floating point; {remedy}")
        chosen[name] = tensor
    return chosen


def _batch_norm(prefix: str, channels: int) -> Shapes:
    return {f"{prefix}.{part}": (channels,) for part in _BATCH_NORM}


def _dense_layer(prefix: str, channels: int) -> Shapes:
    shapes: Shapes = {
        f"{prefix}.linear1.weight": (128, channels, 1),
        f"{prefix}.cam_layer.linear_local.weight": (32, 128, 3),
        f"{prefix}.cam_layer.linear1.weight": (64, 128, 1),
        f"{prefix}.cam_layer.linear1.bias": (64,),
        f"{prefix}.cam_layer.linear2.weight": (32, 64, 1),
        f"{prefix}.cam_layer.linear2.bias": (32,),
    }
    bn1 = _batch_norm(f"{prefix}.nonlinear1.batchnorm", channels)
    return shapes | bn1 | _batch_norm(f"{prefix}.nonlinear2.batchnorm", 128)
