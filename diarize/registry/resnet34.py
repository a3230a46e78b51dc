"""Candidates of the ResNet34 trunk: direct and Winograd convolutions on both kinds of tensor cores, TF32 and float32.

Activations are stored in float16 or float32; within one trunk all layers have the same storage. The first candidate
of a layer is the portable one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..candidates import SEPARATE, Candidate, Request, TunedLayer, Value

SIZES: Mapping[int, tuple[int, int, int]] = {1: (32, 80, 998), 2: (64, 40, 499), 3: (128, 20, 250), 4: (256, 10, 125)}
"""Channels, rows and columns of each stage's activations."""
EVIDENCE = "turns of ten recordings as in float32, RECORD-cuda.md"
FLOAT32 = "float32 arithmetic"
TF32 = "embeddings as close to float32 as those of float16, RECORD-cuda.md"
PART = 64
_BLOCKS = {1: 3, 2: 4, 3: 6, 4: 3}


def _flops(stage: int, c_in: int, taps: int = 9) -> float:
    channels, rows, columns = SIZES[stage]
    return 2.0 * rows * columns * taps * c_in * channels


def _layers() -> list[TunedLayer]:
    found = [TunedLayer("resnet34.conv1", "conv3x3", "first convolution, ReLU", 1, _flops(1, 1))]
    for stage, (channels, _, _) in SIZES.items():
        name, blocks, own = f"resnet34.layer{stage}", _BLOCKS[stage], _flops(stage, channels)
        if stage == 1:
            parts = (f"{name}.conv1", f"{name}.conv2")
            found.append(TunedLayer(f"{name}.block", "block", "both convolutions of a block", blocks, 2 * own, parts))
        else:
            half = _flops(stage, channels // 2)
            short = _flops(stage, channels // 2, 1)
            parts = (f"{name}.down", f"{name}.shortcut")
            found += [
                TunedLayer(f"{name}.entry", "conv3x3s2", "strided convolution and shortcut", 1, half + short, parts),
                TunedLayer(f"{name}.down", "conv3x3s2", "strided convolution, ReLU", 1, half),
                TunedLayer(f"{name}.shortcut", "conv1x1s2", "strided shortcut", 1, short),
            ]
        found += [
            TunedLayer(f"{name}.conv1", "conv3x3", "first convolution of a block, ReLU", blocks - (stage > 1), own),
            TunedLayer(f"{name}.conv2", "conv3x3", "second convolution, residual, ReLU", blocks, own),
        ]
    return [
        *found,
        TunedLayer("resnet34.pool", "pooling", "weighted mean and deviation of each speaker"),
        TunedLayer("resnet34.seg_1", "linear", "embedding layer", 1, 2.0 * 5120 * 256),
    ]


LAYERS = tuple(_layers())

_SHORT = {
    "groups": "g",
    "rows": "r",
    "tile_n": "n",
    "stages": "s",
    "buffers": "b",
    "columns": "x",
    "early": "early",
    "tile_rows": "h",
    "tile_columns": "w",
    "tile_k": "k",
    "warps_m": "wm",
    "warps_n": "wn",
    "min_blocks": "m",
    "warps_across": "w",
    "inner": "i",
}


def title(family: str, tuning: Mapping[str, Value]) -> str:
    """Name of a candidate: the family, then each parameter.

    >>> title("stream", {"groups": 4, "stages": 6, "early": True})
    'stream_g4_s6_early'
    """
    parts = [_SHORT.get(key, key) + ("" if value is True else f"{value}") for key, value in tuning.items() if value]
    return "_".join([family, *parts])


def candidates() -> list[Candidate]:
    """Every candidate."""
    found: list[Candidate] = [
        _plain("conv1", "stem", "fp16", "half", Request("stem:make_stem", {})),
        _plain("conv1", "stem_f32", "fp32", "float", Request("stem:make_stem_f32", {})),
    ]
    found += _first_stage()
    for stage in (2, 3, 4):
        found += [*_entry(stage), *_same(stage, False), *_same(stage, True)]
    linear = (
        Request("linear:make_linear_partial", {"part": PART}),
        Request("linear:make_linear_total", {}),
    )
    return [
        *found,
        _plain("pool", "pool", "fp32", "half", Request("pool:make_pool", {})),
        _plain("pool", "pool_f32", "fp32", "float", Request("pool:make_pool_f32", {})),
        Candidate("resnet34.seg_1", "linear", 1, "fp32", linear, capability=(7, 5), evidence=FLOAT32),
    ]


def _plain(layer: str, name: str, precision: str, storage: str, *requests: Request) -> Candidate:
    evidence = EVIDENCE if precision == "fp16" else FLOAT32
    return Candidate(f"resnet34.{layer}", name, 1, precision, requests, storage=storage, evidence=evidence,
                     capability=(7, 5))  # fmt: skip


def _hopper(layer: str, family: str, problem: Mapping[str, Any], tuning: Mapping[str, Value]) -> Candidate:
    """A candidate of warpgroup tensor cores."""
    factory = "block32:make_block32" if family == "block32" else f"conv_{family}:make_conv_{family}"
    return Candidate(
        f"resnet34.{layer}", title(family, tuning), 1, "fp16", (Request(factory, {**problem, **tuning}),), tuning,
        "half", (9, 0), True, EVIDENCE,
    )  # fmt: skip


def _portable(layer: str, problem: Mapping[str, Any], tiles: list[dict[str, Value]]) -> list[Candidate]:
    """Candidates of ordinary tensor cores and in full precision, for stride 1 and 2; the last tile fits 64 KB.

    A shortcut is a 3x3 filter with nothing around its centre for float16, and a 1x1 filter otherwise.
    """
    found = []
    for tile in tiles:
        request = Request("conv_mma:make_conv_mma", {**problem, **tile})
        name, lowest = title("mma", tile), (7, 5) if tile is tiles[-1] else (8, 0)
        found.append(Candidate(f"resnet34.{layer}", name, 1, "fp16", (request,), tile, "half", lowest, False, EVIDENCE))
    size = {"kernel_size": 1} if layer.endswith(".shortcut") else {}
    return [*found, *_full_precision(layer, {**problem, **size})]


def _full_precision(layer: str, problem: Mapping[str, Any]) -> list[Candidate]:
    """Candidates with products in TF32 and float32, on activations of either storage."""
    found = []
    for storage in ("float", "half"):
        for tf32 in (True, False):
            precision, evidence = ("tf32", TF32) if tf32 else ("fp32", FLOAT32)
            request = Request("conv_f32:make_conv_f32", {**problem, "tf32": tf32, "storage": storage})
            name = precision if storage == "float" else f"{precision}_half"
            lowest = (8, 0) if tf32 else (7, 5)
            made = Candidate(f"resnet34.{layer}", name, 1, precision, (request,), {}, storage, lowest, False, evidence)
            found.append(made)
    if problem["stride"] == 1:
        tile: dict[str, Value] = {"stages": 2, "inner": 1, "min_blocks": 3}
        request = Request("conv_f32:make_conv_f32", {**problem, **tile})
        name = title("fp32", tile)
        found.append(Candidate(f"resnet34.{layer}", name, 1, "fp32", (request,), tile, "float", evidence=FLOAT32))
    return found


def _winograd(layer: str, channels: int, residual: bool) -> list[Candidate]:
    """Winograd candidates: F(2x2,3x3) and F(2,3), in float16 without evidence yet, and F(2x2,3x3) in float32."""
    same = {"c_in": channels, "c_out": channels, "residual": residual}
    square: list[dict[str, Value]] = [{"warps_across": 4}, {"warps_across": 2, "min_blocks": 2}]
    columns: dict[str, Value] = {"square": False, "octet_rows": 4, "warp_n": 32, "warps_n": 1, "stages": 2}
    tiles = [
        *(("winograd22", tile) for tile in square),
        ("winograd23", {**columns, "warps_across": 4, "min_blocks": 2}),
        ("winograd23", {**columns, "warps_across": 8}),
    ]
    found = []
    for family, tile in tiles:
        request = Request("conv_winograd:make_conv_winograd", {**same, **tile})
        told: dict[str, Value] = {key: tile[key] for key in ("warps_across", "min_blocks") if key in tile}
        name = title(family, told)
        found.append(Candidate(f"resnet34.{layer}", name, 1, "fp16", (request,), tile, "half"))
    if channels in (64, 128):
        request = Request("conv_winograd_hopper:make_conv_winograd_hopper", same)
        made = Candidate(f"resnet34.{layer}", "winograd23_wgmma", 1, "fp16", (request,), {}, "half", (9, 0), True)
        found.append(made)
    for tile_rows in (4, 2):
        request = Request("conv_winograd_f32:make_conv_winograd_f32", {**same, "tile_rows": tile_rows})
        name, tuning = f"winograd22_fp32_h{tile_rows}", {"tile_rows": tile_rows}
        found.append(
            Candidate(f"resnet34.{layer}", name, 1, "fp32", (request,), tuning, "float", (7, 5), evidence=FLOAT32)
        )
    return found


def _separate(layer: str) -> Candidate:
    return Candidate(f"resnet34.{layer}", SEPARATE, 1, "", (), capability=(7, 5), evidence="as its parts")


def mma_tiles(c_in: int, stride: int) -> list[dict[str, Value]]:
    """Tiles of the portable float16 convolution; the first fits 99 KB of shared memory a block, the last 64 KB.

    A multiprocessor of compute capability 7.5 has no more than those 64 KB, so that most last tiles have eight warps.
    """
    if stride == 2:
        return [
            {"tile_rows": 2, "tile_columns": 32, "tile_k": 64 if c_in == 64 else 32, "warps_m": 4},
            {"tile_rows": 2, "tile_columns": 32, "tile_k": 32, "warps_m": 4, "warps_n": 2},
        ]
    if c_in == 32:
        return [
            {"tile_rows": 4, "tile_columns": 64, "tile_n": 32, "tile_k": 32, "min_blocks": 2},
            {"tile_rows": 8, "tile_columns": 32, "tile_n": 32, "tile_k": 32, "min_blocks": 2},
            {"tile_rows": 4, "tile_columns": 48, "tile_n": 32, "tile_k": 32, "min_blocks": 2},
        ]
    small: dict[str, Value] = {"tile_rows": 4, "tile_columns": 32, "warps_m": 4}
    wide: dict[str, Value] = {"tile_rows": 4, "tile_columns": 64, "warps_m": 8}
    if c_in == 64:
        return [wide, small, {"tile_rows": 4, "tile_columns": 32, "warps_m": 4, "warps_n": 2}]
    # Two rows divide the ten of the last stage.
    rows, columns = (4, 32) if c_in == 128 else (2, 64)
    return [
        small,
        wide,
        {"tile_rows": rows, "tile_columns": columns, "tile_k": 32, "warps_m": 4, "warps_n": 2},
    ]


def _first_stage() -> list[Candidate]:
    found = [_separate("layer1.block")]
    found += [_hopper("layer1.block", "block32", {}, {"groups": groups}) for groups in (3, 2)]
    for residual in (False, True):
        layer = f"layer1.conv{1 + residual}"
        found += _portable(layer, _problem(32, 32, 1, residual), mma_tiles(32, 1))
        found += [
            _hopper(layer, family, {"channels": 32, "residual": residual}, tuning)
            for family, tuning in (
                ("roll", {"groups": 3, "buffers": 4 if residual else 8}),
                ("resident", {"groups": 4, "rows": 2, "buffers": 8}),
                ("resident", {"groups": 4, "rows": 4, "buffers": 8}),
            )
            if not (residual and tuning.get("rows") == 4)
        ]
        found += _winograd(layer, 32, residual)
    return found


def _problem(c_in: int, c_out: int, stride: int, residual: bool = False, relu: bool = True) -> dict[str, Any]:
    return {"c_in": c_in, "c_out": c_out, "stride": stride, "residual": residual, "relu": relu}


_DOWN: Mapping[int, tuple[dict[str, Value], ...]] = {
    2: (
        {"groups": 4, "tile_n": 64, "stages": 0, "buffers": 8},
        {"groups": 2, "tile_n": 64, "stages": 0, "buffers": 8},
    ),
    3: (
        {"groups": 2, "tile_n": 128, "stages": 6, "buffers": 4},
        {"groups": 3, "tile_n": 128, "stages": 4, "buffers": 4},
        {"groups": 4, "tile_n": 64, "stages": 6, "buffers": 4},
    ),
    4: (
        {"groups": 2, "tile_n": 128, "stages": 6, "buffers": 4},
        {"groups": 3, "tile_n": 128, "stages": 4, "buffers": 4},
        {"groups": 4, "tile_n": 64, "stages": 6, "buffers": 4},
    ),
}


def _entry(stage: int) -> list[Candidate]:
    """Candidates of the strided convolution with its shortcut, together and apart."""
    c_out = SIZES[stage][0]
    c_in = c_out // 2
    found = [_separate(f"layer{stage}.entry")]
    found += [_hopper(f"layer{stage}.entry", "down", {"c_in": c_in}, tuning) for tuning in _DOWN[stage]]
    for layer, relu in (("down", True), ("shortcut", False)):
        found += _portable(f"layer{stage}.{layer}", _problem(c_in, c_out, 2, relu=relu), mma_tiles(c_in, 2))
    return found


_SAME: Mapping[int, tuple[tuple[str, dict[str, Value]], ...]] = {
    2: (
        ("roll", {"rows": 40}),
        ("roll", {"rows": 20}),
        ("resident", {"groups": 3, "rows": 2, "buffers": 4}),
        ("resident", {"groups": 4, "rows": 2, "buffers": 4}),
    ),
    3: (
        ("stream", {"groups": 4, "stages": 6}),
        ("stream", {"groups": 4, "stages": 6, "early": True}),
        ("stream", {"groups": 2, "rows": 2, "stages": 6}),
        ("stream", {"groups": 4, "stages": 5, "columns": 2}),
        ("inline", {"groups": 5}),
    ),
    4: (
        ("inline", {"groups": 5}),
        ("stream", {"groups": 2, "tile_n": 256, "stages": 4}),
        ("stream", {"groups": 4, "stages": 5, "columns": 2}),
        ("stream", {"groups": 4, "stages": 5, "early": True, "columns": 2}),
    ),
}


def _same(stage: int, residual: bool) -> list[Candidate]:
    """Candidates of the convolutions that keep the size; those with a residual may fetch it early."""
    channels = SIZES[stage][0]
    layer = f"layer{stage}.conv{1 + residual}"
    found = _portable(layer, _problem(channels, channels, 1, residual), mma_tiles(channels, 1))
    for family, tuning in _SAME[stage]:
        if tuning.get("early") and not residual:
            continue
        if family == "resident" and residual and tuning["groups"] == 4:
            continue
        names = ("c_in", "c_out") if family in ("stream", "inline") else ("channels",)
        found.append(_hopper(layer, family, {**dict.fromkeys(names, channels), "residual": residual}, tuning))
    return [*found, *_winograd(layer, channels, residual)]
