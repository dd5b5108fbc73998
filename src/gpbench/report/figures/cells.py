"""The cells (data set, method) that a figure shows, and how well their chains agree."""

import itertools

import numpy as np
import pandas as pd

from gpbench.errors import count
from gpbench.report.view import UNMIXED, View


def by_cell(view: View, rows: pd.DataFrame, unfinished: bool = False) -> dict[tuple[str, str], pd.DataFrame]:
    """(data set, method) -> rows of its first split, of all chains, in the study's order.

    With `unfinished`, cells without a finished fit have no rows; finished cells without rows cannot be probed."""
    first = rows[rows["split"] == rows.groupby(["dataset", "method"])["split"].transform("min")]
    groups = {cell: group for cell, group in first.groupby(["dataset", "method"])}
    done = set(zip(view.done["dataset"], view.done["method"], strict=True))
    cells = itertools.product(view.datasets, view.methods)
    shown = [cell for cell in cells if cell in groups or (unfinished and cell not in done)]
    return {cell: groups.get(cell, rows.iloc[:0]) for cell in shown}


def cell_label(view: View, dataset: str, method: str) -> str:
    """The method's label, after the data set where the study has several."""
    return view.labels[method] if len(view.datasets) == 1 else f"{dataset}: {view.labels[method]}"


def mixing(view: View, rows: pd.DataFrame, column: str = "r_hat") -> str:
    """R-hat and number of the chains that a probe's rows come from; '' if they come from none."""
    fits = view.done[view.done["fit_id"].isin(rows["fit_id"])]
    value = float(fits[column].iloc[0])
    failed = f", {UNMIXED}" if (fits["status"] == UNMIXED).any() else ""
    return f"R-hat {value:.3f}, {count(len(fits), 'chain')}{failed}" if np.isfinite(value) else ""
