"""Tables for people, as text: as wide as the terminal, or as wide as they must be where output goes elsewhere."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Collection, Sequence

from ._output import printable

_GAP = 3
# A name that does not fit its column is folded only from here on: it may have to be copied.
_WORD = 40


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """Lines with `heads` above `rows`; the columns named in `right` are numbers.

    Control characters are shown escaped. On a narrow terminal cells are folded between words; a table that would
    not fit even then is left as it is, for the terminal to wrap.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(cell) for cell in row] for row in rows]
    terminal = sys.stdout is not None and sys.stdout.isatty()
    widths = _widths([heads, *cells], shutil.get_terminal_size().columns if terminal else None)
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head, width in zip(heads, widths, strict=True):
        justify = "right" if head in right else "left"
        made.add_column(head, justify=justify, overflow="fold", width=width)  # type: ignore[arg-type]
    for row in cells:
        made.add_row(*map(Text, row))
    text = io.StringIO()
    width = sum(widths) + _GAP * len(widths)
    Console(file=text, width=width, color_system=None, legacy_windows=False).print(made)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _widths(rows: Sequence[Sequence[str]], most: int | None) -> list[int]:
    """Widths of the columns; with the gaps `most` in all, where the words allow it."""
    from rich.cells import cell_len

    columns = list(zip(*rows, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    words = [max((cell_len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    least = [min(word, _WORD) for word in words]
    gaps = _GAP * (len(widths) - 1)
    if most is None or sum(least) + gaps > most:
        return widths
    while sum(widths) + gaps > most:
        spare = [(width, -index) for index, width in enumerate(widths) if width > least[index]]
        widths[-max(spare)[1]] -= 1
    return widths
