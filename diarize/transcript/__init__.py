"""Speakers for the words of a transcript that another program has made.

`assign_speakers` is the whole of it: a transcript's text and turns in, the same text with speakers out.
"""

from .assign import DEFAULT_MAX_GAP, Assigned, TranscriptFormat, assign_speakers, detect

__all__ = ["DEFAULT_MAX_GAP", "Assigned", "TranscriptFormat", "assign_speakers", "detect"]
