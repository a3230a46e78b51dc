"""Which candidate computes each layer on a GPU, and why: from files in a fixed order, layer by layer.

The order is: a file that was named, the user's tune file, the recipe of this GPU model, the default of the nearest
generation not above, and what the registry lists first. A file that does not fit is refused as a whole: with an error
where it was named, else with one warning. Nothing here asks a GPU or reads the environment.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .candidates import SEPARATE, Candidate, Selection
from .errors import RecipeError
from .hardware import Device
from .recipe import DEFAULT, TUNE, Key, Recipe, to_selection
from .recipe_fields import REMEDY, Words, refusal
from .recipe_parse import joint_form, read
from .registry import LAYERS, candidates, find
from .resources import data_dir

PORTABLE = "portable"
SharedBytes = Callable[[Candidate], int]
"""Gives the shared memory in bytes that a block of the candidate's kernels takes at most."""

# KB of shared memory that a block may have, by compute capability: CUDA C++ Programming Guide, technical
# specifications per compute capability. One that is not listed gets the least of those from 8.0 on.
_SHARED_KB = {
    (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227,
    (12, 0): 99, (12, 1): 99,
}  # fmt: skip
_LEAST_SHARED_KB = 99
_DEFAULT_NAME = re.compile(r"default-sm(\d{1,2})(\d)")


@dataclass(frozen=True)
class Lookup:
    """What was chosen for a GPU, and why.

    `sources` are those that layers in use took their choice from, in their order: "tune file PATH", "recipe
    nvidia-h200", "default sm90" or "portable"; `selection.origins` has the same words for each layer.
    `tune_file` is the path that was looked for, "" for none, and `refused` why a file there was not used, "" where
    there was none or it was. `warnings` are sentences for the user. `missing` are layers that nothing can compute.
    """

    selection: Selection
    sources: tuple[str, ...] = ()
    tune_file: str = ""
    refused: str = ""
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The first of the sources."""
        return next(iter(self.sources), PORTABLE)

    @property
    def layers(self) -> dict[str, str]:
        """The candidate of each layer in use; by batch size, as in "1: a, 32: b", where they differ."""
        return {layer: named_choice(self.selection.choices[layer]) for layer in in_use(self.selection)}

    def summary(self) -> str:
        """How many layers each source decided, such as "21 layers from recipe nvidia-h200, 4 portable"."""
        counts = Counter(self.selection.origins[layer] for layer in in_use(self.selection))
        parts: list[str] = []
        for origin in self.sources:
            number = counts[origin]
            noun = f" layer{'s' if number > 1 else ''}" if not parts else ""
            parts.append(f"{number}{noun} {origin if origin == PORTABLE else f'from {origin}'}")
        return ", ".join(parts)

    def lines(self) -> list[str]:
        """Each layer in use with its candidate and where that came from."""
        origins = self.selection.origins
        return [f"{layer}: {chosen} ({origins[layer]})" for layer, chosen in self.layers.items()]


def named_choice(by_batch: Mapping[int, Candidate]) -> str:
    """Names of a layer's candidates by the smallest batch size of each run of equal ones; the name alone if it is one.

    >>> from .registry import find
    >>> a, b = find("resnet34.layer2.conv1", "roll_r40"), find("resnet34.layer2.conv1", "roll_r20")
    >>> named_choice({1: b, 8: b, 32: a}), named_choice({1: a, 32: a})
    ('1: roll_r20, 32: roll_r40', 'roll_r40')
    """
    runs: list[tuple[int, str]] = []
    for batch in sorted(by_batch):
        if not runs or runs[-1][1] != by_batch[batch].name:
            runs.append((batch, by_batch[batch].name))
    return runs[0][1] if len(runs) == 1 else ", ".join(f"{batch}: {name}" for batch, name in runs)


def in_use(selection: Selection) -> list[str]:
    """Layers that run: all but the parts of those that one kernel computes whole at every batch size."""
    whole = {
        part
        for layer, by_batch in selection.choices.items()
        for part in LAYERS[layer].parts
        if all(candidate.name != SEPARATE for candidate in by_batch.values())
    }
    return [layer for layer in LAYERS if layer in selection.choices and layer not in whole]


def shared_memory_limit(capability: tuple[int, int]) -> int:
    """Bytes of shared memory that a block may have on a GPU of this compute capability.

    >>> shared_memory_limit((9, 0)) // 1024
    227
    """
    return _SHARED_KB.get(capability, _LEAST_SHARED_KB) << 10


_known_bytes: dict[str, int] = {}


def shared_bytes(candidate: Candidate) -> int:
    """The most shared memory in bytes that a block of any of its kernels takes; their factories run, numba does not."""
    for request in candidate.requests:
        if request.key not in _known_bytes:
            made = request.make()
            _known_bytes[request.key] = int(getattr(made, "kernel", made).shared_bytes)
    return max((_known_bytes[request.key] for request in candidate.requests), default=0)


def look_up(
    key: Key,
    networks: Collection[str] = (),
    named: Path | None = None,
    tune_file: Path | None = None,
    shipped: Path | None = None,
    forced: Mapping[str, str] | None = None,
    shared_bytes: SharedBytes = shared_bytes,
) -> Lookup:
    """The choice for the GPU and build that `key` describes.

    `networks` limits the layers to those of some networks. `named` is a file that must fit; `tune_file` one that may
    be absent; `shipped` the folder of recipes, by default that of the package. `forced` gives the form of a group of
    layers (see `recipe_parse.joint_form`) that is not up to the files. Where `key` has no checksum for a network, its
    weights are not compared.

    Raises
    ------
    RecipeError
        The file that was named does not fit.
    """
    wanted = [layer for layer in LAYERS if not networks or LAYERS[layer].network in networks]
    table = _Table(wanted, Gpu(key.capability, shared_bytes), forced or {})
    refused = ""
    if named is not None:
        table.take(fitting(named, key, shared_bytes), f"tune file {named}")
    if tune_file is not None and tune_file != named and os.path.isfile(tune_file):
        try:
            table.take(fitting(tune_file, key, shared_bytes), f"tune file {tune_file}")
        except RecipeError as error:
            refused = str(error)
            table.warnings.append(f"tune file not used: {error}")
    for path, origin in _shipped(shipped or data_dir("recipes"), key):
        try:
            recipe = fitting(path, key, shared_bytes)
        except RecipeError as error:
            table.warnings.append(f"{origin} not used: {error}")
        else:
            table.take(recipe, origin)
    table.take_portable()
    chosen = [layer for layer in wanted if layer in table.choices]
    selection = Selection({layer: table.choices[layer] for layer in chosen}, table.origins)
    used = {table.origins[layer] for layer in in_use(selection)}
    sources = tuple(origin for origin in table.sources if origin in used)
    missing = tuple(layer for layer in wanted if layer not in table.choices)
    return Lookup(selection, sources, str(named or tune_file or ""), refused, tuple(table.warnings), missing)


def fitting(path: Path, key: Key, shared_bytes: SharedBytes = shared_bytes) -> Recipe:
    """The recipe in a file, if that was made for what `key` describes.

    A tune file must agree in everything; a recipe in the GPU's name, capability and multiprocessors and in the policy,
    since the versions of its candidates say whether they are still the same; a default's capability must not be above.

    Raises
    ------
    RecipeError
        It cannot be read, is damaged, or was made for something else; the message names the first field that differs.
    """
    recipe = read(path)
    own, where = recipe.key, str(path)
    if recipe.kind == DEFAULT:
        if own.capability > key.capability:
            raise refusal(where, "key.capability", list(own.capability), f"at most {list(key.capability)}")
        # It is for a range of GPUs: what does not run on this one is passed over, layer by layer.
        return recipe
    for name in (*_GPU, *(_BUILD if recipe.kind == TUNE else ())):
        seen, wanted = getattr(own, name), getattr(key, name)
        if seen != wanted:
            whose = "build" if name in _OF_BUILD else "GPU"
            raise refusal(where, f"key.{name}", Words(_plain(seen)), f"{_plain(wanted)} of this {whose}")
    for network, checksum in own.models.items() if recipe.kind == TUNE else ():
        now = key.models.get(network, checksum)
        if now != checksum:
            raise refusal(where, f"key.models.{network}", checksum, f"{now!a} of the model in use")
    gpu = Gpu(key.capability, shared_bytes)
    for index, entry in enumerate(recipe.entries):
        candidate = find(entry.layer, entry.candidate)
        assert candidate is not None
        if not gpu.runs(candidate):
            seen = Words(f"{entry.candidate}, which takes {shared_bytes(candidate)} bytes of shared memory a block")
            raise refusal(where, f"entries[{index}].candidate", seen, f"at most {shared_memory_limit(key.capability)}")
    return recipe


_GPU = ("device", "capability", "multiprocessors", "policy")
_BUILD = ("driver", "cuda", "numba_cuda", "diarize", "kernels")
_OF_BUILD = ("policy", "numba_cuda", "diarize", "kernels")


@dataclass(frozen=True)
class Gpu:
    """What decides whether a candidate can run: the compute capability, and the shared memory a block may have."""

    capability: tuple[int, int]
    shared_bytes: SharedBytes

    def runs(self, candidate: Candidate) -> bool:
        """Whether it can run here."""
        limit = shared_memory_limit(self.capability)
        return candidate.runs_on(self.capability) and self.shared_bytes(candidate) <= limit


class _Table:
    """Choices as they are filled in, source by source; `forms` holds what groups of layers have agreed on."""

    def __init__(self, wanted: Sequence[str], gpu: Gpu, forced: Mapping[str, str]) -> None:
        self.choices: dict[str, dict[int, Candidate]] = {}
        self.origins: dict[str, str] = {}
        self.sources: list[str] = []
        self.warnings: list[str] = []
        self._wanted = wanted
        self._gpu = gpu
        self._forced = forced
        self._forms = dict(forced)

    def take(self, recipe: Recipe, origin: str) -> None:
        """Fill in layers that have no choice yet, as far as they go together with those that have."""
        self.sources.append(origin)
        offered = {
            layer: by_batch
            for layer, by_batch in to_selection(recipe).choices.items()
            if layer in self._wanted
            and layer not in self.choices
            and all(self._gpu.runs(candidate) for candidate in by_batch.values())
        }
        for group, form in _forms_of(offered).items():
            if group not in self._forms and self._complete(group, form, offered):
                self._forms[group] = form
            elif group not in self._forms:
                self.warnings.append(
                    f"{origin}: its choices for {group} are not used: not every layer can be {form}; {REMEDY}"
                )
        for layer, by_batch in offered.items():
            if all(self._agrees(candidate) for candidate in by_batch.values()):
                self.choices[layer] = dict(by_batch)
                self.origins[layer] = origin

    def take_portable(self) -> None:
        """Fill in the rest: the first candidate of each layer that runs, in the form that all layers can have."""
        self.sources.append(PORTABLE)
        portable = {layer: list(self._portable(layer)) for layer in self._wanted}
        for fitting in portable.values():
            for group, form in filter(None, map(joint_form, fitting)):
                if group not in self._forms and self._complete(group, form, {}):
                    self._forms[group] = form
        for layer, fitting in portable.items():
            agreeing = [candidate for candidate in fitting if self._agrees(candidate)]
            if layer not in self.choices and agreeing:
                self.choices[layer] = {1: agreeing[0]}
                self.origins[layer] = PORTABLE

    def _portable(self, layer: str) -> Iterator[Candidate]:
        for candidate in candidates(layer):
            if candidate.layer == layer and not candidate.exactly and candidate.evidence and self._gpu.runs(candidate):
                yield candidate

    def _agrees(self, candidate: Candidate) -> bool:
        form = joint_form(candidate)
        return form is None or self._forms.get(form[0]) == form[1]

    def _complete(self, group: str, form: str, offered: Mapping[str, Mapping[int, Candidate]]) -> bool:
        """Whether each layer of the group has a choice or a portable candidate of this form, or one of no form."""
        for layer in self._wanted:
            if not any((joint_form(c) or ("",))[0] == group for c in candidates(layer) if c.layer == layer):
                continue
            given = [*offered.get(layer, {}).values(), *self._portable(layer)]
            if not any((joint_form(c) or (group, form)) == (group, form) for c in given):
                return False
        return True


def _forms_of(offered: Mapping[str, Mapping[int, Candidate]]) -> dict[str, str]:
    """Form of each group among the choices of a file, in which all layers of a group have the same."""
    forms = (joint_form(candidate) for by_batch in offered.values() for candidate in by_batch.values())
    return dict(form for form in forms if form is not None)


def _shipped(folder: Path, key: Key) -> Iterator[tuple[Path, str]]:
    """Files of the package for this GPU: recipes of its model, and the default of the nearest generation."""
    slug = Device("cuda", key.device).slug
    for path in sorted(folder.glob(f"{slug}*.json")) if slug else ():
        # A damaged file may be the one for this GPU, so that whoever reads it next says what is wrong with it.
        own = key
        with suppress(RecipeError):
            own = read(path).key
        if all(getattr(own, name) == getattr(key, name) for name in _GPU[:3]):
            yield path, f"recipe {path.stem}"
    found = []
    for path in folder.glob("default-sm*.json"):
        match = _DEFAULT_NAME.fullmatch(path.stem)
        if match and (capability := (int(match[1]), int(match[2]))) <= key.capability:
            found.append((capability, path))
    if found:
        path = max(found)[1]
        yield path, f"default {path.stem.removeprefix('default-')}"


def _plain(value: object) -> str:
    """A value of a key for people, as JSON has it."""
    return ascii(list(value) if isinstance(value, tuple) else value)
