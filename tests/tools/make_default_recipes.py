"""Write recipes/default-sm*.json: what each generation of GPUs gets where nobody has measured its model.

    python tests/tools/make_default_recipes.py [--check] [--to recipes]

Run it after the registry has changed; `--check` writes nothing and fails where a file would differ. A generation is a
list of wishes, patterns for layers and candidates with a precision: the first candidate, in the order of the wishes,
that runs on every GPU which takes the file, and that goes together with the others, is the layer's choice; without one
it is the registry's first. Layers without an alternative are left out, and parts that a kernel for the whole computes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from diarize.candidates import Candidate, Selection
from diarize.recipe import DEFAULT, Entry, Key, Recipe, to_text
from diarize.recipe_lookup import Gpu, in_use, shared_bytes
from diarize.recipe_parse import joint_form, parse
from diarize.registry import LAYERS, candidates

ARTICLE = (
    'article "Writing GPU kernels in Rust: how I made speakrs 60x faster than pyannote while dropping ONNX Runtime, '
    'cuDNN and cuBLAS", sections "Tuning per GPU" and "Per-GPU tuning in detail"'
)
RECORD = "tests/benchmarks/RECORD-cuda.md"
GUIDE = "CUDA C++ Programming Guide, technical specifications per compute capability"

TRUNK_HALF = ("resnet34.*", "mma_*", "fp16")
TRUNK_WINOGRAD_HALF = ("resnet34.layer[234].conv?", "*winograd*", "fp16")
STREAMED = ("pyannet.lstm", "streamed8_split", "split")
SPLIT = "the LSTM stack multiplies pairs of float16: the only precision with evidence over whole recordings"


@dataclass(frozen=True)
class Generation:
    """A default: its capability, the capabilities of the GPUs that take it, wishes, and why."""

    capability: tuple[int, int]
    served: tuple[tuple[int, int], ...]
    wishes: tuple[tuple[str, str, str], ...]
    reasons: tuple[str, ...]
    sources: tuple[str, ...] = (ARTICLE, GUIDE)
    measured: str = "not measured"

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return f"default-sm{self.capability[0]}{self.capability[1]}"


GENERATIONS = (
    Generation(
        (7, 5),
        ((7, 5),),
        (TRUNK_HALF,),
        (
            "Turing has tensor cores for float16 (m16n8k8) and none for TF32: on a T4 the article moved the 3x3 "
            "convolutions of the trunk to float16 tensor cores, 136 ms against cuDNN's 272 ms for 32 windows",
            SPLIT,
            "every kernel takes at most 64 KB of shared memory a block, which is all that a multiprocessor has",
        ),
    ),
    Generation(
        (8, 0),
        ((8, 0),),
        (TRUNK_HALF, STREAMED),
        (
            "the A100's TF32 tensor cores run 8 times as fast as its float32: scalar float32 in the early trunk made "
            "the article's build 1.4 times slower than cuDNN, TF32 there 1.17 times faster, and float16 tiles "
            "replaced these later",
            SPLIT,
            "the recurrent weights are streamed: kept in shared memory they need 201 KB a block, an A100 gives 163 KB",
        ),
    ),
    Generation(
        (8, 6),
        ((8, 6), (8, 7)),
        (TRUNK_HALF, STREAMED),
        (
            "float16 in the trunk: TF32 has about the throughput of float32 on consumer GPUs, says the article; which "
            "precision it took on its A10, where it was ahead of cuDNN and cuBLAS, it does not say",
            SPLIT,
            "every kernel takes at most 99 KB of shared memory a block, which is what these GPUs give",
        ),
    ),
    Generation(
        (8, 9),
        ((8, 9),),
        (TRUNK_HALF, STREAMED),
        (
            "float16 in the trunk: TF32 has about the throughput of float32 on consumer GPUs, says the article; which "
            "precision it took on its L4 and RTX 4090, where it was ahead of cuDNN and cuBLAS, it does not say",
            SPLIT,
            "every kernel takes at most 99 KB of shared memory a block, which is what these GPUs give",
        ),
    ),
    Generation(
        (9, 0),
        ((9, 0),),
        (
            ("resnet34.layer1.block", "block32_g3", "fp16"),
            ("resnet34.layer2.entry", "down_g4_n64_b8", "fp16"),
            ("resnet34.layer2.conv?", "roll_r40", "fp16"),
            ("resnet34.layer[34].entry", "down_g2_n128_s6_b4", "fp16"),
            ("resnet34.layer3.conv1", "stream_g4_s6", "fp16"),
            ("resnet34.layer3.conv2", "stream_g4_s6_early", "fp16"),
            ("resnet34.layer4.conv?", "inline_g5", "fp16"),
            TRUNK_HALF,
            ("pyannet.lstm_input*", "wgmma_split", "split"),
            ("pyannet.lstm", "interleaved8or16_split", "split"),
        ),
        (
            "Hopper's warpgroup tensor cores: the fastest of the kernels that were timed layer by layer on an H200, at "
            "32 and 128 windows, before there was diarize cuda tune; not measured on an H100, whose memory is slower",
            SPLIT,
            "an H200 itself takes its recipe, where the package has one that fits",
        ),
        (RECORD, GUIDE),
        "by hand on an NVIDIA H200",
    ),
    Generation(
        (10, 0),
        ((10, 0), (10, 3), (11, 0)),
        (TRUNK_HALF, ("pyannet.lstm", "resident8or16_split", "split")),
        (
            "ordinary tensor cores: warpgroup instructions of Hopper do not exist here, and there are no kernels for "
            "those that came instead",
            SPLIT,
            "recurrent weights stay in shared memory, 201 KB a block of the 227 KB that these GPUs give",
        ),
        (GUIDE,),
    ),
    Generation(
        (12, 0),
        ((12, 0), (12, 1)),
        (TRUNK_WINOGRAD_HALF, TRUNK_HALF, STREAMED),
        (
            "float16 in the whole trunk: the article's RTX 5090 is fastest so, by Winograd in the layers of 64 to 256 "
            "channels; with small batches, and on the RTX 5060 Ti in the layers of 128 and 256 channels, TF32 was "
            "faster, which only diarize cuda tune can tell",
            SPLIT,
            "every kernel takes at most 99 KB of shared memory a block, which is what these GPUs give",
        ),
    ),
)


def choices(generation: Generation) -> dict[str, Candidate]:
    """The choice of each layer that has an alternative."""
    able = {layer: list(_able(layer, generation)) for layer in LAYERS}
    chosen: dict[str, Candidate] = {}
    forms = _forms(able, generation)
    for layer, found in able.items():
        agreeing = [c for c in found if (form := joint_form(c)) is None or forms.get(form[0]) == form[1]]
        if len(candidates(layer)) > 1 and agreeing:
            chosen[layer] = _wished(layer, agreeing, generation)
    running = in_use(Selection({layer: {1: candidate} for layer, candidate in chosen.items()}))
    return {layer: chosen[layer] for layer in running}


def _able(layer: str, generation: Generation) -> Iterator[Candidate]:
    """Candidates that run on every GPU that takes the default, in the registry's order."""
    gpus = [Gpu(capability, shared_bytes) for capability in generation.served]
    for candidate in candidates(layer):
        if candidate.layer == layer and candidate.evidence and all(gpu.runs(candidate) for gpu in gpus):
            yield candidate


