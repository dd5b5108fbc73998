"""How fast an error falls: the exponent of a power law, with its standard error."""

import numpy as np


def exponent(sizes: np.ndarray, squares: np.ndarray) -> tuple[float, float]:
    """Exponent a of a root mean square error ~ sizes^a by least squares on logarithms, and its standard error.

    squares `[sizes, repetitions]`: independent squared errors. The logarithm of the root of a mean has half the
    relative error of the mean.
    """
    centred = np.log(sizes) - np.log(sizes).mean()
    leverage = centred / (centred**2).sum()
    relative = squares.std(1, ddof=1) / squares.shape[1] ** 0.5 / squares.mean(1)
    return leverage @ (0.5 * np.log(squares.mean(1))), np.sqrt(((0.5 * leverage * relative) ** 2).sum())
