"""Who spoke when as coloured lanes on a terminal: one line per speaker, as wide as the terminal.

The lanes are for people and go to standard error, like everything else that is not the result. There are no colours
where standard error is not a terminal, or where NO_COLOR is set.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..types import Diarization, Turn

# One sign for each eighth of a cell in which the speaker talks.
BLOCKS = " ▁▂▃▄▅▆▇█"
PLAIN = " .:-=+*#@"
STYLES = ("bright_blue", "yellow", "green", "magenta", "cyan", "red", "bright_green", "bright_magenta", "bright_cyan")
_NAME_WIDTH = 24
_NARROWEST = 10


def show_lanes(result: Diarization, turns: Sequence[Turn], title: str) -> None:
    """Draw `turns` on standard error; the totals are those of `result`."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, emoji=False, markup=False)
    for line in lanes(result, turns, title, console):
        console.print(line, overflow="crop", no_wrap=True)
    sys.stderr.flush()


def lanes(result: Diarization, turns: Sequence[Turn], title: str, console: Console) -> list[Text]:
    """The lines: title, a lane for each speaker with its total, overlap where there is some, and the times."""
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    from ..outputs.json import overlap_seconds, speaker_totals

    signs = BLOCKS if _can_show(console.encoding) else PLAIN
    totals = speaker_totals(turns, result.speakers)
    speech = sum(total.seconds for total in totals)
    names = [_shown(total.speaker, console.encoding) for total in totals]
    tails = [f"{clock(t.seconds)} {100 * t.seconds / speech if speech else 0:3.0f} %" for t in totals]
    overlap = overlap_seconds(turns)
    end = max([result.offset + result.duration, *(turn.end for turn in turns)])
    left = min(_NAME_WIDTH, max(cell_len(name) for name in [*names, "overlap"]))
    right = max((len(tail) for tail in tails), default=0)
    width = max(_NARROWEST, console.width - left - right - 4)

    def line(name: str, cells: str, style: str, tail: str) -> Text:
        return Text.assemble((set_cell_size(name, left), style), " │", (cells, style), "│ ", tail)

    lines = [Text(f"{_shown(title, console.encoding)}  {clock(result.duration)}", style="bold")]
    for number, (total, name, tail) in enumerate(zip(totals, names, tails, strict=True)):
        own = [(turn.start, turn.end) for turn in turns if turn.speaker == total.speaker]
        lines.append(line(name, _cells(own, end, width, signs), STYLES[number % len(STYLES)], tail.rjust(right)))
    if overlap:
        lines.append(
            line("overlap", _cells(_overlaps(turns), end, width, signs), "dim", clock(overlap).rjust(right - 6))
        )
    lines.append(Text(" " * (left + 2) + _times(end, width), style="dim"))
    if signs is PLAIN:
        for text in lines:
            text.plain = text.plain.replace("│", "|")
    return lines


def clock(seconds: float) -> str:
    """Whole seconds as minutes and seconds, with hours where there are some.

    >>> clock(65.4), clock(3725)
    ('1:05', '1:02:05')
    """
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _cells(spans: Sequence[tuple[float, float]], end: float, width: int, signs: str) -> str:
    """A sign for each of `width` cells that says how much of it `spans` (start, end in seconds) cover."""
    covered = [0.0] * width
    for start, stop in spans:
        first, last = start / end * width, stop / end * width
        for cell in range(int(first), min(width, int(last) + 1)):
            covered[cell] += max(0.0, min(last, cell + 1) - max(first, cell))
    # Whoever speaks at all is seen: the smallest sign stands for anything above nothing.
    return "".join(signs[min(8, max(round(8 * part), 1 if part > 0 else 0))] for part in covered)


def _overlaps(turns: Sequence[Turn]) -> list[tuple[float, float]]:
    """Start and end of each stretch in which two or more talk."""
    edges = sorted([(turn.start, 1) for turn in turns] + [(turn.end, -1) for turn in turns])
    active, since, found = 0, 0.0, []
    for time, change in edges:
        if active < 2 <= active + change:
            since = time
        elif active + change < 2 <= active:
            found.append((since, time))
        active += change
    return found


def _times(end: float, width: int) -> str:
    """Times below the lanes, at the left, in the middle and at the right, as far as there is room."""
    text = clock(0).ljust(width - len(clock(end))) + clock(end)
    middle = clock(end / 2)
    at = width // 2
    if width >= 40:
        text = text[:at] + middle + text[at + len(middle) :]
    return text


def _can_show(encoding: str) -> bool:
    try:
        (BLOCKS + "│").encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def _shown(name: str, encoding: str) -> str:
    """`name` without what would move the cursor or cannot be printed."""
    text = "".join(sign if sign.isprintable() else "?" for sign in name)
    return text if _can_show(encoding) else text.encode("ascii", "replace").decode()
