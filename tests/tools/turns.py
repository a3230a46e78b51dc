"""Turns of all kinds for the tests of formats."""

from __future__ import annotations

from hypothesis import strategies as st

from diarize.types import Turn

ODD_NAMES = (
    "SPEAKER_00",
    "Ann Lee",
    'Ann "the chair" Lee',
    "Bo, <b>&amp; Co</b>",
    "a --> b",
    "日本語 の 名前",
    "עברית",
    "🎤 x",
    "1",
    "-2.5",
    "e\u0301",
    "=SUM(A1)",
    "\\\t1 2",
)


def turns_of(names: st.SearchStrategy[str]) -> st.SearchStrategy[list[Turn]]:
    """Up to 12 turns with times in whole milliseconds, each speaker's apart from one another, sorted."""
    moments = st.lists(st.integers(0, 90_000_000), min_size=2, max_size=8, unique=True).map(sorted)

    def build(spoken: dict[str, list[int]]) -> list[Turn]:
        return sorted(
            Turn(times[at] / 1000, times[at + 1] / 1000, name)
            for name, times in spoken.items()
            for at in range(0, len(times) - 1, 2)
        )

    return st.dictionaries(names, moments, max_size=3).map(build)


def one_line() -> st.SearchStrategy[str]:
    """Names of any characters that are their own one-line form."""
    return st.text(min_size=1, max_size=12).map(lambda text: " ".join(text.split())).filter(_is_plain)


def _is_plain(text: str) -> bool:
    return bool(text) and text.encode("utf-8", "replace").decode() == text
