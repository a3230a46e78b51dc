"""What every backend promises: the same tests for each."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from diarize.backend.base import Backend
from diarize.backend.cpu import PREPARERS, CpuBackend, preparer
from diarize.errors import BackendError
from diarize.layers import Layer, Op


@pytest.fixture(params=["cpu"])
def backend(request) -> Backend:
    return {"cpu": CpuBackend}[request.param]()


def linear(seed=0):
    rng = np.random.default_rng(seed)
    weights = {"weight": rng.standard_normal((64, 48)), "bias": rng.standard_normal(64)}
    return Layer("contract.linear", Op.LINEAR, {k: v.astype(np.float32) for k, v in weights.items()})


def test_device_names_itself(backend):
    assert str(backend.device) == "cpu"
    assert backend.device.name
    assert backend.device.slug == backend.device.slug.lower()


def test_put_and_get_copy(backend):
    original = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = backend.put(original)
    original[:] = -1
    first = backend.get(buffer)
    np.testing.assert_array_equal(first, np.arange(6).reshape(2, 3))
    first[:] = -2
    np.testing.assert_array_equal(backend.get(buffer), np.arange(6).reshape(2, 3))


def test_layer_runs_on_buffers(backend):
    layer = linear()
    rows = np.random.default_rng(1).standard_normal((5, 48)).astype(np.float32)
    out = backend.put(np.zeros((5, 64), np.float32))
    backend.prepare(layer)([backend.put(rows)], [out])
    backend.sync()
    expected = rows.astype(np.float64) @ layer.weights["weight"].T + layer.weights["bias"]
    np.testing.assert_allclose(backend.get(out), expected, rtol=0, atol=2e-5)


def test_layer_may_run_on_several_threads(backend):
    run = backend.prepare(linear())
    rows = [np.random.default_rng(i).standard_normal((301, 48)).astype(np.float32) for i in range(4)]
    alone, together = ([backend.put(np.zeros((301, 64), np.float32)) for _ in rows] for _ in range(2))
    for x, out in zip(rows, alone, strict=True):
        run([backend.put(x)], [out])
    threads = [
        threading.Thread(target=run, args=([backend.put(x)], [out])) for x, out in zip(rows, together, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(alone, together, strict=True):
        assert backend.get(a).tobytes() == backend.get(b).tobytes()


def test_clock_runs_forward(backend):
    elapsed = backend.clock()
    first = elapsed()
    assert 0 <= first <= elapsed()


def test_cpu_has_no_choices():
    with pytest.raises(BackendError, match=r"contract\.linear: the CPU has no candidates"):
        CpuBackend().prepare(linear(), choice="other")


@pytest.mark.parametrize("op", PREPARERS)
def test_every_listed_operation_has_its_function(op):
    assert callable(preparer(op))


def test_every_operation_is_listed():
    assert set(PREPARERS) == set(Op)


def test_unlisted_operation_is_refused(monkeypatch):
    monkeypatch.setattr("diarize.backend.cpu.PREPARERS", {Op.SINC: "sincnet:prepare_sinc"})
    with pytest.raises(BackendError, match="the CPU cannot run linear; it runs sinc"):
        CpuBackend().prepare(linear())
