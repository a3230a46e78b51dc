"""Probabilistic linear discriminant analysis: embeddings to the space in which VBx compares speakers.

One value, `Plda`, serves both models: community-1's files and our own for CAM++ differ only in how the tables are
stored. All arithmetic is float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from ..errors import ModelError


@dataclass(frozen=True)
class Plda:
    """Tables of one PLDA: D embedding size, R its dimensions.

    `mean` (D,), `lda` (D, R), `lda_mean` (R,), `mu` (R,), `transform` (R, R) and `phi` (R,), all float64. In the
    transformed space the within-speaker covariance is the identity and the between-speaker covariance diag(`phi`),
    largest first.

    References
    ----------
    Landini et al. (2022), "Bayesian HMM clustering of x-vector sequences (VBx) in speaker diarization", section 2.
    """

    mean: np.ndarray
    lda: np.ndarray
    lda_mean: np.ndarray
    mu: np.ndarray
    transform: np.ndarray
    phi: np.ndarray

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, np.ascontiguousarray(getattr(self, field.name), dtype=np.float64))
        size, rank = self.lda.shape if self.lda.ndim == 2 else (-1, -1)
        expected = {
            "mean": (size,),
            "lda": (size, rank),
            "lda_mean": (rank,),
            "mu": (rank,),
            "transform": (rank, rank),
            "phi": (rank,),
        }
        for name, shape in expected.items():
            seen = getattr(self, name).shape
            if seen != shape:
                raise ModelError(f"PLDA table {name} has shape {seen}; {shape} is needed; convert the model again")

    @classmethod
    def community1(cls, arrays: Mapping[str, np.ndarray]) -> Plda:
        """The PLDA of pyannote/speaker-diarization-community-1.

        `arrays` holds both files together: mean1 (D,), mean2 (R,), lda (D, R) and mu (R,), tr (R, R), psi (R,).

        Raises
        ------
        ModelError
            A table is missing, of the wrong shape, or singular.
        """
        try:
            tr, psi = (np.asarray(arrays[name], dtype=np.float64) for name in ("tr", "psi"))
            # Within- and between-speaker covariances, then the basis that makes the first the identity and the
            # second diagonal: B v = lambda W v.
            within = np.linalg.inv(tr.T @ tr)
            between = np.linalg.inv((tr.T / psi) @ tr)
            phi, basis = _joint_diagonal(between, within)
            order = np.argsort(-phi, kind="stable")
            phi, basis = phi[order], basis[:, order]
            # An eigenvector's sign is free; fix it so that every machine stores the same table.
            largest = np.abs(basis).argmax(axis=0)
            basis = basis * np.sign(basis[largest, np.arange(len(phi))])
            return cls(arrays["mean1"], arrays["lda"], arrays["mean2"], arrays["mu"], basis, phi)
        except KeyError as missing:
            raise ModelError(f"PLDA table {missing} is missing; pull or convert the model again") from missing
        except (np.linalg.LinAlgError, ValueError) as cause:
            raise ModelError(f"PLDA tables cannot be used ({cause}); pull or convert the model again") from cause

    @classmethod
    def campplus(cls, arrays: Mapping[str, np.ndarray]) -> Plda:
        """Our own PLDA for CAM++: m1 (D,), lda (D, R), m2 (R,), tr (R, R), phi (R,).

        Raises
        ------
        ModelError
            A table is missing or of the wrong shape.
        """
        try:
            mu = np.zeros(len(arrays["m2"]))
            return cls(arrays["m1"], arrays["lda"], arrays["m2"], mu, arrays["tr"], arrays["phi"])
        except KeyError as missing:
            raise ModelError(f"PLDA table {missing} is missing; install the package again") from missing

    def normalised(self, embeddings: np.ndarray) -> np.ndarray:
        """Length-normalised discriminant vectors, (N, R) float64, of raw `embeddings` (N, D)."""
        size, rank = self.lda.shape
        centred = np.sqrt(size) * unit(np.asarray(embeddings, dtype=np.float64) - self.mean)
        return np.sqrt(rank) * unit(centred @ self.lda - self.lda_mean)

    def features(self, embeddings: np.ndarray) -> np.ndarray:
        """PLDA features, (N, R) float64, of raw `embeddings` (N, D)."""
        return (self.normalised(embeddings) - self.mu) @ self.transform


def _joint_diagonal(between: np.ndarray, within: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (R,), ascending, and vectors (R, R) of B v = lambda W v with v' W v = 1, as LAPACK's dsygvd."""
    # Not scipy.linalg, whose import takes longer than everything else here.
    factor = np.linalg.cholesky(within)
    whitened = np.linalg.solve(factor, np.linalg.solve(factor, between).T)
    values, vectors = np.linalg.eigh((whitened + whitened.T) / 2)
    return values, np.linalg.solve(factor.T, vectors)


def unit(vectors: np.ndarray) -> np.ndarray:
    """`vectors` (..., D) scaled to length one, in their own floating type; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    # The floor only keeps zero vectors from dividing by zero; it is far below any real length.
    return vectors / np.maximum(lengths, 1e-12)
