"""The start of an mp3 file: its first frame, and the Xing or Info tag that says how long the recording is.

Encoders write the tag into a first, silent frame: how many frames and bytes follow, and how many samples of silence
the encoder put in front. Files that were joined afterwards keep the tag of their first part, and files without a tag
have no length at all: libsndfile guesses one from the bit rate of the first frames and stops there. `endless_tag`
makes a tag under which it reads on to the end of the file.

References
----------
Gabriel Bouvigne, "Mp3 Info Tag revision 1 specifications" (LAME project); ISO/IEC 11172-3, section 2.4.2.3 (header).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import BinaryIO

# kbit/s of layer III by the header's bit rate index, MPEG-1 and MPEG-2 or 2.5; 0 stands for free format.
_BIT_RATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
_SAMPLE_RATES = (44_100, 48_000, 32_000)
_SEARCHED_BYTES = 65_536
DECODER_DELAY = 529
"""Samples per channel by which a decoder of layer III is late, and which mpg123 leaves out under any tag."""
# More frames than any file holds, and few enough for a 31-bit count of samples to stay positive.
_ENDLESS_FRAMES = 1 << 28


@dataclass(frozen=True)
class FrameHeader:
    """The four bytes before each frame of layer III.

    `raw` the bytes, `is_mpeg1` (else MPEG-2 or 2.5), `sample_rate` in Hz, `is_mono`, `num_bytes` of the whole frame.
    """

    raw: bytes
    is_mpeg1: bool
    sample_rate: int
    is_mono: bool
    num_bytes: int

    @classmethod
    def parse(cls, raw: bytes) -> FrameHeader | None:
        """The header in the first four bytes of `raw`, None where they are none."""
        if len(raw) < 4 or raw[0] != 0xFF or raw[1] & 0xE6 != 0xE2:
            return None
        version, bit_rate, rate_index = raw[1] >> 3 & 3, raw[2] >> 4, raw[2] >> 2 & 3
        if version == 1 or bit_rate in (0, 15) or rate_index == 3:
            return None
        is_mpeg1 = version == 3
        rate = _SAMPLE_RATES[rate_index] >> (0 if is_mpeg1 else 1 if version == 2 else 2)
        num_bytes = (144_000 if is_mpeg1 else 72_000) * _BIT_RATES[not is_mpeg1][bit_rate] // rate
        return cls(raw[:4], is_mpeg1, rate, raw[3] >> 6 == 3, num_bytes + (raw[2] >> 1 & 1))

    @property
    def num_samples(self) -> int:
        """Samples per channel of a frame."""
        return 1152 if self.is_mpeg1 else 576

    @property
    def tag_offset(self) -> int:
        """Bytes from the start of a frame to where a tag would be: after header and side information."""
        return 4 + ((17 if self.is_mono else 32) if self.is_mpeg1 else (9 if self.is_mono else 17))


@dataclass(frozen=True)
class Mp3Start:
    """The first frame of a file, at `offset` bytes, and what its tag says where it has one.

    `seconds` and `tagged_bytes`: what the tag promises, None without a tag. `delay_samples`: samples per channel
    that the encoder put before the recording, where the tag states it. Decoders add `DECODER_DELAY`. `leading` bytes in
    front of the first frame are neither frames nor an ID3 tag.
    """

    header: FrameHeader
    offset: int
    seconds: float | None = None
    tagged_bytes: int | None = None
    delay_samples: int = 0
    leading: int = 0


def id3_bytes(start: bytes) -> int:
    """Length of the ID3v2 tag that begins with the ten bytes `start`, 0 where there is none."""
    if start[:3] != b"ID3" or len(start) < 10:
        return 0
    # Seven bits a byte, so that the size never looks like the start of a frame.
    return 10 + (start[6] << 21 | start[7] << 14 | start[8] << 7 | start[9])


def read_start(file: BinaryIO) -> Mp3Start | None:
    """The start of the open `file`, None where no two frames of layer III follow each other near its beginning."""
    file.seek(0)
    base = id3_bytes(file.read(10))
    file.seek(base)
    data = file.read(_SEARCHED_BYTES)
    if data[:4] == b"fLaC":
        return None
    offset = data.find(b"\xff")
    while offset >= 0:
        header = FrameHeader.parse(data[offset : offset + 4])
        if header is not None:
            following = FrameHeader.parse(data[offset + header.num_bytes : offset + header.num_bytes + 4])
            if following is not None and following.sample_rate == header.sample_rate:
                found = _read_tag(header, base + offset, data[offset : offset + header.num_bytes])
                return replace(found, leading=offset)
        offset = data.find(b"\xff", offset + 1)
    return None


def _read_tag(header: FrameHeader, offset: int, frame: bytes) -> Mp3Start:
    """The start of a file whose first frame has these bytes."""
    tag = frame[header.tag_offset :]
    # Both counts are there: flags 1 and 2.
    if tag[:4] not in (b"Xing", b"Info") or len(tag) < 16 or tag[7] & 3 != 3:
        return Mp3Start(header, offset)
    frames, num_bytes = int.from_bytes(tag[8:12], "big"), int.from_bytes(tag[12:16], "big")
    after = 16 + (100 if tag[7] & 4 else 0) + (4 if tag[7] & 8 else 0)
    encoder = tag[after : after + 24]
    delay = 0
    # LAME, Lavf and Lavc write their name, then the delay 21 bytes further on.
    if len(encoder) == 24 and encoder[:2] in (b"LA", b"La"):
        delay = int.from_bytes(encoder[21:23], "big") >> 4
    return Mp3Start(header, offset, frames * header.num_samples / header.sample_rate, num_bytes, delay)


def endless_tag(header: FrameHeader) -> bytes:
    """A silent frame like those of `header` with a tag that promises more frames than any file holds."""
    # Bit rate index 9 has room for the tag at every rate; bit 0 of byte 1 set: no checksum; no padding.
    raw = bytes([0xFF, header.raw[1] | 1, 9 << 4 | header.raw[2] & 0x0C, header.raw[3]])
    frame = FrameHeader.parse(raw)
    assert frame is not None
    tag = b"Xing" + (1).to_bytes(4, "big") + _ENDLESS_FRAMES.to_bytes(4, "big")
    return (raw + bytes(frame.tag_offset - 4) + tag).ljust(frame.num_bytes, b"\0")
