"""TextGrid of Praat, read as turns: each interval tier is a speaker, each interval with text a turn.

Only the long text form is read, which is what the data sets hold.

References
----------
Praat manual, "TextGrid file formats".
"""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import FormatError
from ..types import Turn

_TIER = re.compile(r"^ *item *\[\d+\] *:", re.MULTILINE)
_NAME = re.compile(r'^ *name *= *"((?:[^"]|"")*)"', re.MULTILINE)
_CLASS = re.compile(r'^ *class *= *"(\w+)"', re.MULTILINE)
_INTERVAL = re.compile(
    r'intervals *\[\d+\] *:?\s+xmin *= *([0-9.eE+-]+)\s+xmax *= *([0-9.eE+-]+)\s+text *= *"((?:[^"]|"")*)"'
)


def read_textgrid(path: Path) -> list[Turn]:
    """Turns of the file, sorted; a speaker is named as its tier.

    Raises
    ------
    FormatError
        The file cannot be read, or is not a TextGrid in the long text form.
    """
    try:
        data = path.read_bytes()
        # Praat writes UTF-16 as soon as a character needs it.
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror}); check the path", str(path)) from error
    except UnicodeDecodeError as error:
        raise FormatError("is neither UTF-8 nor UTF-16 text; convert it", str(path)) from error
    tiers = _TIER.split(text)
    if '"TextGrid"' not in tiers[0] or len(tiers) < 2:
        raise FormatError("is not a TextGrid in the long text form; save it as a text file in Praat", str(path))
    turns = []
    for tier in tiers[1:]:
        kind, name = _CLASS.search(tier), _NAME.search(tier)
        if kind is None or name is None:
            raise FormatError("has a tier without a class or a name; save it again in Praat", str(path))
        if kind.group(1) == "IntervalTier":
            turns += _turns(tier, "_".join(name.group(1).replace('""', '"').split()) or "unnamed", path)
    return sorted(turns)


def _turns(tier: str, speaker: str, path: Path) -> list[Turn]:
    found = []
    for start, end, text in _INTERVAL.findall(tier):
        try:
            turn = Turn(float(start), float(end), speaker)
        except ValueError as error:
            raise FormatError(f"an interval from {start!r} to {end!r} has no time; mend it", str(path)) from error
        if text.strip() and turn.duration > 0:
            found.append(turn)
    return found
