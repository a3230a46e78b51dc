"""The whole exception tree of the project.

    DiarizeError
    ├── AudioError       a recording that cannot be opened, decoded or used
    ├── FormatError      a text format (RTTM, UEM, JSON) that cannot be parsed or written
    ├── ModelError       weights that are missing, damaged or of the wrong shape
    ├── OptionError      values that contradict each other or are out of range
    ├── OutputError      a result that cannot be written
    ├── RecipeError      a recipe or tune file that does not fit
    ├── BackendError     a device that is missing or fails
    └── DatasetError     a data set that is missing, damaged or unknown

Every message says what was wrong, the value seen, what is allowed and what to do, in one line.
"""

from __future__ import annotations


class DiarizeError(Exception):
    """Root of every error that a caller can expect from this package."""


class AudioError(DiarizeError):
    """A recording cannot be opened, decoded or used."""


class FormatError(DiarizeError):
    """A text format cannot be parsed or written.

    `path` is the file, `line` the 1-based line number, where known.
    """

    def __init__(self, message: str, path: str | None = None, line: int | None = None) -> None:
        where = "" if path is None else (f"{path}: " if line is None else f"{path}:{line}: ")
        super().__init__(where + message)
        self.path = path
        self.line = line


class ModelError(DiarizeError):
    """Weights are missing, damaged or of the wrong shape."""


class OptionError(DiarizeError):
    """Options contradict each other or are out of range."""


class OutputError(DiarizeError):
    """A result cannot be written."""


class RecipeError(DiarizeError):
    """A recipe or tune file does not fit this device or build."""


class BackendError(DiarizeError):
    """A device is missing or fails."""


class DatasetError(DiarizeError):
    """A data set is missing, damaged or unknown."""
