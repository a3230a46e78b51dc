"""Tables for people, as text: as wide as the terminal, or as wide as they must be where output goes elsewhere."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Collection, Sequence

_WIDEST = 10_000


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """Lines with `heads` above `rows`; the columns named in `right` are numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in heads:
        made.add_column(head, justify="right" if head in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else _WIDEST
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, legacy_windows=False).print(made)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
