"""Masked mean and deviation against float64 formulas."""

from __future__ import annotations

import numpy as np
import pytest

from diarize.cpu.pooling import masked_statistics


def reference(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    x, w = x.astype(np.float64), mask.astype(np.float64)[:, None]
    v1, v2 = w.sum() + 1e-8, (w * w).sum()
    mean = (w * x).sum(0) / v1
    variance = (w * (x - mean) ** 2).sum(0) / (v1 - v2 / v1 + 1e-8)
    return np.concatenate([mean, np.sqrt(variance)])


@pytest.mark.parametrize("steps", [2, 3, 125])
@pytest.mark.parametrize("channels", [1, 15, 17, 160])
def test_matches_reference(steps: int, channels: int) -> None:
    random = np.random.default_rng(steps + channels)
    x = (random.standard_normal((steps, channels)) * 3 + 1).astype(np.float32)
    masks = (random.random((3, steps)) < 0.6).astype(np.float32)
    masks[:, :2] = 1
    masks[2] *= random.random(steps).astype(np.float32) + 0.5
    out = np.full((3, 2 * channels), np.nan, np.float32)
    masked_statistics(x, masks, out)
    for mask, row in zip(masks, out, strict=True):
        # 125 float32 additions.
        assert np.allclose(row, reference(x, mask), rtol=2e-5, atol=2e-5)


def test_empty_mask_is_zero_and_one_step_has_no_deviation() -> None:
    x = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    masks = np.zeros((2, 5), np.float32)
    masks[1, 3] = 1
    out = np.empty((2, 64), np.float32)
    masked_statistics(x, masks, out)
    assert not out[0].any()
    assert np.array_equal(out[1, :32], x[3])
    assert not out[1, 32:].any()
