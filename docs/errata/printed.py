"""Published numbers as tables, for the tests of docs/errata.md."""

from pathlib import Path

import pandas as pd

from gpbench import config
from gpbench.report.scorecard.published import read_published

ROOT = Path(__file__).parents[2]
ROWS = read_published(ROOT / "published")


def table(source: str, item: str, metric: str) -> pd.DataFrame:
    """Printed numbers `[data sets, methods]`."""
    rows = ROWS[(ROWS["source"] == source) & (ROWS["item"] == item) & (ROWS["metric_printed"] == metric)]
    return rows.pivot(index="dataset", columns="method_printed", values="value")


def one(source: str, **named: str) -> dict:
    """The only row with these entries."""
    rows = ROWS[ROWS["source"] == source]
    for key, value in named.items():
        rows = rows[rows[key] == value]
    (found,) = rows.to_dict("records")
    return found


def dataset(name: str):
    return config.compose(ROOT / "conf", "dataset", name)
