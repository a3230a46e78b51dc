"""Where the data that ships with the package lies, in an installed wheel and in a checkout.

Reads nothing: callers open what they need.
"""

from __future__ import annotations

from pathlib import Path

from .errors import DatasetError, DiarizeError, RecipeError

_ERRORS: dict[str, type[DiarizeError]] = {"datasets": DatasetError, "recipes": RecipeError}


def data_dir(name: str) -> Path:
    """Folder of the shipped `name`, either "recipes" or "datasets".

    A wheel holds it inside the package, a checkout (also when installed as editable) beside it.

    Raises
    ------
    RecipeError, DatasetError
        The folder is missing from this installation.
    """
    package = Path(__file__).resolve().parent
    places = (package / name, package.parent / name)
    for place in places:
        if place.is_dir():
            return place
    raise _ERRORS[name](
        f"the {name} folder is missing, looked in {places[0]} and {places[1]}; install the package again"
    )


def demo_recording() -> Path:
    """The synthetic dialogue that ships with the package: 16 kHz mono FLAC, reference RTTM and UEM beside it.

    Raises
    ------
    DatasetError
        The folder is missing from this installation.
    """
    return data_dir("datasets") / "demo" / "dialogue.flac"
