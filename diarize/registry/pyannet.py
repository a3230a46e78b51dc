"""Candidates of the segmentation network: filters, convolutions, LSTM stack and dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..candidates import Candidate, Request, TunedLayer, Value

FRAMES = 589
EVIDENCE = {"split": "0 of 741,551 frames differ from float32, RECORD-cuda.md"}
"""Where the precision of the LSTM stack is known to be enough: at most one frame in 50,000, and the same turns."""
EXACT = "within 1e-6 of float64, RECORD-cuda.md"
"""The same of what stands before it."""


@dataclass(frozen=True)
class LstmPrecision:
    """Which operands of the LSTM's products keep a low float16 part, and are then exact to about 22 bits.

    `input_weights` and `inputs` are those of the input product, `recurrent_weights` and `state` of the recurrence.
    """

    input_weights: bool
    inputs: bool
    recurrent_weights: bool
    state: bool


PRECISIONS: Mapping[str, LstmPrecision] = {
    "split": LstmPrecision(True, True, True, True),
    "wxsplit": LstmPrecision(True, True, True, False),
    "hsplit": LstmPrecision(True, True, False, True),
    "wsplit": LstmPrecision(True, False, True, False),
    "ihsplit": LstmPrecision(True, True, False, False),
    "fp16": LstmPrecision(False, False, False, False),
}
"""Precisions of the LSTM stack by name, from the most accurate to the fastest."""

LAYERS = (
    TunedLayer("pyannet.moments", "moments", "mean and scale of a window's samples"),
    TunedLayer("pyannet.merge", "moments", "mean and scale from those of parts", 4),
    TunedLayer("pyannet.sinc", "conv1d", "80 band-pass filters of 251 taps, once for overlapping windows"),
    TunedLayer("pyannet.sinc_pool", "pooling", "absolute value, maximum of three, moments"),
    TunedLayer("pyannet.conv1", "conv1d", "norm, 80 to 60 channels, 5 taps, maximum of three", 1, 2 * 5319 * 400 * 60),
    TunedLayer("pyannet.conv2", "conv1d", "norm, 60 to 60 channels, 5 taps, maximum of three", 1, 2 * 1767 * 300 * 60),
    TunedLayer("pyannet.norm", "norm", "norm and split into pairs of float16"),
    TunedLayer("pyannet.lstm_input0", "gemm", "input product of the first LSTM layer", 1, 2 * FRAMES * 60 * 1024),
    TunedLayer("pyannet.lstm_input", "gemm", "input product of the other LSTM layers", 3, 2 * FRAMES * 256 * 1024),
    TunedLayer("pyannet.lstm", "lstm", "recurrence, both directions", 4, 2 * FRAMES * 2 * 128 * 512),
    TunedLayer("pyannet.dense", "linear", "three linear layers, log-softmax, arg-max", 1, 2 * FRAMES * 50048),
)

FRONT: Mapping[str, Request] = {
    "moments": Request("moments:make_wave_moments", {"part": 16000}),
    "merge": Request("moments:make_merge", {}),
    "sinc": Request("sincnet:make_sinc", {}),
    "sinc_pool": Request("sincnet:make_rectify_pool", {}),
    "conv1": Request("sincnet:make_conv_pool", {"channels": 80}),
    "conv2": Request("sincnet:make_conv_pool", {"channels": 64}),
    "norm": Request("moments:make_norm_split", {}),
}
"""The kernels in front of the LSTM stack."""

# Layers whose kernels take more than the 64 KB of shared memory of compute capability 7.5, unless in two passes.
_IN_PASSES = ("sinc", "conv1", "conv2")


def candidates() -> list[Candidate]:
    """Every candidate."""
    front = []
    for name, request in FRONT.items():
        variants: list[tuple[str, Mapping[str, Value], tuple[int, int]]] = [("pairs", {}, (7, 5))]
        if name in _IN_PASSES:
            variants = [("pairs", {}, (8, 0)), ("pairs_passes2", {"passes": 2}, (7, 5))]
        for title, tuning, lowest in variants:
            requests = (Request(request.factory, {**request.parameters, **tuning}),)
            layer = f"pyannet.{name}"
            front.append(Candidate(layer, title, 1, "split", requests, tuning, capability=lowest, evidence=EXACT))
    rest = [c for name, precision in PRECISIONS.items() for c in _stack(name, precision)]
    return [*front, *sorted(rest, key=lambda c: [layer.id for layer in LAYERS].index(c.layer))]


def _stack(name: str, precision: LstmPrecision) -> list[Candidate]:
    """The LSTM stack and what reads it in one precision: portable candidates first, those for Turing last."""
    evidence = EVIDENCE.get(name, "")

    def one(
        layer: str,
        title: str,
        requests: list[Request],
        tuning: Mapping[str, Value],
        exactly: bool,
        lowest: tuple[int, int] = (8, 0),
    ) -> Candidate:
        return Candidate(
            f"pyannet.{layer}", f"{title}_{name}", 1, name, tuple(requests), tuning,
            capability=(9, 0) if exactly else lowest, exactly=exactly, evidence=evidence,
        )  # fmt: skip

    found = []
    # The first layer, of 60 inputs, is always exact.
    inputs = {"exact_weights": precision.input_weights, "exact_input": precision.inputs}
    first = {"exact_weights": True, "exact_input": True}
    for layer, parameters in (("lstm_input0", {"chunks": 1, **first}), ("lstm_input", {"chunks": 4, **inputs})):
        found.append(one(layer, "mma", [Request("lstm:make_lstm_input", parameters)], {}, False))
        found.append(one(layer, "wgmma", [Request("lstm_hopper:make_lstm_input_hopper", parameters)], {}, True))
        two = Request("lstm:make_lstm_input", {**parameters, "stages": 2})
        found.append(one(layer, "mma_s2", [two], {"stages": 2}, False, (7, 5)))
    state = {
        "exact_weights": precision.recurrent_weights,
        "exact_state": precision.state,
        "write_low": precision.inputs,
    }

    def recurrence(windows: int, low_shared: bool) -> Request:
        return Request("lstm:make_lstm_recurrence", {"windows": windows, **state, "low_shared": low_shared})

    interleaved = Request("lstm:make_lstm_interleaved", {"windows": 16, **state})
    streamed, resident = recurrence(8, False), [recurrence(8, True), recurrence(16, True)]
    found += [
        one("lstm", "streamed8", [streamed], {"windows": (8,), "low_shared": False}, False),
        one("lstm", "resident8", resident[:1], {"windows": (8,), "low_shared": True}, False),
        one("lstm", "resident16", resident[1:], {"windows": (16,), "low_shared": True}, False),
        one("lstm", "resident8or16", resident, {"windows": (8, 16), "low_shared": True}, False),
        one("lstm", "interleaved16", [interleaved], {"windows": (16,), "interleaved": True}, False),
        one("lstm", "interleaved8or16", [resident[0], interleaved], {"windows": (8, 16), "interleaved": True}, False),
    ]
    ahead = Request(streamed.factory, {**streamed.parameters, "staged": False})
    found.append(one("lstm", "ahead8", [ahead], {"windows": (8,), "staged": False}, False, (7, 5)))
    dense: dict[str, Value] = {"low": precision.inputs}
    found.append(one("dense", "pairs", [Request("dense:make_dense", dense)], {}, False))
    pieces = Request("dense:make_dense", {**dense, "pieces": 2})
    found.append(one("dense", "pairs_pieces2", [pieces], {"pieces": 2}, False, (7, 5)))
    return found
