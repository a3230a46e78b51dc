"""PLDA tables: the eigenproblem of community-1, both stored forms, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from diarize.cluster.plda import Plda, unit
from diarize.errors import ModelError


def community_tables(size: int = 12, rank: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "mean1": rng.normal(size=size),
        "mean2": rng.normal(size=rank).astype(np.float32),
        "lda": rng.normal(size=(size, rank)).astype(np.float32),
        "mu": rng.normal(size=rank),
        "tr": rng.normal(size=(rank, rank)) + 2 * np.eye(rank),
        "psi": np.sort(rng.uniform(0.5, 20, rank)),
    }


def test_community1_diagonalises_both_covariances() -> None:
    tables = community_tables()
    plda = Plda.community1(tables)
    within = np.linalg.inv(tables["tr"].T @ tables["tr"])
    between = np.linalg.inv((tables["tr"].T / tables["psi"]) @ tables["tr"])
    np.testing.assert_allclose(plda.transform.T @ within @ plda.transform, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(plda.transform.T @ between @ plda.transform, np.diag(plda.phi), atol=1e-11)
    # The basis is that of `tr` itself, so the variances are `psi`, largest first.
    np.testing.assert_allclose(plda.phi, tables["psi"][::-1], rtol=1e-12)
    assert (plda.transform[np.abs(plda.transform).argmax(axis=0), np.arange(5)] > 0).all()


def test_features_are_the_formula() -> None:
    tables = community_tables()
    plda = Plda.community1(tables)
    x = np.random.default_rng(2).normal(size=(7, 12)).astype(np.float32)
    y = x.astype(np.float64) - tables["mean1"]
    y = np.sqrt(12) * y / np.linalg.norm(y, axis=1, keepdims=True)
    z = y @ tables["lda"].astype(np.float64) - tables["mean2"]
    z = np.sqrt(5) * z / np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(plda.normalised(x), z, rtol=1e-12)
    np.testing.assert_allclose(plda.features(x), (z - tables["mu"]) @ plda.transform, rtol=1e-12)


def test_campplus_form() -> None:
    rng = np.random.default_rng(3)
    tables: dict[str, np.ndarray] = {
        "m1": rng.normal(size=6),
        "lda": rng.normal(size=(6, 4)),
        "m2": rng.normal(size=4),
        "tr": rng.normal(size=(4, 4)),
        "phi": np.array([9.0, 4.0, 2.0, 1.0], np.float32),
    }
    plda = Plda.campplus(tables)
    x = rng.normal(size=(3, 6))
    np.testing.assert_allclose(plda.features(x), plda.normalised(x) @ tables["tr"], rtol=1e-12)
    assert plda.phi.dtype == np.float64


def test_missing_table_is_named() -> None:
    tables = community_tables()
    del tables["lda"]
    with pytest.raises(ModelError, match="lda"):
        Plda.community1(tables)
    incomplete: dict[str, np.ndarray] = {"m1": np.zeros(3)}
    with pytest.raises(ModelError, match="m2"):
        Plda.campplus(incomplete)


def test_wrong_shape_is_refused() -> None:
    tables = community_tables()
    tables["mean1"] = np.zeros(11)
    with pytest.raises(ModelError, match=r"mean has shape \(11,\); \(12,\)"):
        Plda.community1(tables)


def test_singular_table_is_refused() -> None:
    tables = community_tables()
    tables["tr"] = np.zeros((5, 5))
    with pytest.raises(ModelError, match="cannot be used"):
        Plda.community1(tables)


def test_unit_keeps_zero_vectors() -> None:
    assert unit(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [[0.6, 0.8], [0.0, 0.0]]
