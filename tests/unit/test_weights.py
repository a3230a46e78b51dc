"""Weights: what is bundled, what a model folder holds, and what a damaged file says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tools.random_resnet34 import random_resnet34, write_model_folder

from diarize.errors import ModelError
from diarize.model import bundle, folder, registry, weights
from diarize.model.shapes import (
    campplus_plda_shapes,
    campplus_shapes,
    community_plda_shapes,
    resnet34_shapes,
    segmentation_shapes,
    select,
)
from diarize.model.weights import EmbeddingNetwork, load_model


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the bundled folder that may be damaged, used in its place."""
    target = tmp_path / "weights"
    shutil.copytree(bundle.FOLDER, target)
    monkeypatch.setattr(bundle, "FOLDER", target)
    for function in (bundle.read_manifest, bundle.verify_bundled):
        monkeypatch.setattr(function, "__defaults__", (target,))
    monkeypatch.setattr(bundle.read_bundled, "__defaults__", (target,))
    return target


@pytest.fixture(scope="module")
def random_folder(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model") / "random", shared / "models" / "plda")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIARIZE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_bundled_networks_have_their_tensors() -> None:
    segmentation, campplus = weights.load_segmentation(), weights.load_campplus()
    assert {name: tensor.shape for name, tensor in segmentation.items()} == segmentation_shapes()
    assert {name: tensor.shape for name, tensor in campplus.items()} == campplus_shapes()
    assert len(segmentation) == 51
    assert len(campplus) == 815
    for tensor in (*segmentation.values(), *campplus.values()):
        assert tensor.dtype == np.float32
        assert tensor.flags.c_contiguous
        assert np.isfinite(tensor).all()


def test_bundled_plda_is_double_and_ordered() -> None:
    plda = weights.load_campplus_plda()
    assert {name: tensor.shape for name, tensor in plda.items()} == campplus_plda_shapes()
    assert {tensor.dtype for tensor in plda.values()} == {np.dtype(np.float64)}
    assert (np.diff(plda["phi"]) <= 0).all()


def test_bundled_values_are_those_of_the_sources(shared: Path) -> None:
    from safetensors.numpy import load_file

    source = load_file(shared / "models" / "segmentation-3.0.safetensors")
    assert all(np.array_equal(source[name], tensor) for name, tensor in weights.load_segmentation().items())
    source = load_file(shared / "models" / "campplus-zh-en-common-advanced.fp16.safetensors")
    assert all(np.array_equal(source[name], tensor) for name, tensor in weights.load_campplus().items())
    with np.load(shared / "models" / "campplus-plda.npz") as arrays:
        assert all(np.array_equal(arrays[name], tensor) for name, tensor in weights.load_campplus_plda().items())


def test_every_bundled_file_has_its_licence_text() -> None:
    for name in weights.BUNDLED_FILES:
        assert (bundle.FOLDER / f"LICENSE-{Path(name).stem}.txt").stat().st_size > 300
        assert bundle.verify_bundled(name).licence


def test_manifest_lists_every_data_file() -> None:
    files = {path.name for path in bundle.FOLDER.iterdir() if not path.name.startswith(("LICENSE", "__"))}
    assert set(bundle.read_manifest()) == files - {"manifest.tsv"}


def test_default_model_is_complete() -> None:
    model = load_model("campplus")
    assert model.name == "campplus"
    assert model.network is EmbeddingNetwork.CAMPPLUS
    assert len(model.checksum) == 64
    assert [sentence.split(": ")[1].split(",")[0] for sentence in model.licences] == ["MIT", "Apache-2.0", "Apache-2.0"]


def test_one_flipped_byte_is_found(copy: Path) -> None:
    path = copy / "campplus.safetensors"
    data = bytearray(path.read_bytes())
    data[9_000_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"weights/campplus\.safetensors is damaged: sha256 .*; install the package"):
        weights.load_campplus()
    with pytest.raises(ModelError, match=r"campplus\.safetensors is damaged"):
        registry.verify("campplus")
    assert weights.load_segmentation()


def test_missing_file_and_damaged_manifest_are_named(copy: Path) -> None:
    (copy / "segmentation-3.0.safetensors").unlink()
    with pytest.raises(ModelError, match=r"segmentation-3\.0\.safetensors cannot be read \(No such file"):
        weights.load_segmentation()
    (copy / "manifest.tsv").write_text("file\tsha256\nsegmentation-3.0.safetensors\n")
    with pytest.raises(ModelError, match=r"manifest\.tsv cannot be read"):
        weights.load_segmentation()


def test_select_names_the_tensor_that_does_not_fit() -> None:
    shapes = {"a": (2, 3), "b": (4,)}
    good = {"b": np.zeros(4), "extra": np.zeros(1), "a": np.zeros((2, 3))}
    assert list(select(good, shapes, "x.bin", "mend")) == ["a", "b"]
    with pytest.raises(ModelError, match=r"x\.bin: tensor b has shape \(5,\), expected \(4,\); mend"):
        select(good | {"b": np.zeros(5)}, shapes, "x.bin", "mend")
    with pytest.raises(ModelError, match=r"x\.bin: tensor a is missing, 1 others are there; mend"):
        select({"b": np.zeros(4)}, shapes, "x.bin", "mend")
    with pytest.raises(ModelError, match=r"x\.bin: tensor b is of type int64, expected floating point"):
        select(good | {"b": np.zeros(4, np.int64)}, shapes, "x.bin", "mend")


def test_checksum_depends_on_every_part_and_not_on_order() -> None:
    first = weights.combined_checksum({"a": "1", "b": "2"})
    assert first == weights.combined_checksum({"b": "2", "a": "1"})
    assert first != weights.combined_checksum({"a": "1", "b": "3"})
    assert first != weights.combined_checksum({"a": "2", "b": "1"})


def test_model_folder_comes_back_as_written(random_folder: Path, shared: Path) -> None:
    model = load_model(random_folder)
    assert model.name == "random"
    assert model.network is EmbeddingNetwork.RESNET34
    expected = random_resnet34(0, prefix="")
    assert {name: tensor.shape for name, tensor in model.embedding.items()} == resnet34_shapes()
    assert all(np.array_equal(expected[name], tensor) for name, tensor in model.embedding.items())
    assert {name: tensor.shape for name, tensor in model.plda.items()} == community_plda_shapes()
    assert {tensor.dtype for tensor in model.plda.values()} == {np.dtype(np.float64)}
    bundled = weights.load_segmentation()
    assert all(np.array_equal(bundled[name], tensor) for name, tensor in model.segmentation.items())
    assert model.licences[0].startswith("segmentation-3.0.safetensors: MIT")


def test_folder_may_bring_its_segmentation(random_folder: Path, tmp_path: Path) -> None:
    model = load_model(random_folder)
    own = {name: tensor + 1 for name, tensor in model.segmentation.items()}
    target = tmp_path / "own"
    folder.write_folder(target, model.network, model.embedding, model.plda, own, [], ["all: CC0"])
    again = load_model(target)
    assert np.array_equal(again.segmentation["cls.bias"], own["cls.bias"])
    assert again.checksum != model.checksum
    assert again.licences == ("all: CC0",)


def test_folder_with_campplus_is_accepted(tmp_path: Path) -> None:
    model = load_model("campplus")
    folder.write_folder(tmp_path / "mine", model.network, model.embedding, model.plda, None, [], [])
    again = load_model(str(tmp_path / "mine"))
    assert again.network is EmbeddingNetwork.CAMPPLUS
    assert all(np.array_equal(again.embedding[name], tensor) for name, tensor in model.embedding.items())


def test_wrong_tensors_are_not_written(random_folder: Path, tmp_path: Path) -> None:
    model = load_model(random_folder)
    embedding = dict(model.embedding) | {"seg_1.bias": np.zeros(192, np.float32)}
    with pytest.raises(ModelError, match=r"tensor seg_1\.bias has shape \(192,\), expected \(256,\)"):
        folder.write_folder(tmp_path / "bad", model.network, embedding, model.plda, None, [], [])
    assert not (tmp_path / "bad").exists()


def damage_weights(path: Path) -> None:
    file = path / folder.WEIGHTS_FILE
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def damage_schema(path: Path) -> None:
    file = path / folder.DESCRIPTION_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": 2}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_weights, r"weights\.safetensors is damaged: sha256"),
        (damage_schema, r"model\.json has schema 2, this version reads 1"),
        (lambda path: (path / folder.WEIGHTS_FILE).unlink(), r"weights\.safetensors cannot be read"),
        (lambda path: (path / folder.DESCRIPTION_FILE).unlink(), r"model\.json cannot be read"),
        (lambda path: (path / folder.DESCRIPTION_FILE).write_text("{"), r"model\.json is damaged"),
        (lambda path: (path / folder.DESCRIPTION_FILE).write_text("[1]"), r"model\.json is damaged"),
        (lambda path: (path / folder.DESCRIPTION_FILE).write_bytes(b"\xff\xfe"), r"model\.json is damaged"),
    ],
)
def test_damaged_folder_is_one_line(random_folder: Path, tmp_path: Path, damage: object, message: str) -> None:
    target = tmp_path / "copy"
    shutil.copytree(random_folder, target)
    assert callable(damage)
    damage(target)
    with pytest.raises(ModelError, match=f"{message}.*give a folder written by: diarize models pull") as caught:
        load_model(target)
    assert "\n" not in str(caught.value)


