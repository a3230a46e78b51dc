"""From trials to choices: pure, the same on every machine, so that a stored session can be replayed without a GPU.

The law: tuning changes speed, never results. The fastest candidate at the pipeline's own batch size is chosen first;
at the other sizes only candidates whose output has the same bytes may win. Medians within half a per cent are equal,
and of equals the first in the registry wins. A candidate without evidence that its precision is enough wins only where
whole recordings are validated afterwards.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..candidates import SEPARATE, Candidate
from ..recipe import Entry, RunnerUp
from ..recipe_parse import LSTM_STACK
from ..registry import LAYERS, candidates
from .site import Trial

TIE = 1.005
"""Medians up to this factor above the best one are no worse."""
STORAGES: Mapping[str, str] = {"fp16": "half", "tf32": "float", "fp32": "float"}
"""Precisions of ResNet34, and the form of its activations in memory that each goes with."""
STACK_PRECISIONS = tuple(dict.fromkeys(c.precision for c in candidates("pyannet.lstm")))
"""Precisions of the LSTM stack."""


@dataclass(frozen=True)
class Rules:
    """Which candidates may win.

    `own` is the pipeline's own batch size of each network; `trunk` and `stack` are the permitted precisions of ResNet34
    and of the LSTM stack, the preferred first; `validated` lets candidates without evidence win.
    """

    own: Mapping[str, int]
    trunk: tuple[str, ...] = ("fp16",)
    stack: tuple[str, ...] = ("split",)
    validated: bool = False

    @property
    def storages(self) -> tuple[str, ...]:
        """Permitted forms of ResNet34's activations."""
        return tuple(dict.fromkeys(STORAGES[precision] for precision in self.trunk))

    def permit(self, candidate: Candidate) -> bool:
        """Whether a candidate may win, in some form of its network."""
        if not candidate.evidence and not self.validated:
            return False
        if candidate.layer in LSTM_STACK:
            return candidate.precision in self.stack
        if candidate.storage:
            # Float32 in the same storage is slower or better, never worse.
            return candidate.storage in self.storages and candidate.precision in (*self.trunk, "fp32")
        return True


@dataclass(frozen=True)
class Decision:
    """The winner of a layer at a batch size, its trial, and the second fastest of those that could have won."""

    candidate: Candidate
    trial: Trial
    runner_up: Trial | None

    @property
    def median_us(self) -> float:
        """Median time in microseconds."""
        return statistics.median(self.trial.samples_us)

    def entry(self) -> Entry:
        """As a tune file records it."""
        second, trial = self.runner_up, self.trial
        other = None
        if second is not None:
            other = RunnerUp(second.candidate, second.version, statistics.median(second.samples_us))
        return Entry.of(self.candidate, trial.batch, self.median_us, trial.samples_us, trial.error, other)


Decisions = dict[str, dict[int, Decision]]


@dataclass(frozen=True)
class Outcome:
    """Choices by layer and batch size.

    `totals_us` is what each form of a network takes at the pipeline's own batch size: keys such as "resnet34 half".
    `open_layers` had trials but no candidate that may win.
    """

    decisions: Decisions
    totals_us: Mapping[str, float] = field(default_factory=dict)
    open_layers: tuple[str, ...] = ()


def choose(trials: Iterable[Trial], rules: Rules) -> Outcome:
    """The choices that trials come to."""
    by_layer: dict[str, list[Trial]] = {}
    for trial in trials:
        by_layer.setdefault(trial.layer, []).append(trial)
    groups: dict[str, list[str]] = {}
    for layer in sorted(by_layer, key=list(LAYERS).index):
        groups.setdefault(_group(layer), []).append(layer)
    decisions: Decisions = {}
    totals: dict[str, float] = {}
    for group, layers in groups.items():
        forms = {"resnet34": rules.storages, "pyannet lstm": rules.stack}.get(group, ("",))
        own = {layer: by_layer[layer] for layer in layers}
        found, times = _best_form(group, own, forms, rules)
        decisions |= found
        totals |= times
    return Outcome(decisions, totals, tuple(layer for layer in by_layer if not decisions.get(layer)))


def chosen_parts(trials: Iterable[Trial], parts: Sequence[str], storage: str, rules: Rules) -> Decisions:
    """The choices for some layers in one storage alone, for timing the layer that they are parts of."""
    by_layer: dict[str, list[Trial]] = {part: [] for part in parts}
    for trial in trials:
        if trial.layer in by_layer:
            by_layer[trial.layer].append(trial)
    return {part: _of_layer(own, rules, lambda t, _: t.storage in ("", storage)) for part, own in by_layer.items()}


