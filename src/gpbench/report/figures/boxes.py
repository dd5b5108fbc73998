"""Box plots of the splits, as in rossi2021 (figure 10)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gpbench.report.figures import canvas
from gpbench.report.figures.published import OPEN, published_scores
from gpbench.report.view import View

PUBLISHED: canvas.Style = {"color": "black", "marker": "D", "markersize": 4, "linestyle": "none"} | OPEN


def boxes(view: View) -> Figure:
    """Test MNLL of the splits, one box per method that is not skipped, one panel per data set."""
    canvas.require(len(view.done))
    card = published_scores(view)
    figure, axes = canvas.titled(view.datasets, 2.4, 3, y="test MNLL (nats)")
    for axis, dataset in zip(axes, view.datasets, strict=True):
        fits = view.fits.query("dataset == @dataset and status != 'skipped'")
        methods = canvas.present(view.methods, fits["method"])
        _panel(axis, view, dataset, methods)
        for row in card[(card["dataset"] == dataset) & card["ours_method"].isin(methods)].itertuples():
            axis.plot(methods.index(row.ours_method), row.published, **PUBLISHED)
    if not card.empty:
        figure.legend(handles=[Line2D([], [], label="published mean", **PUBLISHED)], loc="outside lower center")
    return figure


def _panel(axis: Axes, view: View, dataset: str, methods: list[str]) -> None:
    scores, look = view.per_split("mnll", dataset), canvas.looks(view)
    cells = view.cells_of(dataset, "mnll")
    for x, method in enumerate(methods):
        values = scores[method].dropna()
        if len(values):
            line = {"color": look[method].color}
            lines: canvas.Style = dict.fromkeys(("boxprops", "whiskerprops", "capprops", "medianprops"), line)
            outliers = {"markeredgecolor": look[method].color}
            axis.boxplot([values], positions=[x], widths=0.5, sym=".", flierprops=outliers, **lines)
        else:
            canvas.upright_reason(axis, x, cells.loc[method])
    canvas.name_columns(axis, view, methods)
    canvas.remark_incomplete(axis, cells.loc[methods])
