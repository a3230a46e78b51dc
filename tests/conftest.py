"""Shared fixtures: where the test material lies, and what is skipped without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shared_folder() -> Path:
    """Folder of recordings, captures and weights used by tests only: DIARIZE_SHARED, else beside the checkout."""
    return Path(os.environ.get("DIARIZE_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The test-material folder; the test is skipped where it is absent."""
    folder = shared_folder()
    if not (folder / "fixtures").is_dir():
        pytest.skip(f"test material not found at {folder}; set DIARIZE_SHARED")
    return folder
