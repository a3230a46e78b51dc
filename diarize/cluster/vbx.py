"""VBx as community-1 uses it: a variational Bayes mixture of speakers in PLDA space, without the HMM.

Names follow the paper: `gamma` responsibilities, `pi` speaker weights, `Phi` between-speaker variances, `Fa` and `Fb`
the acoustic and regularisation factors, `rho` the scaled features, `alpha` and `invL` the posterior mean and variance
of each speaker.

Responsibilities of all N x S pairs are never stored: each iteration walks blocks of rows and keeps only their sums,
so a ten-hour recording needs megabytes.

References
----------
Landini et al. (2022), "Bayesian HMM clustering of x-vector sequences (VBx) in speaker diarization: theory,
implementation and analysis on standard tasks". Equation numbers below are of that paper.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

MAX_ITERATIONS = 20
MIN_GAIN = 1e-4
INIT_SMOOTHING = 7.0
MIN_PI = 1e-7
"""A speaker whose weight is not above this is dropped."""

_BLOCK_ROWS = 512
# Products smaller than this are done sooner than threads have begun.
_WORTH_THREADS = 1 << 23


@dataclass(frozen=True)
class VbxResult:
    """What VBx found.

    `speakers` (K,) int64: initial clusters kept, in ascending order. `gamma` (N, K) float64: their responsibilities.
    `pi` (S,) float64: weights of all S initial clusters. `elbo`: the evidence lower bound of each iteration.
    """

    speakers: np.ndarray
    gamma: np.ndarray
    pi: np.ndarray
    elbo: np.ndarray


@dataclass(frozen=True)
class Terms:
    """What VBx needs of its features and keeps: `rho` (N, R) and `G` (N,), eq. (23), and `Phi` (R,)."""

    rho: np.ndarray
    G: np.ndarray
    Phi: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, Phi: np.ndarray) -> Terms:
        """Terms of `features` (N, R) float64 PLDA features and `Phi` (R,) between-speaker variances."""
        # G: what of the likelihood does not depend on the speaker.
        G = -0.5 * ((features**2).sum(axis=1) + features.shape[1] * np.log(2 * np.pi))
        return cls(features * np.sqrt(Phi), G, Phi)


def vbx(
    features: np.ndarray, Phi: np.ndarray, labels: np.ndarray, Fa: float, Fb: float, min_pi: float = MIN_PI
) -> VbxResult:
    """Speakers and responsibilities, starting from hard clusters.

    `features` (N, R) float64 PLDA features, N at least 1; `Phi` (R,) between-speaker variances; `labels` (N,)
    initial clusters 0 to S - 1, every one used; speakers with weight above `min_pi` are kept.
    """
    return vbx_of(Terms.of(features, Phi), labels, Fa, Fb, min_pi)


def vbx_of(terms: Terms, labels: np.ndarray, Fa: float, Fb: float, min_pi: float = MIN_PI) -> VbxResult:
    """As `vbx`, with the terms of its features."""
    rho, G, Phi = terms.rho, terms.G, terms.Phi
    num_speakers = int(labels.max()) + 1
    counts, sums = _initial_statistics(rho, labels, num_speakers)
    pi = np.full(num_speakers, 1.0 / num_speakers)
    elbo: list[float] = []
    threads = min(len(os.sched_getaffinity(0)), len(_blocks(len(rho))))
    with _helpers(rho.size * num_speakers, threads) as pool:
        for iteration in range(MAX_ITERATIONS):
            # Eqs. (17) and (16): posterior variance and mean of every speaker.
            invL = 1.0 / (1.0 + Fa / Fb * counts[:, None] * Phi)
            alpha = Fa / Fb * invL * sums
            offset = Fa * -0.5 * ((invL + alpha**2) @ Phi) + np.log(pi + 1e-8)
            weights = Fa * alpha
            counts, sums, evidence = _sweep(rho, Fa * G, weights, offset, pool)
            pi = counts / counts.sum()
            # Eq. (25): evidence lower bound.
            elbo.append(evidence + Fb * 0.5 * float(np.sum(np.log(invL) - invL - alpha**2 + 1.0)))
            if iteration and elbo[-1] - elbo[-2] < MIN_GAIN:
                break
    kept = np.flatnonzero(pi > min_pi)
    gamma = np.empty((len(rho), len(kept)))
    for rows in _blocks(len(rho)):
        gamma[rows] = _responsibilities(rho[rows], weights, offset)[0][kept].T
    return VbxResult(kept, gamma, pi, np.array(elbo))


def _initial_statistics(rho: np.ndarray, labels: np.ndarray, num_speakers: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums of gamma and of gamma rho per speaker, where gamma is the softmax of 7 x one-hot labels."""
    from .compiled import add_rows

    far = 1.0 / (np.exp(INIT_SMOOTHING) + num_speakers - 1)
    lift = (np.exp(INIT_SMOOTHING) - 1.0) * far
    sums = np.zeros((num_speakers, rho.shape[1]))
    add_rows(rho, labels, sums)
    counts = np.bincount(labels, minlength=num_speakers).astype(np.float64)
    return far * len(rho) + lift * counts, far * rho.sum(axis=0) + lift * sums


def _responsibilities(rho: np.ndarray, weights: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`gamma` (S, n) of the rows `rho` (n, R), and the log of their norms (n,); eqs. (19) and (23).

    `weights` (S, R), `offset` (S,). Speakers come first, as there are few: numpy is slow where the last axis is short.
    """
    gamma = weights @ rho.T
    gamma += offset[:, None]
    top = gamma.max(axis=0)
    gamma -= top
    np.exp(gamma, out=gamma)
    norm = gamma.sum(axis=0)
    gamma /= norm
    return gamma, top + np.log(norm)


def _sweep(
    rho: np.ndarray,
    scaled_G: np.ndarray,
    weights: np.ndarray,
    offset: np.ndarray,
    pool: ThreadPoolExecutor | None,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Sums of gamma (S,), of gamma rho (S, R), and of the log-likelihood, over all rows."""

    def one(rows: slice) -> tuple[np.ndarray, np.ndarray, float]:
        gamma, log_norm = _responsibilities(rho[rows], weights, offset)
        return gamma.sum(axis=1), gamma @ rho[rows], float((log_norm + scaled_G[rows]).sum())

    counts = np.zeros(len(offset))
    sums = np.zeros((len(offset), rho.shape[1]))
    evidence = 0.0
    blocks = _blocks(len(rho))
    # Added in the order of blocks, whichever is done first.
    for count, total, part in map(one, blocks) if pool is None else pool.map(one, blocks):
        counts += count
        sums += total
        evidence += part
    return counts, sums, evidence


@contextmanager
def _helpers(products: int, threads: int) -> Iterator[ThreadPoolExecutor | None]:
    """Threads for sweeps of so many `products`, None where they are too few."""
    if threads == 1 or products < _WORTH_THREADS:
        yield None
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="vbx") as pool:
        yield pool


def _blocks(num_rows: int) -> list[slice]:
    return [slice(start, start + _BLOCK_ROWS) for start in range(0, num_rows, _BLOCK_ROWS)]
