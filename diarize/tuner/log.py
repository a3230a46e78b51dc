"""A tuning session as lines of JSON: what was tuned, then one line for each candidate at each batch size.

Everything that the choices depend on is in it, so `replay` makes the same choices again without a GPU.

Line 1: `{"log": 1, "about": {...}, "rules": {...}}`; `about` is free. Every other line: a `Trial` as an object, whose
failure is null or `{"kind", "reason"}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..outputs.files import write_text
from .search import Outcome, Rules, choose
from .site import Failure, FailureKind, Trial

FORMAT = 1


@dataclass
class Session:
    """What a tuning session was about, every trial so far, and the seconds that its stages took."""

    rules: Rules
    about: Mapping[str, Any] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def to_text(self) -> str:
        """As lines of JSON."""
        head = {"log": FORMAT, "about": dict(self.about), "rules": asdict(self.rules)}
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in (head, *map(asdict, self.trials)))

    def write(self, path: Path) -> None:
        """Write it, whole or not at all.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        write_text(path, self.to_text())


def parse(text: str, where: str) -> Session:
    """The session that `Session.to_text` wrote.

    Raises
    ------
    FormatError
        It is something else.
    """
    lines = text.splitlines()
    number = 1
    try:
        head = json.loads(lines[0])
        if head["log"] != FORMAT:
            raise FormatError(f"a tuning log of format {head['log']!r}, only {FORMAT} can be read", where, 1)
        rules = head["rules"]
        session = Session(
            Rules(rules["own"], tuple(rules["trunk"]), tuple(rules["stack"]), rules["validated"]), head["about"]
        )
        for line in lines[1:]:
            number += 1
            session.trials.append(_trial(json.loads(line)))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FormatError(f"no line of a tuning log ({error}); give a file that --log wrote", where, number) from error
    return session


def replay(session: Session) -> Outcome:
    """The choices that the session comes to."""
    return choose(session.trials, session.rules)


def _trial(content: dict[str, Any]) -> Trial:
    failure = content.pop("failure")
    samples = tuple(map(float, content.pop("samples_us")))
    reason = None if failure is None else Failure(FailureKind(failure["kind"]), failure["reason"])
    return Trial(**content, samples_us=samples, failure=reason)
