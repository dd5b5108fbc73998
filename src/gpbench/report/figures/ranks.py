"""Ranks of each chain's draws among those of all chains, uniform where chains agree (vehtari2021, figure 6)."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import binom, rankdata

from gpbench.report.figures import canvas
from gpbench.report.figures.cells import by_cell
from gpbench.report.view import View

BINS = 20
MOST_PANELS = 30
"""Cells beyond are left out."""


def ranks(view: View) -> Figure:
    """A line a chain: the share of its draws of the first parameter in each bin of ranks, over that of equal chains."""
    draws = view.probe("draws")
    if draws.empty:
        return canvas.empty("No chains: no fit by a sampler is finished.")
    cells = list(by_cell(view, draws).items())[:MOST_PANELS]
    looks = canvas.chain_looks(draws["replica"])
    figure, axes = canvas.titled([""] * len(cells), 1.4, 3, "rank of a draw", "share")
    for ((dataset, method), drawn), axis in zip(cells, axes, strict=True):
        first = drawn[drawn["quantity"] == drawn["quantity"].iloc[0]]
        shares = by_chain(first)
        low, high = binom.interval(0.95, int(len(first) / len(shares)), 1 / BINS)
        per_bin = len(first) / len(shares) / BINS
        axis.axhspan(low / per_bin, high / per_bin, color=canvas.GREY, alpha=0.2, linewidth=0)
        for chain, share in shares.items():
            axis.stairs(share, np.linspace(0, 1, BINS + 1), color=looks[chain].color, linewidth=0.9)
        axis.set(xlim=(0, 1), ylim=(0, None))
        canvas.title(axis, f"{dataset}, {view.labels[method]}: {first['quantity'].iloc[0]}")
    canvas.legend_of(figure, list(looks.values()))
    return figure


def by_chain(drawn: pd.DataFrame) -> dict[int, np.ndarray]:
    """Chain -> share of its draws in each bin of ranks among all draws, times `BINS`: 1 everywhere for equal chains."""
    share = (rankdata(drawn["value"]) - 0.5) / len(drawn)
    parts = pd.Series(share).groupby(drawn["replica"].to_numpy())
    return {int(chain): np.histogram(part, BINS, (0, 1))[0] * BINS / len(part) for chain, part in parts}
