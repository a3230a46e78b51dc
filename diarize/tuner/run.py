"""A tuning session: every candidate of every layer is verified, then timed with its rivals, and choices are made.

The pipeline's own batch size comes first, since its winners decide which bytes count; at each batch size the parts of a
layer come before the layer, which may be computed by their winners.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from ..candidates import SEPARATE, Candidate, TunedLayer
from ..engine_cuda import BATCH_WINDOWS, STRETCH_WINDOWS
from ..errors import BackendError
from ..recipe_lookup import Gpu, shared_bytes
from ..registry import LAYERS, candidates
from .log import Session
from .measure import Effort, failure_of, measure
from .search import Outcome, Rules, choose, chosen_parts
from .site import Bench, Compiling, Failure, FailureKind, Site, Trial, Verified

logger = logging.getLogger(__name__)

BATCHES = (1, 4, 8, 16, 32)
OWN = {"fbank": STRETCH_WINDOWS, "pyannet": STRETCH_WINDOWS, "resnet34": BATCH_WINDOWS, "campplus": BATCH_WINDOWS}
"""The pipeline's own batch size of each network, in windows."""

Heard = Callable[[int, int, str], None]
"""Called with the number of layers at batch sizes that are done and of those in all, and the one that comes next."""


@dataclass(frozen=True)
class Wish:
    """What is to be tuned: layers by id, and batch sizes besides the pipeline's own."""

    layers: tuple[str, ...]
    rules: Rules
    batches: tuple[int, ...] = BATCHES
    effort: Effort = field(default_factory=Effort)

    def tasks(self) -> list[tuple[TunedLayer, int]]:
        """Layers at batch sizes in the order in which they are tuned."""
        found = []
        layers = in_order(self.layers)
        for network in dict.fromkeys(layer.network for layer in layers):
            own = self.rules.own[network]
            for batch in [own, *sorted(set(self.batches) - {own}, reverse=True)]:
                found += [(layer, batch) for layer in layers if layer.network == network]
        return found


def in_order(names: Iterable[str]) -> list[TunedLayer]:
    """Layers in the registry's order, each after its parts, which are added where they are missing.

    >>> [layer.id for layer in in_order(["resnet34.layer1.block", "fbank.mean"])]
    ['fbank.mean', 'resnet34.layer1.conv1', 'resnet34.layer1.conv2', 'resnet34.layer1.block']
    """
    wanted = set(names)
    found: dict[str, TunedLayer] = {}
    for layer in LAYERS.values():
        if layer.id in wanted:
            found |= {part: LAYERS[part] for part in layer.parts if part not in found}
            found[layer.id] = layer
    return list(found.values())


def tune(
    bench: Bench,
    wish: Wish,
    session: Session,
    compiling: Compiling | None = None,
    heard: Heard | None = None,
) -> Outcome:
    """Tune what is wished for; every trial is added to `session`.

    Raises
    ------
    BackendError
        The device fails, other than by refusing a candidate.
    """
    tasks = wish.tasks()
    work = _Work(bench, wish, session)
    with _clock(session, "compile"):
        work.build({layer.id: layer for layer, _ in tasks}.values(), compiling)
    for number, (layer, batch) in enumerate(tasks):
        if heard is not None:
            heard(number, len(tasks), f"{layer.id}, {batch} window{'s' if batch > 1 else ''}")
        with _clock(session, "prepare"):
            bench.ready(layer.network)
        with _clock(session, "tune"):
            work.site(layer, batch)
    if heard is not None:
        heard(len(tasks), len(tasks), "")
    return choose(session.trials, wish.rules)


@contextmanager
def closed_after(held: Site | Bench) -> Iterator[None]:
    """Close what is held behind the body; an error of the body counts more than one of closing."""
    try:
        yield
    except BaseException:
        # A device that has failed frees nothing any more, and says so.
        with suppress(BackendError):
            held.close()
        raise
    held.close()


@contextmanager
def _clock(session: Session, stage: str) -> Iterator[None]:
    """Add the seconds of the body to a stage of the session."""
    started = time.perf_counter()
    yield
    session.seconds[stage] = session.seconds.get(stage, 0.0) + time.perf_counter() - started


