"""Recordings as mono 16 kHz float32, block by block: open, decode, mix, resample.

A recording is decoded once, in order, and its length is what was decoded, never what a header says. Memory does
not grow with the length unless `load` is asked for the whole of it. Nothing here cuts windows (diarize/framing.py).

Resampling is soxr's HQ quality over one continuous stream: n samples at rate r become round(16,000 n / r), and the
result does not depend on where blocks fall. 16 kHz mono passes unchanged: 16-bit values divided by 32,768.
Several channels are averaged in float32, added from the first to the last; or one of them is chosen.
Delay of codecs: mp3 (with the tag that encoders write), ogg, opus, m4a and webm come without it, see diarize/media.py.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Protocol

import numpy as np
import soundfile
import soxr

from .content import why_refused
from .errors import AudioError, OptionError
from .framing import SAMPLE_RATE
from .sndfile import BLOCK_SECONDS, SndfileDecoder
from .values import check_seconds, seconds, whole_number

# Samples beyond this are damage: the largest that 32-bit integers kept as floats can reach.
_LARGEST_SAMPLE = 2.0**31
# Codecs and mixes overshoot full scale a little; integers kept as floats by a thousand times.
_LOUDEST_SENSIBLE = 100.0
# Hz. Below, nothing of speech is left; above, no recorder goes. A damaged header would make hours out of seconds.
_SLOWEST_RATE = 1_000
_FASTEST_RATE = 1_000_000
# Seconds; the networks hear too little of anybody in less.
_SHORT = 1.0
_INTEGER_SCALE = {np.dtype(np.int16): 2.0**-15, np.dtype(np.int32): 2.0**-31}


class Decoder(Protocol):
    """What a source of native audio offers to `AudioReader`."""

    sample_rate: int
    channels: int
    expected_frames: int | None
    warnings: list[str]

    def skip(self, frames: int) -> int:
        """Passes over up to `frames` samples per channel, before `blocks`, where that is cheap; gives how many."""
        ...

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields (num_samples, channels) float32; nobody else uses a block."""
        ...

    def close(self) -> None:
        """Releases the source."""
        ...


@dataclass(frozen=True)
class Waveform:
    """A whole recording.

    `samples` (num_samples,) float32, mono at 16 kHz, full scale 1.0. `path` as given, "" for an array.
    `sample_rate` (Hz) and `channels` are those of the source. `warnings`: one sentence each.
    """

    samples: np.ndarray
    path: str
    sample_rate: int
    channels: int
    warnings: tuple[str, ...] = ()

    @property
    def duration(self) -> float:
        """Decoded length in seconds."""
        return len(self.samples) / SAMPLE_RATE