def _group(layer: str) -> str:
    """Layers that must have one form together."""
    return "pyannet lstm" if layer in LSTM_STACK else layer.partition(".")[0]


def _best_form(
    group: str, layers: Mapping[str, list[Trial]], forms: Sequence[str], rules: Rules
) -> tuple[Decisions, dict[str, float]]:
    """The choices in the form whose network takes the least time, and the time of each form."""
    best: Decisions = {}
    best_rank = (0, 0.0)
    totals = {}
    for form in forms:

        def fits(trial: Trial, candidate: Candidate, form: str = form) -> bool:
            own = candidate.precision if candidate.layer in LSTM_STACK else trial.storage
            return own in ("", form) or not form

        found = {layer: _of_layer(trials, rules, fits) for layer, trials in layers.items()}
        found = {layer: by_batch for layer, by_batch in found.items() if by_batch}
        total = network_us(found, rules)
        if found:
            totals[f"{group} {form}".strip()] = total
        # A form that leaves layers without any choice loses, however fast the others are.
        rank = (-len(found), total)
        if found and (not best or rank < best_rank):
            best, best_rank = found, rank
    return best, totals


def network_us(decisions: Decisions, rules: Rules) -> float:
    """Microseconds that the layers take together at the pipeline's own batch sizes."""
    inside = {part for layer in decisions for part in _separable(layer)}
    total = 0.0
    for layer, by_batch in decisions.items():
        if layer in inside:
            continue
        batch = _own_batch(by_batch, rules.own[LAYERS[layer].network])
        # A smaller batch, where the pipeline's own does not fit, runs more often.
        total += LAYERS[layer].count * by_batch[batch].median_us * rules.own[LAYERS[layer].network] / batch
    return total


def _separable(layer: str) -> tuple[str, ...]:
    """Layers that run only as parts of this one: of a stage's block both convolutions, of an entry its two."""
    return LAYERS[layer].parts


def _own_batch(batches: Iterable[int], own: int) -> int:
    """The pipeline's own batch size, or where that did not run, the largest that did."""
    known = list(batches)
    return own if own in known else max(known)


def _of_layer(trials: Sequence[Trial], rules: Rules, fits: Callable[[Trial, Candidate], bool]) -> dict[int, Decision]:
    """The winner at each batch size."""
    by_batch: dict[int, list[tuple[Candidate, Trial]]] = {}
    for trial in trials:
        candidate = _known(trial)
        timed = trial.failure is None and trial.samples_us
        if candidate is not None and timed and rules.permit(candidate) and fits(trial, candidate):
            by_batch.setdefault(trial.batch, []).append((candidate, trial))
    if not by_batch:
        return {}
    first = _own_batch(by_batch, rules.own[LAYERS[trials[0].layer].network])
    winner = _fastest(by_batch[first])
    decisions = {}
    for batch, rivals in sorted(by_batch.items()):
        # The law: the same bytes at every batch size.
        same = [(c, t) for c, t in rivals if t.digest == winner.trial.digest] if batch != first else rivals
        if same:
            decisions[batch] = _fastest(same)
    return decisions


def _known(trial: Trial) -> Candidate | None:
    """The candidate of a trial as the registry has it now; None where it has changed since."""
    found = next((c for c in candidates(trial.layer) if c.name == trial.candidate), None)
    return found if found is not None and found.version == trial.version else None


def _fastest(rivals: Sequence[tuple[Candidate, Trial]]) -> Decision:
    """The fastest of some candidates, the first in the registry of equals, and the runner-up."""
    order = [c.name for c in candidates(rivals[0][0].layer)]
    medians = {t.candidate: statistics.median(t.samples_us) for _, t in rivals}
    ranked = sorted(rivals, key=lambda pair: order.index(pair[0].name))
    limit = min(medians.values()) * TIE
    winner = next(pair for pair in ranked if medians[pair[0].name] <= limit)
    others = sorted((pair for pair in ranked if pair is not winner), key=lambda pair: medians[pair[0].name])
    return Decision(*winner, others[0][1] if others else None)


__all__ = ["SEPARATE", "Decision", "Decisions", "Outcome", "Rules", "choose", "chosen_parts", "network_us"]
