"""What makes a measurement less trustworthy: a closed list of warnings, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .samples import Process, Samples

FEWEST_ROUNDS = 3
# Shares from which on a measurement is not worth comparing at the few per cent that matter.
MOST_DRIFT = 0.10
MOST_LOAD = 0.10


def warnings(
    samples: Samples, rounds: int, others: float | None, speeds: Mapping[str, Sequence[float]]
) -> tuple[str, ...]:
    """Warnings about a run, one sentence each.

    `others`: share of the processors that other programs used, None where unknown. `speeds`: warm speed of each round,
    by system.
    """
    return (
        *_few_rounds(rounds),
        *_drift(list(samples.processes.values())),
        *_load(others),
        *_spread(speeds),
        *_interrupted(samples),
        *_changing_results(samples),
        *_failures(samples),
    )


def _few_rounds(rounds: int) -> Iterator[str]:
    if rounds < FEWEST_ROUNDS:
        yield f"{rounds} round{'s' * (rounds != 1)}: too few to tell the spread; use --rounds {FEWEST_ROUNDS} or more"


def _drift(processes: Sequence[Process]) -> Iterator[str]:
    clocks = [item.clock_seconds for item in processes]
    if clocks and (drift := max(clocks) / min(clocks) - 1) > MOST_DRIFT:
        yield (
            f"the processor's speed drifted by {100 * drift:.0f} % between processes; let it cool, fix its clock "
            "(cpupower frequency-set -g performance), close other programs, and run again"
        )


def _load(others: float | None) -> Iterator[str]:
    if others is not None and others > MOST_LOAD:
        yield (
            f"other programs used {100 * others:.0f} % of the processors meanwhile; close them and run again, "
            "or give the run processors of its own (taskset)"
        )


def _spread(speeds: Mapping[str, Sequence[float]]) -> Iterator[str]:
    for system, rounds in speeds.items():
        if len(rounds) > 1 and (spread := max(rounds) / min(rounds) - 1) > MOST_DRIFT:
            yield f"{system}: the rounds differ by {100 * spread:.0f} %; use more --rounds on a quiet machine"


def _interrupted(samples: Samples) -> Iterator[str]:
    owners: dict[tuple[str, int], int] = {}
    for item in samples.processes.values():
        owners[item.system, item.round] = owners.get((item.system, item.round), 0) + 1
    for (system, number), count in sorted(owners.items()):
        if count > 1:
            yield (
                f"{system}: round {number + 1} took {count} processes, after an interruption or a crash, so that it "
                "has no whole-process time; run again for one"
            )


def _changing_results(samples: Samples) -> Iterator[str]:
    results: dict[tuple[str, str], set[str]] = {}
    for item in samples.samples:
        if not item.error:
            results.setdefault((item.system, item.file_id), set()).add(item.rttm_sha256)
    for system in dict.fromkeys(system for system, _ in results):
        names = sorted(name for (owner, name), found in results.items() if owner == system and len(found) > 1)
        if names:
            yield (
                f"{system}: the result changed between rounds for {', '.join(names[:5])}"
                f"{' and more' * (len(names) > 5)}; its DER is that of the first one"
            )


def _failures(samples: Samples) -> Iterator[str]:
    found: dict[str, set[str]] = {}
    for item in samples.samples:
        if item.error:
            found.setdefault(item.system, set()).add(item.file_id)
    for system, names in found.items():
        yield (
            f"{system} failed on {', '.join(sorted(names)[:5])}{' and more' * (len(names) > 5)}: everything in them "
            "counts as missed; mend or take them out (the record has the reasons)"
        )
