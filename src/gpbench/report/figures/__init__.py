"""The figures of a study by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from gpbench.errors import unknown
from gpbench.report.figures import (
    abstention,
    boxes,
    calibration,
    chain_draws,
    chain_traces,
    comparison,
    covariance,
    curves,
    ess_per_operation,
    estimator,
    inducing,
    intervals,
    models,
    pictures,
    probes,
    profiles,
    r_hat,
    ranking,
    rates,
    score_against_n,
    scorecard,
    series,
    settings,
    surfaces,
    weights,
)
from gpbench.report.tables.render import write
from gpbench.report.view import View

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
        "Mean ranks over data sets, best on the left. No two methods joined by a thick line are told apart by pairwise "
        "exact two-sided Wilcoxon signed-rank tests with Holm's correction at 5 %. A line ends where a pair within it "
        "would be told apart, so two methods without a common line need not be (statistics.json has every pair). The "
        "sentences below each panel say what it can show.",
    ),
    "performance_profile": FigureSpec(
        profiles.performance_profile,
        "Share of the data sets on which a method lies within a distance of the best method of the data set: a curve "
        "further up and to the left is better. Shaded: the region of practical equivalence, drawn linearly; "
        "logarithmic beyond it. Legends are in the order of mean ranks and begin with the share of data sets within "
        "the region; thick: the first six. Only data sets and methods of which every split is done.",
    ),
    "pareto": FigureSpec(
        profiles.pareto,
        "Training seconds per fit (geometric mean over data sets) against test MNLL above that of the best of each "
        "data set (mean over data sets; 0 would be best everywhere). Line and names: the front, methods of which none "
        "is both as cheap and as good; shaded: the region of practical equivalence. Seconds are those of the machines "
        "that fitted.",
    ),
    "scorecard": FigureSpec(
        scorecard.scorecard,
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
    "inducing": FigureSpec(
        inducing.inducing,
        "Left: training data and the predictive probability of the two classes, averaged over the kept states of all "
        "chains; line: where it is 1/2; R-hat: of predictions, the worst test row. Right: density of the inducing "
        "inputs of the first layer over all kept states and chains, smoothed by a Gaussian whose standard deviation "
        "is 1/53 of an axis; points where they were optimised. Solid: the same line; dotted: 95 % of the training "
        "data. First split.",
    ),
    "covariance": FigureSpec(
        covariance.covariance,
        "The posterior over covariance functions k(x, z) that the joint posterior of the kernel's parameters θ and "
        "the inducing inputs Z of a fit induces, for three z of Z (which is put in order in every kept state). What a "
        "panel does not sample is held at its posterior mean (θ: that of its logarithms), so no panel is a fit with "
        "that part fixed. Band: 90 % at every x; solid: medians; thin: draws; dashed: all held; ticks: training "
        "inputs. Then k over distance, and θ, a colour and mark a chain, with the worst R-hat of the covariance "
        "parameters. x in original units, k in those of standardised targets. First split, all chains.",
    ),
    "pictures": FigureSpec(
        pictures.pictures,
        "Test images, taken evenly through the test rows, of which the pixels below the line were predicted from those "
        "above it: predictive means, drawn between 0 and the largest pixel, and standard deviations of single pixels, "
        "on one scale for all methods. First split.",
    ),
    "rates": FigureSpec(
        rates.rates,
        "Expected number of held-out events in every bin. On a line: of all methods together, then of each with two "
        "standard deviations of the rate; grey: the held-out counts. On a plane: the held-out counts, then the rate of "
        "each method, from dark to light, on one scale. First split, all chains.",
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
    "traces": FigureSpec(
        chain_draws.traces,
        "Predictive mean (of classes: probability of the observed one) at three test rows by the kept states of the "
        "Markov chains, one after the other; one colour a chain. Chains that agree cover one band and none drifts. "
        "R-hat: the worst of all monitored rows. First split.",
    ),
    "intervals": FigureSpec(
        intervals.intervals,
        "Mean test MNLL of every method with its 95 % t interval over splits, which overlap, so that it is too narrow; "
        "lower is better; a bar may leave the axis. Filled: ours; open, below it: published under the same protocol. "
        "Dashed: the first method. Arrows: means beyond the axis (published ones in brackets). Last panel: mean ranks "
        "with the 95 % bootstrap interval over data sets; open: ranks of the published means, where all are known.",
    ),
    "boxes": FigureSpec(
        boxes.boxes,
        "Test MNLL of the splits: median, quartiles, whiskers within 1.5 of their range, points beyond; lower is "
        "better. Open diamonds: published mean under the same protocol. Methods that cannot be fitted to a data set "
        "are left out.",
    ),
    "num_inducing": FigureSpec(
        series.num_inducing,
        "Test MNLL against the number of inducing inputs, mean and standard deviation over splits, a curve for each "
        "treatment; open marks: published under the same protocol.",
    ),
    "depth": FigureSpec(
        series.depth,
        "Test MNLL against the number of layers, mean and standard deviation over splits; open marks: published under "
        "the same protocol. Level lines: methods without that setting. A curve may leave the axis.",
    ),
    "p_values": FigureSpec(
        series.p_values,
        "One-sided Wilcoxon signed-rank tests of the hypothesis that VFE has a lower MNLL than FITC: below the dotted "
        "line it is rejected at 5 %. Circles: exact, on the differences of each split. Squares: folds drawn for each "
        "objective on its own, as the public code does; median and middle 90 % of 100 draws.",
    ),
    "prediction_cost": FigureSpec(
        partial(curves.cost, of="prediction"),
        "Seconds to predict all test rows of a split against test MNLL; mean and standard deviation over splits. Lower "
        "left is better.",
    ),
    "score_against_n": FigureSpec(
        score_against_n.score_against_n,
        "Scores of classifiers against the number of training rows, mean and standard error over the splits of one "
        "size; all other rows are tested. Capacity: mean of the score over degrees of abstention. Points lie a little "
        "apart so that bars show.",
    ),
    "abstention": FigureSpec(
        abstention.abstention,
        "Accuracy and area under the ROC curve on the test rows that are left when a classifier abstains wherever its "
        "probability of class 1 is nearer to 1/2 than a threshold. Mean over splits of the smallest training size at "
        "each degree that at least half of them reach.",
    ),
    "reject": FigureSpec(
        abstention.reject,
        "Accuracy on the test rows that are left when those are rejected of which the most probable class has a "
        "probability below a threshold. Mean over splits at each rate that at least half of them reach.",
    ),
    "r_hat": FigureSpec(
        r_hat.r_hat,
        "Gelman and Rubin's R-hat of the slowest variable over the first iterations after burn-in, median over splits. "
        "Curves: on an axis that is logarithmic in R-hat - 1, at whose ends what lies beyond is drawn; band: up to the "
        "median of the 97.5 % upper limit; dotted: 1.1, below which chains are usually called converged. Of more than "
        "eight methods: the number itself in a shaded tile.",
    ),
    "ess_per_operation": FigureSpec(
        ess_per_operation.ess_per_operation,
        "Circles: effective sample size of the slowest variable of a chain, in % of its draws. Squares: divided by "
        "the operations of O(n³) that an iteration takes (no mark where it takes none). Mean and standard deviation "
        "over all chains and splits; open, below ours: published.",
    ),
    "chain_traces": FigureSpec(
        chain_traces.chain_traces,
        "Left: kept draws of the first parameter, a colour a chain; all samplers of a data set on one scale. Middle: "
        "its autocorrelation, of each chain and on average. Both of the first split, of the first data sets as far as "
        "there is room. Right: R-hat of the slowest "
        "variable, median over splits; dashed: of its 97.5 % upper limit; dotted: 1.1. The axis is logarithmic in "
        "R-hat - 1. ✗: splits whose chains fail the gate.",
    ),
    "estimator": FigureSpec(
        estimator.estimator,
        "Posterior density of log τ by unbiased estimates of p(y | τ): mean of all estimates with the most importance "
        "samples, scaled to area 1 over the grid; on that scale 2.5 % and 97.5 % quantiles of single estimates. Red: "
        "prior density. First split.",
    ),
    "weights": FigureSpec(
        weights.weights,
        "Posterior of the weight of each source of data in the covariance of each class's function: median, quartiles, "
        "whiskers from 5 % to 95 %, mean (white mark); kept states of all chains. First split.",
    ),
}


def write_figure(
    view: View, name: str, folder: str | Path, kinds: tuple[str, ...] = ("pdf", "png"), **noted: str
) -> list[Path]:
    """Draw FIGURES[name] into `folder`/name.pdf and .png (200 dpi) with what is noted in the PNG's text; the same data
    give the same bytes."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return save(FIGURES[name].draw(view), Path(folder) / name, kinds, png=noted)


def save(
    figure: Figure,
    stem: Path,
    kinds: tuple[str, ...] = ("pdf", "png"),
    pdf: dict[str, str] | None = None,
    png: dict[str, str] | None = None,
) -> list[Path]:
    """Write `stem`.pdf and .png with their properties (of a PDF Title, Subject, ...) and no date or version in them."""
    metadata = {"pdf": {"CreationDate": None, "ModDate": None, "Producer": None} | (pdf or {})}
    why_blank = {"Description": figure.get_label()} if figure.get_label() else {}  # as `canvas.empty` says it
    metadata["png"] = {"Software": None} | why_blank | (png or {})
    with style.context(["default", STYLE]):
        if engine := figure.get_layout_engine():  # once for both files
            engine.execute(figure)
            figure.set_layout_engine("none")
        return [
            write(
                stem.with_name(f"{stem.name}.{kind}"),
                lambda path, kind=kind: figure.savefig(path, format=kind, metadata=metadata[kind]),
            )
            for kind in kinds
        ]
