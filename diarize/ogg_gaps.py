"""Where an Ogg file has lost pages, and how much audio with them.

libogg passes over pages whose checksum is wrong and does not say so: what follows would be early by what was lost.
Pages are numbered and state the time at which they end, so the losses show.

References
----------
RFC 3533, "The Ogg Encapsulation Format Version 0", section 6 (pages, checksum). RFC 7845, Opus in Ogg: samples are
counted at 48 kHz, and those to skip at the start included.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import BinaryIO

_MARK = b"OggS"
_HEADER = struct.Struct("<4sBBqIIIB")
_OPUS_RATE = 48_000
_LARGEST_PAGE = 65_307
# Enough to tell the codec.
_KEPT_BYTES = 64
# Seconds that a few damaged pages at the end can have held; more is damage to the number itself.
_LONGEST_PAGES = 600
# The checksum takes the bits of each byte in the other order than zlib's.
_TURNED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


@dataclass(frozen=True)
class Gap:
    """`length` samples per channel that are missing where `at` samples have been decoded.

    `inner`: whether audio lies on both sides, so that the length that libsndfile states counts it.
    """

    at: int
    length: int
    inner: bool = True


@dataclass(frozen=True)
class _Page:
    """What a page states: `end`, the samples of the stream up to its end, -1 where no packet ends in it.

    `body` is the beginning of what it holds; `is_whole` whether the checksum is right.
    """

    end: int
    stream: int
    number: int
    body: bytes
    is_whole: bool


def find_losses(file: BinaryIO, sample_rate: int) -> list[Gap]:
    """The gaps of an open Ogg file that libsndfile decodes at `sample_rate`; lengths are those of the lost pages.

    Empty for files with several streams and for codecs other than Vorbis and Opus.
    """
    found = list(_pages(file))
    pages = [page for page in found if page.is_whole]
    if not pages or len({page.stream for page in pages}) != 1:
        return []
    first = pages[0].body
    if first.startswith(b"OpusHead") and len(first) >= 12:
        scale, skipped = sample_rate / _OPUS_RATE, int.from_bytes(first[10:12], "little")
    elif first.startswith(b"\x01vorbis"):
        scale, skipped = 1.0, 0
    else:
        return []

    def samples(end: int) -> int:
        return round(max(0, end - skipped) * scale)

    ending = [page for page in pages if page.end > 0]
    follow = [b.end - a.end for a, b in pairwise(ending) if b.number == a.number + 1]
    usual = round(median(follow) * scale) if follow else 0
    gaps: list[Gap] = []
    reached = lost = 0
    for index, (before, after) in enumerate(pairwise(pages), start=1):
        reached = max(reached, samples(before.end))
        if after.number > before.number + 1:
            end = next((page.end for page in pages[index:] if page.end > 0), before.end)
            length = max(0, samples(end) - reached - usual)
            gaps.append(Gap(reached - lost, length, reached > 0))
            lost += length
    return gaps + _at_the_end(found, samples, lost, sample_rate)


def _at_the_end(pages: Sequence[_Page], samples: Callable[[int], int], lost: int, sample_rate: int) -> list[Gap]:
    """What damaged pages after the last whole one state to have held, if that can be; nothing for other endings."""
    whole = [page for page in pages if page.is_whole]
    tail = pages[pages.index(whole[-1]) + 1 :]
    reached = max(samples(page.end) for page in whole)
    ends = [samples(page.end) for page in tail if page.stream == whole[-1].stream]
    sensible = [end for end in ends if reached < end < reached + _LONGEST_PAGES * sample_rate]
    return [Gap(reached - lost, max(sensible) - reached, False)] if sensible else []


def fitted(gaps: Sequence[Gap], missing: int) -> list[Gap]:
    """`gaps` with lengths of inner ones that add up to the `missing` samples, in proportion to what they were."""
    inner = [gap for gap in gaps if gap.inner]
    known = sum(gap.length for gap in inner)
    fit: list[Gap] = []
    passed = taken = before = after = 0
    for gap in gaps:
        length = gap.length
        if gap.inner:
            passed += gap.length if known else 1
            length = round(missing * passed / (known or len(inner))) - taken
            taken += length
        # Counted from the true start: what earlier gaps were taken for must not move it.
        fit.append(Gap(max(0, gap.at + before - after), length, gap.inner))
        before, after = before + gap.length, after + length
    return fit


def _pages(file: BinaryIO) -> Iterator[_Page]:
    """All pages of an open file, in order."""
    position = 0
    while (found := _next_mark(file, position)) is not None:
        position = found
        file.seek(position)
        page = file.read(_LARGEST_PAGE)
        size = 0
        if len(page) >= _HEADER.size:
            _, _, _, end, stream, number, checksum, lacings = _HEADER.unpack_from(page)
            start = _HEADER.size + lacings
            size = start + sum(page[_HEADER.size : start])
            # The last page of a file that was cut off is no damage.
            if size <= len(page):
                is_whole = _checksum(page[:22] + bytes(4) + page[26:size]) == checksum
                yield _Page(end, stream, number, page[start : start + _KEPT_BYTES], is_whole)
                size = size if is_whole else 0
        position += size or 1


def _next_mark(file: BinaryIO, position: int) -> int | None:
    """Where the next page may begin, from `position` on; None where nowhere."""
    file.seek(position)
    before = b""
    while piece := file.read(_LARGEST_PAGE):
        found = (before + piece).find(_MARK)
        if found >= 0:
            return position - len(before) + found
        position += len(piece)
        before = (before + piece)[-len(_MARK) + 1 :]
    return None


def _checksum(page: bytes) -> int:
    """CRC-32 with the polynomial 0x04C11DB7 from zero on, neither reflected nor inverted."""
    reflected = ~zlib.crc32(page.translate(_TURNED), 0xFFFF_FFFF) & 0xFFFF_FFFF
    return int(f"{reflected:032b}"[::-1], 2)
