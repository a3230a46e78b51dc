"""VBx equals a direct transcription of its equations, whatever the size of the blocks it walks in."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from diarize.cluster import vbx as module
from diarize.cluster.vbx import vbx


def direct(
    X: np.ndarray, Phi: np.ndarray, labels: np.ndarray, Fa: float, Fb: float
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Responsibilities, weights and ELBO, with the full N x S matrix."""
    S = labels.max() + 1
    gamma = softmax(7.0 * np.eye(S)[labels], axis=1)
    pi = np.full(S, 1 / S)
    G = -0.5 * ((X**2).sum(1, keepdims=True) + X.shape[1] * np.log(2 * np.pi))
    rho = X * np.sqrt(Phi)
    elbo: list[float] = []
    for i in range(20):
        invL = 1 / (1 + Fa / Fb * gamma.sum(0)[:, None] * Phi)
        alpha = Fa / Fb * invL * (gamma.T @ rho)
        log_p = Fa * (rho @ alpha.T - 0.5 * (invL + alpha**2) @ Phi + G)
        joint = log_p + np.log(pi + 1e-8)
        norm = logsumexp(joint, axis=1)
        gamma = np.exp(joint - norm[:, None])
        pi = gamma.sum(0) / gamma.sum()
        elbo.append(norm.sum() + Fb * 0.5 * np.sum(np.log(invL) - invL - alpha**2 + 1))
        if i and elbo[-1] - elbo[-2] < 1e-4:
            break
    return gamma, pi, elbo


def mixture(seed: int, num_points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    Phi = np.sort(rng.uniform(0.5, 20, 16))[::-1]
    speakers = rng.normal(size=(3, 16)) * np.sqrt(Phi)
    X = speakers[rng.integers(0, 3, num_points)] + rng.normal(size=(num_points, 16))
    labels = rng.integers(0, 9, num_points)
    return X, Phi, np.unique(labels, return_inverse=True)[1]


@pytest.mark.parametrize("block_rows", [1024, 7])
def test_equals_the_equations(block_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_ROWS", block_rows)
    for seed in range(10):
        X, Phi, labels = mixture(seed, 5 + 30 * seed)
        gamma, pi, elbo = direct(X, Phi, labels, 0.07, 0.8)
        found = vbx(X, Phi, labels, 0.07, 0.8, min_pi=-1.0)
        np.testing.assert_allclose(found.elbo, elbo, rtol=1e-12)
        # Sums in another order: a few last bits, amplified over the iterations.
        np.testing.assert_allclose(found.pi, pi, rtol=0, atol=1e-9)
        np.testing.assert_allclose(found.gamma, gamma, rtol=0, atol=1e-9)


def test_speakers_without_weight_are_dropped() -> None:
    X, Phi, labels = mixture(1, 200)
    everyone = vbx(X, Phi, labels, 0.3, 1.0, min_pi=-1.0)
    found = vbx(X, Phi, labels, 0.3, 1.0)
    assert 1 <= len(found.speakers) < labels.max() + 1
    assert found.speakers.tolist() == np.flatnonzero(everyone.pi > 1e-7).tolist()
    np.testing.assert_array_equal(found.gamma, everyone.gamma[:, found.speakers])


def test_one_point_is_one_speaker() -> None:
    found = vbx(np.ones((1, 4)), np.ones(4), np.zeros(1, dtype=np.int64), 0.07, 0.8)
    assert found.gamma.tolist() == [[1.0]]
