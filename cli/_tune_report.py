"""What a tuning found, as a table for people and as JSON for machines."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ._tables import table

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..tuner.log import Session
    from ..tuner.search import Outcome
    from ..tuner.site import Trial

SCHEMA = "diarize-tune/1"
_HEADS = ("layer", "batch", "candidate", "", "us", "TFLOP/s", "error", "failure")


def as_text(outcome: Outcome, session: Session, everything: bool) -> str:
    """The table, and a line for each form of a network that was compared as a whole."""
    from ..registry import LAYERS

    rows = []
    order = list(LAYERS)
    trials = sorted(enumerate(session.trials), key=lambda pair: (order.index(pair[1].layer), pair[1].batch, pair[0]))
    for _, trial in trials:
        decision = outcome.decisions.get(trial.layer, {}).get(trial.batch)
        wins = decision is not None and decision.trial == trial
        second = decision is not None and decision.runner_up == trial
        own = session.rules.own[LAYERS[trial.layer].network]
        if everything or wins or trial.batch == own or trial.failure is not None:
            rows.append(_row(trial, "*" if wins else "+" if second else ""))
    lines = [f"{name}: {value / 1000:.2f} ms a batch of the pipeline" for name, value in outcome.totals_us.items()]
    return table(_HEADS, rows, ("batch", "us", "TFLOP/s", "error")) + "\n" + "".join(f"{line}\n" for line in lines)


def _row(trial: Trial, mark: str) -> tuple[str, ...]:
    from ..registry import LAYERS

    if trial.failure is not None:
        return trial.layer, str(trial.batch), trial.candidate, "", "-", "-", "-", trial.failure.kind.value
    median = statistics.median(trial.samples_us)
    flops = LAYERS[trial.layer].flops * trial.batch
    speed = f"{flops / median / 1e6:.1f}" if flops else "-"
    return (
        trial.layer, str(trial.batch), trial.candidate, mark, f"{median:.2f}", speed, f"{trial.error:.1e}", ""
    )  # fmt: skip


def as_json(recipe: Recipe, path: Path, written: bool, session: Session | None, seconds: Mapping[str, float]) -> str:
    """The tune file's content, where it is or would be, and every trial; none for a file that is kept."""
    from ..recipe import to_text

    document = {
        "schema": SCHEMA,
        "tune_file": str(path),
        "written": written,
        "kept": session is None,
        "seconds": dict(seconds),
        "recipe": json.loads(to_text(recipe)),
        "trials": [] if session is None else [asdict(trial) for trial in session.trials],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
