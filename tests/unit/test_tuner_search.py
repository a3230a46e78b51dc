"""From trials to choices without a GPU: the law, ties, evidence, forms of a network, and logs replayed."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from diarize.candidates import SEPARATE, Candidate
from diarize.errors import FormatError
from diarize.registry import candidates
from diarize.tuner.log import Session, parse, replay
from diarize.tuner.run import OWN
from diarize.tuner.search import Rules, choose, chosen_parts
from diarize.tuner.site import Failure, FailureKind, Trial

RULES = Rules(OWN)
LAYER = "resnet34.layer3.conv1"
HALF = [c for c in candidates(LAYER) if c.storage == "half"]
FLOAT = [c for c in candidates(LAYER) if c.storage == "float"]


def trial(candidate: Candidate, us: float, batch: int = 64, digest: str = "a", **changes: object) -> Trial:
    made = Trial(
        candidate.layer, batch, candidate.name, candidate.version, candidate.storage, (us, us, us), 1e-4, digest
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def winners(trials: list[Trial], rules: Rules = RULES) -> dict[int, str]:
    return {b: d.candidate.name for b, d in choose(trials, rules).decisions.get(trials[0].layer, {}).items()}


def test_the_fastest_wins_and_the_second_is_recorded() -> None:
    trials = [trial(c, us) for c, us in zip(HALF, (30.0, 10.0, 20.0), strict=False)]
    (decision,) = choose(trials, RULES).decisions[LAYER].values()
    assert decision.candidate == HALF[1]
    assert decision.runner_up == trials[2]
    entry = decision.entry()
    assert (entry.candidate, entry.median_us, entry.batch, entry.error) == (HALF[1].name, 10.0, 64, 1e-4)
    assert entry.runner_up is not None
    assert (entry.runner_up.candidate, entry.runner_up.median_us) == (HALF[2].name, 20.0)


def test_the_median_counts_not_the_mean() -> None:
    slow_once = trial(HALF[0], 0, samples_us=(10.0, 10.0, 900.0))
    assert winners([slow_once, trial(HALF[1], 11.0)]) == {64: HALF[0].name}


@pytest.mark.parametrize(("second", "wins"), [(10.0, 0), (9.951, 0), (9.94, 1)])
def test_of_equals_the_first_in_the_registry_wins(second: float, wins: int) -> None:
    # Whatever the order of the trials.
    assert winners([trial(HALF[1], second), trial(HALF[0], 10.0)]) == {64: HALF[wins].name}


def test_the_law_other_batch_sizes_keep_the_bytes_of_the_own_one() -> None:
    a, b, c = HALF[:3]
    trials = [
        trial(a, 10, 64, "x"), trial(b, 20, 64, "y"), trial(c, 30, 64, "x"),
        # At one window b would be the fastest, but its bytes are others.
        trial(a, 10, 1, "x"), trial(b, 2, 1, "y"), trial(c, 5, 1, "x"),
    ]  # fmt: skip
    assert winners(trials) == {1: c.name, 64: a.name}
    runner_up = choose(trials, RULES).decisions[LAYER][1].runner_up
    assert runner_up is not None
    assert runner_up.candidate == a.name


def test_a_batch_size_without_such_bytes_has_no_choice() -> None:
    a, b = HALF[:2]
    assert winners([trial(a, 10, 64, "x"), trial(a, 10, 1, "z"), trial(b, 5, 1, "y")]) == {64: a.name}


def test_where_the_own_batch_does_not_fit_the_largest_that_does_decides() -> None:
    a, b = HALF[:2]
    full = Failure(FailureKind.MEMORY, "full")
    trials = [
        trial(a, 0, 64, samples_us=(), failure=full), trial(b, 0, 64, samples_us=(), failure=full),
        trial(a, 20, 32, "x"), trial(b, 10, 32, "y"), trial(a, 1, 4, "x"), trial(b, 2, 4, "y"),
    ]  # fmt: skip
    assert winners(trials) == {4: b.name, 32: b.name}


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_failed_candidate_never_wins(kind: FailureKind) -> None:
    failed = trial(HALF[0], 1, failure=Failure(kind, "why"))
    assert winners([failed, trial(HALF[1], 10)]) == {64: HALF[1].name}
    outcome = choose([failed], RULES)
    assert outcome.open_layers == (LAYER,)
    assert outcome.decisions == {}


def test_trials_of_another_version_do_not_count() -> None:
    assert winners([trial(HALF[0], 1, version=99), trial(HALF[1], 10)]) == {64: HALF[1].name}


def test_float32_storage_only_where_it_is_asked_for() -> None:
    trials = [trial(HALF[0], 10), *(trial(c, 1) for c in FLOAT)]
    assert winners(trials) == {64: HALF[0].name}
    tf32 = next(c for c in FLOAT if c.precision == "tf32")
    fp32 = next(c for c in FLOAT if c.precision == "fp32")
    assert winners([trial(HALF[0], 1), trial(tf32, 5), trial(fp32, 9)], Rules(OWN, ("tf32",))) == {64: tf32.name}
    assert winners([trial(tf32, 5), trial(fp32, 9)], Rules(OWN, ("fp32",))) == {64: fp32.name}


def test_all_layers_of_the_trunk_have_one_storage_that_of_the_lower_total() -> None:
    other = "resnet34.layer4.conv2"
    rules = Rules(OWN, ("fp16", "tf32"))

    def layer(name: str, half: float, single: float) -> list[Trial]:
        own = [c for c in candidates(name) if c.layer == name]
        return [
            trial(next(c for c in own if c.storage == "half"), half),
            trial(next(c for c in own if c.precision == "tf32"), single),
        ]

    # layer3.conv1 runs five times, layer4.conv2 three times: 5 x 10 + 3 x 10 against 5 x 4 + 3 x 22.
    outcome = choose(layer(LAYER, 10, 4) + layer(other, 10, 22), rules)
    assert {d.candidate.storage for by in outcome.decisions.values() for d in by.values()} == {"half"}
    assert outcome.totals_us == {"resnet34 half": 80.0, "resnet34 float": 86.0}
    outcome = choose(layer(LAYER, 10, 4) + layer(other, 10, 19), rules)
    assert {d.candidate.storage for by in outcome.decisions.values() for d in by.values()} == {"float"}


def test_a_form_in_which_a_layer_has_no_choice_loses() -> None:
    other = next(c for c in candidates("resnet34.layer4.conv2") if c.storage == "half")
    trials = [trial(HALF[0], 100), trial(FLOAT[0], 1), trial(other, 100)]
    outcome = choose(trials, Rules(OWN, ("fp16", "tf32", "fp32")))
    assert len(outcome.decisions) == 2


def stack(precision: str, us: float) -> list[Trial]:
    """Trials of the whole LSTM stack in a precision."""
    found = []
    for layer in ("lstm_input0", "lstm_input", "lstm", "dense"):
        own = next(
            c for c in candidates(f"pyannet.{layer}") if c.layer == f"pyannet.{layer}" and c.precision == precision
        )
        found.append(trial(own, us, 256, precision))
    return found


def test_the_lstm_stack_has_one_precision_and_needs_evidence() -> None:
    trials = stack("split", 10) + stack("wxsplit", 5)

    def precisions(rules: Rules) -> set[str]:
        return {d.candidate.precision for by in choose(trials, rules).decisions.values() for d in by.values()}

    assert precisions(RULES) == {"split"}
    assert precisions(Rules(OWN, stack=("split", "wxsplit"))) == {"split"}
    assert precisions(Rules(OWN, stack=("split", "wxsplit"), validated=True)) == {"wxsplit"}
    assert precisions(Rules(OWN, stack=("split",), validated=True)) == {"split"}


def test_a_layer_by_its_parts_competes_with_the_whole() -> None:
    block = candidates("resnet34.layer1.block")
    apart, whole = block[0], block[1]
    assert apart.name == SEPARATE
    trials = [trial(apart, 10, storage="half"), trial(whole, 20)]
    assert choose(trials, RULES).decisions["resnet34.layer1.block"][64].candidate == apart
    # Parts in float32 are another network.
    trials = [trial(apart, 10, storage="float"), trial(whole, 20)]
    assert choose(trials, RULES).decisions["resnet34.layer1.block"][64].candidate == whole


def test_parts_do_not_count_twice_in_the_total() -> None:
    parts = ("resnet34.layer1.conv1", "resnet34.layer1.conv2")
    own = [next(c for c in candidates(part) if c.storage == "half") for part in parts]
    trials = [trial(own[0], 4), trial(own[1], 5), trial(candidates("resnet34.layer1.block")[1], 7)]
    assert choose(trials, RULES).totals_us == {"resnet34 half": 21.0}
    chosen = chosen_parts(trials, parts, "half", RULES)
    assert [chosen[part][64].candidate for part in parts] == own
    assert chosen_parts(trials, parts, "float", RULES) == {part: {} for part in parts}


THREE = list(zip(HALF, (9.0, 7.0, 8.0), "xyy", strict=False))
SESSION = Session(RULES, {"key": {"device": "NVIDIA H200"}}, [
    *(trial(c, us, batch, digest) for batch in (64, 1) for c, us, digest in THREE),
    trial(HALF[0], 0, 32, "", samples_us=(), failure=Failure(FailureKind.WRONG, "3 values were not written")),
])  # fmt: skip


def test_a_log_is_read_back_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "tune.jsonl"
    SESSION.write(path)
    again = parse(path.read_text(), str(path))
    assert again.trials == SESSION.trials
    assert again.rules == SESSION.rules
    assert again.about == SESSION.about
    assert replay(again) == choose(SESSION.trials, RULES)
    assert {b: d.candidate for b, d in replay(again).decisions[LAYER].items()} == {64: HALF[1], 1: HALF[1]}


def test_a_session_on_an_h200_is_replayed() -> None:
    path = Path(__file__).parents[1] / "data" / "tune-h200.jsonl"
    session = parse(path.read_text(), str(path))
    assert session.about["key"]["device"] == "NVIDIA H200"
    outcome = replay(session)
    assert set(outcome.decisions) == {t.layer for t in session.trials}
    block = outcome.decisions["resnet34.layer1.block"]
    assert block[64].candidate.name == "block32_g3"
    for layer, by_batch in outcome.decisions.items():
        own = by_batch[session.rules.own[layer.partition(".")[0]]]
        assert {decision.trial.digest for decision in by_batch.values()} == {own.trial.digest}
        for batch, decision in by_batch.items():
            rivals = [
                t
                for t in session.trials
                if (t.layer, t.batch, t.digest) == (layer, batch, own.trial.digest)
                and t.failure is None
                and any((c.name, c.version) == (t.candidate, t.version) for c in candidates(layer))
            ]
            best = min(statistics.median(t.samples_us) for t in rivals)
            assert best <= decision.median_us <= 1.005 * best
    # A race of the tool of that day left one wrong value, which was not timed.
    wrong = [t for t in session.trials if t.failure]
    assert [(t.layer, t.batch, t.samples_us) for t in wrong] == [("pyannet.moments", 32, ())]
    assert set(outcome.decisions["pyannet.moments"]) == {1, 8, 256}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json\n",
        "[]\n",
        '{"log": 2}\n',
        SESSION.to_text() + "{}\n",
        SESSION.to_text() + "null\n",
        SESSION.to_text().replace('"samples_us"', '"times"'),
        SESSION.to_text().replace('"wrong"', '"odd"'),
    ],
)
def test_something_else_is_no_log(text: str) -> None:
    with pytest.raises(FormatError, match=r"tune\.jsonl:\d+: .*tuning log"):
        parse(text, "tune.jsonl")


def test_a_log_has_one_line_for_each_trial() -> None:
    lines = SESSION.to_text().splitlines()
    assert len(lines) == 1 + len(SESSION.trials)
    assert json.loads(lines[-1])["failure"] == {"kind": "wrong", "reason": "3 values were not written"}
