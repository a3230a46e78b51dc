"""Weight layouts of the GPU kernels against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from diarize.kernels.conv_pack import channel_order, fits_half, pack_taps, swizzle_rows


def test_channel_order_gives_a_thread_eight_adjacent_channels() -> None:
    order = channel_order()
    assert sorted(order) == list(range(32))
    for q in range(4):
        # Columns 2q and 2q + 1 of the four blocks of eight.
        held = [order[8 * block + 2 * q + e] for block in range(4) for e in range(2)]
        assert held == list(range(8 * q, 8 * q + 8))


@pytest.mark.parametrize("tile_k", [32, 64])
def test_pack_taps_places_every_weight(tile_k: int) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 128, 3, 3)).astype(np.float32)
    packed = pack_taps(weight, 32, tile_k).reshape(128 // tile_k, 9, 2, 32, tile_k)
    order = channel_order()
    units = tile_k // 8
    for part, tap, group, row, k in rng.integers(0, [128 // tile_k, 9, 2, 32, tile_k], (200, 5)):
        turned = (row & 7) if units == 8 else ((row >> 1) & 3)
        place = ((k // 8) ^ turned) * 8 + k % 8
        value = weight[group * 32 + order[row], part * tile_k + k, tap // 3, tap % 3]
        assert packed[part, tap, group, row, place] == np.float16(value)


def test_swizzle_is_its_own_inverse() -> None:
    rows = np.arange(16 * 8 * 8, dtype=np.float16).reshape(16, 8, 8)
    assert np.array_equal(swizzle_rows(swizzle_rows(rows)), rows)
    assert not np.array_equal(swizzle_rows(rows), rows)


@pytest.mark.parametrize(
    ("value", "fits"), [(1.0, True), (32000.0, True), (40000.0, False), (np.inf, False), (np.nan, False)]
)
def test_weights_beyond_half_are_recognised(value: float, fits: bool) -> None:
    weight = np.ones((2, 2, 3, 3), np.float32)
    weight[1, 0, 2, 1] = value
    assert fits_half(weight) is fits


def test_stem_and_block_layouts() -> None:
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'diarize-cuda[cuda]'")
    from diarize.kernels.block32 import pack_block
    from diarize.kernels.conv_down import TAP_ORDER, pack_down
    from diarize.kernels.stem import pack_stem

    rng = np.random.default_rng(1)
    weight = rng.standard_normal((32, 1, 3, 3)).astype(np.float32)
    words = pack_stem(weight).reshape(4, 2, 32).view(np.float16).reshape(4, 2, 32, 2)
    order = channel_order()
    for block, word, lane, e in np.ndindex(4, 2, 32, 2):
        tap, column = 2 * (lane % 4) + 8 * word + e, 8 * block + lane // 4
        wanted = weight[order[column], 0].reshape(-1)[tap] if tap < 9 else 0.0
        assert words[block, word, lane, e] == np.float16(wanted)
    first, second = rng.standard_normal((2, 32, 32, 3, 3)).astype(np.float32)
    packed = pack_block(first, second).reshape(2, 3, 3, 32, 32)
    # Unit 0 of row 0 is not moved by the swizzle: [filter][column][row from 2 down][packed row][k].
    for number, s, r in np.ndindex(2, 3, 3):
        assert np.array_equal(packed[number, s, r, 0, :8], (first, second)[number][0, :8, 2 - r, s].astype(np.float16))
    weight, shortcut = rng.standard_normal((64, 32, 3, 3)), rng.standard_normal((64, 32, 1, 1))
    packed = pack_down(weight, shortcut, 64, 32).reshape(10, 64, 32)
    for tap, (r, s) in enumerate(TAP_ORDER):
        assert np.array_equal(packed[tap, 0, :8], weight[0, :8, r, s].astype(np.float16))
    assert np.array_equal(packed[9, 0, :8], shortcut[0, :8, 0, 0].astype(np.float16))


def test_layers_with_large_weights_are_named() -> None:
    from diarize.backend.cuda_networks import overflowing
    from diarize.layers import Layer, Op

    small, large = np.ones((32, 32, 3, 3), np.float32), np.full((32, 32, 3, 3), 1e5, np.float32)
    layers = [
        Layer("layer1.0.conv1", Op.CONV2D, {"weight": small}),
        Layer("layer1.0.conv2", Op.CONV2D, {"weight": large}),
        Layer("pool", Op.MASKED_STATISTICS),
        Layer("seg_1", Op.LINEAR, {"weight": large[:, :, 0, 0]}),
    ]
    assert overflowing(layers) == ("layer1.0.conv2",)


def test_layers_with_large_weights_alone_leave_float16() -> None:
    from diarize.backend.cuda_networks import ModelLayers, default_selection, trunk_choice
    from diarize.layers import Layer, Op

    def conv(name: str, c_in: int, c_out: int, size: int, stride: int, value: float) -> Layer:
        weight = np.full((c_out, c_in, size, size), value, np.float32)
        return Layer(name, Op.CONV2D, {"weight": weight}, {"stride_h": stride})

    layers = [
        conv("conv1", 1, 32, 3, 1, 1),
        conv("layer1.0.conv2", 32, 32, 3, 1, 1e5),
        conv("layer2.0.conv1", 32, 64, 3, 2, 1),
        conv("layer2.0.shortcut", 32, 64, 1, 2, 1e5),
        conv("layer2.0.conv2", 64, 64, 3, 1, 1),
    ]
    choice = trunk_choice(default_selection((9, 0)), 64, ModelLayers((), trunk=layers), (9, 0))
    assert choice.storage == "half"
    assert set(choice.own) == {"layer1.0.conv2", "layer2.0.conv1", "layer2.0.shortcut"}
    assert {request.parameters["tf32"] for request in choice.own.values()} == {True}
    assert choice.own["layer1.0.conv2"].parameters["residual"]
    assert choice.own["layer2.0.shortcut"].parameters["kernel_size"] == 1
    # The parts of the first stage's blocks are needed again.
    assert choice.inner[32] in choice.requests()
    # The stem is the only layer with float16 weights and no other kernel.
    whole = trunk_choice(
        default_selection((7, 5)), 64, ModelLayers((), trunk=[conv("conv1", 1, 32, 3, 1, 1e5)]), (7, 5)
    )
    assert (whole.storage, whole.precision) == ("float", "fp32")


def test_weights_too_large_for_winograd_take_the_direct_kernel() -> None:
    from diarize import registry
    from diarize.backend.cuda_networks import ModelLayers, default_selection, trunk_choice
    from diarize.candidates import Selection
    from diarize.layers import Layer, Op

    def conv(name: str, value: float) -> Layer:
        return Layer(name, Op.CONV2D, {"weight": np.full((64, 64, 3, 3), value, np.float32)}, {"stride_h": 1})

    chosen = registry.find("resnet34.layer2.conv2", "winograd22_w4")
    assert chosen is not None
    choices = {**default_selection((8, 0)).choices, chosen.layer: {64: chosen}}
    # The middle factors of a filter of equal taps are 2.25 times a tap.
    layers = [conv("layer2.1.conv2", 3e4), conv("layer2.2.conv2", 1.0), conv("layer2.2.conv1", 3e4)]
    choice = trunk_choice(Selection(choices), 64, ModelLayers((), trunk=layers), (8, 0))
    assert {name: request.factory for name, request in choice.own.items()} == {
        "layer2.1.conv2": "conv_mma:make_conv_mma"
    }
    assert choice.own["layer2.1.conv2"].parameters["residual"]
    assert choice.outer[64] == chosen.requests[0]
