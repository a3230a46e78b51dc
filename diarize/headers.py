"""What the header of a WAV, AIFF, FLAC, mp3 or Ogg file claims, and a view of the file whose header tells the truth.

Recorders that were cut off, pipes and tools that wrap at 4 GiB leave lengths in the header that do not fit the
file. libsndfile believes a length that is too small. Nothing is decoded here: the header is read, compared with
the size of the file, and where needed replaced by one under which a decoder reads on to the end of the file.

References
----------
Microsoft and IBM, "Multimedia Programming Interface and Data Specifications 1.0" (1991), RIFF and WAVE.
Apple, "Audio Interchange File Format: AIFF" 1.3 (1989), the common chunk.
EBU Tech 3306, "RF64: An extended file format for audio" (2009). RFC 9639, FLAC, section 8.2 (STREAMINFO).
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, replace
from typing import BinaryIO

from .mp3 import Mp3Start, endless_tag, read_start

# Formats whose block is one sample of every channel: PCM, float, A-law, mu-law, extensible.
_SAMPLE_FORMATS = {1, 3, 6, 7, 0xFFFE}
# Bytes after the audio that are no chunks and yet too few to be forgotten audio: padding of a tool.
_JUNK_BYTES = 4096
# An mp3 may hold a picture or tags after its audio; a part that was joined on is larger than this share.
_JOINED_SHARE = 0.05
# From a smaller share that is missing on, mpg123 writes a warning of its own to standard error.
_CUT_SHARE = 0.009
_OGG_PAGE_BYTES = 65_307


@dataclass(frozen=True)
class Claim:
    """What a header says, and how to read past what it says.

    `frames`: samples per channel that it promises, None where it makes no usable promise.
    `prefix`, `skip`: the truthful file is `prefix` followed by the file's bytes from `skip` on; no prefix, no change.
    `warning`: a sentence for the user, or None.
    `cut`: True where the file ends within its header. `trim`: samples per channel to drop at the start.
    """

    frames: int | None = None
    prefix: bytes = b""
    skip: int = 0
    warning: str | None = None
    cut: bool = False
    trim: int = 0


def read_claim(file: BinaryIO, size: int) -> Claim:
    """What the header of the open `file` of `size` bytes claims; an empty claim for formats without a mark.

    An mp3 need not begin with a mark; ask `mp3_claim` where a decoder finds that it is one.
    """
    file.seek(0)
    start = file.read(64)
    if start[:4] in (b"RIFF", b"RF64") and b"WAVE".startswith(start[8:12]):
        return _wav_claim(file, size)
    if start[:4] == b"FORM" and start[8:12] in (b"AIFF", b"AIFC"):
        return _aiff_claim(file)
    if start[:4] == b"fLaC":
        # The marker, then STREAMINFO: a header of 4 bytes and a body of 34.
        return _flac_claim(start) if len(start) >= 42 else Claim(cut=True)
    if start[:4] == b"OggS":
        return _ogg_claim(file, size)
    if start[:3] == b"ID3" or start[:1] == b"\xff":
        return mp3_claim(file, size)
    return Claim()


def _aiff_claim(file: BinaryIO) -> Claim:
    """Claim of an AIFF file: the sample frames of its common chunk."""
    position = 12
    while True:
        file.seek(position)
        head = file.read(14)
        if len(head) < 14:
            return Claim()
        if head[:4] == b"COMM":
            return Claim(int.from_bytes(head[10:14], "big") or None)
        length = int.from_bytes(head[4:8], "big")
        position += 8 + length + length % 2


def _flac_claim(start: bytes) -> Claim:
    """Claim of a FLAC file: its 36-bit sample count, replaced by 0 ("unknown") for decoding."""
    frames = int.from_bytes(start[21:26], "big") & 0xF_FFFF_FFFF
    prefix = start[:21] + bytes([start[21] & 0xF0, 0, 0, 0, 0])
    return Claim(frames or None, prefix, len(prefix))


def mp3_claim(file: BinaryIO, size: int) -> Claim:
    """Claim of an mp3 file: none where its tag fits, else an endless tag in front of its audio."""
    start = read_start(file)
    if start is None:
        return Claim()
    claim = _tag_claim(start, size)
    if claim.warning is None and start.leading >= start.header.num_bytes:
        lead = f"the first {start.leading} bytes hold no audio; if they are damaged, all times are early"
        return replace(claim, warning=lead)
    return claim


def _tag_claim(start: Mp3Start, size: int) -> Claim:
    """Claim of an mp3 file of `size` bytes with that start, by its tag."""
    prefix = endless_tag(start.header)
    if start.tagged_bytes is None or start.seconds is None:
        return Claim(None, prefix, start.offset)
    held, skip = size - start.offset, start.offset + start.header.num_bytes
    if held < (1 - _CUT_SHARE) * start.tagged_bytes:
        frames = round(start.seconds * start.header.sample_rate)
        return Claim(frames, prefix, skip, trim=start.delay_samples)
    if held <= (1 + _JOINED_SHARE) * start.tagged_bytes + _JUNK_BYTES:
        return Claim()
    warning = f"the header says {start.seconds:.1f} s but the file goes on; all of it was decoded"
    return Claim(None, prefix, skip, warning, trim=start.delay_samples)


def _ogg_claim(file: BinaryIO, size: int) -> Claim:
    """Claim of an Ogg file: a warning where its last page is of another stream or is not marked as the end."""
    streams = set()
    position = 0
    while True:
        file.seek(position)
        page = file.read(27 + 255)
        # Flag 2 marks the first page of a stream; all of these come first.
        if len(page) < 27 or page[:4] != b"OggS" or not page[5] & 2:
            break
        streams.add(page[14:18])
        position += 27 + page[26] + sum(page[27 : 27 + page[26]])
    file.seek(max(size - _OGG_PAGE_BYTES, 0))
    end = file.read()
    last = end.rfind(b"OggS")
    if last < 0 or len(end) - last < 27:
        return Claim(warning="the file has no end mark: it was probably cut off")
    if end[last + 14 : last + 18] not in streams:
        return Claim(warning="the file holds several recordings in a row; only the first was decoded; split them")
    if not end[last + 5] & 4:
        return Claim(warning="the file has no end mark: it was probably cut off")
    return Claim()


def _wav_claim(file: BinaryIO, size: int) -> Claim:
    """Claim of a RIFF or RF64 file; an RF64 header over everything to the file's end where it claims too little."""
    position, fmt, claimed64 = 12, b"", 0
    while True:
        file.seek(position)
        head = file.read(8)
        if len(head) < 8:
            return Claim(cut=True)
        name, length = head[:4], int.from_bytes(head[4:], "little")
        if name == b"data":
            break
        if name == b"ds64":
            claimed64 = int.from_bytes(file.read(16)[8:], "little")
        elif name == b"fmt ":
            fmt = file.read(length) if length <= 4096 else b""
        position += 8 + length + length % 2
    offset = position + 8
    if len(fmt) < 16:
        return Claim(cut=True)
    tag, _, rate, _, block_bytes, _ = struct.unpack_from("<HHIIHH", fmt)
    placeholder = _is_placeholder(length)
    if length == 0xFFFF_FFFF and claimed64:
        length, placeholder = claimed64, False
    counted = tag in _SAMPLE_FORMATS and block_bytes > 0 and rate > 0
    frames = length // block_bytes if counted and not placeholder else None
    held = size - offset
    if held <= length or _are_chunks(file, offset + length, size):
        return Claim(0 if length == 0 and held == 0 else frames)
    if not placeholder and held - length < _JUNK_BYTES:
        return Claim(frames)
    warning = None
    if frames is not None:
        warning = (
            f"the header says {frames / rate:.1f} s but the file holds {held // block_bytes / rate:.1f} s; "
            "all of it was decoded"
        )
    return Claim(None, _rf64_header(fmt, held, frames=held // max(block_bytes, 1)), offset, warning)


def _is_placeholder(length: int) -> bool:
    """Whether a data length is one that writers leave when they cannot seek back (ffmpeg, sox, arecord, 0)."""
    return length == 0 or length >= 0xFFFF_FF00 or 0x7FFF_F000 <= length <= 0x7FFF_FFFF or length == 0x8000_0000


def _are_chunks(file: BinaryIO, position: int, size: int) -> bool:
    """Whether the bytes from `position` to the file's end are RIFF chunks, the last of them perhaps cut off."""
    position += position % 2
    first = True
    while size - position >= 8:
        file.seek(position)
        head = file.read(8)
        if not all(0x20 <= byte < 0x7F for byte in head[:4]):
            return False
        length = int.from_bytes(head[4:], "little")
        if first and position + 8 + length > size:
            return False
        position += 8 + length + length % 2
        first = False
    return True


def _rf64_header(fmt: bytes, data_bytes: int, frames: int) -> bytes:
    """RF64 header for `data_bytes` of audio in the format chunk `fmt`; 64-bit lengths, so any size fits."""
    fmt += b"\0" * (len(fmt) % 2)
    total = 4 + 8 + 28 + 8 + len(fmt) + 8 + data_bytes
    return b"".join(
        (
            b"RF64\xff\xff\xff\xffWAVE",
            b"ds64" + struct.pack("<IQQQI", 28, total, data_bytes, frames, 0),
            b"fmt " + struct.pack("<I", len(fmt)) + fmt,
            b"data\xff\xff\xff\xff",
        )
    )


class TruthfulFile(io.RawIOBase):
    """Read-only view: `prefix`, then the bytes of `file` from `skip` on.

    An error of the disk is kept in `error` and looks like the end of the file to the decoder, whose callbacks cannot
    raise.
    """

    def __init__(self, file: BinaryIO, prefix: bytes, skip: int) -> None:
        self._file = file
        self._prefix = prefix
        self._skip = skip
        self._position = 0
        self._size = len(prefix) + file.seek(0, io.SEEK_END) - skip
        self.error: OSError | None = None

    @property
    def left(self) -> int:
        """Bytes behind the position."""
        return max(self._size - self._position, 0)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """New position in bytes."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Number of bytes read into `buffer`; 0 at the end."""
        view = memoryview(buffer)
        done = 0
        try:
            while done < len(view):
                count = self._read_piece(view[done:])
                if count == 0:
                    break
                done += count
                self._position += count
        except OSError as error:
            self.error = error
        return done

    def _read_piece(self, view: memoryview) -> int:
        """Number of bytes read at the position, at most to the border between prefix and file."""
        if self._position < len(self._prefix):
            piece = self._prefix[self._position : self._position + len(view)]
            view[: len(piece)] = piece
            return len(piece)
        self._file.seek(self._position - len(self._prefix) + self._skip)
        piece = self._file.read(len(view))
        view[: len(piece)] = piece
        return len(piece)
