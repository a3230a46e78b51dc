"""The order of a tuning session, layers by their parts, and what is asked for, on a GPU made of Python."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tools.fake_bench import H200, FakeBench, plain_cost, plain_verdict

from diarize.candidates import SEPARATE, Candidate
from diarize.errors import OptionError
from diarize.registry import LAYERS, candidates
from diarize.tuner.log import Session
from diarize.tuner.run import OWN, in_order, tune
from diarize.tuner.search import Outcome
from diarize.tuner.site import Failure, FailureKind, Verified
from diarize.tuner.wish import wish_for

BLOCK = "resnet34.layer1.block"
PARTS = ("resnet34.layer1.conv1", "resnet34.layer1.conv2")
TRUNK = [layer.id for layer in LAYERS.values() if layer.network == "resnet34"]


def run(
    bench: FakeBench, *layers: str, precisions: tuple[str, ...] = (), validated: bool = False
) -> tuple[Outcome, Session]:
    wish = wish_for("resnet34", (9, 0), layers, precisions, validated)
    session = Session(wish.rules)
    return tune(bench, wish, session), session


def test_the_own_batch_comes_first_and_parts_before_the_whole() -> None:
    bench = FakeBench()
    run(bench, BLOCK)
    opened = [(layer, batch) for layer, batch, _ in bench.parts]
    assert opened == [(layer, batch) for batch in (64, 32, 16, 8, 4, 1) for layer in (*PARTS, BLOCK)]


def test_the_whole_is_timed_by_the_winners_of_its_parts() -> None:
    def cost(candidate: Candidate, batch: int) -> float:
        return 1.0 if candidate.name == SEPARATE else plain_cost(candidate, batch)

    bench = FakeBench(cost)
    outcome, session = run(bench, BLOCK)
    for layer, batch, parts in bench.parts:
        if layer == BLOCK:
            assert parts == {"half": {part: outcome.decisions[part][batch].candidate for part in PARTS}}
    assert {d.candidate.name for d in outcome.decisions[BLOCK].values()} == {SEPARATE}
    assert {trial.storage for trial in session.trials if trial.layer == BLOCK} == {"half"}


def test_without_a_choice_for_a_part_the_whole_is_not_computed_by_parts() -> None:
    def verdict(candidate: Candidate, batch: int) -> Verified | Failure:
        wrong = candidate.layer == PARTS[0]
        return Failure(FailureKind.WRONG, "planted") if wrong else plain_verdict(candidate, batch)

    outcome, session = run(FakeBench(verdict=verdict), BLOCK)
    apart = [trial for trial in session.trials if trial.candidate == SEPARATE]
    assert {trial.failure for trial in apart} == {Failure(FailureKind.UNSUPPORTED, f"no choice for {PARTS[0]}")}
    assert outcome.open_layers == (PARTS[0],)
    assert set(outcome.decisions) == {PARTS[1], BLOCK}


def test_two_storages_compete_as_whole_networks() -> None:
    bench = FakeBench(lambda c, batch: 1.0 if c.storage == "float" else plain_cost(c, batch))
    outcome, session = run(bench, "resnet34", precisions=("fp16", "tf32"))
    chosen = [d.candidate for by_batch in outcome.decisions.values() for d in by_batch.values()]
    assert {c.storage for c in chosen} == {"float", ""}
    assert {c.layer for c in chosen} == set(TRUNK)
    apart = {(t.batch, t.storage) for t in session.trials if t.layer == BLOCK and t.candidate == SEPARATE}
    assert apart == {(batch, storage) for batch in (1, 4, 8, 16, 32, 64) for storage in ("half", "float")}
    assert outcome.totals_us["resnet34 float"] < outcome.totals_us["resnet34 half"]


def test_only_candidates_that_may_win_are_timed() -> None:
    bench = FakeBench()
    run(bench)
    timed = {(layer, name) for layer, name, _ in bench.timer.timed}
    for candidate in candidates("resnet34"):
        if candidate.name != SEPARATE:
            may_win = candidate.storage != "float" and candidate.precision != "tf32" and candidate.evidence != ""
            assert ((candidate.layer, candidate.name) in timed) == may_win
    assert {c.precision for c in candidates("pyannet.lstm") if (c.layer, c.name) in timed} == {"split"}


def test_what_an_older_gpu_lacks_is_unsupported() -> None:
    bench = FakeBench(device=replace(H200, name="NVIDIA A100", compute_capability=(8, 0)))
    outcome, session = run(bench)
    hopper = [t for t in session.trials if "block32" in t.candidate or "wgmma" in t.candidate]
    assert hopper
    assert {t.failure.kind for t in hopper if t.failure} == {FailureKind.UNSUPPORTED}
    assert not outcome.open_layers
    assert outcome.decisions[BLOCK][64].candidate.name == SEPARATE


def test_layers_in_order_hold_every_part_once() -> None:
    order = [layer.id for layer in in_order(TRUNK)]
    assert sorted(order) == sorted(TRUNK)
    for layer in TRUNK:
        assert all(order.index(part) < order.index(layer) for part in LAYERS[layer].parts)


def test_progress_is_heard() -> None:
    heard: list[tuple[int, int, str]] = []
    wish = wish_for("resnet34", (9, 0), ["fbank.mean"])
    tune(FakeBench(), wish, Session(wish.rules), None, lambda done, total, what: heard.append((done, total, what)))
    assert heard[0] == (0, 6, f"fbank.mean, {OWN['fbank']} windows")
    assert heard[-1] == (6, 6, "")
    assert "fbank.mean, 1 window" in [what for _, _, what in heard]


def test_float32_storage_needs_the_whole_trunk() -> None:
    with pytest.raises(OptionError, match=r"ResNet34 in tf32 needs all of its layers, and resnet34\.conv1 is left out"):
        wish_for("resnet34", (9, 0), ["resnet34.layer2.conv1"], ["tf32"])
    assert wish_for("resnet34", (9, 0), ["resnet34"], ["tf32"]).rules.storages == ("float",)
    assert wish_for("resnet34", (9, 0), ["fbank"], ["tf32"]).layers == ("fbank.log_mel", "fbank.mean", "fbank.gather")


def test_weights_beyond_float16_are_tuned_in_float32_storage() -> None:
    assert wish_for("resnet34", (9, 0), half_fits=False).rules.trunk == ("tf32", "fp32")
    with pytest.raises(OptionError, match="exceed float16's range"):
        wish_for("resnet34", (9, 0), precisions=["fp16"], half_fits=False)


def test_a_reduced_lstm_needs_the_whole_stack() -> None:
    with pytest.raises(OptionError, match=r"the LSTM stack in wxsplit needs all of its layers"):
        wish_for("campplus", (9, 0), ["pyannet.lstm"], ["wxsplit"], validated=True)
    rules = wish_for("resnet34", (9, 0), [], ["pyannet.fp16", "tf32"], validated=True).rules
    assert (rules.trunk, rules.stack) == (("tf32",), ("fp16",))
