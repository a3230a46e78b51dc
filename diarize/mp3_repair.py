"""Damage within an mp3: where its chain of frames breaks, and a view of the file with silent frames in its place.

mpg123 gives a file up where it finds no frame for 1,024 bytes, although later frames decode, and passes over less
without keeping the time. In the view every frame follows the one before it, and nothing that is lost shifts the rest.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import BinaryIO

from .mp3 import FrameHeader, id3_bytes

# Frames that must follow each other where the chain is taken up again: four bytes can look like a header by chance.
_CHAIN = 4
_OLD_TAG_BYTES = 128


@dataclass(frozen=True)
class Hole:
    """Bytes `start` to `stop` of a file, where no frames are.

    `frames_before`: frames from the first one to here, those that earlier holes took included. `lost`: about how many
    this one took; `is_exact` where all frames have one size, or one hole in a file took what its tag counts too many.
    """

    start: int
    stop: int
    frames_before: int
    lost: int
    is_exact: bool = True


def find_holes(content: bytes, first: int, header: FrameHeader, total: int | None = None) -> list[Hole]:
    """The holes of the file `content` whose frames, like `header`, begin at byte `first`.

    `total` frames are those that there should be, None where that is not known. What follows the last frame is no hole,
    nor are tags between files that were joined.
    """
    # Where each hole begins and ends, and the whole frames before it.
    gaps: list[tuple[int, int, int]] = []
    position, frames = first, 0
    while position + 4 <= len(content):
        own = _alike(content, position, header)
        if own is not None:
            position, frames = position + own.num_bytes, frames + 1
            continue
        tag = id3_bytes(content[position : position + 10]) or _OLD_TAG_BYTES * (
            content[position : position + 3] == b"TAG"
        )
        if 0 < tag < len(content) - position:
            position += tag
            continue
        stop = _next_chain(content, position + 1, header)
        if stop is None:
            break
        gaps.append((position, stop, frames))
        position = stop
    empty = sum(stop - start for start, stop, _ in gaps)
    mean = (position - first - empty) / max(frames, 1)
    is_exact = (total is not None and len(gaps) == 1) or abs(mean - header.num_bytes) < 1
    if total is None:
        total = frames + round(empty / max(mean, 1))
    found: list[Hole] = []
    passed = taken = 0
    for start, stop, kept in gaps:
        passed += stop - start
        # Rounded so that all of them take what is missing.
        lost = round(max(total - frames, 0) * passed / empty) - taken
        found.append(Hole(start, stop, kept + taken, lost, is_exact))
        taken += lost
    return found


def mended(file: BinaryIO, size: int, holes: Sequence[Hole], header: FrameHeader) -> BinaryIO:
    """The open `file` of `size` bytes with silent frames in place of `holes`."""
    silence = silent_frame(header)
    pieces: list[bytes | range] = []
    at = 0
    for hole in holes:
        pieces += [range(at, hole.start), silence * hole.lost]
        at = hole.stop
    return io.BufferedReader(_Spliced(file, [*pieces, range(at, size)]))


def silent_frame(header: FrameHeader) -> bytes:
    """A frame like those of `header` without sound: no checksum, no padding, and side information of zeros."""
    raw = bytes([0xFF, header.raw[1] | 1, header.raw[2] & 0xFD, header.raw[3]])
    frame = FrameHeader.parse(raw)
    assert frame is not None
    return raw.ljust(frame.num_bytes, b"\0")


def _alike(content: bytes, position: int, header: FrameHeader) -> FrameHeader | None:
    """The header at `position`, None where there is none of the same stream."""
    own = FrameHeader.parse(content[position : position + 4])
    if own is None or (own.is_mpeg1, own.sample_rate, own.is_mono) != (
        header.is_mpeg1,
        header.sample_rate,
        header.is_mono,
    ):
        return None
    return own


def _next_chain(content: bytes, position: int, header: FrameHeader) -> int | None:
    """The first byte from `position` on where frames follow each other again, None where nowhere."""
    position = content.find(b"\xff", position)
    while position >= 0:
        at = position
        for _ in range(_CHAIN):
            own = _alike(content, at, header)
            if own is None:
                break
            at += own.num_bytes
        else:
            return position
        position = content.find(b"\xff", position + 1)
    return None


class _Spliced(io.RawIOBase):
    """Read-only: pieces one after another, each bytes or a range of bytes of `file`."""

    def __init__(self, file: BinaryIO, pieces: Sequence[bytes | range]) -> None:
        self._file = file
        self._pieces = pieces
        self._starts = list(accumulate(map(len, pieces), initial=0))
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._starts[-1]}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if self._position >= self._starts[-1]:
            return 0
        index = bisect_right(self._starts, self._position) - 1
        piece, inside = self._pieces[index], self._position - self._starts[index]
        count = min(len(buffer), len(piece) - inside)
        if isinstance(piece, range):
            self._file.seek(piece.start + inside)
            data = self._file.read(count)
        else:
            data = piece[inside : inside + count]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
