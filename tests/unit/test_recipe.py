"""Recipes and tune files: written whole, read back equal, refused as a whole with the field's name."""

from __future__ import annotations

import copy
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_support import H200, KEY, candidate, entry, tuned

from diarize.errors import OutputError, RecipeError
from diarize.hardware import Device
from diarize.recipe import DEFAULT, MAX_BYTES, Entry, Key, Recipe, Validation, to_selection, to_text, tune_path, write
from diarize.recipe_parse import parse, read, validations
from diarize.registry import candidates

LSTM = ("pyannet.lstm", "interleaved8or16_split")
BLOCK = ("resnet34.layer1.block", "block32_g3")
RECORD = {"recording": "a.wav", "seconds": 60.0, "der_change": 0.05, "limit": 0.1, "against": "float32"}
GOOD = tuned(
    [entry(*BLOCK), entry(*BLOCK, 32), entry(*LSTM), replace(entry("fbank.mean", "window_mean"), runner_up=None)]
)


def document(recipe: Recipe = GOOD) -> Any:
    return json.loads(to_text(recipe))


def refused(content: Any) -> str:
    """The message with which a document is refused; it must be one line that names the file and the remedy."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(RecipeError) as caught:
        parse(data, "/etc/tune.json")
    message = str(caught.value)
    assert message.startswith("/etc/tune.json: ")
    assert message.endswith("; run: diarize cuda tune")
    assert "\n" not in message
    return message.removeprefix("/etc/tune.json: ").removesuffix("; run: diarize cuda tune")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "tune.json"
    write(path, GOOD)
    assert read(path) == GOOD
    assert [file.name for file in path.parent.iterdir()] == ["tune.json"]


def test_a_tune_file_is_for_its_user_alone(tmp_path: Path) -> None:
    write(tmp_path / "tune.json", GOOD)
    write(tmp_path / "recipe.json", tuned([entry(*BLOCK)], kind="recipe"))
    assert stat.S_IMODE((tmp_path / "tune.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "recipe.json").stat().st_mode) == 0o644


def test_entries_stand_one_on_a_line() -> None:
    lines = to_text(GOOD).splitlines()
    assert sum(line.startswith('    {"layer": ') for line in lines) == 4
    assert max(map(len, lines)) < 400


def test_a_default_has_neither_device_nor_times() -> None:
    made = Recipe(DEFAULT, Key(capability=(8, 6)), {"measured": "not measured"}, (Entry.of(candidate(*LSTM), 1),))
    content = document(made)
    assert content["key"] == {"capability": [8, 6]}
    assert content["entries"][0]["median_us"] is content["entries"][0]["error"] is None
    assert parse(to_text(made).encode(), "x") == made


def test_nothing_is_left_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tune.json"
    write(path, GOOD)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write(path, tuned([entry(*LSTM)]))
    assert [file.name for file in tmp_path.iterdir()] == ["tune.json"]
    assert read(path) == GOOD


def test_a_link_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "elsewhere" / "tune.json")
    for recipe in (GOOD, tuned([entry(*LSTM)])):
        write(link, recipe)
        assert link.is_symlink()
        assert read(tmp_path / "elsewhere" / "tune.json") == recipe


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe, GOOD)
        assert parse(os.read(reader, 1 << 20), "pipe") == GOOD
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_names_that_are_not_utf8_are_written(tmp_path: Path) -> None:
    recording = os.fsdecode(b"caf\xc3\xa9 \xff.wav")
    write(tmp_path / "tune.json", tuned([entry(*LSTM)], validation=[{**RECORD, "recording": recording}]))
    assert validations(read(tmp_path / "tune.json"))[0].recording == "café ?.wav"


def test_what_would_be_refused_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"entries\[0\].median_us is nan"):
        write(tmp_path / "tune.json", tuned([replace(entry(*LSTM), median_us=float("nan"))]))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write .*tune\.json: .*; name another place with --output FILE"):
        write(tmp_path / "file" / "tune.json", GOOD)


def test_the_selection_holds_each_batch_and_says_where_it_came_from() -> None:
    made = tuned([entry("resnet34.layer2.conv1", "roll_r40", 32), entry("resnet34.layer2.conv1", "roll_r20", 1)])
    selection = to_selection(made, "tune file x")
    assert selection.at(1)["resnet34.layer2.conv1"].name == "roll_r20"
    assert selection.at(64)["resnet34.layer2.conv1"].name == "roll_r40"
    assert selection.origins == {"resnet34.layer2.conv1": "tune file x"}


def test_the_place_of_the_tune_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DIARIZE_TUNE_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    name = "nvidia-h200-sm90-132.json"
    assert tune_path(H200) == tmp_path / ".config" / "diarize" / name
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert tune_path(H200) == tmp_path / "xdg" / "diarize" / name
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    assert tune_path(H200) == tmp_path / ".config" / "diarize" / name
    monkeypatch.setenv("DIARIZE_TUNE_FILE", "~/mine.json")
    assert tune_path(H200) == tmp_path / "mine.json"


def test_devices_that_differ_have_tune_files_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIARIZE_TUNE_FILE", raising=False)
    others = [
        H200,
        replace(H200, name="NVIDIA H100"),
        replace(H200, multiprocessors=114),
        Device("cuda", "§", 0, (9, 0)),
    ]
    assert len({tune_path(device).name for device in others}) == 4


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the text is not JSON (Expecting value: line 1 column 1 (char 0)), wanted JSON as diarize writes it"),
        (b'{"format": 1,', "the text is not JSON"),
        (b"\xff\xfe{}", "the text is not UTF-8, wanted JSON in UTF-8"),
        (b"[" * 200_000, "the text is nested too deeply"),
        (b" " * (MAX_BYTES + 1), "the size is above 4 MiB, wanted at most 4194304 bytes"),
        (b"[]", "the file is a list, wanted an object"),
        (b"null", "the file is null, wanted an object"),
        (b'{"format": 1, "format": 1}', "the field 'format' is there twice, wanted each once"),
        (b'{"format": ' + b"9" * 5000 + b"}", "the text is not JSON"),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, said: str) -> None:
    assert refused(data).startswith(said)


def test_a_file_that_is_too_large_is_not_read_in(tmp_path: Path) -> None:
    path = tmp_path / "sparse.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RecipeError, match="the size is above 4 MiB"):
        read(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"the file is unreadable \(No such file or directory\)"):
        read(tmp_path / "none.json")
    with pytest.raises(RecipeError, match="the file is unreadable"):
        read(tmp_path)


def put(*path: str | int, value: Any) -> Callable[[Any], None]:
    """A change of one field."""

    def change(content: Any) -> None:
        for part in path[:-1]:
            content = content[part]
        content[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for part in path[:-1]:
            content = content[part]
        del content[path[-1]]

    return change


CHANGES: list[tuple[Callable[[Any], None], str]] = [
    (put("format", value=2), "format is 2, wanted 1"),
    (put("format", value=True), "format is True, wanted 1"),
    (put("format", value="1"), "format is '1', wanted 1"),
    (drop("format"), "format is missing, wanted 1"),
    (drop("provenance"), "provenance is missing, wanted it"),
    (put("a\nb", value=1), "'a\\nb' is unknown, wanted only"),
    (put("extra", value=1), "extra is unknown, wanted only format, kind, key, provenance, entries"),
    (put("kind", value="other"), "kind is 'other', wanted one of tune, recipe, default"),
    (put("provenance", value=[]), "provenance is [], wanted an object"),
    (put("provenance", "deep", value={"a": [1, float("inf")]}), "provenance.deep.a[1] is inf, wanted a finite number"),
    (put("provenance", "big", value=10**400), "provenance.big is too large, wanted a finite number"),
    (put("entries", value={}), "entries is an object, wanted a list"),
    (put("entries", 0, value=3), "entries[0] is a number, wanted an object"),
    (put("key", value=[]), "key is a list, wanted an object"),
    (put("key", "device", value=""), "key.device is '', wanted a string that is not empty"),
    (put("key", "driver", value=580), "key.driver is 580, wanted a string"),
    (put("key", "capability", value=[9]), "key.capability is [9], wanted two whole numbers such as [9, 0]"),
    (put("key", "capability", value=[9.0, 0]), "key.capability is [9.0, 0], wanted two whole numbers such as [9, 0]"),
    (put("key", "capability", value=[9, 10]), "key.capability is [9, 10], wanted two whole numbers such as [9, 0]"),
    (put("key", "multiprocessors", value=0), "key.multiprocessors is 0, wanted a whole number from 1 to 1000000"),
    (put("key", "kernels", value="A" * 64), f"key.kernels is '{'A' * 59}..., wanted a sha256"),
    (put("key", "models", value=[]), "key.models is [], wanted an object"),
    (put("key", "models", "other", value="1" * 64), "key.models.other is unknown, wanted only pyannet, resnet34"),
    (put("key", "models", "\x1b\n", value="1" * 64), r"key.models.'\x1b\n' is unknown, wanted only pyannet, resnet34"),
    (put("key", "models", "pyannet", value="1"), "key.models.pyannet is '1', wanted a sha256 of 64 hexadecimal digits"),
    (
        drop("key", "models", "resnet34"),
        "entries[0].layer is 'resnet34.layer1.block', wanted a layer of the networks in key.models, or resnet34 there",
    ),
    (drop("key", "policy"), "key.policy is missing, wanted it"),
    (put("key", "cudnn", value=""), "key.cudnn is unknown, wanted only device, capability, "
     "multiprocessors, driver, cuda, numba_cuda, diarize, kernels, models, policy"),
    (put("entries", 0, "note", value=""), "entries[0].note is unknown, wanted only layer, batch, candidate, version, "
     "precision, parameters, median_us, samples_us, error, runner_up"),
    (drop("entries", 0, "error"), "entries[0].error is missing, wanted it"),
    (put("entries", 0, "layer", value="resnet34.layer9"), "entries[0].layer is 'resnet34.layer9', wanted a layer that "
     "diarize cuda candidates lists"),
    (put("entries", 0, "layer", value=[1]), "entries[0].layer is [1], wanted a layer that"),
    (put("entries", 0, "batch", value=0), "entries[0].batch is 0, wanted a whole number from 1 to 1000000"),
    (put("entries", 0, "batch", value=1.0), "entries[0].batch is 1.0, wanted a whole number from 1 to 1000000"),
    (put("entries", 1, "batch", value=1), "entries[1] is a second one for resnet34.layer1.block, batch 1"),
    (put("entries", 0, "candidate", value="fastest"), "entries[0].candidate is 'fastest', wanted one that "
     "diarize cuda candidates --layer resnet34.layer1.block lists"),
    (put("entries", 0, "candidate", value={}), "entries[0].candidate is {}, wanted one that"),
    (put("entries", 0, "version", value=7), "entries[0].version is 7, wanted 1 for resnet34.layer1.block block32_g3"),
    (put("entries", 0, "version", value=True), "entries[0].version is True, wanted 1 for"),
    (put("entries", 0, "precision", value="fp32"), "entries[0].precision is 'fp32', wanted 'fp16' for"),
    (put("entries", 0, "parameters", value={"groups": 2}), "entries[0].parameters is {'groups': 2}, wanted "
     "{\"groups\": 3} for resnet34.layer1.block block32_g3"),
    (put("entries", 0, "parameters", value={"groups": 3.0}), "entries[0].parameters is {'groups': 3.0}, wanted"),
    (put("entries", 0, "parameters", value=None), "entries[0].parameters is None, wanted"),
    (put("entries", 2, "parameters", "interleaved", value=1), "entries[2].parameters is"),
    (put("entries", 0, "median_us", value=0), "entries[0].median_us is 0, wanted a finite number above 0"),
    (put("entries", 0, "median_us", value=-1.5), "entries[0].median_us is -1.5, wanted a finite number above 0"),
    (put("entries", 0, "median_us", value=None), "entries[0].median_us is None, wanted a finite number above 0"),
    (put("entries", 0, "median_us", value=True), "entries[0].median_us is True, wanted a finite number above 0"),
    (put("entries", 0, "median_us", value=float("nan")), "entries[0].median_us is nan, wanted a finite number"),
    (put("entries", 0, "samples_us", value=[]), "entries[0].samples_us is [], wanted at least one sample"),
    (put("entries", 0, "samples_us", 1, value=0.0), "entries[0].samples_us[1] is 0.0, wanted a finite number above 0"),
    (put("entries", 0, "samples_us", value="x"), "entries[0].samples_us is a string, wanted a list"),
    (put("entries", 0, "error", value=-0.1), "entries[0].error is -0.1, wanted a number not below 0"),
    (put("entries", 0, "error", value="0"), "entries[0].error is '0', wanted a finite number"),
    (put("entries", 0, "runner_up", value=[]), "entries[0].runner_up is a list, wanted an object"),
    (put("entries", 0, "runner_up", "median_us", value=0), "entries[0].runner_up.median_us is 0, wanted a finite"),
    (drop("entries", 0, "runner_up", "version"), "entries[0].runner_up.version is missing, wanted it"),
    (put("key", "capability", value=[8, 0]), "entries[0].candidate is 'block32_g3', wanted one that runs on compute "
     "capability 8.0, this one needs 9.0"),
    (put("provenance", "validation", value={}), "provenance.validation is {}, wanted a list"),
    (put("provenance", "validation", value=[{**RECORD, "der_change": 0.2}]),
     "provenance.validation[0].der_change is 0.2, wanted at most the limit of 0.1 points"),
    (put("provenance", "validation", value=[{**RECORD, "against": "ears"}]),
     "provenance.validation[0].against is 'ears', wanted one of float32, reference"),
    (put("provenance", "validation", value=[{**RECORD, "seconds": 0}]),
     "provenance.validation[0].seconds is 0, wanted"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=[said[:50] for _, said in CHANGES])
def test_each_fault_is_refused_by_its_field(change: Callable[[Any], None], said: str) -> None:
    content = document()
    change(content)
    message = refused(content)
    assert message.startswith(said), message


@pytest.mark.parametrize("depth", [20, 100, 500, 5000])
def test_deep_nesting_is_refused(depth: int) -> None:
    data = to_text(GOOD).replace('"2026-11-30"', "[" * depth + "]" * depth).encode()
    assert "nested too deeply" in refused(data)


def test_a_default_must_not_claim_times() -> None:
    content = document(Recipe(DEFAULT, Key(capability=(9, 0)), {}, (Entry.of(candidate(*LSTM), 1),)))
    content["entries"][0]["median_us"] = 5.0
    assert refused(content) == "entries[0].median_us is 5.0, wanted null: a default is not measured"
    content["key"]["device"] = "NVIDIA H200"
    assert refused(content) == "key.device is unknown, wanted only capability"


def test_a_precision_without_evidence_needs_a_validation() -> None:
    names = (
        ("lstm_input0", "wgmma_fp16"),
        ("lstm_input", "wgmma_fp16"),
        ("lstm", "resident8_fp16"),
        ("dense", "pairs_fp16"),
    )
    entries = [entry(f"pyannet.{layer}", name) for layer, name in names]
    content = document(tuned(entries))
    assert refused(content) == (
        "entries[0].candidate is 'wgmma_fp16', wanted evidence for precision fp16 or a record in provenance.validation"
    )
    made = tuned(entries, validation=[RECORD])
    assert parse(to_text(made).encode(), "x") == made
    assert validations(made) == (Validation("a.wav", 60.0, 0.05, 0.1, "float32"),)


def test_activations_of_two_kinds_are_refused() -> None:
    content = document(tuned([entry("resnet34.conv1", "stem"), entry("resnet34.layer2.conv1", "tf32")]))
    assert refused(content) == (
        "activations of ResNet34 is half in resnet34.conv1 stem and float in resnet34.layer2.conv1 tf32, "
        "wanted the same in all layers"
    )


def test_lstm_precisions_of_two_kinds_are_refused() -> None:
    made = tuned([entry(*LSTM), entry("pyannet.dense", "pairs_fp16")], validation=[RECORD])
    assert refused(document(made)).startswith(
        "the LSTM stack is split in pyannet.lstm interleaved8or16_split and fp16 in"
    )


def test_every_candidate_with_evidence_can_be_written_and_read() -> None:
    for one in candidates():
        made = tuned([entry(one.layer, one.name)], validation=[RECORD])
        assert parse(to_text(made).encode(), "x") == made, one


NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=True), st.just(10**400))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5), st.just([])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(content: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of everything in a document."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(content, dict):
        items = list(content.items())
    elif isinstance(content, list):
        items = list(enumerate(content))
    return [path, *(place for name, item in items for place in places(item, (*path, name)))]


PLACES = [place for place in places(document()) if place]


def outcome(data: bytes) -> tuple[Recipe | None, str]:
    """What became of a file: the recipe, or the message with which it was refused."""
    try:
        return parse(data, "x"), ""
    except RecipeError as error:
        return None, str(error)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES, st.booleans()), min_size=1, max_size=3))
def test_no_change_of_a_document_does_anything_but_refuse_it(changes: list[tuple[Any, Any, bool]]) -> None:
    content = copy.deepcopy(document())
    for place, value, remove in changes:
        try:
            (drop(*place) if remove else put(*place, value=value))(content)
        except (KeyError, IndexError, TypeError):
            # An earlier change took the place away.
            continue
    made, message = outcome(json.dumps(content).encode())
    assert made is None or parse(to_text(made).encode(), "x") == made
    assert "\n" not in message
    assert len(message) < 400


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(to_text(GOOD))), st.integers(0, 8), st.binary(max_size=8))
def test_no_damage_to_the_bytes_does_anything_but_refuse_them(start: int, length: int, bytes_: bytes) -> None:
    data = to_text(GOOD).encode()
    made, message = outcome(data[:start] + bytes_ + data[start + length :])
    assert (made is None) == message.startswith("x: ")


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.binary(max_size=200), VALUES.map(lambda value: json.dumps(value).encode())))
def test_anything_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(RecipeError):
        parse(data, "x")


def test_the_key_of_a_file_is_that_which_was_written() -> None:
    assert parse(to_text(GOOD).encode(), "x").key == KEY
