"""Known voices: enrolled from clips, kept in files, and given back as names to the speakers who sound like them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path

import numpy as np

from .errors import OptionError
from .outputs.npz import EmbeddingsFile, read_embeddings
from .rows import unit_rows
from .types import Diarization, Turn

_AUTOMATIC_NAME = re.compile(r"(CH\d+_)?SPEAKER_\d+")

# Cosine from which a speaker counts as a known voice, by embedding network. For campplus, measured on eight recordings
# with one to five voices, each learnt from 8 s of the recording itself: speakers reached 0.89 or more with their own
# voice and at most 0.69 with another, also when theirs was left out; 0.75 where two people had become one speaker.
# Across microphones, expect less of both. The value for resnet34 is a usual one, not measured here.
THRESHOLDS = {"campplus": 0.7, "resnet34": 0.5}


@dataclass(frozen=True)
class Voice:
    """A known voice: its `name`, its unit embedding (D,) float64, and the checksum of the `model` that made that."""

    name: str
    embedding: np.ndarray
    model: str


@dataclass(frozen=True)
class Clip:
    """A recording of one known voice: the `name` that it stands for and the `path` of the audio."""

    name: str
    path: str


def parse_clip(text: str, folder: Path | None = None) -> Clip:
    """The clip meant by NAME=PATH; `folder` is what a relative path starts from.

    >>> parse_clip("Ann Lee=ann.wav")
    Clip(name='Ann Lee', path='ann.wav')

    Raises
    ------
    OptionError
        There is no name or no path, or the name is one of those given automatically.
    """
    name, sign, path = (part.strip() for part in text.partition("="))
    if not (name and sign and path):
        raise OptionError(f"{text!r} names no voice; write NAME=CLIP, such as Ann=ann.wav")
    _check_name(name)
    return Clip(name, path if folder is None else str(folder / path))


def read_speakers_file(path: str | os.PathLike[str]) -> tuple[list[Clip], list[Voice]]:
    """What a file of known voices holds: NAME=CLIP lines, or the embeddings of an earlier run (.npz).

    In text, paths start from the file's own folder, and empty lines and lines that begin with # count for nothing. Of
    an .npz file, speakers that have automatic names (SPEAKER_00) are left out.

    Raises
    ------
    OptionError
        The file cannot be read, or a line names no voice.
    FormatError
        It is an .npz file of another kind.
    """
    file = Path(path)
    if file.suffix == ".npz":
        return [], from_embeddings(read_embeddings(file))
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(f"{file}: cannot be read as a list of voices ({reason}); check the path") from error
    clips = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                clips.append(parse_clip(line, file.parent))
            except OptionError as error:
                raise OptionError(f"{file}:{number}: {error}") from error
    if not clips:
        raise OptionError(f"{file}: holds no voice; write lines such as Ann=ann.wav")
    return clips, []


def from_embeddings(stored: EmbeddingsFile) -> list[Voice]:
    """The named speakers of a file of embeddings."""
    return [
        Voice(name, row, stored.checksum)
        for name, row in zip(stored.speakers, unit_rows(stored.speaker_embeddings), strict=True)
        if not _AUTOMATIC_NAME.fullmatch(name)
    ]


def combined(voices: Sequence[Voice]) -> tuple[Voice, ...]:
    """One voice for each name: the direction of the mean, where several clips were given."""
    by_name: dict[str, list[Voice]] = {}
    for voice in voices:
        by_name.setdefault(voice.name, []).append(voice)
    return tuple(
        Voice(name, unit_rows(np.add.reduce([voice.embedding for voice in same])[None])[0], same[0].model)
        for name, same in by_name.items()
    )


def match(speakers: np.ndarray, voices: np.ndarray, threshold: float) -> list[int | None]:
    """The voice of each speaker, one-to-one, None for none.

    The pairs of at least `threshold` are chosen so that the sum of their cosines, above the threshold, is largest.
    `speakers` (K, D), `voices` (V, D), rows of unit length.
    """
    from scipy.optimize import linear_sum_assignment

    gain = np.einsum("kd,vd->kv", speakers, voices) - threshold
    rows, columns = linear_sum_assignment(np.maximum(gain, 0.0), maximize=True)
    found: list[int | None] = [None] * len(speakers)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if gain[row, column] >= 0:
            found[row] = column
    return found


def named(result: Diarization, voices: Sequence[Voice], threshold: float) -> Diarization:
    """`result` with the names of known voices in place of automatic labels; others keep theirs.

    Raises
    ------
    OptionError
        A voice was made by another model.
    """
    check_voices(voices, result.checksum, result.model)
    if not voices or not result.speakers:
        return result
    found = match(result.embeddings, np.stack([voice.embedding for voice in voices]), threshold)
    names = {
        speaker: speaker if index is None else voices[index].name
        for speaker, index in zip(result.speakers, found, strict=True)
    }

    def renamed(turns: Sequence[Turn]) -> tuple[Turn, ...]:
        return tuple(sorted(replace(turn, speaker=names[turn.speaker]) for turn in turns))

    return replace(
        result,
        turns=renamed(result.turns),
        exclusive=renamed(result.exclusive),
        speakers=tuple(names.values()),
    )


def check_voices(voices: Sequence[Voice], checksum: str, model: str) -> None:
    """Nothing where all of `voices` were made by the model of that `checksum`, called `model`.

    Raises
    ------
    OptionError
        One was made by another, or is no voice.
    """
    for voice in voices:
        if not isinstance(voice, Voice):
            raise OptionError(f"{voice!r} is no voice; Pipeline.enrol makes one")
        if voice.model != checksum:
            raise OptionError(
                f"the voice {voice.name} was made by another model than {model}; enrol it again with this one"
            )


def check_threshold(value: float) -> None:
    """Nothing where `value` is a cosine.

    Raises
    ------
    OptionError
        It is not.
    """
    if not (isinstance(value, Real) and -1 <= value <= 1):
        raise OptionError(f"voice-threshold is {value!r}; it is a cosine, allowed are -1 to 1")


def _check_name(name: str) -> None:
    if _AUTOMATIC_NAME.fullmatch(name):
        raise OptionError(f"a voice cannot be called {name}: unknown speakers get such names; choose another")
