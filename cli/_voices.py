"""Known voices that the user names, and where embeddings go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import OptionError
from ._destination import Destination, destination
from ._formats import Format

if TYPE_CHECKING:
    from ..pipeline import Pipeline
    from ..types import Diarization
    from ..voices import Clip, Voice


def _no_text(result: Diarization, recording: object) -> str:
    raise AssertionError("embeddings are no text")


# Embeddings are asked for by an option of their own; only their names follow the rules of formats.
ARCHIVE = Format("npz", ".npz", _no_text)


@dataclass(frozen=True)
class KnownVoices:
    """Voices to look for: `clips` still to be learnt from, and `voices` that are ready; `warning` "" if all is well."""

    clips: tuple[Clip, ...] = ()
    voices: tuple[Voice, ...] = ()
    warning: str = ""

    def learn(self, pipeline: Pipeline | None) -> tuple[Voice, ...]:
        """All voices, one for each name; `pipeline` is needed for clips only.

        Raises
        ------
        AudioError
            A clip cannot be used.
        """
        if not self.clips and not self.voices:
            return ()
        from ..voices import combined

        if self.clips and pipeline is None:
            raise AssertionError("clips need a pipeline")
        learnt = [pipeline.enrol(clip.name, clip.path) for clip in self.clips] if pipeline is not None else []
        return combined([*self.voices, *learnt])


def read_voices(enroll: Sequence[str], speakers_file: str | None, threshold: float | None) -> KnownVoices:
    """What `--enroll` and `--speakers-file` name.

    Raises
    ------
    OptionError
        An entry names no voice, the file cannot be read, or a `threshold` is given without any voice.
    FormatError
        The file holds something else.
    """
    if not enroll and speakers_file is None:
        if threshold is not None:
            raise OptionError(
                f"--voice-threshold {threshold:g} has no voice to compare with; give --enroll or --speakers-file too"
            )
        return KnownVoices()
    from ..voices import parse_clip, read_speakers_file

    clips, voices = read_speakers_file(speakers_file) if speakers_file is not None else ([], [])
    warning = ""
    if speakers_file is not None and not clips and not voices:
        warning = f"{speakers_file} holds no named voice, so it names nobody; --enroll gives speakers names"
    return KnownVoices((*clips, *(parse_clip(text) for text in enroll)), tuple(voices), warning)


def archive_destination(output: str, recordings: Sequence[str], force: bool) -> Destination:
    """Where `--embeddings` goes.

    Raises
    ------
    OptionError, OutputError
        As for `--output`; or it is standard output.
    """
    if output == "-":
        raise OptionError("--embeddings are no text; give a file, a folder or a template")
    return destination(output, recordings, (ARCHIVE,), force)


def write_archive(target: Destination, audio: str, result: Diarization) -> None:
    """Write the embeddings of the recording `audio`.

    Raises
    ------
    OutputError
        They cannot be written.
    """
    from ..outputs.files import write_bytes
    from ..outputs.npz import format_embeddings

    file = target.file_of(audio, ARCHIVE)
    assert file is not None
    write_bytes(file, format_embeddings(result))
