"""Embeddings of one result as a NumPy archive (.npz), written so that the same result gives the same bytes.

Arrays
------
speakers : (K,) text. The speakers' names.
speaker_embeddings : (K, D) float32. One row of unit length for each, zero for a speaker without any.
window_starts : (N,) float64. Seconds from the recording's start; a window lasts 10 s.
window_alone : (N,) float64. Seconds in which the local speaker talks alone in its window.
window_speakers : (N,) int32. Row of `speakers`, -1 for none.
window_embeddings : (N, D) float32. As the network gave them, not of unit length.
model, checksum : () text. Whose embeddings these are; those of different checksums cannot be compared.
schema : () text, "diarize-embeddings/1".
"""

from __future__ import annotations

import io
import os
import zipfile
from dataclasses import dataclass

import numpy as np

from ..errors import FormatError
from ..types import Diarization

SCHEMA = "diarize-embeddings/1"


@dataclass(frozen=True)
class EmbeddingsFile:
    """An archive read back; see the module's text for the arrays."""

    speakers: tuple[str, ...]
    speaker_embeddings: np.ndarray
    window_starts: np.ndarray
    window_alone: np.ndarray
    window_speakers: np.ndarray
    window_embeddings: np.ndarray
    model: str
    checksum: str


def format_embeddings(result: Diarization) -> bytes:
    """The archive of a result that holds its windows.

    Raises
    ------
    FormatError
        The result does not hold its windows.
    """
    windows = result.windows
    if windows is None:
        raise FormatError("the result holds no embeddings of windows; diarize with keep_windows=True")
    arrays = {
        "schema": np.array(SCHEMA),
        "model": np.array(result.model),
        "checksum": np.array(result.checksum),
        "speakers": np.array(result.speakers, dtype=np.str_),
        "speaker_embeddings": result.embeddings.astype(np.float32),
        "window_starts": windows.starts.astype(np.float64),
        "window_alone": windows.alone.astype(np.float64),
        "window_speakers": windows.speakers.astype(np.int32),
        "window_embeddings": windows.embeddings.astype(np.float32),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
            # A fixed time of day, unlike the clock's, gives the same bytes every time.
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), content.getvalue())
    return buffer.getvalue()


def read_embeddings(path: str | os.PathLike[str]) -> EmbeddingsFile:
    """The archive in the file at `path`.

    Raises
    ------
    FormatError
        The file cannot be read, or is not such an archive.
    """
    name = os.fspath(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            if str(archive["schema"]) != SCHEMA:
                raise FormatError(f"schema is {str(archive['schema'])!r}; allowed is {SCHEMA!r}", name)
            return EmbeddingsFile(
                tuple(archive["speakers"].tolist()),
                archive["speaker_embeddings"],
                archive["window_starts"],
                archive["window_alone"],
                archive["window_speakers"],
                archive["window_embeddings"],
                str(archive["model"]),
                str(archive["checksum"]),
            )
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror or error}); check the path", name) from error
    except (KeyError, ValueError, AttributeError, zipfile.BadZipFile, EOFError) as error:
        raise FormatError("is no archive of embeddings; give one that --embeddings wrote", name) from error
