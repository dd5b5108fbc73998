"""Grids of grey images."""

import math

import numpy as np
from matplotlib.axes import Axes

from gpbench.errors import UserError


def mosaic(pixels: np.ndarray, lines: list[np.ndarray], across: int) -> tuple[np.ndarray, int]:
    """A grid of square images and the side of one; lines: for each line of the grid, rows of pixels `[N, side^2]`.

    The grid is `[lines (side + 1), across (side + 1)]`, blank (NaN) between images and where a line is short; NaN
    pixels stay blank. Raises UserError where images are not square."""
    side = math.isqrt(pixels.shape[1])
    if side**2 != pixels.shape[1]:
        raise UserError(f"{pixels.shape[1]} pixels do not make a square image; check 'images' in the catalogue entry")
    grid = np.full((len(lines) * (side + 1), across * (side + 1)), np.nan)
    for line, rows in enumerate(lines):
        for i, row in enumerate(rows):
            y, x = line * (side + 1), i * (side + 1)
            grid[y : y + side, x : x + side] = pixels[row].reshape(side, side)
    return grid, side


def paint(axis: Axes, grid: np.ndarray, cmap: str = "gray_r", **options) -> None:
    """Draw a mosaic, by default in shades of grey, dark for large values, without axes; options go to imshow."""
    axis.imshow(grid, cmap=cmap, interpolation="nearest", aspect="equal", **options)
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    axis.spines[:].set_visible(False)
