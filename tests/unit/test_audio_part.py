"""Parts of recordings: the same samples as cutting the whole, in every format, and only they are decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from diarize.audio import check_part, collect, open_audio
from diarize.errors import AudioError, OptionError

RATE = 16_000
SECONDS = 25


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    """25 s of noise that no codec of integers changes."""
    noise = np.random.default_rng(0).integers(-9_000, 9_000, SECONDS * RATE)
    return (noise / 32_768).astype(np.float32)


@pytest.mark.parametrize(
    ("suffix", "coding"), [("wav", "PCM_16"), ("flac", "PCM_16"), ("wav", "FLOAT"), ("w64", "PCM_24")]
)
@pytest.mark.parametrize(("start", "end"), [(0.0, 7.25), (3.5, None), (12.001, 20.0), (0.0, 100.0)])
def test_a_part_is_a_cut_of_the_whole(
    samples: np.ndarray, tmp_path: Path, suffix: str, coding: str, start: float, end: float | None
) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, samples, RATE, coding)
    with open_audio(path, start=start, end=end) as reader:
        promised = reader.expected_samples
        part = collect(reader).samples
    stop = len(samples) if end is None else min(len(samples), round(end * RATE))
    np.testing.assert_array_equal(part, samples[round(start * RATE) : stop])
    assert promised == len(part)
    assert reader.offset == start
    assert reader.warnings == ()


def test_formats_that_cannot_seek_exactly_are_cut_exactly_too(samples: np.ndarray, tmp_path: Path) -> None:
    for suffix, coding in (("ogg", "VORBIS"), ("mp3", "MPEG_LAYER_III")):
        path = tmp_path / f"a.{suffix}"
        soundfile.write(path, samples, RATE, coding)
        whole = collect(open_audio(path)).samples
        part = collect(open_audio(path, start=10.0, end=12.5)).samples
        np.testing.assert_array_equal(part, whole[10 * RATE : round(12.5 * RATE)])


def test_wrong_header_sizes_still_allow_parts(samples: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "streamed.wav"
    soundfile.write(path, samples, RATE, "PCM_16")
    content = bytearray(path.read_bytes())
    content[4:8] = content[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    np.testing.assert_array_equal(collect(open_audio(path, start=20.0)).samples, samples[20 * RATE :])


def test_arrays_and_channels(samples: np.ndarray) -> None:
    both = np.stack([samples, -samples], axis=1)
    part = collect(open_audio(both, 2, sample_rate=RATE, start=1.0, end=2.0)).samples
    np.testing.assert_array_equal(part, -samples[RATE : 2 * RATE])


def test_only_the_part_is_decoded(samples: np.ndarray, tmp_path: Path) -> None:
    # Damage, here a number that is none, hurts only who reads it.
    broken = samples.copy()
    broken[5 * RATE] = np.nan
    soundfile.write(tmp_path / "a.wav", broken, RATE, "FLOAT")
    for start, end in ((0.0, 5.0), (5.001, None)):
        assert len(collect(open_audio(tmp_path / "a.wav", start=start, end=end)).samples) > 4 * RATE
    with pytest.raises(AudioError, match=r"the sample at 5\.000 s is nan"):
        collect(open_audio(tmp_path / "a.wav", start=4.0))


@pytest.mark.parametrize("suffix", ["wav", "mp3"])
def test_a_start_beyond_the_end_is_one_line(samples: np.ndarray, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, samples, RATE)
    with pytest.raises(AudioError, match=r"a\.\w+: start is 30 s; the recording ends before"):
        collect(open_audio(path, start=30.0))


def test_resampling_starts_at_the_part(samples: np.ndarray, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", samples, 48_000, "PCM_16")
    part = collect(open_audio(tmp_path / "a.wav", start=2.0, end=5.0))
    assert len(part.samples) == 3 * RATE
    assert part.sample_rate == 48_000


@pytest.mark.parametrize(
    ("start", "end"),
    [(-1.0, None), (float("nan"), None), (float("inf"), None), (5.0, 5.0), (5.0, 1.0), (0, float("nan"))],
)
def test_bounds_that_make_no_part_are_refused(start: float, end: float | None) -> None:
    with pytest.raises(OptionError, match="it must be a number of seconds"):
        check_part(start, end)


@pytest.mark.parametrize("start", [SECONDS, SECONDS + 70])
def test_a_flac_that_ends_before_the_part(samples: np.ndarray, tmp_path: Path, start: int) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, samples, RATE)
    with pytest.raises(AudioError, match=f"start is {start} s; the recording ends before"):
        collect(open_audio(path, start=float(start)))


def test_a_part_behind_damage(samples: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, samples, RATE)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 3000] = bytes(3000)
    path.write_bytes(content)
    whole = collect(open_audio(path)).samples
    for start in np.arange(12.0, 13.2, 0.1):
        part = collect(open_audio(path, start=float(start))).samples
        np.testing.assert_array_equal(part, whole[round(start * RATE) :])
