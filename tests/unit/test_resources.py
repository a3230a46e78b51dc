"""What ships with the package: found from a checkout, complete in a wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import soundfile

from diarize import DatasetError, RecipeError, __version__, resources

ROOT = Path(__file__).resolve().parents[2]
MAPPED = {"cli", "recipes", "datasets"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A copy of the tree, so that no build folder is left in it, and the names of the files in a wheel built there."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    for name in ("diarize", *MAPPED):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return source, zipfile.ZipFile(built).namelist()


@pytest.mark.parametrize("name", ["recipes", "datasets"])
def test_data_dir_finds_the_folders_of_the_checkout(name: str) -> None:
    assert (resources.data_dir(name) / "README.md").is_file()


@pytest.mark.parametrize(("name", "error"), [("recipes", RecipeError), ("datasets", DatasetError)])
def test_data_dir_names_the_places_it_looked_in(
    name: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "__file__", str(tmp_path / "diarize" / "resources.py"))
    with pytest.raises(error, match=re.escape(str(tmp_path / "diarize" / name))):
        resources.data_dir(name)


def test_data_dir_prefers_the_folder_inside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "diarize" / "recipes").mkdir(parents=True)
    (tmp_path / "recipes").mkdir()
    monkeypatch.setattr(resources, "__file__", str(tmp_path / "diarize" / "resources.py"))
    assert resources.data_dir("recipes") == tmp_path / "diarize" / "recipes"


def test_the_demo_recording_is_as_its_reference_says() -> None:
    path = resources.demo_recording()
    info = soundfile.info(path)
    assert (info.samplerate, info.channels) == (16_000, 1)
    _, _, start, end = path.with_suffix(".uem").read_text().split()
    assert (float(start), float(end)) == (0.0, pytest.approx(info.duration, abs=1e-3))
    turns = [line.split() for line in path.with_suffix(".rttm").read_text().splitlines()]
    assert len(turns) == 10
    assert {turn[7] for turn in turns} == {"slt", "rms", "awb"}
    assert all(float(turn[3]) + float(turn[4]) <= info.duration for turn in turns)


def test_data_folders_hold_no_python() -> None:
    assert [path for name in ("recipes", "datasets") for path in (ROOT / name).rglob("*.py")] == []


def test_the_wheel_holds_the_package_and_its_data(wheel: tuple[Path, list[str]]) -> None:
    source, names = wheel
    # Building leaves its own folders beside these.
    shipped = {
        path.relative_to(source).as_posix()
        for folder in ("diarize", *MAPPED)
        for path in (source / folder).rglob("*")
        if path.is_file()
    }
    expected = {name if name.startswith("diarize/") else f"diarize/{name}" for name in shipped}
    assert {name for name in names if not name.startswith("diarize_cuda-")} == expected


def test_the_wheel_holds_the_licences_and_the_command(wheel: tuple[Path, list[str]]) -> None:
    info = f"diarize_cuda-{__version__}.dist-info"
    assert f"{info}/entry_points.txt" in wheel[1]
    for name in ("LICENSE", "NOTICE", "diarize/weights/LICENSE-campplus.txt"):
        assert f"{info}/licenses/{name}" in wheel[1]
