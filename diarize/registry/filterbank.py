"""Candidates of the filterbank and of what hands its features to the trunk."""

from __future__ import annotations

from ..candidates import Candidate, Request, TunedLayer

FLOAT32 = "float32 arithmetic"

LAYERS = (
    TunedLayer("fbank.log_mel", "log_mel", "framing, window, 512-point real DFT, mel bands, logarithm"),
    TunedLayer("fbank.mean", "mean", "mean of a window's features"),
    TunedLayer("fbank.gather", "gather", "features of the windows with speech, less than all"),
)


KERNELS = {
    "log_mel": Request("fbank:make_fbank", {}),
    "mean": Request("fbank:make_window_mean", {}),
    "gather": Request("gather:make_gather", {}),
}
"""The kernel of each layer, by its name without that of the network."""


def candidates() -> list[Candidate]:
    """Every candidate."""
    return [
        Candidate(f"fbank.{name}", title, 1, "fp32", (KERNELS[name],), capability=(7, 5), evidence=FLOAT32)
        for name, title in (("log_mel", "fbank"), ("mean", "window_mean"), ("gather", "gather"))
    ]