def test_folder_whose_weights_are_no_tensors(random_folder: Path, tmp_path: Path) -> None:
    import hashlib

    target = tmp_path / "copy"
    shutil.copytree(random_folder, target)
    (target / folder.WEIGHTS_FILE).write_bytes(b"nothing of use")
    description = json.loads((target / folder.DESCRIPTION_FILE).read_text())
    description["sha256"] = hashlib.sha256(b"nothing of use").hexdigest()
    (target / folder.DESCRIPTION_FILE).write_text(json.dumps(description))
    with pytest.raises(ModelError, match=r"weights\.safetensors is not a usable safetensors file"):
        load_model(target)


def test_auto_prefers_the_installed_model(cache: Path, random_folder: Path) -> None:
    assert registry.resolve("auto") == "campplus"
    assert not registry.installed("community-1")
    with pytest.raises(ModelError, match=r"community-1 is not installed in .*run: diarize models pull community-1"):
        load_model("community-1")
    shutil.copytree(random_folder, cache / "models" / "community-1")
    assert registry.resolve("auto") == "community-1"
    model = load_model("auto")
    assert model.name == "community-1"
    assert registry.state("community-1").checksum == model.checksum
    damage_weights(cache / "models" / "community-1")
    # A damaged model is never silently replaced by another.
    with pytest.raises(ModelError, match=r"damaged: .*run: diarize models pull community-1"):
        load_model("auto")


