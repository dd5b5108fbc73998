"""What is committed of a fit beside its scores, for figures: at most 2 kB of curves, or what a solver has measured.

traces.csv       at most 20 rows of its trace, to five digits
calibration.csv  a line for each of its `histograms`: what the bins hold, in their order
systems.csv      a line for each quantity that a solver measures: of all systems, in their order
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpbench.evaluation.calibration import histograms
from gpbench.study.storage import committed

if TYPE_CHECKING:
    import pandas as pd

LOOKS, BETWEEN = 10, 8
"""How many rows with test scores stay of a trace, and how many of all, besides its first and its last."""
BIN_COLUMNS = ["fit_id", "of", "bin", "count", "predicted", "happened"]


def thinned(trace: pd.DataFrame) -> pd.DataFrame:
    """The first and the last row of a trace, which has some, and rows between them, evenly spread over log step."""
    step, looked = trace["step"].to_numpy(), trace["mnll"].notna().to_numpy().nonzero()[0]
    kept = [0, *_spread(step, BETWEEN), *looked[_spread(step[looked], LOOKS)], len(trace) - 1]
    return trace.iloc[np.unique(kept)]


def _spread(step: np.ndarray, most: int) -> np.ndarray:
    """Places of at most `most` of some ascending steps, from 1."""
    if len(step) <= most:
        return np.arange(len(step))
    log_step = np.log(step)
    return np.searchsorted(log_step, np.linspace(log_step[0], log_step[-1], most))


def trace_lines(fit_id: str, trace: pd.DataFrame) -> list[committed.Row]:
    """The lines of a fit in traces.csv."""
    rows = thinned(trace.reindex(columns=committed.CURVES["traces"][1:])).to_dict("records")
    return [{"fit_id": fit_id} | {str(name): _text(value) for name, value in row.items()} for row in rows]


def calibration_lines(fit_id: str, points: pd.DataFrame, task: str) -> list[committed.Row]:
    """The lines of a fit in calibration.csv."""
    return [
        {"fit_id": fit_id, "of": of} | {name: " ".join(map(_text, table[name].tolist())) for name in table}
        for of, table in histograms(points, task).items()
    ]


def system_lines(fit_id: str, trace: pd.DataFrame) -> list[committed.Row]:
    """The lines of a solver's fit in systems.csv."""
    texts = {name: " ".join(_text(value) or "nan" for value in trace[name].tolist()) for name in trace}
    return [{"fit_id": fit_id, "measured": name, "values": text} for name, text in texts.items()]


def read_systems(folder: Path) -> pd.DataFrame:
    """systems.csv of a committed run, in the form of the systems.parquet of a collected one."""
    import pandas as pd

    fits: dict[str, dict[str, list[float]]] = {}
    for line in committed.lines(folder / "systems.csv"):
        fits.setdefault(line["fit_id"], {})[line["measured"]] = [float(text) for text in line["values"].split()]
    tables = [pd.DataFrame(measured).assign(fit_id=fit_id) for fit_id, measured in fits.items()]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["fit_id"])


def read_traces(folder: Path) -> pd.DataFrame:
    """traces.csv of a committed run, in the form of the traces.parquet of a collected one."""
    import pandas as pd

    traces = pd.DataFrame(committed.lines(folder / "traces.csv"), columns=committed.CURVES["traces"])
    return traces.astype(dict.fromkeys(traces.columns[1:], float))


def read_bins(folder: Path) -> pd.DataFrame:
    """calibration.csv of a committed run: a row of BIN_COLUMNS for every bin."""
    import pandas as pd

    def table(line: committed.Row) -> pd.DataFrame:
        return pd.DataFrame({name: line[name].split() for name in BIN_COLUMNS[3:] if name in line}, dtype=float)

    return joined((line["fit_id"], line["of"], table(line)) for line in committed.lines(folder / "calibration.csv"))


def joined(tables: Iterable[tuple[str, str, pd.DataFrame]]) -> pd.DataFrame:
    """A row of BIN_COLUMNS for every bin of some histograms; tables: (fit_id, of, what the bins hold)."""
    import pandas as pd

    parts = [table.assign(fit_id=fit_id, of=of, bin=range(len(table))) for fit_id, of, table in tables]
    if not parts:
        return pd.DataFrame(columns=BIN_COLUMNS)
    return pd.concat(parts, ignore_index=True).reindex(columns=BIN_COLUMNS)


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else "" if np.isnan(value) else f"{value:.5g}"
