"""Lower bounds on squared distances: a sketch of every point on the principal axes of all.

A point's *head* is its first `HEAD` principal coordinates, float64, which follow a merge of two points without being
computed again. Bounds read float32 copies in two layouts: the first `COARSE` coordinates as rows over all points, for
scans of everything, the others side by side for one point at a time. The length of what is left over stands in for it:
|a - b|^2 >= |head_a - head_b|^2 + (left_a - left_b)^2. Whatever a bound cannot rule out is measured in full, in
float64, so bounds change how much is computed and never the result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..cache import njit

COARSE = 8
# Four vectors of sixteen: the fine coordinates and the length of what is left over.
FINE = 64
HEAD = COARSE + FINE - 1

# Float32 rounding of a bound: relative, of its sum of 73 squares, and absolute, of coordinates of length one.
RELATIVE = 1e-5
ABSOLUTE = 2e-6
_SAMPLE = 1024
_SUM = {"reassoc", "contract", "nsz"}


class Axes(NamedTuple):
    """Origin `mean` (D,) and principal axes `basis` (HEAD, D), rows of zeros where D has fewer."""

    mean: np.ndarray
    basis: np.ndarray


class Sketch(NamedTuple):
    """Sketches of N points; arrays may have room for more.

    `head` (N, HEAD) float64 and `square` (N,) float64, the squared length of each centred point; `coarse` (COARSE, N),
    `rest` (N,), the length beyond the coarse coordinates, and `fine` (N, FINE), float32. A column of `coarse` and
    `rest` may be moved, rows of the others belong to their points.
    """

    head: np.ndarray
    square: np.ndarray
    coarse: np.ndarray
    rest: np.ndarray
    fine: np.ndarray


def principal_axes(points: np.ndarray) -> Axes:
    """The principal axes of an even sample of `points` (N, D)."""
    num_points, width = points.shape
    sample = points[:: -(-num_points // _SAMPLE)]
    mean = sample.mean(axis=0)
    sample = sample - mean
    axes = np.linalg.eigh(sample.T @ sample)[1][:, ::-1][:, :HEAD]
    basis = np.zeros((HEAD, width))
    basis[: axes.shape[1]] = axes.T
    return Axes(mean, basis)


def empty_sketch(num_points: int) -> Sketch:
    """Room for the sketches of `num_points`."""
    return Sketch(
        np.empty((num_points, HEAD)),
        np.empty(num_points),
        np.empty((COARSE, num_points), np.float32),
        np.empty(num_points, np.float32),
        np.empty((num_points, FINE), np.float32),
    )


def draw(sketch: Sketch, points: np.ndarray, axes: Axes, first: int) -> None:
    """Write the sketches of `points` (n, D) at `first` and after."""
    centred = points - axes.mean
    last = first + len(points)
    np.matmul(centred, axes.basis.T, out=sketch.head[first:last])
    np.einsum("nd,nd->n", centred, centred, out=sketch.square[first:last])
    _write_all(*sketch, first, last)


@njit(cache=True, nogil=True)
def _write_all(
    head: np.ndarray, square: np.ndarray, coarse: np.ndarray, rest: np.ndarray, fine: np.ndarray, first: int, last: int
) -> None:
    for point in range(first, last):
        write(head, square, coarse, rest, fine, point, point)


@njit(cache=True, nogil=True)
def write(
    head: np.ndarray,
    square: np.ndarray,
    coarse: np.ndarray,
    rest: np.ndarray,
    fine: np.ndarray,
    point: int,
    column: int,
) -> None:
    """Renew the float32 copies of a point's head, the coarse ones in `column`."""
    left = square[point]
    for k in range(COARSE):
        along = head[point, k]
        coarse[k, column] = along
        left -= along * along
    rest[column] = np.sqrt(max(left, 0.0))
    for k in range(FINE - 1):
        along = head[point, COARSE + k]
        fine[point, k] = along
        left -= along * along
    fine[point, FINE - 1] = np.sqrt(max(left, 0.0))


@njit(cache=True, nogil=True, fastmath=_SUM)
def squared_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Squared Euclidean distance of two points (D,) float64."""
    total = 0.0
    for k in range(len(a)):
        total += (a[k] - b[k]) * (a[k] - b[k])
    return total


@njit(cache=True, nogil=True, fastmath=_SUM)
def fine_bound(fine: np.ndarray, a: int, b: int) -> float:
    """What the points `a` and `b` are apart beyond the coarse coordinates, squared, at least."""
    total = np.float32(0.0)
    left, right = fine[a], fine[b]
    for k in range(FINE):
        total += (left[k] - right[k]) * (left[k] - right[k])
    return float(total)


@njit(cache=True, nogil=True, fastmath={"contract"})
def coarse_bounds(coarse: np.ndarray, rests: np.ndarray, column: int, start: int, stop: int, out: np.ndarray) -> None:
    """Squared distances of `column` to the columns from `start` before `stop`, at least; `out` (stop - start,)."""
    own = rests[column]
    # Slices, not offsets: only then does the compiler use vector instructions (six times faster).
    rest = rests[start:stop]
    for j in range(stop - start):
        out[j] = (rest[j] - own) * (rest[j] - own)
    for k in range(0, COARSE, 4):
        a, b, c, d = coarse[k, column], coarse[k + 1, column], coarse[k + 2, column], coarse[k + 3, column]
        rows_a, rows_b = coarse[k, start:stop], coarse[k + 1, start:stop]
        rows_c, rows_d = coarse[k + 2, start:stop], coarse[k + 3, start:stop]
        for j in range(stop - start):
            p, q = rows_a[j] - a, rows_b[j] - b
            r, s = rows_c[j] - c, rows_d[j] - d
            out[j] += (p * p + q * q) + (r * r + s * s)
