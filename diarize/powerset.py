"""Powerset classes of the segmentation network and the local speakers that each stands for.

The network gives one of seven classes per frame: nobody, one of three local speakers, or two of them at once.
The arg-max over classes belongs to the network; this module only translates.
"""

from __future__ import annotations

import numpy as np

from .framing import LOCAL_SPEAKERS

# Plaquet and Bredin (2023), "Powerset multi-class cross entropy loss for neural speaker diarization", with at most
# two simultaneous speakers out of three; the order is that of the released checkpoint.
CLASS_TABLE = np.array(
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]],
    dtype=np.uint8,
)
NUM_CLASSES = len(CLASS_TABLE)

SPEAKERS_IN_CLASS = CLASS_TABLE.sum(axis=1, dtype=np.uint8)
"""Number of local speakers that each class stands for, (7,) uint8."""

_BIT = np.array([1, 2, 4], dtype=np.uint8)
_NO_CLASS = 255


def to_local(classes: np.ndarray) -> np.ndarray:
    """Speech of each local speaker, 0 or 1, (..., 3) uint8.

    `classes` (...) uint8 holds powerset classes 0 to 6.

    >>> to_local(np.array([0, 2, 5])).tolist()
    [[0, 0, 0], [0, 1, 0], [1, 0, 1]]
    """
    return CLASS_TABLE[classes]


def from_local(local: np.ndarray) -> np.ndarray:
    """Powerset classes (...) uint8 of 0/1 speech of three local speakers, `local` (..., 3).

    Raises
    ------
    ValueError
        Not three local speakers, or a frame in which all three speak: no class stands for that.

    >>> from_local(np.array([[0, 0, 0], [1, 0, 1]])).tolist()
    [0, 5]
    """
    if local.shape[-1] != LOCAL_SPEAKERS:
        raise ValueError(f"local speech has {local.shape[-1]} columns; it must have {LOCAL_SPEAKERS}")
    class_of_bits = np.full(8, _NO_CLASS, dtype=np.uint8)
    class_of_bits[CLASS_TABLE @ _BIT] = np.arange(NUM_CLASSES, dtype=np.uint8)
    classes = class_of_bits[(local != 0) @ _BIT]
    if (classes == _NO_CLASS).any():
        raise ValueError("three local speakers speak in one frame; at most two can be expressed")
    return classes
