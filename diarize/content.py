"""Why a file that libsndfile refuses cannot be read, judged by the bytes that it begins with.

References
----------
ISO/IEC 14496-12 (ftyp and its like), RFC 8794 (EBML), RFC 3533 (Ogg), ATSC A/52 (AC-3), ISO/IEC 13818-1 and -7 (MPEG
streams, ADTS), RFC 4867 (AMR): the marks that formats begin with.
"""

from __future__ import annotations

import os

# Formats that libsndfile reads.
_OWN = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"FORM")
# Codings of WAV that libsndfile knows: PCM, ADPCM, float, A-law, mu-law, IMA, GSM, G.721, NMS, mp3, extensible.
_WAV_CODINGS = {0, 1, 2, 3, 6, 7, 0x11, 0x31, 0x38, 0x40, 0x45, 0x55, 0xFFFE}
_OGG_VIDEO = (b"theora", b"fishead", b"\x01video")
# Offset and bytes at the start of containers and codecs that need PyAV.
_MEDIA = (
    (4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"free"), (4, b"wide"), (4, b"skip"), (0, b"\x1aE\xdf\xa3"),
    (0, b"0&\xb2u"), (0, b"FLV"), (0, b"#!AMR"), (0, b"\x0bw"), (0, b"wvpk"), (0, b"MAC "), (0, b"TTA1"),
    (0, b"\0\0\x01\xba"), (0, b"DSD "), (0, b"\x7f\xfe\x80\x01"), (0, b"\x06\x0e+4"), (0, b"ID3"),
)  # fmt: skip
_MEDIA_SUFFIXES = {
    ".m4a", ".mp4", ".m4v", ".mov", ".3gp", ".webm", ".mkv", ".mka", ".aac", ".wma", ".wmv", ".asf", ".avi", ".ts",
    ".mpg", ".mpeg", ".flv", ".ac3", ".amr", ".ape", ".wv",
}  # fmt: skip


def begins_like_sound(start: bytes) -> bool:
    """Whether `start`, the first bytes of a file, are those of a WAV, FLAC, Ogg or AIFF that holds no other media."""
    if not start.startswith(_OWN):
        return False
    if start[:4] in (b"RIFF", b"RF64"):
        if start[8:16] == b"WAVEfmt ":
            return int.from_bytes(start[20:22], "little") in _WAV_CODINGS
        return start[8:12] != b"AVI "
    return not (start[:4] == b"OggS" and any(mark in start for mark in _OGG_VIDEO))


def may_be_media(start: bytes, path: str) -> bool:
    """Whether a file with these first bytes, or of this name, may be something that PyAV can open."""
    if begins_like_sound(start):
        return False
    if start.startswith(_OWN) or any(start[offset:].startswith(mark) for offset, mark in _MEDIA):
        return True
    # ADTS: twelve bits of sync and a layer of 0. A transport stream: its sync byte in each packet.
    adts = len(start) > 1 and start[0] == 0xFF and start[1] & 0xF6 == 0xF0
    transport = start[:1] == b"\x47" and start[188:189] in (b"", b"\x47")
    return adts or transport or os.path.splitext(path)[1].lower() in _MEDIA_SUFFIXES


def why_refused(start: bytes, path: str, reason: str) -> str:
    """What to tell the user where PyAV is not installed; `reason` is libsndfile's."""
    reason = reason.strip().rstrip(".")
    if begins_like_sound(start):
        return f"its header is damaged ({reason}); copy or record it again"
    if may_be_media(start, path):
        return (
            f"libsndfile cannot read it ({reason}); m4a, mp4, webm and other media need PyAV: "
            "pip install 'diarize-cuda[media]'"
        )
    return f"not a recording in a known format ({reason}); give a wav, flac, mp3, ogg, opus or m4a file"
