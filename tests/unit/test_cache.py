"""Compiled code finds a place even where neither the package's folder nor the user's can be written."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest
from numba import config

from diarize import cache


@pytest.fixture
def nothing_writable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(cache, "_writable", lambda folder: False)
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_of_this_user_serves(nothing_writable: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        cache.ensure_cache_folder(Path(__file__).parent)
    chosen = Path(config.CACHE_DIR)
    assert chosen.parent == nothing_writable
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o700
    assert "NUMBA_CACHE_DIR" in caplog.text


def test_a_folder_that_others_may_write_is_not_trusted(nothing_writable: Path) -> None:
    cache.ensure_cache_folder(Path(__file__).parent)
    planted = Path(config.CACHE_DIR)
    planted.chmod(0o777)
    config.CACHE_DIR = ""
    cache.ensure_cache_folder(Path(__file__).parent)
    assert Path(config.CACHE_DIR) != planted
    assert stat.S_IMODE(Path(config.CACHE_DIR).stat().st_mode) == 0o700


def test_nothing_changes_where_the_package_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    cache.ensure_cache_folder(tmp_path)
    assert config.CACHE_DIR == ""


def test_the_choice_of_the_user_stands(monkeypatch: pytest.MonkeyPatch, nothing_writable: Path) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "/chosen")
    cache.ensure_cache_folder(Path(__file__).parent)
    assert config.CACHE_DIR == "/chosen"


def test_what_can_be_written(tmp_path: Path) -> None:
    assert cache._writable(tmp_path / "not" / "yet")
    assert not cache._writable(Path("/proc/nowhere"))
