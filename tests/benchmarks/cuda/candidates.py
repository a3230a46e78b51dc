"""The tile configurations that the trunk benchmark times, by role: channels, and inner, outer or down."""

from __future__ import annotations

from typing import Any

from diarize.candidates import Request


def _resident(channels: int, **parameters: Any) -> Request:
    return Request("conv_resident:make_conv_resident", {"channels": channels, **parameters})


def _roll(channels: int, **parameters: Any) -> Request:
    return Request("conv_roll:make_conv_roll", {"channels": channels, **parameters})


def _stream(channels: int, **parameters: Any) -> Request:
    return Request("conv_stream:make_conv_stream", {"c_in": channels, "c_out": channels, **parameters})


def _inline(channels: int, **parameters: Any) -> Request:
    return Request("conv_inline:make_conv_inline", {"c_in": channels, "c_out": channels, **parameters})


def _down(channels: int, **parameters: Any) -> Request:
    return Request("conv_down:make_conv_down", {"c_in": channels, **parameters})


SAME = {
    "32 inner": [
        _resident(32, groups=4, rows=4, buffers=8),
        _resident(32, groups=4, rows=2, buffers=8),
        _roll(32, groups=3, buffers=8),
    ],
    "32 outer": [
        _resident(32, groups=4, rows=2, buffers=8, residual=True),
        _roll(32, groups=3, buffers=4, residual=True),
    ],
    "64 inner": [
        _resident(64, groups=3, rows=2, buffers=4),
        _resident(64, groups=4, rows=2, buffers=4),
        _roll(64),
        _roll(64, rows=20),
    ],
    "64 outer": [
        _resident(64, groups=3, rows=2, buffers=4, residual=True),
        _roll(64, residual=True),
        _roll(64, rows=20, residual=True),
    ],
    "128 inner": [
        _stream(128, groups=4, stages=6),
        _inline(128),
        _stream(128, groups=2, rows=2, stages=6),
    ],
    "128 outer": [
        _stream(128, groups=4, stages=6, residual=True, early=True),
        _inline(128, residual=True),
    ],
    "256 inner": [
        _stream(256, groups=2, tile_n=256, stages=4),
        _inline(256),
        _stream(256, groups=4, stages=5, columns=2),
    ],
    "256 outer": [
        _stream(256, groups=2, tile_n=256, stages=4, residual=True),
        _inline(256, residual=True),
        _stream(256, groups=4, stages=5, residual=True, early=True, columns=2),
    ],
}

DOWN = {
    "32 down": [
        _down(32, groups=4, tile_n=64, stages=0, buffers=8),
        _down(32, groups=2, tile_n=64, stages=0, buffers=8),
    ],
    "64 down": [
        _down(64, groups=3, tile_n=128, stages=4, buffers=4),
        _down(64, groups=2, tile_n=128, stages=6, buffers=4),
        _down(64, groups=4, tile_n=64, stages=6, buffers=4),
    ],
    "128 down": [
        _down(128, groups=2, tile_n=128, stages=6, buffers=4),
        _down(128, groups=3, tile_n=128, stages=4, buffers=4),
        _down(128, groups=4, tile_n=64, stages=6, buffers=4),
    ],
}

BLOCK = {"32 block": [Request("block32:make_block32", {"groups": 3}), Request("block32:make_block32", {"groups": 2})]}
