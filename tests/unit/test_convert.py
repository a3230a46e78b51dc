"""Conversion: the bundled files from their sources, the original names, the sinc bank from its cut-offs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import least_squares
from tools.random_resnet34 import random_resnet34 as make_resnet34

from diarize.errors import ModelError
from diarize.model import bundle
from diarize.model.community import find_files, rename_resnet34, rename_segmentation, sinc_bank
from diarize.model.convert import SOURCES, convert_bundle, read_npz
from diarize.model.shapes import resnet34_shapes
from diarize.model.tensorfile import parse_tensors, tensor_bytes, write_atomically
from diarize.model.weights import load_segmentation

_resnet34 = cache(make_resnet34)


def random_resnet34(seed: int, prefix: str = "resnet.") -> dict[str, np.ndarray]:
    """Tensors that a test may change, made once."""
    return {name: tensor.copy() for name, tensor in _resnet34(seed, prefix).items()}


def original_segmentation() -> dict[str, np.ndarray]:
    """The bundled segmentation network under the original names, with cut-offs instead of filters."""
    names = {
        "wav_norm": "sincnet.wav_norm1d",
        "norm0": "sincnet.norm1d.0",
        "norm1": "sincnet.norm1d.1",
        "norm2": "sincnet.norm1d.2",
        "conv1": "sincnet.conv1d.1",
        "conv2": "sincnet.conv1d.2",
        "lin0": "linear.0",
        "lin1": "linear.1",
        "cls": "classifier",
    }
    tensors = {}
    for name, tensor in load_segmentation().items():
        layer, _, part = name.partition(".")
        if layer != "conv0":
            tensors[f"{names.get(layer, layer)}.{part}"] = tensor
    rng = np.random.default_rng(0)
    tensors["sincnet.conv1d.0.filterbank.low_hz_"] = rng.uniform(-3000, 3000, (40, 1)).astype(np.float32)
    tensors["sincnet.conv1d.0.filterbank.band_hz_"] = rng.uniform(-500, 500, (40, 1)).astype(np.float32)
    tensors["sincnet.conv1d.0.filterbank.window_"] = np.zeros((1, 125), np.float32)
    return tensors


def test_script_makes_the_committed_files(shared: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "diarize.model.convert", str(shared / "models"), str(tmp_path / "weights")]
    subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[2], timeout=60)
    written = sorted(path.name for path in (tmp_path / "weights").iterdir())
    assert written == sorted([*bundle.read_manifest(), "manifest.tsv"])
    for name in written:
        assert (tmp_path / "weights" / name).read_bytes() == (bundle.FOLDER / name).read_bytes(), name


def test_other_source_is_refused_before_anything_is_written(shared: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(shared / "models", source)
    name = "campplus-plda.npz"
    (source / name).chmod(0o644)
    (source / name).write_bytes((source / name).read_bytes() + b"\0")
    with pytest.raises(ModelError, match=f"{name} has sha256 .*, expected {SOURCES[name][:12]}"):
        convert_bundle(source, tmp_path / "weights")
    assert not (tmp_path / "weights").exists()


def test_missing_source_is_one_line_from_the_script(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "diarize.model.convert", str(tmp_path), str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=60)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "segmentation-3.0.safetensors cannot be read" in result.stderr


def test_sinc_filters_are_those_of_the_published_network() -> None:
    # Each published filter must be some pair of cut-offs put through the formula; the pair is found by least squares.
    published = load_segmentation()["conv0.weight"]

    def filters(cut_offs: np.ndarray, index: int) -> np.ndarray:
        low, band = np.full((2, 40, 1), 100.0)
        low[index], band[index] = cut_offs
        bank = sinc_bank(low, band)[:, 0]
        return np.concatenate([bank[index], bank[40 + index]])

    for index in (0, 7, 20, 39):
        target = np.concatenate([published[index, 0], published[40 + index, 0]])
        spectrum = np.abs(np.fft.rfft(published[index, 0], 16000))
        passed = np.flatnonzero(spectrum > spectrum.max() / 2)
        start = np.array([max(passed[0] - 50.0, 1.0), max(passed[-1] - passed[0] - 50.0, 1.0)])

        def error(cut_offs: np.ndarray, index: int = index, target: np.ndarray = target) -> np.ndarray:
            return filters(cut_offs, index) - target

        found = least_squares(error, start, diff_step=1e-3, x_scale=100.0)
        # Float32 rounding of phases up to 2 pi 8000 125 / 16000 = 393 in the original is 3e-5.
        assert np.abs(found.fun).max() < 2e-4, (index, found.x)


def test_sinc_filters_are_even_then_odd() -> None:
    bank = sinc_bank(np.linspace(0, 7000, 40)[:, None], np.full((40, 1), 200.0))
    assert bank.shape == (80, 1, 251)
    assert bank.dtype == np.float32
    assert np.array_equal(bank[:40], bank[:40, :, ::-1])
    assert np.array_equal(bank[40:], -bank[40:, :, ::-1])
    assert (bank[:40, 0, 125] == 1).all()
    # The upper cut-off ends at half of the sampling rate: the last filter passes 7050 to 7300 Hz, near its middle most.
    assert abs(np.abs(np.fft.rfft(bank[39, 0], 16000)).argmax() - 7175) < 100


def test_original_names_of_the_segmentation_network() -> None:
    original, ours = original_segmentation(), load_segmentation()
    renamed = rename_segmentation(original, "x.bin", "mend")
    assert list(renamed) == list(ours)
    for name, tensor in renamed.items():
        if name != "conv0.weight":
            assert np.array_equal(tensor, ours[name]), name
    prefix = "sincnet.conv1d.0.filterbank"
    assert np.array_equal(
        renamed["conv0.weight"], sinc_bank(original[f"{prefix}.low_hz_"], original[f"{prefix}.band_hz_"])
    )
    again = rename_segmentation(ours, "x.bin", "mend")
    assert all(np.array_equal(again[name], ours[name]) for name in ours)


def test_missing_cut_offs_are_named() -> None:
    original = original_segmentation()
    del original["sincnet.conv1d.0.filterbank.band_hz_"]
    with pytest.raises(ModelError, match=r"x\.bin: tensor sincnet\.conv1d\.0\.filterbank\.band_hz_ is missing"):
        rename_segmentation(original, "x.bin", "mend")


@pytest.mark.parametrize("prefix", ["resnet.", ""])
def test_both_layouts_of_the_resnet34(prefix: str) -> None:
    tensors = random_resnet34(0, prefix)
    # WeSpeaker's file also has the head that was trained to tell speakers apart.
    tensors["projection.weight"] = np.zeros((17982, 256), np.float32)
    renamed = rename_resnet34(tensors, "x.bin", "mend")
    assert list(renamed) == list(resnet34_shapes())
    assert all(np.array_equal(tensor, tensors[prefix + name]) for name, tensor in renamed.items())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layer2.0.shortcut.1.running_var", -1.0, "holds a negative variance -1.0"),
        ("layer4.2.conv2.weight", np.nan, "holds NaN or infinite values"),
        ("seg_1.bias", np.inf, "holds NaN or infinite values"),
    ],
)
def test_values_that_cannot_be_right_are_refused(name: str, value: float, message: str) -> None:
    tensors = random_resnet34(0)
    tensors[f"resnet.{name}"].flat[5] = value
    with pytest.raises(ModelError, match=f"x.bin: tensor {name} {message}; mend"):
        rename_resnet34(tensors, "x.bin", "mend")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "avg_model.pt", "pytorch_model.ckpt"])
@pytest.mark.parametrize("place", ["embedding", "."])
def test_usual_file_names_are_found(tmp_path: Path, name: str, place: str) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / name).write_bytes(b"")
    (tmp_path / "plda").mkdir()
    for plda in ("plda.npz", "xvec_transform.npz"):
        (tmp_path / "plda" / plda).write_bytes(b"")
    files = find_files(tmp_path)
    assert [file.part for file in files] == ["embedding", "plda", "plda"]
    assert files[0].path == tmp_path / place / name
    (tmp_path / "segmentation").mkdir()
    (tmp_path / "segmentation" / "pytorch_model.bin").write_bytes(b"")
    assert [file.part for file in find_files(tmp_path)] == ["embedding", "plda", "plda", "segmentation"]


def test_npz_with_objects_or_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ModelError, match=r"x\.npz is not a usable \.npz file of arrays"):
        read_npz(path.read_bytes(), "x.npz", "mend")
    np.savez(path, a=np.arange(1000))
    good = path.read_bytes()
    assert np.array_equal(read_npz(good, "x.npz", "mend")["a"], np.arange(1000))
    for damaged in (b"", b"text", good[:500], good[:-30], good[:600] + b"\xff" * 20 + good[620:]):
        with pytest.raises(ModelError, match=r"x\.npz is not a usable \.npz file of arrays .*; mend"):
            read_npz(damaged, "x.npz", "mend")


def test_tensor_files_have_equal_bytes_for_equal_tensors() -> None:
    tensors: dict[str, np.ndarray] = {"b": np.arange(6, dtype=np.float32).reshape(2, 3).T, "a": np.ones(2)}
    data = tensor_bytes(tensors, "note")
    assert data == tensor_bytes(dict(reversed(list(tensors.items()))), "note")
    parsed = parse_tensors(data, "x", "mend")
    assert all(np.array_equal(parsed[name], tensor) for name, tensor in tensors.items())


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ModelError, match=r"file cannot be written \(No space left on device\); free some space"):
        write_atomically(path, b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"old")]
