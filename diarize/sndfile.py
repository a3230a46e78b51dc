"""Decoding through libsndfile: wav, flac, mp3, ogg, opus, aiff, caf and the rest of its formats.

Delivers blocks of every channel at the native rate; mixing and resampling are the caller's (diarize/audio.py).
The length is what was decoded. What the header says serves for a warning and a progress bar only.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import BinaryIO

import numpy as np
import soundfile

from .errors import AudioError
from .headers import Claim, TruthfulFile, mp3_claim, read_claim
from .mp3 import DECODER_DELAY, endless_tag, read_start
from .mp3_repair import find_holes, mended
from .ogg_gaps import Gap, find_losses, fitted

BLOCK_SECONDS = 10
"""Length of the blocks that a reader delivers."""
# Samples per channel that one call decodes; at damage in an mp3, what the same call decoded before it is lost.
_CALL_FRAMES = 4096
# Where nothing is compressed there is no damage, and what a call costs beside decoding counts: samples of a call.
_PLAIN_CALL_SAMPLES = 1 << 20
_SHORT_SCALE = np.float32(1 / 32768)
_PLAIN_FORMATS = ("WAV", "WAVEX", "W64", "RF64", "AIFF", "AU", "CAF")
# Shorter gaps between header and audio go unmentioned: far below the 17 ms of a frame of the networks.
_TOLERANCE_SECONDS = 0.01
# Where every sample has its own place in the file, or the format a table of places.
_EXACT_FORMATS = ("WAV", "WAVEX", "W64", "RF64", "AIFF", "AU", "CAF", "FLAC")
_EXACT_CODINGS = ("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")
# Damaged places that a warning names; the others are counted.
_SHOWN_PLACES = 3
# Bytes of an mp3 that are looked at at once: 36 hours at 64 kbit/s.
_LARGEST_MENDED = 1 << 30
# Counts from here on stand for "unknown": 2,000 hours at 16 kHz.
_UNKNOWN_FRAMES = 1 << 37


class SndfileDecoder:
    """Blocks of one recording, decoded in order by libsndfile.

    `sample_rate` in Hz, `channels`, `expected_frames` (samples per channel that the header promises, None where it
    does not say) are known from the start; `warnings` is complete after the last block.

    Raises
    ------
    soundfile.LibsndfileError
        libsndfile does not know the format.
    AudioError
        The file ends within its header.
    """

    def __init__(self, path: str, name: str, file: BinaryIO, size: int) -> None:
        self._name = name
        self._path = path
        self._size = size
        self._file = file
        self._claim: Claim = read_claim(file, size)
        self._view: TruthfulFile | None = None
        self._skipped = 0
        # Seconds, for a warning.
        self._damaged: list[float] = []
        self._mended = False
        self._is_exact = True
        self.warnings: list[str] = []
        try:
            self._sound = self._open(path, size)
        except soundfile.LibsndfileError as error:
            if self._claim.cut:
                raise self._cut(size) from error
            raise
        if self._claim.cut and self._sound.frames == 0:
            self._sound.close()
            raise self._cut(size)
        if self._claim.warning is not None:
            self.warnings.append(self._claim.warning)
        self.sample_rate: int = self._sound.samplerate
        self.channels: int = self._sound.channels
        frames = self._claim.frames
        if frames is None and 0 < self._sound.frames < _UNKNOWN_FRAMES:
            frames = self._sound.frames
        self.expected_frames: int | None = frames

    def _open(self, path: str, size: int) -> soundfile.SoundFile:
        """The file itself, or a view of it where its header does not fit."""
        if not self._claim.prefix:
            # Bytes, because libsndfile's wrapper cannot encode a name that is not valid UTF-8.
            sound = soundfile.SoundFile(os.fsencode(path) if os.name == "posix" else path)
            if sound.format != "MP3":
                return sound
            self._claim = mp3_claim(self._file, size)
            if not self._claim.prefix:
                return sound
            sound.close()
        self._view = TruthfulFile(self._file, self._claim.prefix, self._claim.skip)
        return soundfile.SoundFile(self._view)

    def _cut(self, size: int) -> AudioError:
        """Error for a file of `size` bytes that ends too soon to hold audio."""
        return AudioError(f"{self._name}: the file ends within its header ({size} bytes); copy or record it again")

    def skip(self, frames: int) -> int:
        """Passes over up to `frames` samples per channel, in formats that seek to the exact sample; gives how many."""
        if self._sound.format not in _EXACT_FORMATS or self._sound.subtype not in _EXACT_CODINGS:
            return 0
        try:
            self._skipped = int(self._sound.seek(min(frames, self._sound.frames)))
        except soundfile.LibsndfileError:
            # Past the end, or damaged: decoded from its beginning, as far as that goes, since it cannot go back either.
            self._sound.close()
            self._sound = self._open(self._path, self._size)
        return self._skipped

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields (num_samples, channels) float32; full scale is 1.0. Nobody else uses a block."""
        plain = self._sound.format in _PLAIN_FORMATS and self._sound.subtype in _EXACT_CODINGS
        # As long as the blocks that are wanted, unless many channels make that much.
        longest = _PLAIN_CALL_SAMPLES // self.channels
        frames = max(_CALL_FRAMES, min(BLOCK_SECONDS * self.sample_rate, longest)) if plain else _CALL_FRAMES
        # numpy makes floats of 16-bit samples four times as fast as libsndfile, and the same ones.
        halves = plain and self._sound.subtype == "PCM_16"
        source = np.zeros((frames, self.channels), np.int16 if halves else np.float32)
        # The wrapper's own read() seeks twice a call and drops what was decoded before damage; the C functions that
        # it calls return the honest count.
        library, kind = soundfile._snd, "float*"
        read = library.sf_readf_float
        if halves:
            read, kind = library.sf_readf_short, "short*"
        pointer = soundfile._ffi.cast(kind, source.ctypes.data)
        decoded, trim = self._skipped, self._claim.trim
        damaged = self._damaged
        # Here, since finding them reads the whole file.
        gaps = deque(self._ogg_gaps() if self._sound.format == "OGG" else ())
        # Samples of gaps, which no decoder has given.
        added = 0
        try:
            while True:
                while gaps and decoded - added >= gaps[0].at:
                    gap = gaps.popleft()
                    damaged.append(decoded / self.sample_rate)
                    decoded, added = decoded + gap.length, added + gap.length
                    yield from self._silence(gap.length)
                wanted = min(frames, gaps[0].at - decoded + added) if gaps else frames
                count = int(read(self._sound._file, pointer, wanted))
                # Asked after each call: a call that fills the buffer can have met damage, and the next one forgets it.
                failed = soundfile._snd.sf_error(self._sound._file) != 0
                at = decoded / self.sample_rate
                if count > 0:
                    decoded += count
                    dropped = min(trim, count)
                    trim -= dropped
                    if failed and count == wanted:
                        damaged.append(at)
                    kept = source[dropped:count]
                    yield np.multiply(kept, _SHORT_SCALE, dtype=np.float32) if halves else kept.copy()
                if count < wanted and gaps and not failed:
                    # Fewer samples before the gap than its page states.
                    gaps[0] = replace(gaps[0], at=decoded - added)
                elif count < wanted:
                    passed = self._pass_damage(decoded, failed)
                    if passed is None:
                        break
                    decoded += passed
                    yield from self._silence(passed)
        finally:
            # Also where only a part of the recording is asked for.
            self._warn_of_damage()
        self._check_end(decoded)

    def _silence(self, length: int) -> Iterator[np.ndarray]:
        """Yields blocks of zeros of `length` samples per channel in all."""
        for start in range(0, length, _PLAIN_CALL_SAMPLES):
            yield np.zeros((min(_PLAIN_CALL_SAMPLES, length - start), self.channels), np.float32)

    def _ogg_gaps(self) -> list[Gap]:
        """Where pages of an Ogg file are lost; what is missing in all is what its last page counts too many."""
        gaps = find_losses(self._file, self.sample_rate)
        if not gaps or self.expected_frames is None:
            return gaps
        with self._open(self._path, self._size) as sound:
            missing = self.expected_frames - _pass_over(sound)
        self.expected_frames += sum(gap.length for gap in gaps if not gap.inner)
        return fitted(gaps, max(0, missing))

    def _pass_damage(self, decoded: int, failed: bool) -> int | None:
        """Samples per channel that were passed over to go on behind damage; None where nothing more decodes.

        Decoders give a file up at some kinds of damage, although later frames can be found and decoded.
        """
        if self._view is not None and self._view.error is not None:
            return None
        if self._sound.format == "FLAC" and failed:
            return self._pass_flac(decoded)
        if self._sound.format == "MP3" and not self._mended and (failed or self._ends_early(decoded)):
            return self._pass_mp3(decoded)
        return None

    def _ends_early(self, decoded: int) -> bool:
        """Whether an mp3 ended before its tag, or the end of the file where it has none, lets expect."""
        if self.expected_frames is not None:
            return self.expected_frames - decoded > _TOLERANCE_SECONDS * self.sample_rate
        return self._view is not None and self._view.left > _CALL_FRAMES

    def _pass_mp3(self, decoded: int) -> int | None:
        """As `_pass_damage`: decodes the file with silence in place of its damage, as far as it had come already."""
        self._mended = True
        start = read_start(self._file)
        if start is None or self._size > _LARGEST_MENDED:
            return None
        header = start.header
        self._file.seek(0)
        content = self._file.read()
        first = start.offset + (0 if start.seconds is None else header.num_bytes)
        total = None
        # Under a claim of our own the tag does not fit: the file was joined or cut.
        if start.seconds is not None and not self._claim.prefix:
            total = round(start.seconds * header.sample_rate / header.num_samples)
        holes = find_holes(content, first, header, total)
        self._is_exact = all(hole.is_exact for hole in holes)
        # A tag of the file's own makes mpg123 leave out the encoder's delay.
        reached = decoded + (0 if self._claim.prefix else start.delay_samples)
        lost = 0
        for hole in holes:
            # What mpg123 had passed over before it gave up is missing from what it decoded.
            if (hole.frames_before - lost + 2) * header.num_samples >= reached:
                break
            lost += hole.lost
        else:
            # mpg123 has passed over all of them and come to the end.
            self._damaged += [hole.frames_before * header.num_samples / self.sample_rate for hole in holes if hole.lost]
            return None
        position = max(hole.frames_before * header.num_samples - DECODER_DELAY, reached)
        view = TruthfulFile(mended(self._file, len(content), holes, header), endless_tag(header), first)
        sound = soundfile.SoundFile(view)
        # Seeking in an mp3 is not exact.
        _pass_over(sound, position)
        self._sound.close()
        self._view, self._sound = view, sound
        ahead = reached - decoded + DECODER_DELAY
        self._damaged += [(h.frames_before * header.num_samples - ahead) / self.sample_rate for h in holes if h.lost]
        return position - reached

    def _pass_flac(self, decoded: int) -> int | None:
        """As `_pass_damage`."""
        if self.expected_frames is None:
            return None
        gap = _CALL_FRAMES
        while decoded + gap < self.expected_frames:
            sound = self._open(self._path, self._size)
            try:
                sound.seek(decoded + gap)
            except soundfile.LibsndfileError:
                sound.close()
                gap *= 2
                continue
            self._sound.close()
            self._sound = sound
            self._damaged.append(decoded / self.sample_rate)
            return gap
        return None

    def _warn_of_damage(self) -> None:
        """Adds a warning where the decoder went on behind damage."""
        places = self._damaged
        if not places:
            return
        shown = ", ".join(f"{place:.1f}" for place in places[:_SHOWN_PLACES])
        more = f" s and {len(places) - _SHOWN_PLACES} more places" if len(places) > _SHOWN_PLACES else " s"
        later = "" if self._is_exact else ", times after it early or late by a little"
        self.warnings.append(
            f"the file is damaged near {shown}{more}: turns there may be wrong{later}; copy or record it again"
        )

    def _check_end(self, decoded: int) -> None:
        """Adds a warning where the audio ended before the header's promise.

        Raises
        ------
        AudioError
            The disk failed, or nothing at all could be decoded of a recording that should hold something.
        """
        if self._view is not None and self._view.error is not None:
            reason = self._view.error.strerror or str(self._view.error)
            raise AudioError(f"{self._name}: reading failed ({reason}); check the disk") from self._view.error
        expected = self.expected_frames
        failed = soundfile._snd.sf_error(self._sound._file) != 0
        if decoded == 0 and (failed or expected):
            promised = "" if expected is None else f" of the {expected / self.sample_rate:.1f} s that its header states"
            raise AudioError(f"{self._name}: nothing{promised} could be decoded; copy or record it again")
        at = decoded / self.sample_rate
        if expected is not None and expected - decoded > _TOLERANCE_SECONDS * self.sample_rate:
            early = f"the audio ends early: the header says {expected / self.sample_rate:.1f} s, {at:.1f} s decoded"
            # libsndfile passes over pages of Ogg that are damaged and does not say where.
            inside = "; if a piece is missing within, later times are early" if self._sound.format == "OGG" else ""
            self.warnings.append(early + inside)
        elif failed:
            self.warnings.append(f"decoding stopped at {at:.1f} s because the file is damaged there")

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._sound.close()
        self._file.close()

    def __enter__(self) -> SndfileDecoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _pass_over(sound: soundfile.SoundFile, frames: int = _UNKNOWN_FRAMES) -> int:
    """Decodes up to `frames` samples per channel for nothing; gives how many there were."""
    buffer = np.empty((_CALL_FRAMES, sound.channels), np.float32)
    pointer = soundfile._ffi.cast("float*", buffer.ctypes.data)
    done = 0
    while done < frames:
        count = int(soundfile._snd.sf_readf_float(sound._file, pointer, min(_CALL_FRAMES, frames - done)))
        if count <= 0:
            break
        done += count
    return done
