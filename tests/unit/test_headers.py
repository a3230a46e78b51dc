"""Headers that lie and files that end early: everything that is there is decoded, and the user is told."""

from __future__ import annotations

import functools
import io
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from diarize.audio import load, open_audio
from diarize.errors import AudioError
from diarize.headers import TruthfulFile, read_claim
from diarize.mp3 import FrameHeader, read_start
from diarize.mp3_repair import Hole, find_holes, mended
from diarize.ogg_gaps import Gap, find_losses, fitted

ID3 = b"ID3\4\0\0\0\0\1\0" + bytes(128)
RATE = 16_000
LIST = b"LIST" + struct.pack("<I", 26) + b"INFOISFT" + struct.pack("<I", 14) + b"Lavf58.29.100\0"


def noise(seconds: float) -> np.ndarray:
    """(num_samples,) int16 noise."""
    return (np.random.default_rng(7).standard_normal(round(seconds * RATE)) * 3000).astype(np.int16)


def wav(data: bytes, claimed: int | None = None, tail: bytes = b"", before: bytes = b"") -> bytes:
    """A 16 kHz mono 16-bit WAV file whose header claims `claimed` bytes of audio."""
    claimed = len(data) if claimed is None else claimed
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    body = b"WAVE" + fmt + before + b"data" + struct.pack("<I", claimed) + data + tail
    return b"RIFF" + struct.pack("<I", len(body) & 0xFFFF_FFFF) + body


def save(folder: Path, content: bytes, name: str = "a.wav") -> Path:
    """Write `content` to a file and give its path back."""
    path = folder / name
    path.write_bytes(content)
    return path


