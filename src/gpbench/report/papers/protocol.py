"""The protocol ledger, docs/papers/protocol.md: what a number changes by where only the protocol changes.

Computed from committed records, whose fits are scored under several protocols from the same stored predictions, and
from published numbers; nothing is fitted again.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from gpbench.evaluation.metrics import METRICS
from gpbench.report.scorecard.published import sample_sd
from gpbench.report.tables.render import Table, mean_sd, moments, number, signed, to_markdown
from gpbench.report.view import View

INTRODUCTION = """\
# Protocol ledger

How much of a difference between two printed numbers is protocol. Made by `make docs` from committed records and
`published/`, without fitting anything again: fits are scored from their stored predictions on both scales of the
target, by the density of their mixtures, by that of the Gaussian with the same mean and variance, and by the mean over
draws of their log densities. All numbers are MNLL in nats; lower is better.
"""
SHIFT_NOTE = (
    "MNLL on the original scale minus MNLL of the standardised target: the logarithm of the standard deviation of the "
    "training targets, averaged over splits and (energy and naval of rossi2021) over both targets."
)
SCALE_NOTE = (
    "Numbers of different scales differ by the shift before any method does: only the last column can be compared, and "
    "what is left there is method, budget and splits."
)
DENSITY_NOTE = (
    "MNLL: mean ± standard deviation over splits (their number). A method that predicts one Gaussian has zeros. "
    "Gaussian - mixture: what printing the density of the matched moments (as moment propagation does: ashman2020's "
    "AEP) adds to the MNLL of the mixture (ashman2020's DSVI, rossi2021). Mean of logs - log of mean: what averaging "
    "log densities over draws adds to the MNLL of the averaged density; never below zero. Records made before these "
    "scores were noted are absent."
)
SPLITS_NOTE = (
    "Mean over the first splits minus mean over all, averaged over methods (their range): where all methods move "
    "together, the splits are easier or harder than most. A number from few of a paper's splits differs by as "
    "much for no reason of the method. Methods that lack one of the splits are left out."
)
SPREAD_NOTE = (
    "Factor by which a printed spread becomes the standard deviation over splits (ddof = 1), its standard error if "
    "splits were independent, and the standard error that allows for training rows in common (Nadeau and Bengio; test "
    "to training rows as in our records of the protocol). Papers that print one of them look more or less certain "
    "than papers that print another by the ratio."
)
FEW = (2, 3, 5)
NATS = {"mnll": "original", "mnll_scaled": "standardised"}
COLUMNS = ["run", "dataset", "method", "protocol", "split", *NATS, "mnll_gaussian", "n_test", "n_train"]
"""Of fits, where there is none."""


def ledger(runs: list[View], published: pd.DataFrame, per_split: Path) -> str:
    """The page; published: every printed number, per_split: the folder of scores by split that authors released."""
    fits = [view.done.assign(run=view.folder.name) for view in runs if view.study["kind"] == "predict"]
    done = pd.concat(fits, ignore_index=True) if fits else pd.DataFrame(columns=COLUMNS)
    shifts = _shifts(done)
    shown = [[dataset, protocol, signed(value)] for (dataset, protocol), value in shifts.items()]
    title = "Scale of the target: shift from the standardised to the original scale"
    tables = [Table.of(shown, ["data set", "protocol", "shift"], title, SHIFT_NOTE)]
    tables += [_scales(shifts, published), _densities(done), _splits(done, per_split), _spreads(done, published)]
    texts = [to_markdown(each) if len(each.shown) else f"**{each.caption}**: no record has it.\n" for each in tables]
    return "\n".join([INTRODUCTION, *texts])


def _shifts(done: pd.DataFrame) -> pd.Series:
    """(data set, protocol) -> MNLL on the original scale minus that of the standardised target."""
    shifts = (done["mnll"] - done["mnll_scaled"]).astype(float)
    of_splits = shifts.groupby([done["dataset"], done["protocol"], done["split"]]).mean()
    return of_splits.groupby(["dataset", "protocol"]).mean().dropna()


def _scales(shifts: pd.Series, published: pd.DataFrame) -> Table:
    """Printed MNLL on one scale, of data sets that some paper prints on the standardised one."""
    rows = published[published["ours_metric"].isin(NATS)]
    rows = rows.assign(nats=rows["factor"] * rows["value"], scale=rows["ours_metric"].map(NATS))
    standardised = rows.loc[rows["scale"] == "standardised", "dataset"]
    shown = []
    groups = rows[rows["dataset"].isin(standardised)].groupby(["dataset", "source", "protocol", "scale"])
    for (dataset, source, protocol, scale), group in groups:
        shift = 0.0 if scale == "original" else shifts.get((dataset, protocol), np.nan)
        spans = [_span(group["nats"]), number(shift), _span(group["nats"] + shift)]
        shown.append([dataset, source, scale, len(group), *spans])
    head = ["data set", "paper", "scale", "numbers", "printed", "shift", "on the original scale"]
    return Table.of(shown, head, "Printed MNLL of all methods, least to largest, on one scale", SCALE_NOTE)


def _span(values: pd.Series) -> str:
    return f"{number(values.min())} to {number(values.max())}" if len(values) > 1 else number(values.iloc[0])


def _densities(done: pd.DataFrame) -> Table:
    """Differences of densities of the same stored predictions, where a record has them."""
    head = ["run", "data set", "method", "mixture", "Gaussian - mixture", "mean of logs - log of mean"]
    shown, means = [], []
    for (run, dataset, _), cell in done[done["mnll_gaussian"].notna()].groupby(["run", "dataset", "method"]):
        mixture = cell["mnll"].astype(float)
        columns = [mixture, *(cell[name].astype(float) - mixture for name in ("mnll_gaussian", "mnll_draws"))]
        texts = [mean_sd(**moments(values)) for values in columns]
        means.append([abs(values.mean()) for values in columns[1:]])
        shown.append([run, dataset, cell["label"].iloc[0], *texts])
    largest = " and ".join(f"{value:.3f}" for value in np.nanmax(means, axis=0)) if means else ""
    note = f"{DENSITY_NOTE} Largest mean of a cell, either way: {largest} nats." if means else DENSITY_NOTE
    return Table.of(shown, head, "Density of the same predictions", note)


def _splits(done: pd.DataFrame, per_split: Path) -> Table:
    """First splits against all of them, for cells of at least five splits."""
    released = [pd.read_csv(p).assign(run=p.stem.split("_")[0], method=p.stem) for p in sorted(per_split.glob("*.csv"))]
    names = ["run", "dataset", "method", "split", "mnll"]
    scores = pd.concat([done.reindex(columns=names), *released]).reindex(columns=names)
    shown = []
    for (run, dataset), cell in scores.groupby(["run", "dataset"]):
        table = cell.astype({"mnll": float}).pivot_table(index="split", columns="method", values="mnll").dropna(axis=1)
        if len(table) >= max(FEW) and len(table.columns):
            means = [table.iloc[:k].mean() - table.mean() for k in FEW if k < len(table)]
            spans = [f" ({number(m.min(), 2)} to {number(m.max(), 2)})" * (len(m) > 1) for m in means]
            texts = [f"{signed(m.mean())}{span}" for m, span in zip(means, spans, strict=True)]
            texts += ["-"] * (len(FEW) - len(texts))
            shown.append([run, dataset, len(table.columns), len(table), *texts])
    head = ["run", "data set", "methods", "splits", *(f"first {k}" for k in FEW)]
    return Table.of(shown, head, "Number of splits", SPLITS_NOTE)


def _spreads(done: pd.DataFrame, published: pd.DataFrame) -> Table:
    """What the spreads that papers print are, and the factors between them."""
    ratios = (done["n_test"] / done["n_train"]).groupby(done["protocol"]).median()
    predicted = [name for name, metric in METRICS.items() if metric.tasks]
    rows = published[published["spread"].notna() & published["ours_metric"].isin(predicted)]
    printed = rows.groupby(["source", "protocol", "spread_kind", "splits"]).size().reset_index()
    shown = []
    for row in printed.itertuples(index=False):
        sd = sample_sd(1.0, row.spread_kind, row.splits)
        errors = [sd * np.sqrt(1 / row.splits), sd * np.sqrt(1 / row.splits + ratios.get(row.protocol, np.nan))]
        shown.append([row.source, row.spread_kind, row.splits, *map(number, (sd, *errors))])
    head = ["paper", "printed", "runs", "sample sd", "standard error, independent", "standard error, corrected"]
    return Table.of(shown, head, "Spreads: one unit as printed is", SPREAD_NOTE)
