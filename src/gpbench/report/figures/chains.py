"""Draws of Markov chains: traces, autocorrelation, ranks, densities and running moments of what they sample."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.signal import correlate
from scipy.stats import gaussian_kde, hypergeom, rankdata

from gpbench.errors import count
from gpbench.report.figures import canvas
from gpbench.report.figures.r_hat import LEAST, excess, threshold_axis
from gpbench.report.tables.sampler_efficiency import CELL, shrinkage
from gpbench.report.view import UNMIXED, View

LAGS = 100  # kept draws over which autocorrelation is shown
MOST_ROWS = 20  # rows of the figure; data sets beyond are left out


def chain_traces(view: View) -> Figure:
    """Trace and autocorrelation of the first parameter, R-hat of the slowest; one row per data set and sampler.

    Shows the first data sets, as many as fit into MOST_ROWS, but at least one."""
    draws = view.probe("draws")
    canvas.require(len(draws), canvas.NO_CHAINS)
    rows = draws.groupby("dataset")["method"].nunique().reindex(view.datasets).dropna().cumsum()
    datasets = rows.index[(rows <= MOST_ROWS) | (rows.index == rows.index[0])]
    draws = draws[draws["quantity"] == draws.groupby(CELL)["quantity"].transform("first")]
    limits = draws.groupby(["dataset", "quantity"])["value"].agg(["min", "max"])
    r_hat = dict(iter(shrinkage(view).groupby(CELL)))
    looks = canvas.chain_looks(draws["replica"])
    cells = canvas.by_cell(view, draws[draws["dataset"].isin(datasets)])
    figure, axes = canvas.panels(len(cells), 3, 1.15, width_ratios=[2.2, 1, 1])
    for ((dataset, method), of_cell), (trace, acf, shrink) in zip(cells.items(), axes, strict=True):
        quantity = of_cell["quantity"].iloc[0]
        draw_chains(trace, of_cell, "value", looks, 0.5)
        trace.set(ylabel=quantity, ylim=limits.loc[dataset, quantity])
        canvas.title(trace, f"{dataset}, {view.labels[method]}")
        fits = view.done.query("dataset == @dataset and method == @method")
        if failing := fits.loc[fits["status"] == UNMIXED, "split"].nunique():
            canvas.remark(shrink, f"✗ {failing}/{fits['split'].nunique()} splits")
        _autocorrelation(acf, of_cell)
        _shrinkage(shrink, r_hat.get((dataset, method), pd.DataFrame()))
    for axis, name in zip(axes[-1], ("kept draw", "lag in kept draws", "kept draws"), strict=True):
        axis.set_xlabel(name)
    canvas.legend_of(figure, list(looks.values()))
    return figure


def _autocorrelation(axis: Axes, drawn: pd.DataFrame) -> None:
    """Thin lines: every chain; thick: their mean."""
    chains = [chain.sort_values("draw") for _, chain in drawn.groupby("replica")]
    step = np.diff(chains[0]["draw"].to_numpy()[:2]).sum() or 1
    each = (pd.Series(autocorrelation(chain["value"].to_numpy(), LAGS)) for chain in chains)
    rho = pd.DataFrame(dict(enumerate(each)))  # NaN after a short one
    lags = step * np.arange(len(rho))
    axis.plot(lags, rho, color="#BBBBBB", linewidth=0.5)
    axis.plot(lags, rho.mean(axis=1), color="black", linewidth=1)
    axis.set(ylabel="autocorrelation", ylim=(-0.2, 1.02))


def autocorrelation(values: np.ndarray, lags: int) -> np.ndarray:
    """rho_0 = 1 .. rho_lags of draws `[T]`, each sum of products divided by T; NaN for constant draws."""
    centred = values - values.mean()
    products = correlate(centred, centred, method="fft")[len(values) - 1 :][: lags + 1]
    return products / products[0] if products[0] > 0 else np.full(len(products), np.nan)


def _shrinkage(axis: Axes, rows: pd.DataFrame) -> None:
    """Median over splits of R-hat (solid) and of its 97.5 % upper limit (dashed)."""
    if rows.empty:
        canvas.write_reason(axis, "one chain")
        return
    median = rows.groupby("iteration")[["r_hat", "upper"]].median()
    axis.plot(median.index, excess(median["r_hat"]), color="black", marker=".", markersize=4)
    axis.plot(median.index, excess(median["upper"]), "--", color="#D55E00", linewidth=0.9)
    axis.set(yscale="log", ylim=(LEAST, None), ylabel="R-hat")
    threshold_axis(axis, (1.001, 1.01, 1.1, 2.0, 11.0))  # as many as a low row has room for


BINS = 20
MOST_PANELS = 30  # cells beyond are left out


def ranks(view: View) -> Figure:
    """A line a chain: the share of its draws of the first parameter in each bin of ranks, over that of equal chains."""
    draws = view.probe("draws")
    canvas.require(len(draws), canvas.NO_CHAINS)
    cells = list(canvas.by_cell(view, draws).items())[:MOST_PANELS]
    looks = canvas.chain_looks(draws["replica"])
    figure, axes = canvas.titled([""] * len(cells), 1.4, 3, "rank of a draw", "share")
    for ((dataset, method), drawn), axis in zip(cells, axes, strict=True):
        first = drawn[drawn["quantity"] == drawn["quantity"].iloc[0]]
        shares = by_chain(first)
        total, per_chain = len(first), len(first) // len(shares)
        low, high = np.divide(hypergeom.interval(0.95, total, total // BINS, per_chain), per_chain / BINS)
        axis.axhspan(low, high, color=canvas.GREY, alpha=0.2, linewidth=0)
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


MOST = 4  # sampled numbers that are shown, of each data set the first


def running_moments(view: View) -> Figure:
    """Mean (solid) and two standard deviations (dotted) over the first kept draws, one row a data set."""
    prefixes = view.probe("prefixes")
    canvas.require(len(prefixes), canvas.NO_CHAINS)
    datasets = canvas.present(view.datasets, prefixes["dataset"])
    columns = min(MOST, prefixes.groupby("dataset")["quantity"].nunique().max())
    figure, axes = canvas.panels(len(datasets), columns, 1.9, "kept draws")
    for row, dataset, of_dataset in canvas.by_dataset(axes, datasets, prefixes):
        for axis, quantity in zip(row, of_dataset["quantity"].unique(), strict=False):
            shown = of_dataset[of_dataset["quantity"] == quantity]
            for look, rows in canvas.by_method(view, shown):
                for _, chain in rows.groupby(["split", "replica"]):
                    spread = 2 * chain["variance"] ** 0.5
                    axis.plot(chain["iteration"], chain["mean"], color=look.color, linewidth=0.8)
                    both = np.stack([chain["mean"] - spread, chain["mean"] + spread], axis=1)
                    axis.plot(chain["iteration"], both, ":", color=look.color, lw=0.6)
            canvas.title(axis, quantity)
        row[0].set_ylabel(dataset)
    canvas.legend(figure, view, prefixes["method"], lines=False)
    return figure


POINTS = 400  # of a curve
TAIL = 0.001  # share of the draws left out at each end of the axis


def densities(view: View) -> Figure:
    """Kernel estimates from the draws of all chains of the first split, one panel per data set."""
    drawn = view.probe("draws")
    canvas.require(len(drawn), canvas.NO_CHAINS)
    drawn = drawn[drawn["split"] == drawn["split"].min()]
    figure, axes = canvas.titled(view.datasets, 2.4, 2, y="density")
    for axis, _, of_dataset in canvas.by_dataset(axes, view.datasets, drawn):
        _panel(axis, view, of_dataset)
    canvas.legend(figure, view, drawn["method"], marks=False)
    return figure


def _panel(axis: Axes, view: View, drawn: pd.DataFrame) -> None:
    """Curves of the first number that every sampler has."""
    samplers = drawn.groupby("quantity", sort=False)["method"].nunique()
    shared = samplers.index[samplers == drawn["method"].nunique()]
    if shared.empty:
        canvas.write_reason(axis, "no number that all samplers draw" if len(drawn) else "no finished fit")
        return
    drawn = drawn[drawn["quantity"] == shared[0]]
    low, high = drawn["value"].quantile([TAIL, 1 - TAIL])
    x = np.linspace(low, high, POINTS)
    for look, rows in canvas.by_method(view, drawn):
        if rows["value"].nunique() > 2:
            axis.plot(x, gaussian_kde(rows["value"])(x), color=look.color, linestyle=look.linestyle)
    canvas.remark(axis, count(drawn["replica"].nunique(), "chain"))
    axis.set(xlabel=shared[0], ylim=(0, None))


def traces(view: View) -> Figure:
    """Predictions at three test rows against the draw, one colour per chain, one row per sampler and data set."""
    drawn = view.probe("chains")
    canvas.require(len(drawn), "No chains: no fit by a Markov chain is finished.")
    looks, cells = canvas.chain_looks(drawn["replica"]), canvas.by_cell(view, drawn)
    figure, axes = canvas.panels(len(cells), max(draws["row"].nunique() for draws in cells.values()), 1.5)
    for ((dataset, method), draws), line in zip(cells.items(), axes, strict=True):
        classes = view.tasks[dataset] in ("binary", "multiclass")
        line[0].set_ylabel("probability of\nthe observed class" if classes else "predictive mean")
        canvas.title(line[0], f"{dataset}, {view.labels[method]}")
        canvas.remark(line[-1], canvas.mixing(view, draws))
        for axis, (row, predictions) in zip(line, draws.groupby("row"), strict=False):
            draw_chains(axis, predictions, "mean", looks, 0.6)
            axis.set_xlabel(f"draw, test row {row}")
    canvas.legend_of(figure, list(looks.values()))
    return figure


def draw_chains(axis: Axes, draws: pd.DataFrame, column: str, looks: dict[int, canvas.Look], linewidth: float) -> None:
    """A column against the draw, one line per chain."""
    for replica, chain in draws.sort_values("draw").groupby("replica"):
        axis.plot(chain["draw"], chain[column], linewidth=linewidth, **looks[replica].options)
