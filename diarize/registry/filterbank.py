"""Candidates of the filterbank and of what hands its features to the trunk."""

from __future__ import annotations

from ..candidates import Candidate, Request, TunedLayer

FLOAT32 = "float32 arithmetic"

LAYERS = (
    TunedLayer("fbank.log_mel", "log_mel", "framing, window, 512-point real DFT, mel bands, logarithm"),
    TunedLayer("fbank.mean", "mean", "mean of a window's features"),
    TunedLayer("fbank.gather", "gather", "features of the windows with speech, less than all"),
)


def candidates() -> list[Candidate]:
    """Every candidate."""

    def one(layer: str, factory: str) -> Candidate:
        name = factory.partition(":")[2].removeprefix("make_")
        return Candidate(layer, name, 1, "fp32", (Request(factory, {}),), capability=(7, 5), evidence=FLOAT32)

    return [
        one("fbank.log_mel", "fbank:make_fbank"),
        one("fbank.mean", "fbank:make_window_mean"),
        one("fbank.gather", "gather:make_gather"),
    ]
