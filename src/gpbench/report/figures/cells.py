"""The cells (data set, method) that a figure shows, and how well their chains agree."""

import itertools

import numpy as np
import pandas as pd

from gpbench.errors import count
from gpbench.report.view import UNMIXED, View


def by_cell(view: View, rows: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """(data set, method) -> its rows, in the study's order."""
    groups = {cell: group for cell, group in rows.groupby(["dataset", "method"])}
    order = ((dataset, method) for dataset in view.datasets for method in view.methods)
    return {cell: groups[cell] for cell in order if cell in groups}


def cell_label(view: View, dataset: str, method: str) -> str:
    """The method's label, after the data set where the study has several."""
    return view.labels[method] if len(view.datasets) == 1 else f"{dataset}: {view.labels[method]}"


def cells_to_show(view: View, rows: pd.DataFrame) -> list[tuple[str, str]]:
    """(data set, method) of a probe's rows and of cells without a finished fit, without those that cannot be probed."""
    drawn, done = (set(zip(part["dataset"], part["method"], strict=True)) for part in (rows, view.done))
    return [cell for cell in itertools.product(view.datasets, view.methods) if cell in drawn or cell not in done]


def first_split(rows: pd.DataFrame, dataset: str, method: str) -> pd.DataFrame:
    """Rows of a cell's first split, of all its chains."""
    of_cell = rows[(rows["dataset"] == dataset) & (rows["method"] == method)]
    return of_cell[of_cell["split"] == of_cell["split"].min()]


def mixing(view: View, rows: pd.DataFrame, column: str = "r_hat") -> str:
    """R-hat and number of the chains that a probe's rows come from; '' if they come from none."""
    fits = view.done[view.done["fit_id"].isin(rows["fit_id"])]
    value = float(fits[column].iloc[0])
    failed = f", {UNMIXED}" if (fits["status"] == UNMIXED).any() else ""
    return f"R-hat {value:.2f}, {count(len(fits), 'chain')}{failed}" if np.isfinite(value) else ""
