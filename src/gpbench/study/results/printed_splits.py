"""Scores that authors released for each split, published/per_split/NAME.csv, as rows beside those of a study's fits.

They are methods of the study that were not fitted here: paired with ours on the data sets that NAME.yaml lists, whose
splits are shown to be ours, and on no other.
"""

from __future__ import annotations

import csv

from gpbench import config
from gpbench.places import Places
from gpbench.study.records import FrozenPlan
from gpbench.study.storage.committed import Row

SCORES = ("mnll", "rmse")


def rows(where: Places, plan: FrozenPlan) -> list[Row]:
    """A row of scores for every released split that the study fits too."""
    sizes = {(cell.address.dataset, fit.split): (cell, fit) for cell, fit in plan.fits if not cell.skip}
    found: list[Row] = []
    for name in plan.study.per_split:
        whose = config.printed_splits(where.per_split, name)
        with (where.per_split / f"{name}.csv").open(newline="") as stream:
            released = list(csv.DictReader(stream))
        for line in released:
            place = line["dataset"], int(line["split"])
            if place not in sizes or line["dataset"] not in whose.paired:
                continue
            cell, fit = sizes[place]
            what = {"kind": cell.what.kind, "task": cell.what.data.task, "n_train": fit.rows, "n_test": fit.test_rows}
            names = dict.fromkeys(("method", "preset"), name) | {"family": "published", "label": whose.label}
            address = {"dataset": line["dataset"], "protocol": plan.study.protocol, "budget": plan.study.budget}
            state = {"overrides": "", "split": fit.split, "replica": 0, "status": "done", "reason": ""}
            scores = {key: float(line[key]) for key in SCORES}
            found.append({"fit_id": f"{name}/{place[0]}/{place[1]}"} | what | names | address | state | scores)
    return found
