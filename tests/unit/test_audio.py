"""Recordings of every common kind become the right mono 16 kHz samples; bad ones one clear line."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from diarize.audio import AudioReader, collect, from_array, load, open_audio
from diarize.errors import AudioError

RATE = 16_000


def noise(seconds: float, rate: int = RATE, channels: int = 1, seed: int = 0) -> np.ndarray:
    """(num_samples, channels) int16 noise."""
    generator = np.random.default_rng(seed)
    return (generator.standard_normal((round(seconds * rate), channels)) * 3000).astype(np.int16)


def write(path: Path, samples: np.ndarray, rate: int = RATE, **kind: str) -> Path:
    """Write a sound file and give its path back."""
    soundfile.write(path, samples, rate, **kind)
    return path


def message(path: str | Path, channel: int | None = None) -> str:
    """The one-line message of the error that loading ends with."""
    with pytest.raises(AudioError) as caught:
        load(path, channel)
    text = str(caught.value)
    assert "\n" not in text
    return text


# Good input


def test_16_khz_mono_passes_unchanged(tmp_path):
    samples = noise(25.3)
    reader = open_audio(write(tmp_path / "a.wav", samples))
    with reader:
        blocks = list(reader)
    result = np.concatenate(blocks)
    assert len(blocks) > 1
    assert result.dtype == np.float32
    assert np.array_equal(result, samples[:, 0] / np.float32(32768))
    assert (reader.num_samples, reader.duration, reader.warnings) == (len(samples), 25.3, ())
    assert (reader.sample_rate, reader.channels, reader.expected_samples) == (RATE, 1, len(samples))


def test_blocks_stay_valid_after_the_next_one_is_read(tmp_path):
    samples = noise(31)
    with open_audio(write(tmp_path / "a.wav", samples)) as reader:
        blocks = list(reader)
    assert np.array_equal(np.concatenate(blocks), samples[:, 0] / np.float32(32768))


@pytest.mark.parametrize(
    ("name", "kind", "error"),
    [
        ("a.wav", {"subtype": "PCM_U8"}, 1 / 128),
        ("a.wav", {"subtype": "PCM_24"}, 0),
        ("a.wav", {"subtype": "PCM_32"}, 0),
        ("a.wav", {"subtype": "FLOAT"}, 0),
        ("a.wav", {"subtype": "DOUBLE"}, 0),
        ("a.wav", {"subtype": "ULAW"}, 0.02),
        ("a.wav", {"subtype": "ALAW"}, 0.02),
        ("a.wav", {"subtype": "IMA_ADPCM"}, 0.5),
        ("a.wav", {"format": "RF64"}, 0),
        ("a.wav", {"format": "WAVEX"}, 0),
        ("a.wav", {"format": "WAV", "endian": "BIG"}, 0),
        ("a.w64", {}, 0),
        ("a.aiff", {}, 0),
        ("a.au", {}, 0),
        ("a.caf", {}, 0),
        ("a.sph", {"format": "NIST"}, 0),
        ("a.flac", {}, 0),
        ("a.flac", {"subtype": "PCM_24"}, 0),
    ],
)
def test_formats_of_libsndfile(tmp_path, name, kind, error):
    samples = noise(2.5) / np.float32(32768)
    result = load(write(tmp_path / name, samples, **kind))
    expected = samples[:, 0]
    # ADPCM fills its last block.
    assert len(expected) <= len(result.samples) < len(expected) + 1024
    assert np.abs(result.samples[: len(expected)] - expected).max() <= error
    assert result.warnings == ()


@pytest.mark.parametrize("rate", [8_000, 11_025, 12_345, 22_050, 44_100, 48_000, 96_000])
def test_any_rate_equals_resampling_in_one_piece(tmp_path, rate):
    samples = noise(21.01, rate)
    result = load(write(tmp_path / "a.wav", samples, rate))
    expected = soxr.resample(samples[:, 0] / np.float32(32768), rate, RATE, quality="HQ")
    assert len(result.samples) == len(expected)
    assert abs(len(expected) - len(samples) * RATE / rate) <= 0.5
    assert np.abs(result.samples - expected).max() <= 1e-6
    assert result.sample_rate == rate


def test_a_tone_survives_resampling(tmp_path):
    seconds = np.arange(5 * 44_100) / 44_100
    tone = (0.5 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32)
    result = load(write(tmp_path / "a.wav", tone, 44_100, subtype="FLOAT")).samples
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(5 * RATE) / RATE)
    # Away from the ends, where the filter sees silence outside of the tone; soxr HQ is good to 20 bits.
    assert np.abs(result - expected)[1000:-1000].max() < 1e-5


def test_channels_are_averaged_or_chosen(tmp_path):
    samples = noise(3, channels=8)
    path = write(tmp_path / "a.wav", samples)
    scaled = samples / np.float32(32768)
    assert np.abs(load(path).samples - scaled.astype(np.float64).mean(axis=1)).max() < 1e-6
    for channel in (1, 2, 8):
        assert np.array_equal(load(path, channel).samples, scaled[:, channel - 1])
    assert load(path).channels == 8


@pytest.mark.parametrize("channel", [0, -1, 3])
def test_a_channel_that_is_not_there(tmp_path, channel):
    text = message(write(tmp_path / "a.wav", noise(1, channels=2)), channel)
    assert f"channel {channel} was asked for; the recording has 2, counted from 1" in text


@pytest.mark.parametrize(
    "name", ["with space and Ünïcödé 日本語.wav", "100%.wav", "-x.wav", "a'b\"c.wav", "new\nline.wav"]
)
def test_odd_names(tmp_path, name):
    assert load(write(tmp_path / name, noise(0.5))).duration == 0.5


def test_a_name_that_is_not_utf_8(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.wav"
    try:
        os.rename(write(tmp_path / "a.wav", noise(0.5)), path)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert load(os.fsdecode(path)).duration == 0.5
    Path(os.fsdecode(path)).write_bytes(b"\x80" * 50)
    assert "caf\\udce9.wav" in message(os.fsdecode(path))


@pytest.mark.parametrize("number", [1, 100, 270, 159_999, 160_000, 160_001])
def test_lengths_around_blocks(tmp_path, number):
    assert len(load(write(tmp_path / "a.wav", noise(11)[:number])).samples) == number


def test_no_samples_is_no_error(tmp_path):
    for name in ("a.wav", "a.aiff", "a.w64"):
        result = load(write(tmp_path / name, np.zeros(0, np.int16)))
        assert len(result.samples) == 0
        assert result.warnings == ("the recording holds no samples",)


def test_silence_is_reported(tmp_path):
    result = load(write(tmp_path / "a.wav", np.zeros(RATE, np.int16), 8_000))
    assert len(result.samples) == 2 * RATE
    assert not result.samples.any()
    assert result.warnings == ("the recording is silent: every sample is zero",)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.mp3", {}), ("a.ogg", {}), ("a.opus", {"format": "OGG", "subtype": "OPUS"}), ("a.flac", {})],
)
@pytest.mark.parametrize("rate", [16_000, 48_000])
def test_a_click_stays_where_it_was(tmp_path, name, kind, rate):
    samples = np.zeros(rate * 4, np.float32)
    burst = np.arange(rate // 50)
    samples[2 * rate : 2 * rate + len(burst)] = 0.8 * np.sin(2 * np.pi * 1000 * burst / rate)
    result = load(write(tmp_path / name, samples, rate, **kind)).samples
    onset = np.argmax(np.abs(result) > 0.25 * np.abs(result).max()) / RATE
    assert abs(onset - 2) < 0.03
    assert abs(len(result) / RATE - 4) < 0.03


def test_arrays():
    samples = noise(2, 44_100, 2)
    scaled = samples / np.float32(32768)
    expected = soxr.resample(scaled[:, 1], 44_100, RATE, quality="HQ")
    for array in (
        samples,
        samples.astype(np.int32) << 16,
        scaled,
        scaled.astype(np.float64),
        np.asfortranarray(scaled),
    ):
        result = collect(from_array(array, 44_100, channel=2))
        assert np.array_equal(result.samples, expected)
    assert np.array_equal(collect(open_audio(scaled[:, 0], sample_rate=RATE)).samples, scaled[:, 0])
    assert len(collect(from_array(np.zeros(0, np.float32), RATE)).samples) == 0


@pytest.mark.parametrize(
    ("array", "rate", "text"),
    [
        (np.zeros(10, np.uint8), RATE, "dtype is uint8"),
        (np.zeros(10, complex), RATE, "dtype is complex128"),
        (np.zeros((2, 3, 4), np.float32), RATE, r"shape is \(2, 3, 4\)"),
        (np.zeros((2, 1000), np.float32), RATE, "transposed"),
        (np.zeros((5, 0), np.float32), RATE, "transposed"),
        (np.zeros(10, np.float32), 0, "sample_rate is 0 Hz"),
        (np.zeros(10, np.float32), None, "sample_rate is missing"),
    ],
)
def test_arrays_that_are_refused(array, rate, text):
    with pytest.raises(AudioError, match=text):
        open_audio(array, sample_rate=rate)


def test_a_rate_for_a_file_is_refused(tmp_path):
    with pytest.raises(AudioError, match="files state their own"):
        open_audio(write(tmp_path / "a.wav", noise(1)), sample_rate=RATE)


def test_reading_twice_is_refused():
    reader: AudioReader = from_array(np.ones(10, np.float32), RATE)
    assert len(list(reader)) == 1
    with pytest.raises(AudioError, match="was read already"):
        list(reader)


def test_memory_does_not_grow_with_the_length(tmp_path):
    path = tmp_path / "long.wav"
    data_bytes = 5 * 60 * 44_100 * 4
    header = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + data_bytes, b"WAVE", b"fmt ", 16, 1, 2, 44_100,
                         44_100 * 4, 4, 16, b"data", data_bytes)  # fmt: skip
    path.write_bytes(header)
    os.truncate(path, len(header) + data_bytes)
    tracemalloc.start()
    try:
        with open_audio(path) as reader:
            for _ in reader:
                pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reader.duration == 5 * 60
    # A few blocks of 10 s at 44.1 kHz, 1.8 MB each; the whole would be 19 MB.
    assert peak < 15e6


def test_floats_far_beyond_full_scale_are_reported(tmp_path):
    result = load(write(tmp_path / "a.wav", noise(1).astype(np.float32), subtype="FLOAT"))
    (warning,) = result.warnings
    assert "full scale is 1.0" in warning


# Bad input


def test_no_file(tmp_path):
    assert message(tmp_path / "none.wav") == f"{tmp_path}/none.wav: no such file; check the path"


def test_empty_path():
    assert "path of a recording is empty" in message("")


@pytest.mark.parametrize("path", ["a\0b.wav", "x" * 5000 + ".wav"])
def test_impossible_paths(path):
    assert "cannot be opened" in message(path)


def test_directory(tmp_path):
    assert "is a directory" in message(tmp_path)


def test_fifo_and_device(tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")
    assert "is a pipe or device" in message(tmp_path / "pipe.wav")
    assert "is a pipe or device" in message("/dev/zero")


def test_link_to_nothing_and_to_itself(tmp_path):
    (tmp_path / "broken.wav").symlink_to(tmp_path / "none.wav")
    (tmp_path / "loop.wav").symlink_to(tmp_path / "loop.wav")
    assert "no such file" in message(tmp_path / "broken.wav")
    assert "cannot be opened" in message(tmp_path / "loop.wav")


def test_unreadable_file():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = write(Path(folder) / "secret.wav", noise(0.5))
        path.chmod(0o000)
        if os.geteuid() != 0:
            assert "permission denied" in message(path)
            return
        # Root may read everything, so another user tries.
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(65_534)
            try:
                load(path)
                text = "no error"
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(write_end, text.encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            assert pipe.read() == f"AudioError: {path}: permission denied; make it readable"
        os.waitpid(child, 0)


def test_empty_file(tmp_path):
    (tmp_path / "a.wav").touch()
    assert "the file is empty (0 bytes)" in message(tmp_path / "a.wav")


@pytest.mark.parametrize(
    "text",
    ["hello\n", "<!DOCTYPE html>\n<html>Not found</html>\n" * 200, "ü" * 5000, "#EXTM3U\n#EXTINF:10,\na.wav\n", "x"],
)
@pytest.mark.parametrize("name", ["a.wav", "a.mp3", "a.m4a"])
def test_text_under_a_recordings_name(tmp_path, text, name):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert "is a text file, not a recording" in message(tmp_path / name)


def test_random_bytes_are_no_recording(tmp_path):
    for seed in range(20):
        (tmp_path / "a.wav").write_bytes(np.random.default_rng(seed).bytes(20_000))
        text = message(tmp_path / "a.wav")
        assert "not a recording" in text or "PyAV" in text or "decode" in text


@pytest.mark.parametrize("part", [0.3, 0.5, 0.7])
def test_damage_inside_a_flac_is_reported_with_its_place(tmp_path, part):
    whole = Path(__file__).parents[2] / "datasets" / "demo" / "dialogue.flac"
    content = bytearray(whole.read_bytes())
    middle = round(part * len(content))
    content[middle : middle + 200] = b"\xff" * 200
    path = tmp_path / "a.flac"
    path.write_bytes(content)
    good, damaged = load(whole), load(path)
    # What follows keeps its time.
    assert (good.warnings, len(damaged.samples)) == ((), len(good.samples))
    assert np.mean(good.samples != damaged.samples) < 0.02
    place = int(np.argmax(good.samples != damaged.samples)) / RATE
    (warning,) = damaged.warnings
    found = float(warning.split(" near ")[1].split(" s")[0].split(",")[0])
    assert warning == f"the file is damaged near {found} s: turns there may be wrong; copy or record it again"
    assert abs(found - place) < 0.3
    with open_audio(path, end=place + 1) as reader:
        collect(reader)
        assert reader.warnings == (warning,)
    with open_audio(path, end=place - 1) as reader:
        collect(reader)
        assert reader.warnings == ()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_samples_that_are_no_numbers(tmp_path, value, subtype):
    samples = np.zeros((4 * RATE, 2), np.float64)
    samples[3 * RATE + 8000, 1] = value
    path = write(tmp_path / "a.wav", samples, subtype=subtype)
    assert re.search(r"the sample at 3\.500 s is (nan|-?inf|5e\+29);", message(path))
    # The other channel is good.
    assert load(path, 1).duration == 4


@pytest.mark.parametrize("rate", [1, 999, 1_000_001, 2**31 - 1])
def test_rates_that_only_damage_can_explain(tmp_path, rate):
    text = message(write(tmp_path / "a.wav", noise(1)[:100], rate))
    assert f"the sample rate is {rate} Hz; allowed are 1000 to 1000000" in text


def test_heavy_packages_are_not_imported():
    code = (
        "import sys, diarize.audio, diarize.outputs.json, diarize.outputs.rttm, diarize.outputs.files;"
        "sys.exit(any(name in sys.modules for name in ('numba', 'scipy', 'av')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


@pytest.mark.parametrize("form", ["WAV", "AIFF", "FLAC"])
def test_16_bit_samples_are_those_of_libsndfile(tmp_path: Path, form: str) -> None:
    samples = np.random.default_rng(0).integers(-32768, 32768, (70_000, 2)).astype(np.int16)
    samples[:2] = [[-32768, 32767], [0, -1]]
    path = tmp_path / f"noise.{form.lower()}"
    soundfile.write(path, samples, 16_000, "PCM_16", format=form)
    expected = soundfile.read(path, dtype="float32")[0]
    for channel in (1, 2):
        assert np.array_equal(load(path, channel).samples, expected[:, channel - 1])
