"""The report of a run: errors told moment by moment, the page as text, and the page in a real browser."""

from __future__ import annotations

import math
import random
import re
import sys
from pathlib import Path

import pytest
from tools import browser
from tools.browser import Browser

from diarize.bench.benchmark import Options, benchmark
from diarize.bench.html import COLOURS, write_report
from diarize.bench.systems import System
from diarize.dataset.load import Dataset, Recording
from diarize.dataset.manifest import Published
from diarize.score.der import Protocol, score_file
from diarize.score.stretches import ErrorKind, ErrorStretch, error_stretches
from diarize.types import Turn

FAKE = str(Path(__file__).resolve().parents[1] / "tools" / "fake_worker.py")
ODD = "<script>document.title='hit'</script>"


def test_stretches_of_a_case_worked_out_by_hand() -> None:
    reference = [Turn(0, 10, "a"), Turn(8, 14, "b"), Turn(20, 25, "c")]
    hypothesis = [Turn(0.5, 9.5, "x"), Turn(9.5, 15.5, "y"), Turn(19, 23, "x")]
    assert error_stretches(reference, hypothesis, ((0, 30),)) == [
        ErrorStretch(0, 0.5, ErrorKind.MISSED, 1),
        ErrorStretch(8, 10, ErrorKind.MISSED, 1),
        ErrorStretch(14, 15.5, ErrorKind.FALSE_ALARM, 1),
        ErrorStretch(19, 20, ErrorKind.FALSE_ALARM, 1),
        ErrorStretch(20, 23, ErrorKind.CONFUSION, 1),
        ErrorStretch(23, 25, ErrorKind.MISSED, 1),
    ]
    assert error_stretches([], [], ()) == []


@pytest.mark.parametrize("seed", range(20))
def test_stretches_add_up_to_the_score(seed: int) -> None:
    draw = random.Random(seed)

    def turns(labels: str) -> list[Turn]:
        found, ends = [], dict.fromkeys(labels, 0.0)
        for _ in range(12):
            label = draw.choice(labels)
            start = ends[label] + draw.randint(1, 40) / 10
            ends[label] = start + draw.randint(1, 60) / 10
            found.append(Turn(start, ends[label], label))
        return sorted(found)

    reference, hypothesis = turns("abc"), turns("wxyz")
    regions = ((2.0, 15.5), (17.0, 60.0))
    parts = score_file("f", reference, hypothesis, regions).der
    stretches = error_stretches(reference, hypothesis, regions)
    sums = {
        kind: math.fsum((item.end - item.start) * item.speakers for item in stretches if item.kind is kind)
        for kind in ErrorKind
    }
    assert sums[ErrorKind.MISSED] == pytest.approx(parts.missed, abs=1e-6)
    assert sums[ErrorKind.FALSE_ALARM] == pytest.approx(parts.false_alarm, abs=1e-6)
    assert sums[ErrorKind.CONFUSION] == pytest.approx(parts.confusion, abs=1e-6)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two systems on three files, one of which failed, with a label that is markup."""
    folder = tmp_path_factory.mktemp("run")
    recordings = []
    for name in ("bad", "first", "second"):
        (folder / name).write_text("90.0")
        turns = (Turn(5.0, 40.0, ODD), Turn(38.0, 80.0, "b"))
        recordings.append(Recording(name, folder / name, turns, ((0.0, 90.0),)))
    published = (Published("other <system>", 11.2, "a paper"),)
    made = Dataset("made", tuple(recordings), Protocol(), published=published)
    systems = [
        System("diarize", (sys.executable, FAKE, "--seconds", "0.5")),
        System("peer", (sys.executable, FAKE, "--seconds", "4", "--label", ODD.replace(" ", "_"))),
    ]
    out = folder / "out"
    record, _ = benchmark(made, systems, Options(rounds=2, output=out))
    write_report(out / "report.html", record, made, out)
    return out / "report.html"


def test_the_page_is_self_contained(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"""(?:src|href|url|@import)\s*[=(]""", text) == []
    assert "<script" not in text
    assert "other &lt;system&gt;: 11.2 % (a paper)" in text
    assert "counts as missed" in text
    assert all(colour in text for colour in COLOURS.values())


def test_the_page_in_a_browser(page: Path, tmp_path: Path) -> None:
    if reason := browser.missing():
        pytest.skip(reason)
    with Browser(tmp_path, size=(1200, 1800)) as window:
        window.open(page)
        assert window.run("return document.title") == "diarize bench made"
        rows = window.run(
            "return [...document.querySelector('table').rows].map(row => [...row.cells].map(cell => cell.textContent))"
        )
        assert [row[0] for row in rows] == ["system", "diarize", "peer"]
        # Of 77 s in each file: the failed one is missed; in the others 34 s are wrong and 13 s false or missed.
        assert float(rows[1][1]) == pytest.approx(100 * sum(map(float, rows[1][2:5])) / 100, abs=0.02)
        # Speed, two sets of bars, three timelines.
        drawings = window.run(
            "return [...document.querySelectorAll('svg')].map(e => [e.getAttribute('aria-label'), "
            "e.getBoundingClientRect().width, e.querySelectorAll('rect').length])"
        )
        assert [name for name, _, _ in drawings] == ["speed", *["DER of each file"] * 2, *["timeline"] * 3]
        assert all(width > 500 and bars >= 4 for _, width, bars in drawings[:3])
        assert window.run("return document.body.scrollWidth <= window.innerWidth")
        labels = window.run("return [...document.querySelectorAll('svg text')].map(e => e.textContent)")
        assert ODD[:16] + "…" in labels
        # A shot that is not blank: PNG of one colour are far smaller.
        assert len(window.screenshot()) > 20_000
        assert window.complaints() == []