class _Work:
    """What one session needs at every site."""

    def __init__(self, bench: Bench, wish: Wish, session: Session) -> None:
        self._bench = bench
        self._wish = wish
        self._session = session
        self._failed: dict[tuple[str, str], Failure] = {}

    def build(self, layers: Iterable[TunedLayer], compiling: Compiling | None) -> None:
        """Find out which candidates this device cannot run, and compile the others."""
        capability = self._bench.device.compute_capability or (0, 0)
        gpu = Gpu(capability, shared_bytes)
        able = []
        for layer in layers:
            for candidate in self._rivals(layer):
                if gpu.runs(candidate):
                    able.append(candidate)
                    continue
                reason = f"it needs compute capability {candidate.needs}, or more shared memory than a block has here"
                self._failed[layer.id, candidate.name] = Failure(FailureKind.UNSUPPORTED, reason)
        self._failed |= self._bench.build([c for c in able if c.requests], compiling)

    def _rivals(self, layer: TunedLayer) -> list[Candidate]:
        """Candidates of a layer that may win at all."""
        return [c for c in candidates(layer.id) if c.layer == layer.id and self._wish.rules.permit(c)]

    def site(self, layer: TunedLayer, batch: int) -> None:
        """Verify and time the candidates of a layer at a batch size."""
        rules = self._wish.rules
        rivals: list[Candidate] = []
        parts: dict[str, dict[str, Candidate]] = {}
        for candidate in self._rivals(layer):
            failure = self._failed.get((layer.id, candidate.name))
            if failure is not None:
                self._add(candidate, batch, failure)
            elif candidate.name != SEPARATE:
                rivals.append(candidate)
            else:
                for storage in rules.storages:
                    chosen = chosen_parts(self._session.trials, layer.parts, storage, rules)
                    own = {part: by_batch[batch].candidate for part, by_batch in chosen.items() if batch in by_batch}
                    apart = replace(candidate, storage=storage)
                    if len(own) == len(layer.parts):
                        parts[storage] = own
                        rivals.append(apart)
                    else:
                        reason = f"no choice for {', '.join(sorted(set(layer.parts) - set(own)))}"
                        self._add(apart, batch, Failure(FailureKind.UNSUPPORTED, reason))
        if not rivals:
            return
        try:
            site = self._bench.open(layer, batch, parts)
        except BackendError as error:
            self._refused(layer.id, error)
            for candidate in rivals:
                self._add(candidate, batch, failure_of(error))
            return
        with closed_after(site):
            self._compete(site, rivals, layer, batch)

    def _compete(self, site: Site, rivals: Sequence[Candidate], layer: TunedLayer, batch: int) -> None:
        verified: dict[str, tuple[Candidate, Verified]] = {}
        launches = {}
        for candidate in rivals:
            found: Verified | Failure
            try:
                found = site.verify(candidate)
                if isinstance(found, Verified):
                    key = f"{candidate.name} {candidate.storage}"
                    launches[key] = site.launches(candidate)
                    verified[key] = candidate, found
            except BackendError as error:
                self._refused(f"{layer.id} {candidate.name}", error)
                found = failure_of(error)
            if isinstance(found, Failure):
                self._add(candidate, batch, found)

        def lost() -> None:
            self._bench.check()

        times = measure(self._bench.timer, launches, self._wish.effort, lost)
        for key, (candidate, found) in verified.items():
            result = times[key]
            if isinstance(result, Failure):
                self._add(candidate, batch, result)
            else:
                self._add(candidate, batch, None, result, found)

    def _refused(self, what: str, error: BackendError) -> None:
        """Raises where not only `what` was refused, but the device has failed."""
        try:
            self._bench.check()
        except BackendError as lost:
            raise BackendError(f"{what} made the device fail: {error}") from lost

    def _add(
        self,
        candidate: Candidate,
        batch: int,
        failure: Failure | None,
        samples: tuple[float, ...] = (),
        found: Verified | None = None,
    ) -> None:
        if failure is not None:
            logger.debug("%s %s, %d windows: %s", candidate.layer, candidate.name, batch, failure)
        error, digest = (0.0, "") if found is None else (found.error, found.digest)
        self._session.trials.append(
            Trial(
                candidate.layer, batch, candidate.name, candidate.version, candidate.storage, samples, error, digest,
                failure,
            )
        )  # fmt: skip
