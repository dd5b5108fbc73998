"""Published numbers beside ours in a figure of scores."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gpbench.report.figures import canvas
from gpbench.report.view import View

OPEN: canvas.Style = {"fillstyle": "none", "alpha": 0.6}  # options of the marker of a published number
QUOTED = "quoted from other work"  # the `reason` of rows of published/*.csv that a paper quotes from another one


def published_scores(view: View, metric: str = "mnll") -> pd.DataFrame:
    """Rows of the scorecard with a metric published under the study's protocol for one of its methods."""
    card = view.card[(view.card["protocol"] == view.study["protocol"]) & (view.card["ours_metric"] == metric)]
    return card[card["ours_method"].isin(view.methods)]


def score_limits(scores: pd.DataFrame, *published: pd.Series) -> tuple[float, float]:
    """Axis limits for scores `[splits, methods]` and published means, but for those far behind the better half."""
    values = np.concatenate([scores.to_numpy().ravel(), *published]).astype(float)
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, middle = values.min(), np.median(values)
    high = min(values.max(), middle + max(3 * (middle - low), 0.5))
    edge = 0.06 * (high - low) or 0.1
    return low - edge, high + edge


def source_legend(figure: Figure, view: View, has_published: bool) -> None:
    """A legend of our marks, published marks and the dashed line of our first method (if any)."""
    ink: canvas.Style = {"color": "black", "linestyle": "none", "marker": "o", "markersize": 4}
    dashed: canvas.Style = {"color": canvas.GREY, "linestyle": "--", "linewidth": 0.7}
    line = [(f"our {view.labels[name]}", dashed) for name in view.methods[:1] if name in set(view.done["method"])]
    canvas.legend_of_marks(figure, [("ours", ink), *[("published", ink | OPEN)] * has_published, *line], 3)
