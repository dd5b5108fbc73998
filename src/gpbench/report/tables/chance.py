"""Are classifiers better than chance, and how well do they tell pairs of classes apart (filippone2012, section 6)?"""

from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from gpbench.report.significance.comparisons import ALPHA
from gpbench.report.tables.render import Table, number
from gpbench.report.view import View


def chance(view: View) -> Table:
    """Accuracy of every cell over the test rows of all splits, its test against chance, and accuracy by pairs."""
    rows = []
    points = view.points[view.points["task"] == "multiclass"]
    for dataset in view.datasets_of("multiclass"):
        for method in view.methods:
            of_cell = points[(points["dataset"] == dataset) & (points["method"] == method)]
            if len(of_cell):
                probabilities = [name for name in of_cell.filter(regex=r"^p\d+$") if of_cell[name].notna().all()]
                means = of_cell.groupby(["split", "row"])[["y", *probabilities]].mean()  # over the fits of a split
                scores = against_chance(means[probabilities].to_numpy(), means["y"].to_numpy().astype(int))
                rows.append({"dataset": dataset, "method": method, **scores})
    data = pd.DataFrame(rows, columns=None if rows else ["dataset", "method", "accuracy", "chi_squared", "p", "pairs"])
    shown = {
        "data set": data["dataset"],
        "method": data["method"].map(view.labels),
        "accuracy": data["accuracy"].map(number),
        "χ²": data["chi_squared"].map(number),
        "p": [f"{row.p:.2g}" + " *" * bool(row.p < ALPHA and row.above) for row in data.itertuples()],
        "accuracy, pairs of classes": data["pairs"].map(number),
    }
    note = (
        "Test rows of all splits together, each predicted by the mean probabilities of all replicas of its split. "
        "χ²: Pearson's statistic of the numbers of right and wrong predictions where 1 of C is right by chance, with "
        f"one degree of freedom; *: p below {ALPHA:g} and accuracy above chance. It takes rows for independent, which "
        "holds for the folds of one cross-validation at best. Pairs: mean over the pairs of classes of the accuracy on "
        "their test rows, decided by the larger of their two probabilities; no classifier of two classes is trained. "
        "The CSV has every pair."
    )
    return Table(data, pd.DataFrame(shown), "Accuracy against chance, and between pairs of classes", note)


def against_chance(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Scores of probabilities p `[N, C]` of classes y `[N]`.

    chi_squared = sum (observed - expected)^2 / expected over right and wrong predictions, N / C and N - N / C expected;
    pairs: mean over pairs (a, b) of the share of their rows whose own class is the more probable one, ties half."""
    n, classes = p.shape
    right = int((p.argmax(1) == y).sum())
    test = stats.chisquare([right, n - right], [n / classes, n - n / classes])
    pairs = {}
    for a, b in combinations(range(classes), 2):
        of_pair = (y == a) | (y == b)
        if of_pair.any():
            ahead = np.sign(p[of_pair, b] - p[of_pair, a]) * np.where(y[of_pair] == b, 1, -1)
            pairs[f"pair_{a}_{b}"] = float((0.5 + 0.5 * ahead).mean())
    scores = {"rows": n, "accuracy": right / n, "above": right > n / classes, "chi_squared": test.statistic}
    return scores | {"p": test.pvalue, "pairs": float(np.mean([*pairs.values()]))} | pairs
