"""A committed run in which cells that have not converged, or have too many rows, are those of runs that allow more."""

from collections.abc import Iterable
from functools import cached_property

import pandas as pd

from gpbench.report.view import UNMIXED, View

CELL = ["method", "dataset"]
ALIKE = ["split", "preset", "n_train", "n_test"]  # what tells fits of other data or of another preset


class Joined(View):
    """The view of a run whose cells that have not converged, or were skipped, are of others of its protocol and budget.

    A cell is taken as a whole, from the first run that has all of its splits done, by the same preset on as many rows,
    where ours have not converged after more updates. What is drawn of curves and points is that of the run alone."""

    def __init__(self, view: View, others: Iterable[View]) -> None:
        super().__init__(view.folder)
        self._cells = dict(iter(view.fits.groupby(CELL, sort=False)))
        self.taken: dict[tuple[str, str], View] = {}
        for run in others:
            if all(run.study[key] == view.study[key] for key in ("protocol", "budget")):
                for cell, fits in run.fits.groupby(CELL):
                    if cell in self._cells and _is_better(self._cells[cell], fits):
                        self._cells[cell], self.taken[cell] = fits, run

    @cached_property
    def fits(self) -> pd.DataFrame:
        """Those of `View`, with the cells that were taken."""
        return pd.concat(self._cells.values(), ignore_index=True)

    @property
    def borrowed(self) -> str:
        """A sentence that names the cells that were taken, and their runs; '' without any."""
        name = self.folder.name  # to which the names of other runs of a study add some digits
        runs = ", ".join(sorted({run.folder.name.removeprefix(name) for run in self.taken.values()}))
        return f"With more updates or rows ({name}{runs}): {self.cells_in_words(self.taken)}." if self.taken else ""

    @property
    def warning(self) -> str:
        """Those of `View`, after the cells that were taken."""
        return " ".join(filter(None, (self.borrowed, super().warning)))


def _is_better(ours: pd.DataFrame, fits: pd.DataFrame) -> bool:
    statuses, longer = set(ours["status"]), fits["steps"].max() > ours["steps"].max()
    if not ("skipped" in statuses or (UNMIXED in statuses and longer)):
        return False
    rows, theirs = (set(of[ALIKE].dropna().itertuples(index=False, name=None)) for of in (ours, fits))
    return (fits["status"] == "done").all() and set(fits["split"]) == set(ours["split"]) and rows <= theirs
