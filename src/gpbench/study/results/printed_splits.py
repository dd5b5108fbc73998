"""Scores that authors released for each split, published/per_split/NAME.csv, as rows beside those of a study's fits.

They are methods of the study that were not fitted here: paired with ours on the data sets that NAME.yaml lists, whose
splits are shown to be ours, and on no other. So are they in the scorecard (`gpbench.report.scorecard.published`).
"""

import csv
import math
from pathlib import Path

from gpbench import config
from gpbench.errors import UserError
from gpbench.evaluation.metrics import METRICS
from gpbench.places import Places
from gpbench.study.records import FrozenPlan
from gpbench.study.storage import challengers
from gpbench.study.storage.committed import Row

PLACE = ("dataset", "split")


def rows(where: Places, plan: FrozenPlan) -> list[Row]:
    """A row of scores for every released split that the study fits too."""
    sizes = {(cell.address.dataset, fit.split): (cell, fit) for cell, fit in plan.fits if not cell.skip}
    scored: list[Row] = []
    for name in plan.study.per_split:
        whose = config.printed_splits(where.per_split, name)
        for place, scores in released(where.per_split / f"{name}.csv").items():
            if place not in sizes or place[0] not in whose.paired:
                continue
            names = {"method": name, "family": challengers.PRINTED, "label": whose.label}
            scored.append(challengers.row(f"{name}/{place[0]}/{place[1]}", *sizes[place], names) | scores)
    return scored


def released(path: Path) -> dict[tuple[str, int], dict[str, float]]:
    """(data set, split) -> metric -> score of a CSV; UserError with the line that has none, or the same place again."""
    by_place: dict[tuple[str, int], dict[str, float]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            for line in reader:
                place = line["dataset"], int(line["split"])
                scores = {key: float(line[key]) for key in line if key not in PLACE}
                wrong = [key for key, score in scores.items() if key not in METRICS or not math.isfinite(score)]
                if place in by_place or wrong:
                    raise ValueError(f"{place} stands there twice, or {' '.join(wrong)} is not a metric or not finite")
                by_place[place] = scores
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}; a line has dataset, split and metrics") from error
    return by_place
