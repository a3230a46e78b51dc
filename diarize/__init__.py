"""Speaker diarization: who spoke when in a recording.

Public names are listed in `__all__` and loaded on first use, so that importing the package costs nothing.

>>> import diarize
>>> pipeline = diarize.Pipeline.from_pretrained()              # doctest: +SKIP
>>> for turn in pipeline.diarize("meeting.wav").turns:         # doctest: +SKIP
...     print(turn.start, turn.end, turn.speaker)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch import Outcome
    from .errors import (
        AudioError,
        BackendError,
        DatasetError,
        DiarizeError,
        FormatError,
        ModelError,
        OptionError,
        OutputError,
        RecipeError,
    )
    from .hardware import Device
    from .pipeline import Cancelled, Pipeline
    from .stitch import LabelOrder
    from .types import Diarization, SpeakerBounds, Turn, WindowEmbeddings
    from .voices import Voice

__version__ = "0.1.0"

__all__ = [
    "AudioError",
    "BackendError",
    "Cancelled",
    "DatasetError",
    "Device",
    "Diarization",
    "DiarizeError",
    "FormatError",
    "LabelOrder",
    "ModelError",
    "OptionError",
    "Outcome",
    "OutputError",
    "Pipeline",
    "RecipeError",
    "SpeakerBounds",
    "Turn",
    "Voice",
    "WindowEmbeddings",
    "__version__",
]

_HOME = {
    "Cancelled": "pipeline",
    "Device": "hardware",
    "Diarization": "types",
    "LabelOrder": "stitch",
    "Outcome": "batch",
    "Pipeline": "pipeline",
    "SpeakerBounds": "types",
    "Turn": "types",
    "Voice": "voices",
    "WindowEmbeddings": "types",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
