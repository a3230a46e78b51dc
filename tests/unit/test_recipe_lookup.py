"""Which source decides each layer, what is refused, and that shipped recipes fit the registry. No GPU is asked."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recipe_support import KEY, NETWORKS, SUMS, candidate, default, entry, tuned

from diarize import recipe_lookup
from diarize.candidates import SEPARATE, Candidate
from diarize.errors import RecipeError
from diarize.recipe import Key, Recipe, to_text
from diarize.recipe_lookup import Lookup, fitting, in_use, look_up, shared_bytes, shared_memory_limit
from diarize.recipe_parse import ACTIVATIONS, read
from diarize.registry import LAYERS, candidates
from diarize.resources import data_dir

CONV = "resnet34.layer2.conv1"
ROOT = Path(__file__).resolve().parents[2]


def none(_: Candidate) -> int:
    """Shared memory of a block, where it plays no part."""
    return 0


def find(key: Key, folder: Path, **options: Any) -> Lookup:
    return look_up(key, NETWORKS, shipped=folder, **{"shared_bytes": none, **options})


def put(path: Path, recipe: Recipe) -> Path:
    path.write_text(to_text(recipe))
    return path


def at(capability: tuple[int, int]) -> Key:
    return Key("Some GPU", capability, 40, "580.1", "13.0", "0.30.4", "0.1.0", "a" * 64)


def test_the_order_of_the_sources(tmp_path: Path) -> None:
    assert find(KEY, tmp_path).source == "portable"
    default(tmp_path, (9, 0), {CONV: "roll_r40"})
    assert find(KEY, tmp_path).source == "default sm90"
    put(tmp_path / "nvidia-h200.json", tuned([entry(CONV, "roll_r20")], kind="recipe"))
    assert find(KEY, tmp_path).source == "recipe nvidia-h200"
    tune = put(tmp_path / "tune.json", tuned([entry(CONV, "resident_g3_r2_b4")]))
    assert find(KEY, tmp_path, tune_file=tune).source == f"tune file {tune}"
    named = put(tmp_path / "named.json", tuned([entry(CONV, "resident_g4_r2_b4")]))
    found = find(KEY, tmp_path, named=named, tune_file=tune)
    assert found.source == f"tune file {named}"
    assert found.layers[CONV] == "resident_g4_r2_b4"
    assert found.warnings == ()


def test_each_layer_takes_the_first_source_that_has_it(tmp_path: Path) -> None:
    default(tmp_path, (9, 0), {CONV: "roll_r40", "resnet34.layer3.conv1": "stream_g4_s6", "resnet34.conv1": "stem"})
    put(
        tmp_path / "nvidia-h200.json",
        tuned([entry(CONV, "roll_r20"), entry("resnet34.layer3.conv1", "inline_g5")], kind="recipe"),
    )
    tune = put(tmp_path / "tune.json", tuned([entry(CONV, "resident_g3_r2_b4")]))
    found = find(KEY, tmp_path, tune_file=tune)
    origins = found.selection.origins
    assert origins[CONV] == f"tune file {tune}"
    assert origins["resnet34.layer3.conv1"] == "recipe nvidia-h200"
    assert origins["resnet34.conv1"] == "default sm90"
    assert origins["resnet34.layer4.conv1"] == "portable"
    assert found.summary().startswith(
        f"1 layer from tune file {tune}, 1 from recipe nvidia-h200, 1 from default sm90, "
    )
    assert found.summary().endswith(f", {len(found.layers) - 3} portable")
    assert f"{CONV}: resident_g3_r2_b4 (tune file {tune})" in found.lines()


def test_a_tune_file_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    found = find(KEY, tmp_path, tune_file=tmp_path / "none.json")
    assert (found.source, found.refused, found.warnings) == ("portable", "", ())
    assert found.tune_file == str(tmp_path / "none.json")


def test_a_damaged_tune_file_is_refused_with_one_warning_and_wholly(tmp_path: Path) -> None:
    made = tuned([entry(CONV, "roll_r20"), entry("resnet34.layer3.conv1", "inline_g5")])
    tune = put(tmp_path / "tune.json", made)
    tune.write_text(
        tune.read_text().replace('"batch": 1, "candidate": "inline_g5"', '"batch": 0, "candidate": "inline_g5"')
    )
    found = find(KEY, tmp_path, tune_file=tune)
    assert found.source == "portable"
    assert found.warnings == (f"tune file not used: {found.refused}",)
    assert found.refused == (
        f"{tune}: entries[1].batch is 0, wanted a whole number from 1 to 1000000; run: diarize cuda tune"
    )


MISMATCHES: list[tuple[dict[str, Any], str]] = [
    ({"device": "NVIDIA H100"}, "key.device is 'NVIDIA H100', wanted 'NVIDIA H200' of this GPU"),
    ({"capability": (9, 1)}, "entries[0].candidate is 'roll_r20', wanted one that runs on compute capability 9.1"),
    ({"multiprocessors": 114}, "key.multiprocessors is 114, wanted 132 of this GPU"),
    ({"policy": "none"}, "key.policy is 'none', wanted 'turns-1' of this build"),
    ({"driver": "570.1"}, "key.driver is '570.1', wanted '580.159.04' of this GPU"),
    ({"cuda": "12.8"}, "key.cuda is '12.8', wanted '13.0' of this GPU"),
    ({"numba_cuda": "0.29.0"}, "key.numba_cuda is '0.29.0', wanted '0.30.4' of this build"),
    ({"diarize": "0.0.9"}, "key.diarize is '0.0.9', wanted '0.1.0' of this build"),
    ({"kernels": "b" * 64}, f"key.kernels is '{'b' * 64}', wanted '{'a' * 64}' of this build"),
    ({"models": {**SUMS, "resnet34": "9" * 64}}, "key.models.resnet34 is '99999"),
]


@pytest.mark.parametrize(("change", "said"), MISMATCHES, ids=[next(iter(change)) for change, _ in MISMATCHES])
def test_a_tune_file_for_anything_else_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    tune = put(tmp_path / "tune.json", tuned([entry(CONV, "roll_r20")], replace(KEY, **change)))
    found = find(KEY, tmp_path, tune_file=tune)
    assert found.source == "portable"
    assert found.refused.startswith(f"{tune}: {said}")
    assert found.refused.endswith("; run: diarize cuda tune")
    assert len(found.warnings) == 1
    with pytest.raises(RecipeError) as caught:
        find(KEY, tmp_path, named=tune)
    assert str(caught.value) == found.refused


def test_the_capability_is_compared_where_the_candidates_would_run(tmp_path: Path) -> None:
    made = tuned([entry("resnet34.layer2.conv1", "mma_h4_w64_wm8")], replace(KEY, capability=(8, 9)))
    found = find(KEY, tmp_path, tune_file=put(tmp_path / "tune.json", made))
    assert "key.capability is [8, 9], wanted [9, 0] of this GPU" in found.refused


def test_another_model_than_the_tuned_one_takes_what_both_have(tmp_path: Path) -> None:
    key = replace(KEY, models={"pyannet": SUMS["pyannet"], "resnet34": SUMS["resnet34"]})
    tune = put(
        tmp_path / "tune.json", tuned([entry("pyannet.lstm_input", "wgmma_split"), entry(CONV, "roll_r20")], key)
    )
    other = replace(KEY, models={"pyannet": SUMS["pyannet"], "campplus": SUMS["campplus"]})
    found = look_up(other, ("fbank", "pyannet", "campplus"), tune_file=tune, shipped=tmp_path, shared_bytes=none)
    assert found.refused == ""
    assert found.layers["pyannet.lstm_input"] == "wgmma_split"
    assert CONV not in found.layers


def test_a_recipe_needs_neither_driver_nor_build_nor_model_of_its_measurement(tmp_path: Path) -> None:
    put(tmp_path / "nvidia-h200.json", tuned([entry(CONV, "roll_r20")], kind="recipe"))
    other = replace(KEY, driver="600.1", cuda="14.0", numba_cuda="1", diarize="2", kernels="c" * 64, models={})
    assert find(other, tmp_path).source == "recipe nvidia-h200"


@pytest.mark.parametrize("change", [{"device": "NVIDIA H200 NVL"}, {"multiprocessors": 114}])
def test_a_recipe_is_for_one_model_alone(tmp_path: Path, change: dict[str, Any]) -> None:
    put(tmp_path / "nvidia-h200.json", tuned([entry(CONV, "roll_r20")], kind="recipe"))
    found = find(replace(KEY, **change), tmp_path)
    assert (found.source, found.warnings) == ("portable", ())


def test_two_sizes_of_one_model_have_recipes_of_their_own(tmp_path: Path) -> None:
    small = replace(KEY, multiprocessors=66)
    put(tmp_path / "nvidia-h200.json", tuned([entry(CONV, "roll_r20")], kind="recipe"))
    put(tmp_path / "nvidia-h200-66.json", tuned([entry(CONV, "roll_r40")], small, kind="recipe"))
    assert find(KEY, tmp_path).source == "recipe nvidia-h200"
    assert find(small, tmp_path).source == "recipe nvidia-h200-66"


def test_a_damaged_recipe_of_the_package_is_said_and_passed_over(tmp_path: Path) -> None:
    (tmp_path / "nvidia-h200.json").write_text("{")
    default(tmp_path, (9, 0), {CONV: "roll_r40"})
    found = find(KEY, tmp_path)
    assert found.source == "default sm90"
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith(
        f"recipe nvidia-h200 not used: {tmp_path / 'nvidia-h200.json'}: the text is not JSON"
    )


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((7, 0), "portable"), ((7, 5), "default sm75"), ((8, 0), "default sm80"), ((8, 6), "default sm86"),
        ((8, 7), "default sm86"), ((8, 9), "default sm89"), ((9, 0), "default sm90"), ((10, 0), "default sm100"),
        ((10, 3), "default sm100"), ((11, 0), "default sm100"), ((12, 0), "default sm120"), ((12, 1), "default sm120"),
        ((13, 0), "default sm120"),
    ],
)  # fmt: skip
def test_the_nearest_default_is_the_highest_not_above(
    tmp_path: Path, capability: tuple[int, int], expected: str
) -> None:
    for own in ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)):
        default(tmp_path, own, {"resnet34.seg_1": "linear"})
    assert find(at(capability), tmp_path).source == expected


def test_an_h100_takes_the_default_of_hopper() -> None:
    h100 = replace(KEY, device="NVIDIA H100 80GB HBM3")
    assert look_up(h100, NETWORKS).source == "default sm90"


def test_a_default_gives_only_what_runs(tmp_path: Path) -> None:
    default(tmp_path, (9, 0), {CONV: "roll_r40", "resnet34.layer2.conv2": "mma_h4_w32_wm4"})
    found = find(at((9, 3)), tmp_path)
    assert found.selection.origins[CONV] == "portable"
    assert found.layers["resnet34.layer2.conv2"] == "mma_h4_w32_wm4"
    assert found.warnings == ()


def test_a_default_above_the_gpu_does_not_fit_where_it_is_named(tmp_path: Path) -> None:
    path = default(tmp_path, (8, 9), {CONV: "mma_h4_w32_wm4"})
    with pytest.raises(RecipeError, match=r"key.capability is \[8, 9\], wanted at most \[8, 6\]"):
        find(at((8, 6)), tmp_path, named=path)
    assert find(at((12, 0)), tmp_path, named=path).source == f"tune file {path}"


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="the file is unreadable"):
        find(KEY, tmp_path, named=tmp_path / "none.json")


def test_portable_choices_fit_the_shared_memory(tmp_path: Path) -> None:
    def greedy(one: Candidate) -> int:
        return 100 << 10 if one.name in ("mma_h4_w64_wm8", "streamed8_split") else 0

    small, large = find(at((8, 6)), tmp_path, shared_bytes=greedy), find(at((8, 0)), tmp_path, shared_bytes=greedy)
    assert (small.layers[CONV], large.layers[CONV]) == ("mma_h4_w32_wm4", "mma_h4_w64_wm8")
    assert (small.layers["pyannet.lstm"], large.layers["pyannet.lstm"]) == ("resident8_split", "streamed8_split")


def test_a_tuned_candidate_that_takes_too_much_shared_memory_is_refused(tmp_path: Path) -> None:
    tune = put(tmp_path / "tune.json", tuned([entry(CONV, "roll_r20")]))
    found = find(KEY, tmp_path, tune_file=tune, shared_bytes=lambda one: 1 << 20 if one.name == "roll_r20" else 0)
    assert (
        "entries[0].candidate is roll_r20, which takes 1048576 bytes of shared memory a block, wanted at most 232448"
        in (found.refused)
    )


def test_choices_that_cannot_go_together_are_never_mixed(tmp_path: Path) -> None:
    default(tmp_path, (9, 0), {CONV: "roll_r40", "resnet34.conv1": "stem", "pyannet.lstm_input": "wgmma_split"})
    tune = put(tmp_path / "tune.json", tuned([entry(CONV, "tf32")]))
    found = find(KEY, tmp_path, tune_file=tune)
    chosen = [one for by_batch in found.selection.choices.values() for one in by_batch.values()]
    assert {one.storage for one in chosen} == {"", "float"}
    assert found.selection.origins["resnet34.conv1"] == "portable"
    assert found.layers["pyannet.lstm_input"] == "wgmma_split"


def test_a_form_that_not_every_layer_can_have_is_not_taken_and_that_is_said(tmp_path: Path) -> None:
    record = {"recording": "a.wav", "seconds": 60.0, "der_change": 0.0, "limit": 0.1, "against": "float32"}
    tune = put(tmp_path / "tune.json", tuned([entry("pyannet.lstm", "resident8_fp16")], validation=[record]))
    found = find(KEY, tmp_path, tune_file=tune)
    assert found.layers["pyannet.lstm"] == "streamed8_split"
    assert found.warnings == (
        f"tune file {tune}: its choices for the LSTM stack are not used: not every layer can be fp16; "
        "run: diarize cuda tune",
    )


def test_a_form_can_be_forced(tmp_path: Path) -> None:
    default(tmp_path, (9, 0), {CONV: "roll_r40"})
    found = find(KEY, tmp_path, forced={ACTIVATIONS: "float"})
    assert found.layers[CONV] == "tf32"
    assert found.layers["resnet34.conv1"] == "stem_f32"
    assert found.warnings == ()


@pytest.mark.parametrize(
    "capability", [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)]
)
@pytest.mark.parametrize("embedding", ["resnet34", "campplus"])
def test_every_layer_of_every_gpu_from_turing_on_has_a_choice(capability: tuple[int, int], embedding: str) -> None:
    found = look_up(at(capability), ("fbank", "pyannet", embedding))
    assert (found.missing, found.warnings) == ((), ())
    for one in found.selection.candidates():
        assert one.runs_on(capability)
        assert shared_bytes(one) <= shared_memory_limit(capability), one


def test_parts_count_only_where_they_run(tmp_path: Path) -> None:
    default(tmp_path, (9, 0), {"resnet34.layer2.entry": "down_g4_n64_b8"})
    layers = find(KEY, tmp_path).layers
    assert "resnet34.layer2.down" not in layers
    assert layers["resnet34.layer3.entry"] == SEPARATE
    assert layers["resnet34.layer3.down"].startswith("mma")


def test_a_layer_that_differs_by_batch_names_both(tmp_path: Path) -> None:
    tune = put(tmp_path / "tune.json", tuned([entry(CONV, "roll_r20", 1), entry(CONV, "roll_r40", 32)]))
    found = find(KEY, tmp_path, tune_file=tune)
    assert found.layers[CONV] == "1: roll_r20, 32: roll_r40"


SHIPPED = sorted(data_dir("recipes").glob("*.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_recipe_fits_the_registry(path: Path) -> None:
    recipe = read(path)
    assert recipe.kind == ("default" if path.stem.startswith("default-") else "recipe")
    assert recipe.entries
    assert recipe.provenance
    if recipe.kind == "recipe":
        key = recipe.key
        assert path.stem.startswith(replace_slug(key.device))
        assert look_up(key, NETWORKS).source == f"recipe {path.stem}"
    else:
        generation = "".join(map(str, recipe.key.capability))
        assert path.stem == f"default-sm{generation}"
        assert recipe.provenance["measured"] == ("by hand on an NVIDIA H200" if generation == "90" else "not measured")
        assert fitting(path, at(recipe.key.capability)) == recipe
        for one in recipe.entries:
            assert shared_bytes(candidate(one.layer, one.candidate)) <= shared_memory_limit(recipe.key.capability)


def replace_slug(name: str) -> str:
    return recipe_lookup.Device("cuda", name).slug


def test_there_is_a_default_for_each_generation() -> None:
    names = {path.stem for path in SHIPPED}
    assert names >= {f"default-sm{generation}" for generation in (75, 80, 86, 89, 90, 100, 120)}


def test_defaults_are_as_their_tool_writes_them() -> None:
    tool = ROOT / "tests" / "tools" / "make_default_recipes.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, "differ: none\n"), f"{done.stdout}{done.stderr}run it without --check"


def test_each_selection_of_a_lookup_is_in_the_order_of_the_registry() -> None:
    selection = look_up(KEY, NETWORKS).selection
    order = [layer for layer in LAYERS if layer in selection.choices]
    assert in_use(selection) == [layer for layer in order if layer in in_use(selection)]
    assert all(one in candidates(one.layer) for one in selection.candidates())