def _wished(layer: str, found: list[Candidate], generation: Generation) -> Candidate:
    for layers, names, precision in generation.wishes:
        for candidate in found:
            named = fnmatchcase(layer, layers) and fnmatchcase(candidate.name, names)
            if named and candidate.precision == precision:
                return candidate
    return found[0]


def _forms(able: Mapping[str, list[Candidate]], generation: Generation) -> dict[str, str]:
    """The form of each group of layers: of what is wished first and every layer of the group can have."""
    groups: dict[str, dict[str, list[str]]] = {}
    for layer, found in able.items():
        for candidate in sorted(found, key=lambda c: c is not _wished(layer, found, generation)):
            form = joint_form(candidate)
            if form is not None:
                groups.setdefault(form[0], {}).setdefault(form[1], []).append(layer)
    agreed = {}
    for group, by_form in groups.items():
        layers = {layer for found in by_form.values() for layer in found}
        most = sorted(by_form, key=lambda form: len(layers - set(by_form[form])))
        complete = [form for form in by_form if set(by_form[form]) == layers]
        agreed[group] = (complete or most)[0]
    return agreed


def recipe(generation: Generation) -> Recipe:
    """The default of a generation."""
    provenance: dict[str, Any] = {
        "measured": generation.measured,
        "reasons": list(generation.reasons),
        "sources": list(generation.sources),
        "made_by": "tests/tools/make_default_recipes.py",
    }
    entries = tuple(Entry.of(candidate, 1) for candidate in choices(generation).values())
    return Recipe(DEFAULT, Key(capability=generation.capability), provenance, entries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=Path(__file__).resolve().parents[2] / "recipes")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file would differ")
    options = parser.parse_args()
    stale = []
    for generation in GENERATIONS:
        path = options.to / f"{generation.name}.json"
        text = to_text(recipe(generation))
        parse(text.encode(), str(path))
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not options.check:
            path.write_text(text, encoding="utf-8")
    print(f"{'differ' if options.check else 'written'}: {', '.join(stale) or 'none'}")
    sys.exit(1 if options.check and stale else 0)


if __name__ == "__main__":
    main()
