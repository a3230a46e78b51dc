"""Media files through PyAV: right samples at the right time, and one clear line for bad ones."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import soundfile

from diarize.audio import load, open_audio
from diarize.errors import AudioError

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'diarize-cuda[media]'")

CONTAINERS = [
    ("a.m4a", "aac", 16_000),
    ("a.m4a", "aac", 44_100),
    ("a.mp4", "aac", 48_000),
    ("a.mkv", "aac", 44_100),
    ("a.webm", "libopus", 48_000),
    ("a.mka", "flac", 44_100),
    ("a.m4a", "alac", 22_050),
]


def burst(rate: int, channels: int = 1) -> np.ndarray:
    """(channels, num_samples) float32: 4 s of silence with a tone of 20 ms at 2 s."""
    samples = np.zeros((channels, rate * 4), np.float32)
    index = np.arange(rate // 50)
    samples[:, 2 * rate : 2 * rate + len(index)] = 0.8 * np.sin(2 * np.pi * 1000 * index / rate)
    return samples


def encode(path: Path, codec: str, rate: int, samples: np.ndarray, streams: int = 1) -> Path:
    """Write (channels, num_samples) float32 with PyAV and give the path back."""
    layout = {1: "mono", 2: "stereo"}[len(samples)]
    with av.open(str(path), "w") as container:
        outputs = [container.add_stream(codec, rate=rate, layout=layout) for _ in range(streams)]
        for number, stream in enumerate(outputs):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples / (number + 1)), "fltp", layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
            resampler = av.AudioResampler(stream.codec_context.format.name, layout, rate)
            for piece in [*resampler.resample(frame), *resampler.resample(None)]:
                container.mux(stream.encode(piece))
            container.mux(stream.encode(None))
    return path


def onset(samples: np.ndarray) -> float:
    """Seconds from the start of 16 kHz audio to its tone."""
    return float(np.argmax(np.abs(samples) > 0.25 * np.abs(samples).max())) / 16_000


def message(path: Path) -> str:
    """The one-line message of the error that loading ends with."""
    with pytest.raises(AudioError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("name", "codec", "rate"), CONTAINERS)
def test_a_click_stays_where_it_was(tmp_path, name, codec, rate):
    result = load(encode(tmp_path / name, codec, rate, burst(rate)))
    assert abs(onset(result.samples) - 2) < 0.03
    # AAC fills its last frame of 1,024 samples.
    assert -0.001 < result.duration - 4 < 0.13
    assert result.sample_rate == rate
    assert result.warnings == ()


def test_bare_aac_is_late_by_the_encoders_delay(tmp_path):
    result = load(encode(tmp_path / "a.aac", "aac", 44_100, burst(44_100)))
    assert 0 <= onset(result.samples) - 2 < 2100 / 44_100


def test_lossless_media_equal_the_samples(tmp_path):
    generator = np.random.default_rng(3)
    samples = (generator.integers(-20_000, 20_000, (2, 50_000)) / 32768).astype(np.float32)
    path = encode(tmp_path / "a.m4a", "alac", 16_000, samples)
    assert np.array_equal(load(path, 2).samples, samples[1])
    assert np.array_equal(load(path).samples, (samples[0] + samples[1]) / 2)
    with pytest.raises(AudioError, match="channel 3 was asked for; the recording has 2"):
        open_audio(path, 3)


@pytest.mark.parametrize("name", ["Ünïcödé und Leerzeichen.m4a", "http:x.m4a", "a%d.m4a", "-a.m4a", "concat:a|b.m4a"])
def test_odd_names(tmp_path, name, monkeypatch):
    encode(tmp_path / "a.m4a", "alac", 16_000, burst(16_000)).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert load(name).duration == 4
    assert load(tmp_path / name).duration == 4


def test_the_first_of_several_streams_is_used(tmp_path):
    result = load(encode(tmp_path / "a.mka", "flac", 16_000, burst(16_000), streams=2))
    assert np.abs(result.samples).max() > 0.7
    assert result.warnings == ("the file holds 2 audio streams; the first one is used",)


def test_video_without_sound(tmp_path):
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        for _ in range(5):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8))))
        container.mux(stream.encode(None))
    assert "holds no audio stream; give a file with sound" in message(path)


def test_sound_of_a_video(tmp_path):
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=10)
        video.width = video.height = 64
        audio = container.add_stream("flac", rate=16_000, layout="mono")
        for index in range(40):
            picture = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8))
            picture.pts, picture.time_base = index, Fraction(1, 10)
            container.mux(video.encode(picture))
        container.mux(video.encode(None))
        frame = av.AudioFrame.from_ndarray((burst(16_000) * 32767).astype(np.int16), "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = 16_000, 0, Fraction(1, 16_000)
        container.mux(audio.encode(frame))
        container.mux(audio.encode(None))
    result = load(path)
    assert result.duration == 4
    assert onset(result.samples) == pytest.approx(2, abs=0.001)


@pytest.mark.parametrize("name", ["a.webm", "a.mkv"])
def test_truncated_media_give_what_is_there(tmp_path, name):
    codec = "libopus" if name == "a.webm" else "aac"
    noise = (np.random.default_rng(0).standard_normal((1, 48_000 * 12)) * 0.1).astype(np.float32)
    content = encode(tmp_path / name, codec, 48_000, noise).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    assert 4 < load(tmp_path / name).duration < 8


def test_truncated_m4a_without_its_index(tmp_path):
    path = encode(tmp_path / "a.m4a", "aac", 16_000, burst(16_000))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "the file is cut off or damaged" in message(path)


def test_m4a_whose_end_is_missing_says_so(tmp_path):
    noise = (np.random.default_rng(0).standard_normal((1, 48_000 * 12)) * 0.1).astype(np.float32)
    path = tmp_path / "a.m4a"
    source = encode(tmp_path / "b.m4a", "aac", 48_000, noise)
    # The index moved to the front, as files for the web have it.
    with av.open(str(source)) as given, av.open(str(path), "w", options={"movflags": "faststart"}) as moved:
        stream = moved.add_stream_from_template(given.streams.audio[0])
        for packet in given.demux(given.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = stream
                moved.mux(packet)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    result = load(path)
    assert 4 < result.duration < 8
    assert any(sentence.startswith("the audio ends early: the header says 12.0 s") for sentence in result.warnings)


def test_damage_inside_is_reported(tmp_path):
    noise = (np.random.default_rng(0).standard_normal((1, 48_000 * 12)) * 0.1).astype(np.float32)
    path = encode(tmp_path / "a.m4a", "aac", 48_000, noise)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 3000] = np.random.default_rng(1).bytes(3000)
    path.write_bytes(content)
    result = load(path)
    assert 11 < result.duration < 12.1
    assert any("damaged" in sentence for sentence in result.warnings)


@pytest.mark.parametrize("script", ["#EXTM3U\n#EXTINF:4,\na.aac\n", "ffconcat version 1.0\nfile a.aac\n"])
def test_playlists_do_not_open_other_files(tmp_path, script):
    encode(tmp_path / "a.aac", "aac", 44_100, burst(44_100))
    for tail in (b"", b"#\xff\xfe\x00\n"):
        (tmp_path / "list.wav").write_bytes(script.encode() + tail)
        text = message(tmp_path / "list.wav")
        assert "is a text file" in text or "not a recording" in text


def test_without_pyav_the_extra_is_named(tmp_path, monkeypatch):
    path = encode(tmp_path / "a.m4a", "aac", 16_000, burst(16_000))
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "diarize.media", raising=False)
    assert "pip install 'diarize-cuda[media]'" in message(path)
    (tmp_path / "text.m4a").write_text("hello")
    assert "is a text file" in message(tmp_path / "text.m4a")
    soundfile.write(tmp_path / "a.wav", np.zeros(1000), 16_000)
    assert len(load(tmp_path / "a.wav").samples) == 1000
