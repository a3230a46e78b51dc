"""Winograd's minimal filtering of two outputs and three taps: weights, their layout, and how a warp's tiles lie.

Plain numpy, no GPU. F(2x2,3x3) takes 16 products for the 2 x 2 outputs of a tile instead of 36; F(2,3) along the
columns takes 12 for two outputs side by side instead of 18.

References
----------
Lavin and Gray 2016, Fast algorithms for convolutional neural networks, sections 3 and 4.1: the matrices G, B and A.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .conv_pack import pack_taps

G = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]])
"""(4, 3) float64, from three taps to the four factors of F(2,3)."""

LARGEST_HALF = 32752.0
"""A transformed weight beyond this is refused: float16's range with the margin of two that `fits_half` keeps."""


@dataclass(frozen=True)
class WarpTile:
    """The tiles and channels whose sums one warp holds in registers.

    An octet is eight tiles side by side: the eight rows of half a tensor-core fragment. A warp has `rows` x `columns`
    octets and `blocks` groups of eight output channels. A tile is 2 x 2 outputs if `square`, else two outputs of a row.
    """

    square: bool
    rows: int
    columns: int
    blocks: int

    def __post_init__(self) -> None:
        assert self.rows * self.columns % 2 == 0
        assert self.blocks in (2, 4, 8)

    @property
    def positions(self) -> int:
        """Sums a tile and channel, before they are transformed back."""
        return 16 if self.square else 4

    @property
    def factors(self) -> int:
        """Weights an input and output channel: a factor for every position, or for every position and tap row."""
        return 16 if self.square else 12

    @property
    def tile_rows(self) -> int:
        """Output rows of a tile."""
        return 2 if self.square else 1

    @property
    def input_rows(self) -> int:
        """Rows of pixels that the warp reads."""
        return self.rows * self.tile_rows + 2

    @property
    def accumulators(self) -> int:
        """Float32 sums a thread."""
        return self.rows * self.columns // 2 * self.positions * self.blocks * 4

    def pairs(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """The octets (row, column) that share a fragment: one above the other, else side by side."""
        if self.rows % 2 == 0:
            return [((r, c), (r + 1, c)) for r in range(0, self.rows, 2) for c in range(self.columns)]
        return [((r, c), (r, c + 1)) for r in range(self.rows) for c in range(0, self.columns, 2)]

    def sum_index(self, row: int, column: int, position: int, block: int) -> int:
        """Where a thread holds the first of the two channels of an octet's sums."""
        for m, pair in enumerate(self.pairs()):
            if (row, column) in pair:
                half = pair.index((row, column))
                return ((m * self.positions + position) * self.blocks + block) * 4 + 2 * half
        raise IndexError((row, column))


def transform_weight(weight: np.ndarray, square: bool = True) -> np.ndarray:
    """Factors of (C_out, C_in, 3, 3) weights, float64: (C_out, C_in, 4, 4), or (C_out, C_in, 3, 4) if not `square`."""
    along = weight.astype(np.float64) @ G.T
    return np.einsum("re,oiec->oirc", G, along) if square else along


def fits_winograd(weight: np.ndarray, square: bool = True) -> bool:
    """Whether every transformed weight is finite in float16 with a margin of two: layers that fail need float32."""
    if not np.isfinite(weight).all():
        return False
    return bool(np.abs(transform_weight(weight, square)).max(initial=0.0) < LARGEST_HALF)


def _refuse(weight: np.ndarray, square: bool) -> None:
    if not fits_winograd(weight, square):
        raise ValueError(
            "a convolution's weights leave float16's range when transformed for Winograd's method (largest "
            f"weight {np.abs(weight).max():.4g}, largest factor allowed {LARGEST_HALF:.0f}); use a float32 kernel here"
        )


def pack_winograd(weight: np.ndarray, square: bool, tile_n: int, tile_k: int, warp_n: int) -> np.ndarray:
    """Transformed weights in the order in which the lanes of a warp read them, rounded once.

    Parameters
    ----------
    weight : (C_out, C_in, 3, 3) float32
    tile_n : output channels of a block of threads, a multiple of warp_n
    tile_k : input channels a part, a multiple of 16
    warp_n : output channels of a warp, 16 or 32

    Returns
    -------
    flat float16 [C_in / tile_k][C_out / tile_n][tile_k / 16][factor][tile_n / 16][lane][8]; the eight of a lane are
    rows 2q, 2q + 1, 2q + 8, 2q + 9 of column g of two blocks of eight channels, q = lane % 4, g = lane / 4. Columns are
    ordered so that a thread's columns of all blocks of its warp are adjacent channels.

    Raises
    ------
    ValueError
        A transformed weight does not fit float16.
    """
    _refuse(weight, square)
    c_out, c_in = weight.shape[:2]
    factors = transform_weight(weight, square).reshape(c_out, c_in, -1).astype(np.float16)
    own = warp_n // 4
    block, column = np.divmod(np.arange(warp_n), 8)
    within = column // 2 * own + block * 2 + column % 2
    order = (np.arange(c_out) // warp_n * warp_n) + within[np.arange(c_out) % warp_n]
    # Output channel = (group, n16, block, g), input channel = (part, step, half, q, e).
    shape = (c_out // tile_n, tile_n // 16, 2, 8, c_in // tile_k, tile_k // 16, 2, 4, 2, factors.shape[2])
    packed = factors[order].reshape(shape).transpose(4, 0, 5, 9, 1, 3, 7, 2, 6, 8)
    return np.ascontiguousarray(packed).reshape(-1)


def pack_winograd_resident(weight: np.ndarray) -> np.ndarray:
    """Factors of F(2,3) as flat float16 [C_out / 64][C_in / 32][12][64][32], each 64 x 32 as `pack_taps` lays it out.

    Raises
    ------
    ValueError
        A transformed weight does not fit float16.
    """
    _refuse(weight, False)
    c_out, c_in = weight.shape[:2]
    packed = pack_taps(transform_weight(weight, False), 64, 32).reshape(c_in // 32, 12, c_out // 64, 2048)
    return np.ascontiguousarray(packed.transpose(2, 0, 1, 3)).reshape(-1)


def pack_winograd_f32(weight: np.ndarray, tile_n: int) -> np.ndarray:
    """Transformed weights as flat float32 [C_out / tile_n][C_in][16][tile_n], from (C_out, C_in, 3, 3)."""
    c_out, c_in = weight.shape[:2]
    factors = transform_weight(weight).reshape(c_out // tile_n, tile_n, c_in, 16)
    return np.ascontiguousarray(factors.transpose(0, 2, 3, 1)).astype(np.float32).reshape(-1)
