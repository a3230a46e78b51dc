"""The same bytes: twice, with one thread or two, and for a recording alone or among others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from diarize import resources

from .conftest import RATE, Finished


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 s of the dialogue: enough windows for several threads to share."""
    samples, _ = soundfile.read(resources.demo_recording(), frames=24 * RATE)
    path = tmp_path_factory.mktemp("longer") / "longer.wav"
    soundfile.write(path, samples, RATE, "PCM_16")
    return path


def result(cli: Callable[..., Finished], *arguments: object) -> list[dict[str, object]]:
    """The JSON documents of a call, without the timings."""
    done = cli("run", *arguments, "--format", "json", "-q")
    assert done.code == 0
    found = []
    decoder, text = json.JSONDecoder(), done.out
    while text.strip():
        document, end = decoder.raw_decode(text)
        assert document.pop("timings")
        found.append(document)
        text = text[end:].lstrip()
    return found


def test_same_result_whatever_the_threads(cli: Callable[..., Finished], longer: Path) -> None:
    one = result(cli, longer, "--threads", "1")
    assert one[0]["turns"]
    assert result(cli, longer, "--threads", "1") == one
    assert result(cli, longer, "--threads", "2") == one


def test_same_result_alone_and_among_others(
    cli: Callable[..., Finished], longer: Path, cut: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.wav"
    shutil.copy(longer, other)
    alone = [result(cli, path)[0] for path in (cut, longer)]
    assert result(cli, longer, cut, other)[:2] == [alone[1], alone[0]]
