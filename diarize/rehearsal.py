"""Runs what follows the networks once on invented numbers, in a thread, so that its compiled code is loaded in time."""

from __future__ import annotations

import logging
import time
from threading import Thread

import numpy as np

from .assembly import Analysis, assemble
from .clustering import Clusterer
from .framing import FRAMES_PER_WINDOW, LOCAL_SPEAKERS, SAMPLE_RATE, WINDOW_SECONDS, Framing
from .model.campplus import DIMENSION as CAMPPLUS_DIMENSION
from .model.resnet34 import DIMENSION
from .model.weights import EmbeddingNetwork
from .stitch import LabelOrder
from .switching import quick_switching
from .types import SpeakerBounds

logger = logging.getLogger(__name__)

_WINDOWS = 3
_SWITCH_SECONDS = 1e-4


def rehearse(clusterer: Clusterer, step_samples: int) -> None:
    """Load clustering and stitching beside the caller, who waits for a GPU now and then; returns at once."""
    Thread(target=_rehearse, args=(clusterer, step_samples), name="rehearsal").start()


def _rehearse(clusterer: Clusterer, step_samples: int) -> None:
    # The caller gives the interpreter away hundreds of times for work in numpy, and must get it back at once.
    with quick_switching(_SWITCH_SECONDS):
        started = time.perf_counter()
        _assemble(clusterer, step_samples)
        logger.debug("rehearsed in %.2f s", time.perf_counter() - started)


def _assemble(clusterer: Clusterer, step_samples: int) -> None:
    dimension = CAMPPLUS_DIMENSION if clusterer.network is EmbeddingNetwork.CAMPPLUS else DIMENSION
    # Two people, one after the other in every window.
    classes = np.ones((_WINDOWS, FRAMES_PER_WINDOW), np.uint8)
    classes[:, FRAMES_PER_WINDOW // 2 :] = 2
    embeddings = np.full((_WINDOWS, LOCAL_SPEAKERS, dimension), np.nan, np.float32)
    embeddings[:, :2] = np.random.default_rng(0).standard_normal((_WINDOWS, 2, dimension))
    samples = int(WINDOW_SECONDS * SAMPLE_RATE) + (_WINDOWS - 1) * step_samples
    analysis = Analysis(classes, embeddings, samples, 0.0, 0.0)
    framing = Framing(step_samples, _WINDOWS)
    try:
        assemble(analysis, clusterer, framing, SpeakerBounds.of(), LabelOrder.FIRST_APPEARANCE, 0.0, False)
    except Exception:
        # Whatever it is, the first recording meets it too, and there it is reported.
        logger.debug("the rehearsal failed", exc_info=True)