def message(path: Path) -> str:
    """The one-line message of the error that loading ends with."""
    with pytest.raises(AudioError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("claimed", [0, 0xFFFF_FFFF, 0x7FFF_FFFF, 0x7FFF_F000, 0x8000_0000, 0xFFFF_FFFF - 36])
@pytest.mark.parametrize("before", [b"", LIST])
def test_lengths_that_pipes_leave(tmp_path, claimed, before):
    samples = noise(12)
    result = load(save(tmp_path, wav(samples.tobytes(), claimed, before=before)))
    assert np.array_equal(result.samples, samples / np.float32(32768))
    assert result.warnings == ()


@pytest.mark.parametrize("claimed", [2, 32_000, 32_001])
def test_too_small_a_length(tmp_path, claimed):
    samples = noise(12)
    result = load(save(tmp_path, wav(samples.tobytes(), claimed)))
    assert np.array_equal(result.samples, samples / np.float32(32768))
    (warning,) = result.warnings
    assert "but the file holds 12.0 s; all of it was decoded" in warning


@pytest.mark.parametrize("claimed", [1_000_000, 0x6000_0000])
def test_too_large_a_length(tmp_path, claimed):
    samples = noise(12)
    result = load(save(tmp_path, wav(samples.tobytes(), claimed)))
    assert np.array_equal(result.samples, samples / np.float32(32768))
    assert result.warnings == (f"the audio ends early: the header says {claimed / 32_000:.1f} s, 12.0 s decoded",)


@pytest.mark.parametrize("tail", [LIST, LIST + LIST, LIST[:20], b"\0" * 512, b"id3 \2\0\0\0ab"])
def test_what_follows_the_audio_is_not_audio(tmp_path, tail):
    samples = noise(3)
    result = load(save(tmp_path, wav(samples.tobytes(), tail=tail)))
    assert len(result.samples) == len(samples)
    assert result.warnings == ()


@pytest.mark.parametrize("tail", [b"", LIST])
def test_no_audio_at_all(tmp_path, tail):
    result = load(save(tmp_path, wav(b"", tail=tail)))
    assert len(result.samples) == 0
    assert result.warnings == ("the recording holds no samples",)


def test_truncated_wav(tmp_path):
    samples = noise(12)
    content = wav(samples.tobytes())
    result = load(save(tmp_path, content[: 44 + 2 * 116_800]))
    assert np.array_equal(result.samples, samples[:116_800] / np.float32(32768))
    assert result.warnings == ("the audio ends early: the header says 12.0 s, 7.3 s decoded",)


@pytest.mark.parametrize("length", [4, 8, 11, 12, 16, 20, 30, 36, 40, 43])
def test_wav_cut_in_its_header(tmp_path, length):
    text = message(save(tmp_path, wav(noise(1).tobytes())[:length]))
    assert f"the file ends within its header ({length} bytes)" in text or (length == 4 and "text file" in text)


@pytest.mark.parametrize("length", [44, 45])
def test_wav_cut_after_its_header(tmp_path, length):
    text = message(save(tmp_path, wav(noise(1).tobytes())[:length]))
    assert "nothing of the 1.0 s that its header states could be decoded" in text


def test_wav_beyond_4_gib_whose_length_wrapped(tmp_path):
    path = tmp_path / "a.wav"
    data_bytes = 2**32 + 32_000
    path.write_bytes(wav(b"", data_bytes % 2**32))
    with path.open("r+b") as file:
        # A hole: takes no space on the disk.
        file.truncate(44 + data_bytes)
    with open_audio(path) as reader:
        assert reader.expected_samples == data_bytes // 2
        assert reader.warnings == ("the header says 1.0 s but the file holds 134218.7 s; all of it was decoded",)


def test_rf64_that_is_cut(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, noise(4), RATE, format="RF64")
    content = path.read_bytes()
    result = load(save(tmp_path, content[: len(content) - 32_000]))
    assert result.duration == 3
    assert result.warnings == ("the audio ends early: the header says 4.0 s, 3.0 s decoded",)


def test_aiff_that_is_cut(tmp_path):
    path = tmp_path / "a.aiff"
    samples = noise(4)
    soundfile.write(path, samples, RATE, format="AIFF")
    assert load(path).warnings == ()
    content = path.read_bytes()
    result = load(save(tmp_path, content[: len(content) - 32_000], "b.aiff"))
    assert np.array_equal(result.samples, samples[: 3 * RATE] / np.float32(32768))
    assert result.warnings == ("the audio ends early: the header says 4.0 s, 3.0 s decoded",)


@pytest.fixture(scope="module")
def flac() -> tuple[np.ndarray, bytes]:
    """Samples, and the FLAC file that holds them."""
    samples, file = noise(12), io.BytesIO()
    soundfile.write(file, samples, RATE, format="FLAC")
    return samples, file.getvalue()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_truncated_flac(tmp_path, flac, part):
    samples, content = flac
    result = load(save(tmp_path, content[: round(len(content) * part)], "a.flac"))
    # Whole frames of 4,096 samples are kept.
    assert len(result.samples) > part * len(samples) - 2 * 4096
    assert np.array_equal(result.samples, samples[: len(result.samples)] / np.float32(32768))
    (warning,) = result.warnings
    assert warning == f"the audio ends early: the header says 12.0 s, {result.duration:.1f} s decoded"


def test_flac_with_damage_inside(tmp_path, flac):
    samples, content = flac
    damaged = bytearray(content)
    damaged[len(content) // 2 : len(content) // 2 + 2000] = bytes(2000)
    result = load(save(tmp_path, bytes(damaged), "a.flac"))
    assert len(result.samples) == len(samples)
    wrong = np.flatnonzero(result.samples != samples / np.float32(32768))
    assert 0 < wrong[-1] - wrong[0] < 4 * 4096
    (warning,) = result.warnings
    assert warning.startswith("the file is damaged near ")


@pytest.mark.parametrize("length", [4, 10, 41])
def test_flac_cut_in_its_header(tmp_path, flac, length):
    text = message(save(tmp_path, flac[1][:length], "a.flac"))
    assert "the file ends within its header" in text or (length == 4 and "text file" in text)


@pytest.mark.parametrize("length", [42, 100])
def test_flac_without_a_whole_frame(tmp_path, flac, length):
    assert "nothing of the 12.0 s" in message(save(tmp_path, flac[1][:length], "a.flac"))


@pytest.mark.parametrize("claimed", [0, 32_000, 400_000])
def test_flac_with_a_wrong_length(tmp_path, flac, claimed):
    samples, content = flac
    lying = bytearray(content)
    lying[22:26] = struct.pack(">I", claimed)
    result = load(save(tmp_path, bytes(lying), "a.flac"))
    assert np.array_equal(result.samples, samples / np.float32(32768))
    assert len(result.warnings) == (claimed == 400_000)


@pytest.mark.parametrize(("name", "kind"), [("a.mp3", {}), ("a.ogg", {}), ("a.opus", {"format": "OGG"})])
def test_truncated_lossy_files_give_what_is_there(tmp_path, name, kind):
    path = tmp_path / name
    soundfile.write(path, noise(12), RATE, **kind)
    content = path.read_bytes()
    assert 4 < load(save(tmp_path, content[: len(content) // 2], name)).duration < 7


@functools.cache
def ogg(rate: int, channels: int, coding: str) -> bytes:
    """An Ogg file of 40 s with a tone of half a second every second."""
    times = np.arange(40 * rate) / rate
    samples = (0.3 * np.sin(2 * np.pi * 400 * times) * (times % 1 < 0.5)).astype(np.float32)
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", rate, channels, format="OGG", subtype=coding) as sound:
        # libsndfile's encoder takes a piece at a time only.
        for start in range(0, len(samples), rate):
            sound.write(np.stack([samples[start : start + rate]] * channels, axis=1))
    return file.getvalue()


@pytest.mark.parametrize(
    ("rate", "channels", "coding", "page"),
    [(16_000, 1, "VORBIS", 5.2), (44_100, 2, "VORBIS", 2.3), (48_000, 2, "OPUS", 1.0), (16_000, 1, "OPUS", 1.0)],
)
@pytest.mark.parametrize(
    "damage", [[(0.5, 1)], [(0.5, 3000)], [(0.3, 200), (0.6, 5000)], [(0.97, 1)], [(0.1, 1)]], ids=str
)
def test_an_ogg_goes_on_behind_lost_pages_at_the_right_time(tmp_path, rate, channels, coding, page, damage):
    content = bytearray(ogg(rate, channels, coding))
    whole = load(save(tmp_path, bytes(content), "a.ogg"))
    assert whole.warnings == ()
    for part, number in damage:
        at = round(part * len(content))
        content[at : at + number] = bytes(byte ^ 255 for byte in content[at : at + number])
    result = load(save(tmp_path, bytes(content), "b.ogg"))
    # Where the very first page is lost, its length is guessed from the others.
    first_lost = coding == "VORBIS" and damage[0][0] == 0.1
    assert abs(len(result.samples) - len(whole.samples)) <= (0.15 * RATE if first_lost else 0)
    (warning,) = result.warnings
    assert warning.count(".") == len(damage)
    assert re.match(r"the file is damaged near \d+\.\d", warning)
    if first_lost:
        return
    places = [float(place) for place in re.findall(r"\d+\.\d", warning)]
    pieces = min(len(whole.samples), len(result.samples)) // 1600
    loud = [np.abs(w.samples[: pieces * 1600]).reshape(pieces, 1600).mean(axis=1) > 0.05 for w in (whole, result)]
    changed = np.flatnonzero(loud[0] != loud[1]) / 10
    assert len(changed)
    for time in changed:
        assert any(
            place - 0.2 <= time <= place + (1 + damage[0][1] // 2000 + damage[-1][1] // 2000) * 2 * page
            for place in places
        )
    quiet = np.ones(pieces, bool)
    for place in places:
        quiet[int(10 * place) : int(10 * (place + 4 * page)) + 2] = False
    assert np.array_equal(loud[0][quiet], loud[1][quiet])


def test_an_ogg_that_is_cut_off_has_no_gap(tmp_path):
    content = ogg(16_000, 1, "VORBIS")
    result = load(save(tmp_path, content[: round(0.6 * len(content))], "a.ogg"))
    assert result.warnings == ("the file has no end mark: it was probably cut off",)
    assert find_losses(io.BytesIO(content), 16_000) == []


def test_gaps_are_fitted_to_what_is_missing():
    gaps = [Gap(0, 70, inner=False), Gap(30, 100), Gap(200, 300)]
    # Positions count what was decoded, whatever the gaps before were taken for.
    assert fitted(gaps, 800) == [Gap(0, 70, inner=False), Gap(30, 200), Gap(100, 600)]
    assert fitted([Gap(10, 0), Gap(20, 0)], 10) == [Gap(10, 5), Gap(15, 5)]
    assert fitted(gaps, 400) == gaps


def test_truncated_mp3_says_so_once_and_nothing_on_standard_error(tmp_path, capfd):
    content = mp3(ticks(44_100), 44_100)
    result = load(save(tmp_path, content[: round(len(content) * 0.7)], "a.mp3"))
    (warning,) = result.warnings
    assert warning == f"the audio ends early: the header says 4.0 s, {result.duration:.1f} s decoded"
    assert abs(np.argmax(np.abs(result.samples) > 0.2) / RATE - 2) < 0.003
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("part", [1, 0.5])
def test_flac_behind_an_id3_tag(tmp_path, flac, part):
    samples, content = flac
    result = load(save(tmp_path, ID3 + content[: round(len(content) * part)], "a.flac"))
    assert np.array_equal(result.samples, samples[: len(result.samples)] / np.float32(32768))
    assert len(result.warnings) == (part < 1)


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (44_100, 2)])
def test_an_mp3_goes_on_behind_damage_at_the_right_time(tmp_path, rate, channels, variable):
    # A tone of half a second every second.
    times = np.arange(20 * rate) / rate
    samples = (0.3 * np.sin(2 * np.pi * 400 * times) * (times % 1 < 0.5)).astype(np.float32)
    kind = {"bitrate_mode": "VARIABLE", "compression_level": 0.5} if variable else {}
    content = bytearray(mp3(samples, rate, channels, **kind))
    whole = load(save(tmp_path, bytes(content), "a.mp3"))
    middle = len(content) // 2
    content[middle : middle + 3000] = bytes(3000)
    result = load(save(tmp_path, bytes(content), "b.mp3"))
    assert abs(result.duration - whole.duration) < 0.05
    (warning,) = result.warnings
    assert re.fullmatch(
        r"the file is damaged near (9|10)\.\d s: turns there may be wrong; copy or record it again", warning
    )
    # Everywhere else, loudness of each tenth of a second is what it was.
    loudness = [np.abs(wave.samples[: 199 * 1600]).reshape(199, 1600).mean(axis=1) > 0.05 for wave in (whole, result)]
    changed = np.flatnonzero(loudness[0] != loudness[1]) / 10
    assert np.all((changed > 8.8) & (changed < 12.0))
    assert loudness[1][120:].any()


def test_several_holes_of_an_mp3(tmp_path):
    content = bytearray(mp3(ticks(44_100), 44_100))
    for part in (0.2, 0.35):
        at = round(len(content) * part)
        content[at : at + 2000] = bytes(2000)
    result = load(save(tmp_path, bytes(content), "a.mp3"))
    assert abs(result.duration - 4) < 0.05
    assert abs(np.argmax(np.abs(result.samples) > 0.2) / RATE - 2) < 0.03
    assert re.fullmatch(r"the file is damaged near 0\.\d, 1\.\d s: turns .*", result.warnings[0])


@pytest.mark.parametrize("between", [b"", ID3, b"TAG" + bytes(125)], ids=["nothing", "ID3", "TAG"])
@pytest.mark.parametrize("tagged", [True, False])
def test_a_hole_in_mp3_files_that_were_joined(tmp_path, between, tagged):
    content = mp3(ticks(44_100), 44_100)
    part = content if tagged else without_tag(content)
    joined = load(save(tmp_path, part + between + part, "a.mp3"))
    damaged = bytearray(part + between + part)
    at = round(0.2 * len(part))
    damaged[at : at + 3000] = bytes(3000)
    result = load(save(tmp_path, bytes(damaged), "b.mp3"))
    assert abs(result.duration - joined.duration) < 0.06
    places = re.search(r"damaged near (.*) s: turns", result.warnings[-1])
    assert places is not None
    assert 0.5 < float(places[1]) < 1.2
    loud = [np.flatnonzero(np.abs(wave.samples) > 0.2) / RATE for wave in (joined, result)]
    for first, second in ((0, 0), (-1, -1)):
        assert abs(loud[0][first] - loud[1][second]) < 0.06


def test_an_mp3_whose_beginning_is_lost_says_so(tmp_path):
    content = bytearray(mp3(ticks(44_100), 44_100))
    content[:4000] = bytes(4000)
    (warning,) = load(save(tmp_path, bytes(content), "a.mp3")).warnings
    assert re.fullmatch(r"the first 4\d\d\d bytes hold no audio; if they are damaged, all times are early", warning)


def test_holes_are_found_and_what_is_no_frame_at_the_end_is_none():
    content = mp3(ticks(44_100), 44_100)
    start = read_start(io.BytesIO(content))
    assert start is not None
    first, header = start.offset + start.header.num_bytes, start.header
    assert find_holes(content + b"TAG" + bytes(125), first, header) == []
    # The third to the fifth frame.
    frames = [first]
    for _ in range(6):
        frames.append(frames[-1] + FrameHeader.parse(content[frames[-1] : frames[-1] + 4]).num_bytes)
    damaged = content[: frames[2]] + bytes(frames[5] - frames[2]) + content[frames[5] :]
    total = round(start.seconds * 44_100 / 1152)
    assert find_holes(damaged, first, header, total) == [Hole(frames[2], frames[5], 2, 3)]
    view = mended(io.BytesIO(damaged), len(damaged), find_holes(damaged, first, header, total), header)
    repaired = view.read()
    assert repaired.startswith(content[: frames[2]])
    assert repaired.endswith(content[frames[5] :])
    assert find_holes(repaired, first, header) == []


def ticks(rate: int) -> np.ndarray:
    """(num_samples,) float32: 4 s with a tone of 20 ms at 2 s."""
    samples = np.zeros(4 * rate, np.float32)
    index = np.arange(rate // 50)
    samples[2 * rate : 2 * rate + len(index)] = 0.8 * np.sin(2 * np.pi * 1000 * index / rate)
    return samples


def mp3(samples: np.ndarray, rate: int, channels: int = 1, **kind: object) -> bytes:
    """An mp3 file with a tag; `samples` (num_samples,) on every channel."""
    file = io.BytesIO()
    soundfile.write(file, np.stack([samples] * channels, axis=1), rate, format="MP3", **kind)
    return file.getvalue()


def without_tag(content: bytes) -> bytes:
    """The mp3 file from its second frame on."""
    start = read_start(io.BytesIO(content))
    assert start is not None
    assert start.tagged_bytes == len(content)
    return content[start.offset + start.header.num_bytes :]


MP3_RATES = [8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000]


@pytest.mark.parametrize("rate", MP3_RATES)
@pytest.mark.parametrize("channels", [1, 2])
def test_joined_mp3_files_are_decoded_to_the_end(tmp_path, rate, channels):
    content = mp3(ticks(rate), rate, channels)
    result = load(save(tmp_path, (ID3 if channels == 2 else b"") + content + content, "a.mp3"))
    # Between the parts lie the second one's tag frame and its encoder's delay.
    assert 8 <= result.duration < 8 + 5000 / rate
    loud = np.abs(result.samples) > 0.2
    assert abs(np.argmax(loud) / RATE - 2) < 0.003
    assert 6 <= np.argmax(loud[4 * RATE :]) / RATE + 4 < 6 + 5000 / rate
    (warning,) = result.warnings
    assert "s but the file goes on; all of it was decoded" in warning


@pytest.mark.parametrize("rate", MP3_RATES)
@pytest.mark.parametrize("channels", [1, 2])
def test_mp3_of_varying_bit_rate_without_a_tag_is_decoded_to_the_end(tmp_path, rate, channels):
    generator = np.random.default_rng(5)
    loud = (0.2 * generator.standard_normal(3 * rate)).astype(np.float32)
    quiet = (1e-4 * generator.standard_normal(9 * rate)).astype(np.float32)
    first = mp3(loud, rate, channels, bitrate_mode="VARIABLE", compression_level=0.0)
    second = mp3(quiet, rate, channels, bitrate_mode="VARIABLE", compression_level=0.99)
    content = without_tag(first) + without_tag(second)
    for before in (b"", ID3, bytes(100)):
        result = load(save(tmp_path, before + content, "a.mp3"))
        assert 12 <= result.duration < 12 + 5000 / rate
        assert result.warnings == ()
        assert result.sample_rate == rate
        assert result.channels == channels


def test_mp3_without_a_tag_is_late_by_the_encoders_delay_only(tmp_path):
    result = load(save(tmp_path, without_tag(mp3(ticks(44_100), 44_100)), "a.mp3"))
    assert np.argmax(np.abs(result.samples) > 0.2) / RATE - 2 == pytest.approx(576 / 44_100, abs=0.002)


@pytest.mark.parametrize("tail", [b"", b"TAG" + bytes(125), b"APETAGEX" + bytes(2000)])
def test_tags_after_an_mp3_are_not_audio(tmp_path, tail):
    result = load(save(tmp_path, mp3(ticks(44_100), 44_100) + tail, "a.mp3"))
    assert (result.duration, result.warnings) == (4, ())


@pytest.mark.parametrize(("name", "kind"), [("a.ogg", {}), ("a.opus", {"subtype": "OPUS"})])
def test_ogg_that_is_cut_or_chained(tmp_path, name, kind):
    file = io.BytesIO()
    soundfile.write(file, noise(6), RATE, format="OGG", **kind)
    content = file.getvalue()
    assert load(save(tmp_path, content, name)).warnings == ()
    result = load(save(tmp_path, content[: len(content) // 2], name))
    assert result.duration < 5
    assert result.warnings == ("the file has no end mark: it was probably cut off",)
    other = io.BytesIO()
    soundfile.write(other, noise(3), RATE, format="OGG", **kind)
    chained = load(save(tmp_path, content + other.getvalue(), name))
    assert chained.duration == 6
    assert chained.warnings == ("the file holds several recordings in a row; only the first was decoded; split them",)


def test_any_cut_of_a_wav_is_an_error_or_a_prefix(tmp_path):
    samples = noise(0.01)
    content = wav(samples.tobytes(), before=LIST, tail=LIST)
    for length in range(5, len(content), 11):
        path = save(tmp_path, content[:length])
        try:
            result = load(path).samples
        except AudioError:
            continue
        assert np.array_equal(result, samples[: len(result)] / np.float32(32768))


def test_claims_of_other_files_are_empty():
    for content in (b"x", b"OggS" + bytes(100), b"RIFF\0\0\0\0AVI " + bytes(100)):
        claim = read_claim(io.BytesIO(content), len(content))
        assert (claim.frames, claim.prefix, claim.cut) == (None, b"", False)


def test_view_of_a_file():
    view = TruthfulFile(io.BytesIO(b"0123456789"), b"abc", 4)
    assert view.read() == b"abc456789"
    assert view.seek(2) == 2
    assert view.read(3) == b"c45"
    assert view.seek(-2, io.SEEK_END) == 7
    assert view.read(5) == b"89"
    assert view.read(5) == b""


def test_a_disk_that_fails_is_an_error(tmp_path, flac, monkeypatch):
    path = save(tmp_path, flac[1], "a.flac")
    real = TruthfulFile._read_piece

    def failing(self, view):
        if self.tell() > 100_000:
            raise OSError(5, "Input/output error")
        return real(self, view)

    monkeypatch.setattr(TruthfulFile, "_read_piece", failing)
    assert "reading failed (Input/output error)" in message(path)
