"""Which of the five sheets of power, shufflings of the same rows, the splits of two papers are of."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import train_test_split

from projects import REPOSITORY

RELEASED = REPOSITORY / "published" / "per_split"


def of_ashman2020(rows, split):
    order = np.arange(rows)
    np.random.RandomState(split).shuffle(order)
    return order[: int(0.9 * rows)], order[int(0.9 * rows) :]


def of_rossi2021(rows, split):
    return train_test_split(np.arange(rows), test_size=0.2, random_state=split)


def errors(table, rows_of, splits):
    """RMSE of a linear model on the splits."""
    x, y, found = np.column_stack([np.ones(len(table)), table[:, :-1]]), table[:, -1], []
    for split in splits:
        train, test = rows_of(len(table), split)
        weights = np.linalg.lstsq(x[train], y[train])[0]
        found.append(np.sqrt(np.mean((y[test] - x[test] @ weights) ** 2)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "column", "rows_of", "on_the_first"),
    [
        ("ashman2020_sgp_100", "rmse", of_ashman2020, 0.90),
        ("rossi2021_svgp_100", "rmse_scaled", of_rossi2021, 0.95),
    ],
)
def test_programs_read_the_first_sheet_and_power_is_the_fifth(mirror, name, column, rows_of, on_the_first):
    """So that splits by the same seed are of other rows; `power_sheet1` has the order of the first."""
    released = (
        pd.read_csv(RELEASED / f"{name}.csv").query("dataset in ('power', 'power_sheet1')").set_index("split")[column]
    )
    correlation = {}
    for sheet in ("Sheet1", "Sheet5"):
        table = pd.read_excel(mirror / "power/Folds5x2_pp.xlsx", sheet_name=sheet).to_numpy()
        correlation[sheet] = np.corrcoef(errors(table, rows_of, released.index), released)[0, 1]
    assert correlation["Sheet1"] == pytest.approx(on_the_first, abs=0.01)
    assert correlation["Sheet5"] < 0.3
