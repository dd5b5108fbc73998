"""What the chains of a study of kind `sample` leave for tables and figures, read from their arrays. No torch.

prefixes    iteration, quantity, mean, variance: moments of each sampled number over the first draws
draws       quantity, draw, value: at most 1,000 draws, evenly thinned, of the first three watched numbers, or of all
            of them in a chain of at most 500 draws
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpbench.data.table import evenly
from gpbench.study.storage import arrays
from gpbench.study.storage.parquet import long_table

if TYPE_CHECKING:
    import pandas as pd

PREFIX_COLUMNS = ["fit_id", "iteration", "quantity", "mean", "variance"]
DRAW_COLUMNS = ["fit_id", "quantity", "draw", "value"]
MOST_DRAWS, SHOWN, SHORT = 1_000, 3, 500


def prefixes(folder: Path) -> pd.DataFrame:
    """A row for each checkpoint and sampled number of a chain."""
    chain = arrays.read(folder, "chain", only=("iterations", "names", "mean", "variance"))
    axes, mean = ("iteration", "quantity"), chain["mean"]
    named = {"iteration": chain["iterations"][:, None], "quantity": chain["names"]}
    return long_table(axes, mean.shape, **named, mean=mean, variance=chain["variance"])


def draws(folder: Path) -> pd.DataFrame:
    """A row for each draw that is shown; `draw` counts from 1."""
    chain = arrays.read(folder, "chain", only=("names", "watched", "draws"))
    values = chain["draws"] if len(chain["draws"]) <= SHORT else chain["draws"][:, :SHOWN]
    rows = evenly(len(values), MOST_DRAWS)
    names = chain["names"][chain["watched"][: values.shape[1]]]
    return long_table(
        ("quantity", "draw"), (len(names), len(rows)), quantity=names[:, None], draw=rows + 1, value=values[rows].T
    )
