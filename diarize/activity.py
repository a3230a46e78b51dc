"""Speech activity from powerset classes: how many speak, which local speakers do, and where each is alone.

Everything here is integer arithmetic on (windows, frames) classes; no array of windows x frames x speakers floats
is ever built. Functions without a `framing` treat each window on its own and may be called on any slice of windows.
"""

from __future__ import annotations

import numpy as np

from .framing import LOCAL_SPEAKERS, Framing
from .powerset import CLASS_TABLE, SPEAKERS_IN_CLASS

# ceil(589 x 400 / 160,000): 400 samples is the shortest waveform that the embedding network accepts
# (pyannote.audio 4.0.7). A clean mask must have more frames than this to be used.
MIN_CLEAN_FRAMES = 2


def speaker_count(classes: np.ndarray, framing: Framing) -> np.ndarray:
    """Number of simultaneous speakers in each frame of the recording, (T,) uint8.

    The plain average over the windows that cover a frame, rounded half to even; 0 where no window lies.
    `classes` (C, F) uint8.

    References
    ----------
    pyannote.audio 4.0.7, `pipelines/utils/diarization.py`, speaker count with warm-up (0, 0).
    """
    from .overlay import sum_values

    total = np.zeros(framing.num_frames, dtype=np.uint16)
    cover = np.zeros(framing.num_frames, dtype=np.uint16)
    sum_values(np.ascontiguousarray(classes), framing.first_frames, SPEAKERS_IN_CLASS, total, cover)
    # Ratios of small integers: float32 keeps halves exact and everything else far from a half.
    mean = total.astype(np.float32) / np.maximum(cover, 1).astype(np.float32)
    return np.rint(mean).astype(np.uint8)


def active(classes: np.ndarray) -> np.ndarray:
    """Whether each local speaker speaks at all in its window, (C, 3) bool; `classes` (C, F) uint8."""
    present = np.stack([(classes == c).any(axis=1) for c in range(len(CLASS_TABLE))], axis=1)
    return present @ CLASS_TABLE.astype(bool)


def alone_frames(classes: np.ndarray) -> np.ndarray:
    """Number of frames in which each local speaker is the only one, (C, 3) int64; `classes` (C, F) uint8."""
    # Classes 1 to 3 are exactly "this local speaker and nobody else".
    return np.stack([(classes == 1 + local).sum(axis=1) for local in range(LOCAL_SPEAKERS)], axis=1)


def embedding_masks(classes: np.ndarray) -> np.ndarray:
    """Frames that the embedding of each local speaker is taken from, (C, 3, F) bool.

    The frames where it speaks alone if there are more than two, else all frames where it speaks.
    `classes` (C, F) uint8.

    References
    ----------
    pyannote.audio 4.0.7, `pipelines/speaker_diarization.py`, embeddings with overlap excluded.
    """
    masks = np.empty((len(classes), LOCAL_SPEAKERS, classes.shape[1]), dtype=bool)
    for local in range(LOCAL_SPEAKERS):
        clean = classes == 1 + local
        usable = clean.sum(axis=1) > MIN_CLEAN_FRAMES
        masks[:, local] = np.where(usable[:, None], clean, CLASS_TABLE[:, local].astype(bool)[classes])
    return masks