class AudioReader:
    """One recording as an iterator of mono 16 kHz float32 blocks, each (num_samples,), of varying length.

    It can be read once. `path` as given, `sample_rate` (Hz) and `channels` of the source, `num_samples` (16 kHz
    samples delivered so far), `expected_samples` (a guess from the header for progress bars, or None). Only what lies
    from `start` to `end` (seconds) is delivered; `offset` is the exact second at which that begins.
    """

    def __init__(
        self,
        decoder: Decoder,
        path: str = "",
        channel: int | None = None,
        start: float = 0.0,
        end: float | None = None,
        name: str = "",
    ) -> None:
        self.path = path
        self.sample_rate = decoder.sample_rate
        self.channels = decoder.channels
        self.num_samples = 0
        self._decoder = decoder
        self._channel = channel
        self._name = name or (shown_name(path) if path else "array")
        self._warnings: tuple[str, ...] = ()
        self._peak = 0.0
        self._started = False
        if not _SLOWEST_RATE <= self.sample_rate <= _FASTEST_RATE:
            self.close()
            raise AudioError(
                f"{self._name}: the sample rate is {self.sample_rate} Hz; allowed are {_SLOWEST_RATE} to "
                f"{_FASTEST_RATE}; the header is probably damaged, export the recording again"
            )
        self._first = round(start * self.sample_rate)
        self._last = None if end is None else round(end * self.sample_rate)
        self.offset = self._first / self.sample_rate
        self.expected_samples: int | None = None
        if decoder.expected_frames is not None:
            expected = decoder.expected_frames if self._last is None else min(decoder.expected_frames, self._last)
            self.expected_samples = round(max(0, expected - self._first) * SAMPLE_RATE / decoder.sample_rate)
        if channel is not None and not 1 <= channel <= self.channels:
            self.close()
            raise AudioError(
                f"{self._name}: channel {channel} was asked for; the recording has {self.channels}, counted from 1"
            )

    @property
    def duration(self) -> float:
        """Seconds delivered so far; the length of what was asked for after the last block."""
        return self.num_samples / SAMPLE_RATE

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the caller should tell the user, one sentence each; complete after the last block."""
        return (*self._decoder.warnings, *self._warnings)

    @property
    def if_nobody(self) -> tuple[str, ...]:
        """What to tell the user besides where no turn was found; complete after the last block."""
        if 0 < self.duration < _SHORT and self._peak > 0:
            return (f"{self.duration:.5g} s is too short to tell speakers; give {_SHORT:g} s or more",)
        return ()

    @property
    def total_seconds(self) -> float | None:
        """Length that the header promises, for progress bars; None where it promises nothing."""
        return None if self.expected_samples is None else self.expected_samples / SAMPLE_RATE

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yields the blocks.

        Raises
        ------
        AudioError
            Damage that leaves nothing to decode, a sample that is not a finite number, a recording that ends before
            the part asked for, or a second reading.
        """
        if self._started:
            raise AudioError(f"{self._name}: was read already; open it again to read it again")
        self._started = True
        stream = None
        if self.sample_rate != SAMPLE_RATE:
            stream = soxr.ResampleStream(self.sample_rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
        for native in self._native_blocks():
            yield from self._deliver(native if stream is None else stream.resample_chunk(native))
        if stream is not None:
            yield from self._deliver(stream.resample_chunk(np.zeros(0, np.float32), last=True))
        if self.num_samples == 0:
            self._warnings += ("the recording holds no samples",)
        elif self._peak == 0:
            self._warnings += ("the recording is silent: every sample is zero",)
        elif self._peak > _LOUDEST_SENSIBLE:
            self._warnings += (f"samples reach {self._peak:.0f} where full scale is 1.0: was it exported unscaled?",)

    def _deliver(self, block: np.ndarray) -> Iterator[np.ndarray]:
        """Yields a block that is not empty, and counts it."""
        if len(block):
            self.num_samples += len(block)
            yield block

    def _native_blocks(self) -> Iterator[np.ndarray]:
        """Yields mono blocks of `BLOCK_SECONDS` at the native rate, the last one shorter."""
        size = BLOCK_SECONDS * self.sample_rate
        pieces: list[np.ndarray] = []
        held = 0
        done = self._first
        for raw in self._wanted():
            mono = self._mix(raw)
            self._check(mono, done)
            done += len(mono)
            while len(mono):
                piece, mono = mono[: size - held], mono[size - held :]
                pieces.append(piece)
                held += len(piece)
                if held == size:
                    yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
                    pieces, held = [], 0
        if held:
            yield np.concatenate(pieces)

    def _wanted(self) -> Iterator[np.ndarray]:
        """Yields the decoder's blocks without what lies outside the part asked for."""
        at = self._decoder.skip(self._first) if self._first else 0
        for raw in self._decoder.blocks():
            begin = max(0, self._first - at)
            stop = len(raw) if self._last is None else min(len(raw), self._last - at)
            at += len(raw)
            if begin < stop:
                yield raw[begin:stop]
            if self._last is not None and at >= self._last:
                return
        if self._first and at <= self._first:
            raise AudioError(
                f"{self._name}: start is {self.offset:g} s; the recording ends before, choose an earlier start"
            )

    def _mix(self, raw: np.ndarray) -> np.ndarray:
        """(num_samples,) float32: the chosen channel, or the mean of all in a fixed order."""
        if self.channels == 1:
            return raw[:, 0]
        if self._channel is not None:
            return np.array(raw[:, self._channel - 1])
        mono = np.array(raw[:, 0])
        # What is beyond the range is found by `_check`.
        with np.errstate(over="ignore", invalid="ignore"):
            for index in range(1, self.channels):
                mono += raw[:, index]
            mono /= np.float32(self.channels)
        return mono

    def _check(self, mono: np.ndarray, done: int) -> None:
        """Raises `AudioError` where a sample is not a finite number of sensible size."""
        # Both are NaN where any sample is.
        peak = max(float(mono.max()), -float(mono.min())) if len(mono) else 0.0
        # Also false for NaN.
        if not peak <= _LARGEST_SAMPLE:
            first = int(np.argmin(np.abs(mono) <= _LARGEST_SAMPLE))
            raise AudioError(
                f"{self._name}: the sample at {(done + first) / self.sample_rate:.3f} s is {mono[first]:g}; samples "
                "must be finite numbers, full scale 1.0; repair the recording or export it again"
            )
        self._peak = max(self._peak, peak)

    def close(self) -> None:
        """Closes the source; may be called twice."""
        self._decoder.close()

    def __enter__(self) -> AudioReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _ArrayDecoder:
    """Blocks of an array, as a `Decoder`."""

    def __init__(self, samples: np.ndarray, sample_rate: int) -> None:
        self._samples = samples
        self._scale = _INTEGER_SCALE.get(samples.dtype)
        self.sample_rate = sample_rate
        self.channels: int = samples.shape[1]
        self.expected_frames: int | None = len(samples)
        self.warnings: list[str] = []

    def skip(self, frames: int) -> int:
        """Passes over `frames` samples per channel."""
        self._samples = self._samples[frames:]
        return frames

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields (num_samples, channels) float32."""
        for start in range(0, len(self._samples), 65_536):
            block = self._samples[start : start + 65_536]
            with np.errstate(over="ignore"):
                floats = (block if self._scale is None else block * self._scale).astype(np.float32)
            yield floats

    def close(self) -> None:
        """Nothing to release."""


def from_array(
    samples: np.ndarray, sample_rate: int, channel: int | None = None, start: float = 0.0, end: float | None = None
) -> AudioReader:
    """Reader of samples in memory, (num_samples,) or (num_samples, channels).

    float32 and float64 have full scale 1.0, int16 and int32 their own range; `channel` counts from 1.

    Raises
    ------
    AudioError
        Another shape or dtype, no channels, more channels than samples (transposed), or a rate out of range.
    OptionError
        The rate is no whole number.
    """
    rate = whole_number("sample_rate", sample_rate)
    if not _SLOWEST_RATE <= rate <= _FASTEST_RATE:
        raise AudioError(f"array: sample_rate is {rate} Hz; allowed are {_SLOWEST_RATE} to {_FASTEST_RATE}")
    array = np.asarray(samples)
    if array.dtype not in (np.float32, np.float64, np.int16, np.int32):
        raise AudioError(f"array: dtype is {array.dtype}; give float32, float64, int16 or int32")
    if array.ndim not in (1, 2):
        raise AudioError(f"array: shape is {array.shape}; give (num_samples,) or (num_samples, channels)")
    if array.ndim == 2 and not (1 <= array.shape[1] <= max(len(array), 1)):
        raise AudioError(f"array: shape is {array.shape}; give (num_samples, channels), transposed if need be")
    columns = array[:, np.newaxis] if array.ndim == 1 else array
    return AudioReader(_ArrayDecoder(columns, rate), "", channel, start, end)


def open_audio(
    source: str | os.PathLike[str] | np.ndarray,
    channel: int | None = None,
    *,
    sample_rate: int | None = None,
    start: float = 0.0,
    end: float | None = None,
    name: str = "",
) -> AudioReader:
    """Reader of a recording: a file, or an array with its `sample_rate` in Hz (see `from_array`).

    `channel` counts from 1; None takes the mean of all. Only what lies from `start` to `end` (seconds) is read. `name`
    stands for the path in messages. Use it in a `with` statement or close it.

    Raises
    ------
    AudioError
        No such file, not a file, not readable, empty, not a recording, a format that needs the extra `media`, a
        channel that the recording does not have, or a `sample_rate` without an array or the other way round.
    """
    if isinstance(source, np.ndarray):
        if sample_rate is None:
            raise AudioError("array: sample_rate is missing; give the rate of the samples in Hz")
        return from_array(source, sample_rate, channel, start, end)
    text = os.fspath(source)
    name = name or shown_name(text)
    if sample_rate is not None:
        raise AudioError(f"{name}: sample_rate {sample_rate} was given for a file; files state their own, leave it out")
    file, size = _open_file(text, name)
    try:
        decoder: Decoder = SndfileDecoder(text, name, file, size)
    except soundfile.LibsndfileError as error:
        with file:
            _refuse_text(file, name)
        decoder = _open_media(text, name, error)
    except BaseException:
        file.close()
        raise
    return AudioReader(decoder, text, channel, start, end, name)


def check_part(start: float, end: float | None) -> None:
    """Nothing where `start` and `end` (seconds) bound a part of a recording.

    Raises
    ------
    OptionError
        They do not.
    """
    check_seconds("start", start)
    if end is not None and not seconds("end", end) > start:
        raise OptionError(f"end is {end:g}; it must be a number of seconds above start, {start:g}")


def load(path: str | os.PathLike[str], channel: int | None = None) -> Waveform:
    """The whole recording in memory: 230 MB an hour.

    Raises
    ------
    AudioError
        As `open_audio`, or damage found while decoding.
    """
    with open_audio(path, channel) as reader:
        return collect(reader)


def collect(reader: AudioReader) -> Waveform:
    """The rest of `reader` as one array; the reader's errors pass through."""
    blocks = list(reader)
    samples = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    return Waveform(samples, reader.path, reader.sample_rate, reader.channels, reader.warnings)


def shown_name(path: str) -> str:
    """`path` as it may stand in a one-line message: escaped where it holds line breaks or broken characters."""
    return path if path.isprintable() else ascii(path)


def _open_file(path: str, name: str) -> tuple[BinaryIO, int]:
    """The open file and its size in bytes; raises `AudioError` for what is no readable, non-empty file."""
    if not path:
        raise AudioError("the path of a recording is empty; give the name of a file")
    try:
        # Before opening: opening a FIFO would wait for a writer.
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise AudioError(f"{name}: is a directory; give the recordings in it one by one")
        if not stat.S_ISREG(mode):
            raise AudioError(f"{name}: is a pipe or device; give a regular file")
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError as error:
        raise AudioError(f"{name}: no such file; check the path") from error
    except PermissionError as error:
        raise AudioError(f"{name}: permission denied; make it readable") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AudioError(f"{name}: cannot be opened ({reason}); check the path") from error
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        file.close()
        raise AudioError(f"{name}: the file is empty (0 bytes); copy or record it again")
    return file, size


def _refuse_text(file: BinaryIO, name: str) -> None:
    """Raises `AudioError` where the file is text: a web page, a list, or notes under a recording's name."""
    file.seek(0)
    start = file.read(4096)
    try:
        # A character cut at the end of the sample is no proof against text.
        text = start[:4092].decode("utf-8") if len(start) == 4096 else start.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(start) < 4096 or error.start < 4088:
            return
        text = start[: error.start].decode("utf-8")
    if all(character.isprintable() or character in "\t\n\r\f\ufeff" for character in text):
        raise AudioError(
            f"{name}: is a text file, not a recording; give a wav, flac, mp3, ogg, m4a or other audio file"
        )


def _open_media(path: str, name: str, reason: soundfile.LibsndfileError) -> Decoder:
    """Decoder from the extra `media`; raises `AudioError`, which names the extra where it is missing and may help."""
    try:
        from .media import MediaDecoder
    except ImportError as error:
        with open(path, "rb") as file:
            start = file.read(256)
        raise AudioError(f"{name}: {why_refused(start, path, reason.error_string)}") from error
    return MediaDecoder(path, name)
