"""The user's folders: by variables, by the home folder, and for users who have none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recipe_support import H200, KEY

from diarize.model.registry import cache_folder
from diarize.recipe import tune_path
from diarize.recipe_lookup import look_up
from diarize.user_folders import cache_home, config_home, expanded


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python sees without HOME and without a line in /etc/passwd."""
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "DIARIZE_CACHE", "DIARIZE_TUNE_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", os.fspath)


def test_without_a_home_folder_nothing_fails(homeless: None) -> None:
    assert cache_folder() == Path("/nonexistent/.cache/diarize")
    assert tune_path(H200) == Path("/nonexistent/.config/diarize/nvidia-h200-sm90-132.json")
    assert expanded("~/x") == Path("~/x")


def test_an_unknown_user_is_a_plain_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIARIZE_TUNE_FILE", "~no-such-user/a.json")
    assert tune_path(H200) == Path("~no-such-user/a.json")


@pytest.mark.parametrize("value", ["", "relative", "./relative"])
def test_variables_without_an_absolute_path_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("XDG_CONFIG_HOME", value)
    assert cache_home() == tmp_path / ".cache"
    assert config_home() == tmp_path / ".config"


def test_variables_decide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/a")
    monkeypatch.setenv("XDG_CONFIG_HOME", "~/b")
    assert (cache_home(), config_home()) == (Path("/a"), tmp_path / "b")


def test_a_tune_file_that_cannot_be_looked_at_is_absent(tmp_path: Path) -> None:
    found = look_up(KEY, ("fbank",), tune_file=tmp_path / ("x" * 300))
    assert (found.refused, found.warnings) == ("", ())
