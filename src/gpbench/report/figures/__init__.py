"""The figures of a study by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from gpbench.errors import unknown
from gpbench.report.figures import (
    calibration,
    comparison,
    curves,
    models,
    pictures,
    probes,
    ranking,
    settings,
    surfaces,
)
from gpbench.report.view import View
from gpbench.report.writing import write

STYLE = Path(__file__).parent.parent / "gpbench.mplstyle"


@dataclass(frozen=True)
class FigureSpec:
    """function: from a View to a Figure; caption: what it shows and how to read it."""

    function: Callable[[View], Figure]
    caption: str

    def draw(self, view: View) -> Figure:
        """The figure, drawn in the house style."""
        with style.context(["default", STYLE]):
            return self.function(view)


FIGURES = {
    "convergence": FigureSpec(
        curves.convergence,
        "Test MNLL against training time (left) and against steps (right). Line: mean over the splits; band: their "
        "range. Single marks are methods without training steps. Triangles at the right edge: published under the same "
        "protocol. The vertical axis leaves out the worst early values.",
    ),
    "log_density": FigureSpec(
        comparison.log_density,
        "Mean test log density of each split (small marks) and its mean over splits (bar); higher is better. "
        "An arrow at the left edge counts splits that lie below the axis. Grey: splits finished of those expected, "
        "or why there is none.",
    ),
    "calibration": FigureSpec(
        calibration.calibration,
        "Regression: fraction of test targets inside central predictive intervals minus the nominal fraction; below "
        "zero is overconfident. Classification: fraction correct against the probability of the predicted class, in "
        "ten bins; bins with fewer than ten test points are left out. Test points of all splits together.",
    ),
    "pit": FigureSpec(
        calibration.pit,
        "Probability integral transforms of the test targets; a calibrated method is flat. Dashed: simultaneous 95 % "
        "binomial band for independent points; test points of all splits together, so that it is a little too narrow.",
    ),
    "cost": FigureSpec(
        curves.cost,
        "Training seconds per fit against test MNLL; mean and standard deviation over splits. Lower left is better.",
    ),
    "critical_difference": FigureSpec(
        ranking.critical_difference,
        "Mean ranks over data sets, best on the left. Methods joined by a thick line are not told apart by pairwise "
        "exact Wilcoxon signed-rank tests with Holm's correction at 5 %. The sentence below each panel says what it "
        "can show.",
    ),
    "scorecard": FigureSpec(
        comparison.scorecard,
        "Published numbers (open) and ours (filled), mean and standard deviation over splits, with the verdict of the "
        "scorecard. Different protocols are not comparable as means.",
    ),
    # those that a study may ask for
    "error_over_time": FigureSpec(
        curves.error_over_time,
        "Test error (RMSE in regression) and MNLL against training time. Line: mean over the splits; band: their "
        "range. Single marks are methods without training steps. The vertical axes leave out the worst early values.",
    ),
    "features": FigureSpec(
        settings.features,
        "Test error and MNLL against the number of random features, by the treatment of the frequencies; mean and "
        "standard deviation over splits.",
    ),
    "bounds": FigureSpec(
        probes.bounds,
        "Left: negative lower bound of the trained models per training row, each value from a large mini-batch of "
        "training rows and one draw of the noise (box: quartiles; whiskers: within 1.5 of their range). Right: final "
        "test MNLL of each split and its mean. A bound that orders methods as the test score does can choose between "
        "them.",
    ),
    "layers": FigureSpec(
        probes.layers,
        "Posterior draws of the functions of every layer, about 100 a panel: of a sampler from all its chains, of a "
        "variational method from its first restart. Colour: sign of the first layer's slope over the data, in all "
        "layers of the draw. Grey: range of the training inputs; points: training data.",
    ),
    "surfaces": FigureSpec(
        surfaces.surfaces,
        "Training data and the posterior mean of each method's function of the two inputs, on one scale, as far as the "
        "data reach. Below: posterior means of the hidden functions of deep methods over the same two inputs, each on "
        "its own scale. First split.",
    ),
    "pictures": FigureSpec(
        pictures.pictures,
        "Test images, taken evenly through the test rows, of which the pixels below the line were predicted from those "
        "above it: predictive means, drawn between 0 and the largest pixel, and standard deviations of single pixels, "
        "on one scale for all methods. First split.",
    ),
    "workers": FigureSpec(
        settings.workers,
        "Training time, test error and mean staleness of a gradient (updates by others between fetch and push) against "
        "the number of workers; mean and standard deviation over splits. Dashed: one process.",
    ),
    "loglik_by_model": FigureSpec(
        models.loglik_by_model,
        "Mean test log-likelihood of every model; bar: one population standard deviation over splits; higher is "
        "better. Filled: ours; open, to the right of it: published under the same protocol; blue cross: other work, as "
        "quoted there. Pale and half filled: one lengthscale a layer. Dashed: the first model.",
    ),
    "error_by_model": FigureSpec(
        models.error_by_model,
        "Test RMSE, or error rate in classification, of every model; bar: one population standard deviation over "
        "splits; lower is better. Filled: ours; open, to the right of it: published under the same protocol; blue "
        "cross: other work, as quoted there. Pale and half filled: one lengthscale a layer. Dashed: the first model.",
    ),
    "reliability": FigureSpec(
        calibration.reliability,
        "How often a stated probability came true. Two classes: 15 equal bins of the probability of class 1; more: 10 "
        "equal bins of the probabilities of all classes of every test point together. Bins with fewer than ten values "
        "are left out; on the diagonal a method is calibrated.",
    ),
}


def write_figure(view: View, name: str, folder: str | Path) -> list[Path]:
    """Draw FIGURES[name] into `folder`/name.pdf and .png (200 dpi); the same data give the same bytes."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    figure = FIGURES[name].draw(view)
    metadata = {"pdf": {"CreationDate": None, "ModDate": None, "Producer": None}, "png": {"Software": None}}
    with style.context(["default", STYLE]):
        return [
            write(
                Path(folder) / f"{name}.{kind}",
                lambda path, kind=kind: figure.savefig(path, format=kind, metadata=metadata[kind]),
            )
            for kind in metadata
        ]
