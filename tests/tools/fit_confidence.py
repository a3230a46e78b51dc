"""Fits the curve of diarize/confidence.py and looks at the cosines behind the threshold of diarize/voices.py.

Usage: python tests/tools/fit_confidence.py FOLDER... [--model NAME] [--check FOLDER...]

Each folder holds recordings (.flac) with references (.rttm) of the same stem. Every recording is diarized whole, in
both modes, and in parts of 20 s that start every 10 s, which brings the short turns and poor centroids that make labels
wrong. A turn's target is the share of its time, as far as the reference has one speaker there, that belongs to the
speaker whom its label stands for; its weight is that time. With --check the fitted curve is judged on other folders.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment, minimize

from diarize import Diarization, Pipeline, assembly
from diarize.outputs.rttm import read_rttm
from diarize.types import Turn

PART, STRIDE = 20.0, 10.0
# Grid on which turns and references are compared, seconds.
GRID = 0.01


def grid(turns: list[Turn], names: list[str], length: int) -> np.ndarray:
    """Who speaks when, (speakers, length) bool."""
    rows = np.zeros((len(names), length), bool)
    for turn in turns:
        rows[names.index(turn.speaker), round(turn.start / GRID) : round(turn.end / GRID)] = True
    return rows


def targets(result: Diarization, reference: list[Turn]) -> Iterator[tuple[float, float, float]]:
    """Margin, share and weight of each turn that has a margin."""
    length = round((result.offset + result.duration) / GRID) + 2
    names = sorted({turn.speaker for turn in reference})
    truth = grid(reference, names, length)
    # Overlapped speech is no evidence for or against a label.
    truth[:, truth.sum(axis=0) != 1] = False
    found = grid(list(result.turns), list(result.speakers), length)
    shared = found.astype(int) @ truth.T.astype(int)
    rows, columns = linear_sum_assignment(-shared)
    stands_for = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    for turn in result.turns:
        if turn.confidence is None:
            continue
        span = truth[:, round(turn.start / GRID) : round(turn.end / GRID)]
        weight = float(span.sum()) * GRID
        own = stands_for.get(result.speakers.index(turn.speaker))
        if weight > 0:
            yield turn.confidence, 0.0 if own is None else float(span[own].sum()) * GRID / weight, weight


def collect(folders: list[Path], model: str) -> tuple[np.ndarray, list[float], list[float]]:
    """Margins, shares and weights (N, 3); cosines, between parts of a recording, of the same and of other speakers."""
    units, same, different = [], [], []
    for mode in ("exact", "fast"):
        pipeline = Pipeline.from_pretrained(model, "cpu", mode, threads=1)
        for audio in sorted(path for folder in folders for path in folder.glob("*.flac")):
            lines = next(iter(read_rttm(audio.with_suffix(".rttm")).values()))
            reference = [Turn(float(turn.start), float(turn.end), turn.speaker) for turn in lines]
            results = [pipeline.diarize(audio)]
            whole = results[0].duration
            if mode == "exact":
                starts = np.arange(0.0, max(whole - PART / 2, 0.1), STRIDE)
                results += [pipeline.diarize(audio, start=start, end=min(start + PART, whole)) for start in starts]
            for result in results:
                units += list(targets(result, reference))
            for one, other in combinations(results[1:], 2):
                for (name, row), (other_name, other_row) in (
                    (a, b) for a in identified(one, reference) for b in identified(other, reference)
                ):
                    (same if name == other_name else different).append(float(row @ other_row))
    return np.array(units), same, different


def identified(result: Diarization, reference: list[Turn]) -> Iterator[tuple[str, np.ndarray]]:
    """Reference speaker and embedding of each speaker with 5 s of turns, nine tenths of which are that one's."""
    length = round((result.offset + result.duration) / GRID) + 2
    names = sorted({turn.speaker for turn in reference})
    truth = grid(reference, names, length)
    found = grid(list(result.turns), list(result.speakers), length)
    for row, embedding in zip(found, result.embeddings, strict=True):
        shared = truth[:, row].sum(axis=1)
        if row.sum() * GRID >= 5 and shared.max() >= 0.9 * row.sum():
            yield names[int(shared.argmax())], embedding


def fit(units: np.ndarray) -> tuple[float, float]:
    """Slope and intercept of least weighted cross entropy, with a slight pull of the slope towards 0."""
    margin, share, weight = units.T

    def loss(values: np.ndarray) -> float:
        z = values[0] * margin + values[1]
        return float((weight * (np.logaddexp(0, z) - share * z)).sum() + 1e-3 * values[0] ** 2)

    return tuple(minimize(loss, np.array([1.0, 1.0])).x)


def show(name: str, units: np.ndarray, slope: float, intercept: float) -> None:
    """Print how the curve does: in bins of confidence, what it says and what is true."""
    margin, share, weight = units.T
    sure = 1 / (1 + np.exp(-(slope * margin + intercept)))
    total = weight.sum()
    print(f"{name}: {len(units)} turns, {total:.0f} s, {100 * (weight @ share) / total:.2f} % right")
    error = 0.0
    for low, high in ((0, 0.5), (0.5, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 0.98), (0.98, 1.01)):
        inside = (sure >= low) & (sure < high)
        if inside.any():
            part = weight[inside].sum()
            said, true = weight[inside] @ sure[inside] / part, weight[inside] @ share[inside] / part
            error += part / total * abs(said - true)
            shown = f"  {low:.2f} to {min(high, 1):.2f}: {inside.sum():4d} turns {part:7.1f} s"
            print(f"{shown}  says {said:.3f} true {true:.3f}")
    print(f"  expected calibration error {error:.4f}")


def main() -> None:
    """Fit, and print what to write into the modules."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="campplus")
    parser.add_argument("--check", nargs="*", type=Path, default=[])
    options = parser.parse_args()
    # The bare margins are wanted here.
    assembly.CURVES = dict.fromkeys(assembly.CURVES, lambda margin: margin)
    units, same, different = collect(options.folders, options.model)
    slope, intercept = fit(units)
    print(f"Curve({slope:.1f}, {intercept:.1f})")
    show("fitted on", units, slope, intercept)
    for name, values in (("same voice", same), ("different voices", different)):
        print(name, len(values), np.round(np.percentile(values, [0, 1, 5, 50, 95, 99, 100]), 3) if values else "")
    for folder in options.check:
        units, same, different = collect([folder], options.model)
        if len(units):
            show(str(folder.name), units, slope, intercept)
        for name, values in (("same voice", same), ("different voices", different)):
            print(name, len(values), np.round(np.percentile(values, [0, 1, 5, 50, 95, 99, 100]), 3) if values else "")


if __name__ == "__main__":
    main()
