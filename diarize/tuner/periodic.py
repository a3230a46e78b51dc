"""Sites whose windows repeat three known contents: outputs are compared with their twins, and with each other.

The first time a candidate runs, its outputs of all contents are compared with the twin. At other batch sizes the same
bytes are expected, so a comparison of digests is enough; other bytes are compared with the twin again. Within a batch
a window must not depend on its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..backend.cuda_driver import DeviceArray
from ..candidates import Candidate, TunedLayer
from .site import Failure, FailureKind, Launch, Verified
from .verify import compare, digest_of
from .workspace import CONTENTS, Workspace, read_windows


@dataclass
class Form:
    """Arrays of one storage, and what binds a candidate to them.

    `outputs` have `rows` rows a window. `bind` gives the launches of one pass.
    """

    outputs: Sequence[DeviceArray]
    bind: Callable[[Candidate], Sequence[Launch]]
    flag: DeviceArray | None
    rows: int = 1


Make = Callable[[str, list[DeviceArray]], Form]
"""Allocates the arrays of a storage, each added to the list."""


@dataclass
class Known:
    """What a candidate's outputs were: the error, and a digest for each content."""

    error: float
    digests: dict[int, str] = field(default_factory=dict)


Memory = dict[tuple[str, str, str], Known]
"""By layer, candidate and storage."""


class PeriodicSite:
    """A `Site` on arrays of `CONTENTS` windows again and again.

    `expected` are the twins of the outputs for each content, (CONTENTS * rows, ...). `make` allocates the arrays of a
    storage. `kind` gives the key of the tolerance from a candidate.
    """

    def __init__(
        self,
        space: Workspace,
        layer: TunedLayer,
        batch: int,
        expected: Sequence[np.ndarray],
        make: Make,
        kind: Callable[[Candidate], str],
        memory: Memory,
    ) -> None:
        self._space = space
        self._layer = layer
        self._batch = batch
        self._expected = expected
        self._make = make
        self._kind = kind
        self._memory = memory
        self._forms: dict[str, Form] = {}
        self._held: list[DeviceArray] = []

    def _form(self, candidate: Candidate) -> Form:
        if candidate.storage not in self._forms:
            held: list[DeviceArray] = []
            try:
                self._forms[candidate.storage] = self._make(candidate.storage, held)
            except BaseException:
                self._space.give_back(held)
                raise
            self._held += held
        return self._forms[candidate.storage]

    def launches(self, candidate: Candidate) -> Sequence[Launch]:
        """See `Site`."""
        return self._form(candidate).bind(candidate)

    def verify(self, candidate: Candidate) -> Verified | Failure:
        """See `Site`."""
        space, form = self._space, self._form(candidate)
        launches = form.bind(candidate)
        for output in form.outputs:
            space.poison(output)
        if form.flag is not None:
            space.clear(form.flag)
        for launch in launches:
            launch(space.stream)
        space.stream.synchronize()
        if form.flag is not None and int(space.memory.get(form.flag)[0]):
            return Failure(FailureKind.WRONG, "a value left the range of its numbers")
        key = (self._layer.id, candidate.name, candidate.storage)
        known = self._memory.get(key)
        found = self._read(form, full=known is None)
        by_content: dict[int, str] = {}
        for window, arrays in found.items():
            digest = digest_of(*arrays)
            if by_content.setdefault(window % CONTENTS, digest) != digest:
                return Failure(FailureKind.WRONG, f"window {window} depends on its place in the batch")
        if known is None or any(known.digests.get(content) != digest for content, digest in by_content.items()):
            found = self._read(form, full=True) if known is not None else found
            error = self._compare(form, found, self._kind(candidate))
            if isinstance(error, Failure):
                return error
            if known is None:
                known = self._memory[key] = Known(error)
            known.error = max(known.error, error)
            if not known.digests or set(by_content) > set(known.digests):
                known.digests = by_content
        return Verified(known.error, by_content[0])

    def _read(self, form: Form, full: bool) -> dict[int, list[np.ndarray]]:
        """Outputs by window."""
        rows = form.rows
        return {
            window: [self._space.rows(output, window * rows, rows) for output in form.outputs]
            for window in read_windows(self._batch, full)
        }

    def _compare(self, form: Form, found: dict[int, list[np.ndarray]], kind: str) -> float | Failure:
        worst = 0.0
        for window, arrays in found.items():
            first = window % CONTENTS * form.rows
            error = compare(arrays, [twin[first : first + form.rows] for twin in self._expected], kind)
            if isinstance(error, Failure):
                return error
            worst = max(worst, error)
        return worst

    def close(self) -> None:
        """See `Site`."""
        self._space.give_back(self._held)
        self._forms.clear()
