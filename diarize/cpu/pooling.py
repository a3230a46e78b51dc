"""Masked statistics pooling: weighted mean and standard deviation over time, for each speaker's mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backend.base import BoundLayer
from ..cache import njit
from ..layers import Layer

_EPSILON = 1e-8


@njit(cache=True, nogil=True)
def masked_statistics(x: np.ndarray, masks: np.ndarray, out: np.ndarray) -> None:
    """Mean, then deviation, of x (T, C) under each of masks (S, T), into out (S, 2 C); all float32.

    With weights w: v1 = sum w + 1e-8, v2 = sum w^2, mean = sum w x / v1 and
    variance = sum w (x - mean)^2 / (v1 - v2 / v1 + 1e-8). Steps without weight are not read.

    References
    ----------
    pyannote.audio 4.0.7, statistics pooling; the specification's section 2.7.
    """
    steps, channels = x.shape
    for s in range(masks.shape[0]):
        mean, deviation = out[s, :channels], out[s, channels:]
        total, squares = 0.0, 0.0
        mean[:] = 0.0
        deviation[:] = 0.0
        for t in range(steps):
            weight = masks[s, t]
            total += weight
            squares += weight * weight
            if weight != 0.0:
                row = x[t]
                for c in range(channels):
                    mean[c] += weight * row[c]
        total += _EPSILON
        scale = np.float32(1.0 / total)
        for c in range(channels):
            mean[c] *= scale
        for t in range(steps):
            weight = masks[s, t]
            if weight != 0.0:
                row = x[t]
                for c in range(channels):
                    difference = row[c] - mean[c]
                    deviation[c] += weight * (difference * difference)
        scale = np.float32(1.0 / (total - squares / total + _EPSILON))
        for c in range(channels):
            deviation[c] = np.sqrt(deviation[c] * scale)


def prepare_masked_statistics(layer: Layer) -> BoundLayer:
    """Bind `Op.MASKED_STATISTICS`: the items of a batch one after the other."""

    def run(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        for b in range(inputs[0].shape[0]):
            masked_statistics(inputs[0][b], inputs[1][b], outputs[0][b])

    return run
