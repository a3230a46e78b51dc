"""Validation of whole recordings: the float32 choices, references by name, and the policy's limit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recipe_support import KEY

from diarize.candidates import SEPARATE
from diarize.errors import OptionError, RecipeError
from diarize.outputs.rttm import format_rttm
from diarize.recipe import write
from diarize.recipe_lookup import look_up
from diarize.tuner.validate import LIMIT, Example, compared, examples, float32_recipe, validate
from diarize.types import Turn

TURNS = (Turn(0.0, 50.0, "A"), Turn(50.0, 100.0, "B"))


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (12, 0)], ids=str)
@pytest.mark.parametrize("network", ["resnet34", "campplus"])
def test_float32_choices_are_taken_whole(tmp_path: Path, capability: tuple[int, int], network: str) -> None:
    path = tmp_path / "float32.json"
    write(path, float32_recipe(capability))
    key = type(KEY)(**{**vars(KEY), "capability": capability})
    found = look_up(key, ("fbank", "pyannet", network), path, shipped=tmp_path / "none")
    assert set(found.selection.origins.values()) == {f"tune file {path}"}
    assert not found.missing
    chosen = found.selection.at(64)
    trunk = {c.name if c.name == SEPARATE else c.precision for c in chosen.values() if c.layer.startswith("resnet34.")}
    assert trunk == ({"fp32", SEPARATE} if network == "resnet34" else set())
    assert {chosen[f"pyannet.{layer}"].precision for layer in ("lstm_input", "lstm", "dense")} == {"split"}


def result(shift: float) -> Any:
    turns = (Turn(0.0, 50.0 + shift, "A"), Turn(50.0 + shift, 100.0, "B"))
    return SimpleNamespace(turns=turns, duration=100.0)


def test_a_change_up_to_the_limit_is_allowed() -> None:
    record = compared(Example(Path("a.wav")), result(LIMIT), result(0.0))
    assert record.der_change == pytest.approx(LIMIT)
    with pytest.raises(RecipeError, match=r"a\.wav: its turns differ from float32's by .* of 0\.11 %"):
        compared(Example(Path("a.wav")), result(LIMIT + 0.01), result(0.0))


def test_silence_in_both_is_no_difference() -> None:
    silent: Any = SimpleNamespace(turns=(), duration=5.0)
    assert compared(Example(Path("a.wav")), silent, silent).der_change == 0.0
    with pytest.raises(RecipeError):
        compared(Example(Path("a.wav")), result(0.0), silent)


def test_without_any_speech_nothing_is_validated() -> None:
    silent: Any = SimpleNamespace(turns=(), duration=5.0)
    both = [Example(Path("a.wav")), Example(Path("b.wav"))]
    with pytest.raises(RecipeError, match=r"nothing written: a\.wav, b\.wav: no speech is found"):
        validate(both, lambda _: silent, lambda _: silent)
    spoken = {Path("a.wav"): silent, Path("b.wav"): result(0.0)}
    assert [r.recording for r in validate(both, spoken.__getitem__, spoken.__getitem__)] == ["a.wav", "b.wav"]


def test_references_without_turns_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "a.rttm"
    empty.write_text("")
    with pytest.raises(OptionError, match="nobody speaks in the references"):
        examples([Path("a.wav")], [empty])


def test_references_are_found_by_name_or_where_there_is_one_by_itself(tmp_path: Path) -> None:
    both = tmp_path / "both.rttm"
    both.write_text(format_rttm(TURNS, "a") + format_rttm(TURNS[:1], "b_c"))
    found = examples([Path("x/b c.wav"), Path("a.flac")], [both])
    assert [len(e.reference or ()) for e in found] == [1, 2]
    one = tmp_path / "one.rttm"
    one.write_text(format_rttm(TURNS, "other"))
    assert examples([Path("a.flac")], [one])[0].reference == TURNS
    assert examples([Path("a.flac")], [])[0].reference is None
