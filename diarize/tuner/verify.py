"""Whether a candidate computes what its float32 twin computes: tolerances with their reasons, and digests.

Outputs are filled with NaN before a candidate runs, so what it leaves out shows. A wrong candidate is never timed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .site import Failure, FailureKind


@dataclass(frozen=True)
class Tolerance:
    """How far an output may be from its twin.

    `distance` bounds the relative L2 distance, which rounding sets; `spike` the largest difference relative to the
    twin's largest value, which a single wrong pixel or a missing edge exceeds.
    """

    distance: float
    spike: float
    reason: str


# What a byte is filled with before a candidate runs.
_UNWRITTEN = 255

TOLERANCES: Mapping[str, Tolerance] = {
    # What a layer is computed in, and why its output may differ by so much.
    "fp32": Tolerance(2e-5, 2e-5, "sums of up to 5120 float32 products in another order, Winograd's transforms"),
    "fp32 half": Tolerance(5e-4, 1e-3, "outputs rounded to 11 bits, 2.8e-4 in the mean and 4.9e-4 at most"),
    "tf32": Tolerance(1e-3, 2e-3, "operands rounded to 11 bits, 2.8e-4 each"),
    "fp16": Tolerance(2e-3, 5e-3, "weights and outputs rounded to 11 bits, 2.8e-4 each; up to four times by Winograd"),
    "split": Tolerance(2e-5, 2e-4, "operands exact to 22 bits; float32 sums over up to four recurrent layers"),
    "wxsplit": Tolerance(5e-3, 5e-2, "hidden states rounded to 11 bits and fed back over 589 steps"),
    "hsplit": Tolerance(5e-3, 5e-2, "recurrent weights rounded to 11 bits"),
    "wsplit": Tolerance(5e-3, 5e-2, "inputs and hidden states rounded to 11 bits"),
    "ihsplit": Tolerance(1e-2, 1e-1, "recurrent weights and hidden states rounded to 11 bits"),
    "stack fp16": Tolerance(1e-2, 1e-1, "weights, inputs and hidden states rounded to 11 bits over 589 steps"),
    "filterbank": Tolerance(1e-5, 1e-4, "float32 transforms; the logarithm magnifies what is left of silence"),
    "campplus": Tolerance(3e-3, 1e-2, "rounding of float16 bottlenecks, far inside what clustering tolerates"),
    "exact": Tolerance(0.0, 0.0, "values are copied"),
}
"""Tolerances by precision, or by the kind of output where that decides."""


def compare(got: Sequence[np.ndarray], expected: Sequence[np.ndarray], precision: str) -> float | Failure:
    """The largest difference of outputs from their twins relative to the twin's largest value, or why they are wrong.

    Parameters
    ----------
    got, expected
        Outputs and twins of equal shapes, in any float type.
    precision
        A key of `TOLERANCES`.
    """
    tolerance = TOLERANCES[precision]
    worst = 0.0
    for one, twin in zip(got, expected, strict=True):
        own, other = np.asarray(one, np.float32), np.asarray(twin, np.float32)
        if own.shape != other.shape:
            return Failure(FailureKind.WRONG, f"its output has the shape {own.shape}, its twin's {other.shape}")
        missing = int(own.size - np.count_nonzero(np.isfinite(own)))
        if missing:
            return Failure(FailureKind.WRONG, f"{missing} of {own.size} values were not written or are not finite")
        difference = own - other
        peak = float(np.abs(other).max(initial=0.0)) or 1.0
        spike = float(np.abs(difference).max(initial=0.0)) / peak
        distance = _norm(difference) / (_norm(other) or 1.0)
        if not (distance <= tolerance.distance and spike <= tolerance.spike):
            return Failure(
                FailureKind.WRONG,
                f"it differs from float32 by {distance:.2g} (L2), at most {spike:.2g} of the peak; "
                f"{tolerance.distance:g} and {tolerance.spike:g} are allowed",
            )
        worst = max(worst, spike)
    return worst


def compare_classes(got: np.ndarray, expected: np.ndarray, exact: bool) -> float | Failure:
    """The part of frames with another class than the twin's, or why they are wrong.

    Scores that are almost equal may fall on either side: one frame in 500, or without `exact` one in 100.
    """
    if int(got.max(initial=0)) == _UNWRITTEN:
        return Failure(FailureKind.WRONG, f"{int((got == _UNWRITTEN).sum())} of {got.size} frames were not written")
    part = float((got != expected).mean())
    limit = 0.002 if exact else 0.01
    if part > limit:
        return Failure(
            FailureKind.WRONG, f"{100 * part:.2g} % of its frames differ from float32; {100 * limit:g} % may"
        )
    return part


def digest_of(*outputs: np.ndarray) -> str:
    """16 hexadecimal digits that tell outputs of other bytes apart."""
    digest = hashlib.blake2b(digest_size=8)
    for output in outputs:
        digest.update(np.ascontiguousarray(output).view(np.uint8).data)
    return digest.hexdigest()


def _norm(values: np.ndarray) -> float:
    """L2 norm, summed in float64 by rows."""
    flat = values.reshape(-1)
    rows = [flat[i : i + (1 << 16)] for i in range(0, flat.size, 1 << 16)]
    return float(sum(float(np.dot(row, row)) for row in rows)) ** 0.5
