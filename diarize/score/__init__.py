"""Diarization scored against a reference: DER with its parts, JER and speaker counts, through pyannote.metrics."""
