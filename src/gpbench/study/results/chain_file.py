"""What the chains of a study of kind `sample` leave for tables and figures, read from their arrays. No torch.

prefixes    iteration, quantity, mean, variance: moments of each sampled number over the first draws
draws       quantity, draw, value: at most 1,000 draws, evenly thinned, of the first three watched numbers, or of all
            of them in a chain of at most 500 draws
"""

from pathlib import Path
from typing import Any

import numpy as np

from gpbench.data.table import evenly
from gpbench.study.storage import arrays

PREFIX_COLUMNS = ["fit_id", "iteration", "quantity", "mean", "variance"]
DRAW_COLUMNS = ["fit_id", "quantity", "draw", "value"]
MOST_DRAWS, SHOWN, SHORT = 1_000, 3, 500


def prefixes(folder: Path) -> Any:
    """A row for each checkpoint and sampled number of a chain."""
    import pandas as pd

    chain = arrays.read(folder, "chain", only=("iterations", "names", "mean", "variance"))
    iterations, names = chain["iterations"], chain["names"]
    columns = {
        "iteration": np.repeat(iterations, len(names)),
        "quantity": np.tile(names, len(iterations)),
        "mean": chain["mean"].ravel(),
        "variance": chain["variance"].ravel(),
    }
    return pd.DataFrame(columns)


def draws(folder: Path) -> Any:
    """A row for each draw that is shown; `draw` counts from 1."""
    import pandas as pd

    chain = arrays.read(folder, "chain", only=("names", "watched", "draws"))
    values = chain["draws"]
    shown = values.shape[1] if len(values) <= SHORT else min(SHOWN, values.shape[1])
    rows = evenly(len(values), MOST_DRAWS)
    columns = {
        "quantity": np.repeat(chain["names"][chain["watched"][:shown]], len(rows)),
        "draw": np.tile(rows + 1, shown),
        "value": values[rows, :shown].T.ravel(),
    }
    return pd.DataFrame(columns)