def test_unknown_models_are_one_line(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'comunity' is neither auto, campplus, community-1 nor a folder"):
        load_model("comunity")
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(ModelError, match=r"model\.bin' is a file; give a folder"):
        load_model(tmp_path / "model.bin")
    with pytest.raises(ModelError, match="model 'x' is unknown; known are campplus, community-1"):
        registry.model_folder("x")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DIARIZE_CACHE", str(tmp_path))
    assert registry.cache_folder() == tmp_path
    monkeypatch.delenv("DIARIZE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert registry.cache_folder() == tmp_path / "xdg" / "diarize"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert registry.cache_folder() == tmp_path / "home" / ".cache" / "diarize"


def test_random_network_is_seeded_and_has_the_layout() -> None:
    first, again, other = random_resnet34(3), random_resnet34(3), random_resnet34(4)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["resnet.conv1.weight"], other["resnet.conv1.weight"])
    shapes = {f"resnet.{name}": shape for name, shape in resnet34_shapes().items()}
    counters = {name for name in first if name.endswith("num_batches_tracked")}
    assert {name: tensor.shape for name, tensor in first.items() if name not in counters} == shapes
    assert len(counters) == 36
    assert np.linalg.norm(first["resnet.seg_1.bias"]) == pytest.approx(3.0, rel=1e-6)
