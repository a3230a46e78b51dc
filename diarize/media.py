"""Decoding through PyAV (the extra `media`): m4a, mp4, webm, mkv, aac and what libsndfile does not know.

Delivers blocks of every channel at the native rate, like diarize/sndfile.py. The first audio stream is used.

Encoder delay: where the container states it (m4a and mp4 with an edit list, webm and mkv, mp3 with a LAME tag) it
is removed. A bare AAC stream (aac, ts) does not state it, so its times are late by the encoder's delay, usually
1024 samples (23 ms at 44.1 kHz, 64 ms at 16 kHz).
"""

from __future__ import annotations

from collections.abc import Iterator

import av
import av.error
import numpy as np

from .errors import AudioError

# Formats that hold audio themselves. Playlists (hls, concat, dash) are left out: they would open other files.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,aac,mp3,ogg,flac,wav,w64,aiff,caf,au,asf,avi,mpegts,mpeg,flv,ac3,eac3,"
    "amr,amrnb,amrwb,ape,wv,tta,dts,loas,nistsphere,mpc,mpc8,tak,dsf,gsm,spdif,mxf,oma,voc,rm,xwma,shn,iff,sox"
)
_TOLERANCE_SECONDS = 0.25
_DAMAGED = "the file is cut off or damaged; copy or record it again"
# Offset and bytes that formats begin with: MPEG-4, Matroska and WebM, RIFF, Ogg, FLAC, ASF, AIFF.
_MARKS = (
    (4, b"ftyp"), (0, b"\x1aE\xdf\xa3"), (0, b"RIFF"), (0, b"OggS"), (0, b"fLaC"), (0, b"0&\xb2u"), (0, b"FORM"),
)  # fmt: skip


class MediaDecoder:
    """Blocks of the first audio stream of one file, decoded in order by FFmpeg's libraries.

    `sample_rate` in Hz, `channels`, `expected_frames` (None where the container does not say) are known from the
    start, from the first decoded audio and not from the header; `warnings` is complete after the last block.

    Raises
    ------
    AudioError
        Not a known format, no audio stream, no codec for it, or nothing that can be decoded.
    """

    def __init__(self, path: str, name: str) -> None:
        self._name = name
        self.warnings: list[str] = []
        self._damaged = 0
        options = {"format_whitelist": _FORMATS, "protocol_whitelist": "file"}
        try:
            # "file:" keeps a name with a colon from being taken for a network address.
            self._container = av.open("file:" + path, metadata_errors="ignore", options=options)
        except (av.error.FFmpegError, OSError, ValueError, UnicodeError) as error:
            raise AudioError(f"{name}: {_why_unknown(path)}") from error
        try:
            self._frames = self._decode()
            self._first = next(self._frames, None)
            if self._first is None:
                raise AudioError(f"{name}: nothing of its audio could be decoded; copy or record it again")
        except BaseException:
            self._container.close()
            raise
        self.sample_rate: int = self._first.sample_rate
        self.channels: int = self._first.layout.nb_channels
        self.expected_frames: int | None = self._promise()

    def _promise(self) -> int | None:
        """Samples per channel that the container states; formats that only guess from the bit rate state nothing."""
        stream = self._container.streams.audio[0]
        if stream.duration is not None and stream.time_base is not None and "mp4" in self._container.format.name:
            return round(stream.duration * stream.time_base * self.sample_rate)
        return None

    def _decode(self) -> Iterator[av.AudioFrame]:
        """Yields every frame that can be decoded and counts the packets that cannot."""
        streams = self._container.streams.audio
        if not streams:
            # An mp4 whose index is cut off opens, but as an empty one.
            reason = "holds no audio stream; give a file with sound" if self._container.streams else _DAMAGED
            raise AudioError(f"{self._name}: {reason}")
        if len(streams) > 1:
            self.warnings.append(f"the file holds {len(streams)} audio streams; the first one is used")
        stream = streams[0]
        if stream.codec_context is None:
            raise AudioError(f"{self._name}: its audio codec is unknown; convert it to wav or flac")
        packets = self._container.demux(stream)
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    return
                frames = packet.decode()
            except av.error.EOFError:
                return
            except av.error.InvalidDataError:
                self._damaged += 1
                continue
            except (av.error.FFmpegError, OSError) as error:
                raise AudioError(
                    f"{self._name}: decoding failed ({error.strerror}); convert it to wav or flac"
                ) from error
            yield from frames

    def skip(self, frames: int) -> int:
        """Passes over nothing: containers seek to whole packets only, whose decoder needs those before."""
        return 0

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields (num_samples, channels) float32; full scale is 1.0.

        Raises
        ------
        AudioError
            Rate or channels change within the file, or decoding fails.
        """
        decoded = 0
        frame = self._first
        self._first = None
        while frame is not None:
            if (frame.sample_rate, frame.layout.nb_channels) != (self.sample_rate, self.channels):
                raise AudioError(
                    f"{self._name}: changes from {self.sample_rate} Hz, {self.channels} channels to "
                    f"{frame.sample_rate} Hz, {frame.layout.nb_channels} at {decoded / self.sample_rate:.1f} s; "
                    "convert it to wav or flac"
                )
            decoded += frame.samples
            yield _to_float(frame)
            frame = next(self._frames, None)
        if self._damaged:
            self.warnings.append(f"{self._damaged} damaged packets were left out; later times may be early by as much")
        expected = self.expected_frames
        if expected is not None and expected - decoded > _TOLERANCE_SECONDS * self.sample_rate:
            self.warnings.append(
                f"the audio ends early: the header says {expected / self.sample_rate:.1f} s, "
                f"{decoded / self.sample_rate:.1f} s decoded"
            )

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._container.close()


def _why_unknown(path: str) -> str:
    """What is wrong with a file that cannot be opened, judged by the bytes that it begins with."""
    with open(path, "rb") as file:
        start = file.read(16)
    if any(start[offset:].startswith(mark) for offset, mark in _MARKS):
        return _DAMAGED
    return "not a recording in a known format; give a wav, flac, mp3, ogg, opus, m4a, mp4 or webm file"


def _to_float(frame: av.AudioFrame) -> np.ndarray:
    """(num_samples, channels) float32 of a frame in any sample format."""
    values = frame.to_ndarray()
    # Planar formats come as (channels, num_samples), packed ones as (1, num_samples * channels).
    block = values.T if frame.format.is_planar else values.reshape(-1, frame.layout.nb_channels)
    if block.dtype == np.uint8:
        return (block.astype(np.float32) - 128) / np.float32(128)
    if np.issubdtype(block.dtype, np.integer):
        scale = 1.0 / (1 << (8 * block.dtype.itemsize - 1))
        return (block * scale).astype(np.float32)
    return block.astype(np.float32)
