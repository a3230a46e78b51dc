"""What the sites read: speech of the recording that ships with the package, and what the float32 kernels make of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ..audio import open_audio
from ..backend.cuda_compile import KernelCache
from ..backend.cuda_resnet34 import ResNet34Kernels, float32_choice
from ..errors import BackendError
from ..framing import SAMPLE_RATE, WINDOW_SAMPLES
from ..layers import Layer
from ..model.fbank import Filterbank
from ..model.resnet34 import WINDOW_FRAMES
from ..resources import demo_recording
from .verify import compare
from .workspace import CONTENTS, Workspace

STEP_SAMPLES = SAMPLE_RATE
"""Between the starts of two windows, as in the exact mode."""
SLOTS = 2
"""Embedded speakers a window."""
_APART = 20
_TRUNK_STEPS = 125
# Outputs of the float32 kernels are compared with the CPU's to this, relative to the largest value.
_EMBEDDING_KIND = "tf32"


def demo_speech(windows: int) -> np.ndarray:
    """Samples of `windows` windows, float32 at 16 kHz: the recording, again and again."""
    with open_audio(demo_recording()) as reader:
        once = np.concatenate(list(reader))
    return np.resize(once, (windows - 1) * STEP_SAMPLES + WINDOW_SAMPLES)


def example_features(window: str = "hamming") -> np.ndarray:
    """(CONTENTS, 998, 80) float32 log-mel features of windows that lie far apart."""
    samples = demo_speech(CONTENTS * _APART)
    whole = Filterbank(window).features(samples)
    step = STEP_SAMPLES // 160 * _APART
    return np.stack([whole[step * i : step * i + WINDOW_FRAMES] for i in range(CONTENTS)])


def example_masks() -> np.ndarray:
    """(CONTENTS * SLOTS, 125) float32: who talks all the time, most of it, or half of it."""
    masks = np.ones((CONTENTS * SLOTS, _TRUNK_STEPS), np.float32)
    for slot in range(1, len(masks)):
        masks[slot, :: 1 + slot] = 0
        masks[slot, : 10 * slot] = 0
    return masks


def trunk_activations(
    space: Workspace,
    layers: Sequence[Layer],
    features: np.ndarray,
    expected: np.ndarray,
    names: Collection[str],
    cache: KernelCache,
) -> dict[str, np.ndarray]:
    """Outputs of the named layers of ResNet34 in float32 kernels, float16 but for "conv1".

    `features` (CONTENTS, 998, 80) have their mean in them. The kernels' embeddings of the first window are compared
    with `expected` (SLOTS, 256) of the CPU first, so that twins can be trusted.

    Raises
    ------
    BackendError
        They differ.
    """
    kernels = ResNet34Kernels(space.gpu, space.memory, layers, float32_choice(), cache)
    plan = kernels.plan(CONTENTS, CONTENTS * SLOTS)
    try:
        space.fill(plan.features, features)
        space.fill(plan.mean, features.mean(1))
        space.fill(plan.masks, example_masks())
        space.fill(plan.slot_window, np.repeat(np.arange(CONTENTS, dtype=np.int32), SLOTS))
        found = {}
        for name, launch, output in plan.steps:
            launch(space.stream)
            if name in names or name == "conv1":
                values = space.rows(output, 0, CONTENTS)
                found[name] = values if name == "conv1" else values.astype(np.float16)
        got = space.rows(plan.embeddings, 0, SLOTS)
    finally:
        plan.close()
    error = compare([got], [expected], _EMBEDDING_KIND)
    if not isinstance(error, float):
        raise BackendError(f"the float32 kernels of ResNet34 do not give the CPU's embeddings: {error.reason}")
    return found
