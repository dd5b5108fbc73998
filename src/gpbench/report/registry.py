"""Every figure and table that a study may show, each registered once.

A function is named by the text `module:function`, so that a workflow can list its outputs without importing pandas or
matplotlib. To add a figure or table, write its function of a `View` and one entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from gpbench.config.validate import require_known

if TYPE_CHECKING:
    from gpbench.places import Places
    from gpbench.study.planning.plan import Plan

PREDICT, SAMPLE, SOLVE, ON_REQUEST = ("predict",), ("sample",), ("solve",), ()
ALL_KINDS = (*PREDICT, *SAMPLE, *SOLVE)
_MARKS = "Single marks, of all test rows: methods without training steps."
_CURVES = (
    "Line: mean over splits, of which one that has ended counts with its last value; band: their range. The vertical "
    "axis shows last scores and leaves out the worst early values and the ends of curves far behind the better half."
)


@dataclass(frozen=True)
class Entry:
    """A figure or table: its section of the page ('': left out), the kinds of study that always have it (others may
    request it), `module:function` below `gpbench.report`, and the caption of a figure (a table has its own)."""

    name: str
    section: str
    always_for: tuple[str, ...]
    source: str
    caption: str = ""

    @property
    def function(self) -> Callable[..., Any]:
        """From a View to a Figure or Table; its module is imported now."""
        module, name = self.source.split(":")
        return getattr(import_module(f"gpbench.report.{module}"), name)


# fmt: off
FIGURES = {entry.name: entry for entry in (
    Entry("log_density", "scores", PREDICT, "figures.log_density:log_density",
          "Mean test log density of each split (small marks) and its mean over splits (bar); higher is better. An "
          "arrow at the left edge counts the splits that lie below the axis. Grey: finished of expected splits, or "
          "why no split is finished; ✗: fits have not converged as the budget requires, ↗: some still improve."),
    Entry("intervals", "scores", ON_REQUEST, "figures.intervals:intervals",
          "Mean test MNLL of every method with its 95 % t interval over splits (too narrow, because the training "
          "rows of splits overlap); lower is better; a bar may leave the axis. Filled: ours; open, below it: "
          "published under the same protocol. Dashed: the first method. Arrows: means beyond the axis (published "
          "ones in brackets). Last panel: mean ranks with the 95 % bootstrap interval over data sets; open: ranks of "
          "the published means, if all are known."),
    Entry("boxes", "scores", ON_REQUEST, "figures.log_density:boxes",
          "Test MNLL of the splits: median, quartiles, whiskers within 1.5 interquartile ranges, points beyond; "
          "lower is better. Open diamonds: published mean under the same protocol. Methods that cannot be fitted to "
          "a data set are left out."),
    Entry("loglik_by_model", "scores", ON_REQUEST, "figures.by_model:loglik_by_model",
          "Mean test log-likelihood of every model; bar: one population standard deviation over splits; higher is "
          "better. Filled: ours; open, to the right of it: published under the same protocol; blue cross: other "
          "work, as quoted. Pale, half filled: one lengthscale per layer, set by the study. Dashed: the first model."),
    Entry("error_by_model", "scores", ON_REQUEST, "figures.by_model:error_by_model",
          "Test RMSE (error rate in classification) of every model; bar: one population standard deviation over "
          "splits; lower is better. Filled: ours; open, to the right of it: published under the same protocol; blue "
          "cross: other work, as quoted. Pale, half filled: one lengthscale per layer, set by the study. Dashed: the "
          "first model."),
    Entry("critical_difference", "ranking", PREDICT, "figures.ranks:critical_difference",
          "Mean ranks over data sets, best on the left. Methods joined by a thick line do not differ significantly "
          "in pairwise exact two-sided Wilcoxon signed-rank tests with Holm's correction at 5 %. A line ends where a "
          "pair within it would differ, so two methods without a common line need not differ (statistics.json lists "
          "every pair). The sentences below each panel say what the tests can show."),
    Entry("performance_profile", "ranking", PREDICT, "figures.profiles:performance_profile",
          "Share of the data sets on which a method lies within a distance of the best method of the data set: a "
          "curve further up and to the left is better. Shaded: the region of practical equivalence, on a linear "
          "scale; beyond it the scale is logarithmic. Legends are in the order of mean ranks and begin with the "
          "share of data sets within the region; thick: the first six; band: 90 % of data sets drawn "
          "again, for the first. Only data sets and methods with all splits finished."),
    Entry("features", "settings", ON_REQUEST, "figures.score_against_setting:features",
          "Test error and MNLL against the number of random features, by the treatment of the frequencies; mean and "
          "standard deviation over splits."),
    Entry("workers", "settings", ON_REQUEST, "figures.score_against_setting:workers",
          "Training time, test error and mean staleness of a gradient (updates by other workers between fetch and "
          "push) against the number of workers; mean and standard deviation over splits. Dashed: one process."),
    Entry("num_inducing", "settings", ON_REQUEST, "figures.score_against_setting:num_inducing",
          "Test MNLL against the number of inducing inputs, mean and standard deviation over splits, one curve per "
          "treatment; open marks: published under the same protocol."),
    Entry("errors_by_depth", "settings", ON_REQUEST, "figures.by_model:errors_by_depth",
          "The metric that the protocol prints, of every model: mean and two standard deviations over splits, one "
          "panel for each data set and number of layers; models without layers stand in every panel. Arrow: a mean of "
          "more than three times the median of its panel."),
    Entry("error_by_inducing", "settings", ON_REQUEST, "figures.score_against_setting:error_by_inducing",
          "The metric that the protocol prints against the number of inducing points: mean and two standard deviations "
          "over splits. Open: published. Horizontal lines: methods without that setting."),
    Entry("depth", "settings", ON_REQUEST, "figures.score_against_setting:depth",
          "Test MNLL against the number of layers, mean and standard deviation over splits; open marks: published "
          "under the same protocol. Horizontal lines: methods without that setting. A curve may leave the axis."),
    Entry("p_values", "settings", ON_REQUEST, "figures.score_against_setting:p_values",
          "One-sided Wilcoxon signed-rank tests of the hypothesis that VFE has a lower MNLL than FITC, rejected at "
          "5 % below the dotted line. Circles: exact, on paired differences of splits as if independent; squares: "
          "folds drawn for each objective separately, as the public code does; median and middle 90 % of 100 draws."),
    Entry("score_against_n", "settings", ON_REQUEST, "figures.score_against_setting:score_against_n",
          "Scores of classifiers against the number of training rows, mean and standard error over the splits of "
          "one size; all other rows are test rows. Capacity: mean of the score over degrees of abstention. Marks "
          "are shifted slightly so that their bars do not overlap."),
    Entry("bounds", "settings", ON_REQUEST, "figures.bounds:bounds",
          "Left: negative lower bound of the trained models per training row; each value comes from a large "
          "mini-batch of training rows and one draw of the noise (box: quartiles; whiskers: within 1.5 interquartile "
          "ranges). Right: final test MNLL of each split and its mean. A bound that orders methods as the test score "
          "does can choose between them."),
    Entry("layers", "settings", ON_REQUEST, "figures.functions:layers",
          "Posterior draws of the functions of every layer, about 100 per panel: from all chains of a sampler, from "
          "the first restart of a variational method. Colour: sign of the first layer's slope over the data, in all "
          "layers of the draw. Grey: range of the training inputs; points: training data."),
    Entry("surfaces", "settings", ON_REQUEST, "figures.functions:surfaces",
          "Training data and the posterior mean of each method's function of the two inputs, on one scale, over the "
          "range of the data. Below: posterior means of the hidden functions of deep methods over the same two "
          "inputs, each on its own scale. First split."),
    Entry("inducing", "settings", ON_REQUEST, "figures.inducing:inducing",
          "Left: training data and the predictive probability of the two classes, averaged over the kept states of "
          "all chains; line: probability 1/2; R-hat: of predictions, the worst test row. Right: density of the "
          "inducing inputs of the first layer over all kept states and chains, smoothed by a Gaussian whose standard "
          "deviation is 1/53 of an axis; points if the inducing inputs are optimised. Solid: the same line; dotted: "
          "95 % of the training data. First split."),
    Entry("classes", "settings", ON_REQUEST, "figures.classes:classes",
          "Training data, and contours of the predictive probability of each class at 0.3, 0.95 and 0.99 (thin to "
          "thick), averaged over the kept states of all chains; black: inducing inputs. Then, of each sampler, the "
          "whitened values v of two functions at one inducing input: kept states of all chains, a colour a chain, for "
          "the input and the pair of functions whose draws correlate most. First split."),
    Entry("parameters", "settings", ON_REQUEST, "figures.covariance:parameters",
          "Lengthscale (of the first input) and variance of the kernel of the first layer, as the method scales inputs "
          "and targets. Dots: kept states of all chains of a sampler, first split. Crosses: methods that optimise "
          "them."),
    Entry("inducing_images", "settings", ON_REQUEST, "figures.pictures:inducing_images",
          "The three inducing inputs that moved most while they were optimised: as they started, as they ended, and "
          "the difference (red: darker than at the start). First split."),
    Entry("covariance", "settings", ON_REQUEST, "figures.covariance:covariance",
          "The posterior over covariance functions k(x, z) that follows from the joint posterior of the kernel's "
          "parameters θ and the inducing inputs Z of a fit, for three z of Z (which is sorted in every kept state). "
          "What a panel does not sample is fixed at its posterior mean (θ: at that of its logarithms), so no panel "
          "is a fit with that part fixed. Band: 90 % at every x; solid: medians; thin: draws; dashed: everything "
          "fixed; ticks: training inputs. Then k over distance, and θ, one colour and mark per chain, with the worst "
          "R-hat of the covariance parameters. x in original units, k in those of standardised targets. First split, "
          "all chains."),
    Entry("pictures", "settings", ON_REQUEST, "figures.pictures:pictures",
          "Test images, evenly spaced among the test rows, whose pixels below the line were predicted from those "
          "above it: predictive means, drawn between 0 and the largest pixel, and standard deviations of single "
          "pixels, on one scale for all methods. First split."),
    Entry("rates", "settings", ON_REQUEST, "figures.rates:rates",
          "Expected number of held-out events in every bin. One input: of all methods together, then of each with "
          "two standard deviations of the rate; grey: the held-out counts. Two inputs: the held-out counts, then the "
          "rate of each method, from dark to light, on one scale. First split, all chains."),
    Entry("estimator", "settings", ON_REQUEST, "figures.estimator:estimator",
          "Posterior density of log τ by unbiased estimates of p(y | τ): mean of all estimates with the most "
          "importance samples, scaled to area 1 over the grid; on that scale the 2.5 % and 97.5 % quantiles of "
          "single estimates. Red: prior density. First split."),
    Entry("densities", "chains", ON_REQUEST, "figures.chains:densities",
          "Density of the first number that all samplers draw, by a Gaussian kernel (Scott's bandwidth) from at most "
          "1,000 draws of every chain, all chains together. First split."),
    Entry("weights", "settings", ON_REQUEST, "figures.weights:weights",
          "Posterior of the weight of each source of data in the covariance of each class's function: median, "
          "quartiles, whiskers from 5 % to 95 %, mean (white mark); kept states of all chains. First split."),
    Entry("kernel_weights", "settings", ON_REQUEST, "figures.weights:kernel_weights",
          "Weights of the kernels of the sources of data, which all classes share and which add up to 1, in every fold "
          "(split) of the data."),
    Entry("convergence", "convergence", PREDICT, "figures.convergence:convergence",
          "MNLL of the first 250 test rows against training time (left) and against steps (right). Dashes at the right "
          f"edge: published under the same protocol. {_MARKS} {_CURVES}"),
    Entry("rank_by_budget", "convergence", ON_REQUEST, "figures.ranks:rank_by_budget",
          "Mean rank by test MNLL of every method against the training time of the fits compared, for runs of a study "
          "at several budgets; over the data sets that all methods of the figure finished in all of the runs. Where "
          "lines cross, a comparison at one budget ranks schedules."),
    Entry("error_over_time", "convergence", ON_REQUEST, "figures.convergence:error_over_time",
          "Error (RMSE in regression) and MNLL of the first 250 test rows against training time. "
          f"{_MARKS} {_CURVES}"),
    Entry("error_at_equal_seconds", "convergence", ON_REQUEST, "figures.convergence:error_at_equal_seconds",
          "Error (RMSE in regression) of the first 250 test rows against training time; dotted: the last error of a "
          f"method that has ended, so that all can be compared at equal seconds. {_CURVES}"),
    Entry("calibration", "calibration", PREDICT, "figures.calibration:calibration",
          "Regression: fraction of test targets inside central predictive intervals minus the nominal fraction; below "
          "zero is overconfident. Classification: fraction correct against the probability of the predicted class, in "
          "ten bins; bins with fewer than ten test points are left out. Test points of all splits are pooled."),
    Entry("reliability", "calibration", ON_REQUEST, "figures.calibration:reliability",
          "Observed frequency against the predicted probability. Two classes: 15 equal bins of the probability of "
          "class 1; more classes: 10 equal bins of the probabilities of all classes of every test point. Bins with "
          "fewer than ten values are left out; a calibrated method lies on the diagonal."),
    Entry("pit", "calibration", PREDICT, "figures.calibration:pit",
          "Probability integral transforms of the test targets; a calibrated method is flat. Dashed: simultaneous 95 % "
          "binomial band; test points of all splits are pooled, and it is widened as if a row that several splits "
          "test had one transform (too wide for folds, which share none)."),
    Entry("abstention", "calibration", ON_REQUEST, "figures.calibration:abstention",
          "Accuracy and area under the ROC curve on the remaining test rows when a classifier abstains wherever its "
          "probability of class 1 is nearer to 1/2 than a threshold. Mean over the splits of the smallest training "
          "size, at each degree that more than half of the fits reach; of others it holds the last value."),
    Entry("reject", "calibration", ON_REQUEST, "figures.calibration:reject",
          "Accuracy on the remaining test rows when rows whose most probable class has a probability below a "
          "threshold are rejected. Mean over splits, at each rate that more than half of the fits reach; of others it "
          "holds the last value."),
    Entry("r_hat", "chains", SAMPLE, "figures.r_hat:r_hat",
          "Gelman and Rubin's R-hat of the slowest variable over the first kept draws of chains, median over "
          "splits. Curves (up to eight methods): the axis is logarithmic in R-hat - 1 and values beyond it are drawn "
          "at its ends; band: up to the median of the 97.5 % upper limit; dotted: 1.1, below which chains are "
          "usually called converged. Shaded tiles (more methods): the number itself."),
    Entry("ess_per_operation", "chains", SAMPLE, "figures.ess_per_operation:ess_per_operation",
          "Circles: effective sample size of the slowest variable of a chain, in % of transitions. Squares: divided by "
          "the O(n³) operations of an iteration (no mark if it has none). Mean and standard deviation over all "
          "chains and splits; open, below ours: published."),
    Entry("chain_traces", "chains", SAMPLE, "figures.chains:chain_traces",
          "Left: kept draws of the first parameter, one colour per chain; all samplers of a data set on one scale. "
          "Middle: its autocorrelation, of each chain and on average. Both of the first split, of as many data sets "
          "as fit. Right: R-hat of the slowest variable, median over splits; dashed: of its 97.5 % upper limit; "
          "dotted: 1.1. The axis is logarithmic in R-hat - 1. ✗: splits whose chains have not converged."),
    Entry("running_moments", "chains", ON_REQUEST, "figures.chains:running_moments",
          "Mean (solid) and two standard deviations (dotted) of the first kept draws of at most four sampled "
          "numbers, three lines for each chain. Methods that sample one posterior end in one place."),
    Entry("ranks", "chains", SAMPLE, "figures.chains:ranks",
          "Ranks of the draws of the first parameter among those of all chains of the first split, one line per chain: "
          "share of a chain's draws in each twentieth, over that of chains that agree. Band: 95 % of independent draws "
          "(autocorrelated ones leave it more often). A chain that leans or bulges is elsewhere or wider."),
    Entry("traces", "chains", ON_REQUEST, "figures.chains:traces",
          "Predictive mean (classification: probability of the observed class) at three test rows against the kept "
          "states of the Markov chains, one colour per chain. Chains that agree cover one band, and none drifts. "
          "R-hat: the worst of all monitored rows. First split."),
    Entry("preconditioners", "solvers", SOLVE, "figures.solvers:iterations",
          "First of each data set: log₁₀ of the iterations of conjugate gradients (CG) for K_y z = y. Others: log₁₀ of "
          "the iterations with a preconditioner over those of CG, with those of solvers within it; blue saves, red "
          "loses, 0 where neither converged. ×: did not converge; where only CG did not, more is saved than shown. "
          "Lengthscale and noise variance of scaled inputs and targets. Mean over draws of inducing points. What "
          "lies beyond the numbers beside the colours has the last one."),
    Entry("preconditioner_seconds", "solvers", ON_REQUEST, "figures.solvers:seconds",
          "First of each data set: log₁₀ of the processor's seconds of conjugate gradients (CG) for K_y z = y. Others: "
          "log₁₀ of the seconds with a preconditioner, to set it up and to solve, over those of CG; blue saves, red "
          "loses. ×: did not converge. Lengthscale and noise variance of scaled inputs and targets."),
    Entry("condition_numbers", "solvers", ON_REQUEST, "figures.solvers:condition_numbers",
          "Distribution of the condition number κ of the systems over draws of the parameters from their prior."),
    Entry("by_condition", "solvers", ON_REQUEST, "figures.solvers:by_condition",
          "Solvers of systems against their condition number κ, a mark for each system, hollow where the solver did "
          "not converge: iterations, those of solvers within a preconditioner too, and of ULISSE those of all its "
          "estimates of a system side by side, of which the longest counts; the norm of the error of the solution s; "
          "over repetitions the mean standard deviation of an element of s, and the mean of log₁₀ of the squared "
          "relative error of the gradient. What is 0 lies a decade below the smallest other value."),
    Entry("cost", "cost", PREDICT, "figures.profiles:cost",
          "Training seconds per fit against test MNLL; mean and standard deviation over splits. Lower left is better. "
          "Hollow: fits are missing or have not converged as the budget asks. At the upper edge: a mean beyond it, "
          "with its number. A method without seconds is left out."),
    Entry("pareto", "cost", PREDICT, "figures.profiles:pareto",
          "Training seconds per fit (geometric mean over data sets) against test MNLL above that of the best method "
          "of each data set (mean over data sets). Lower left is better. Line, names, filled: the Pareto front, which "
          "no other method beats in both; shaded: the region of practical equivalence. Seconds: medians over splits of "
          "the machines that ran the fits; a method without any is left out."),
    Entry("prediction_cost", "cost", ON_REQUEST, "figures.profiles:prediction_cost",
          "Seconds to predict all test rows of a split against test MNLL; mean and standard deviation over splits. "
          "Lower left is better. Hollow: fits are missing or have not converged as the budget asks. At the upper edge: "
          "a mean beyond it, with its number."),
    Entry("scorecard", "scorecard", PREDICT, "figures.scorecard:scorecard",
          "Published numbers (open) and ours (filled), mean and standard deviation over splits, with the verdict of "
          "the scorecard. Means under different protocols are not comparable."),
)}

TABLES = {entry.name: entry for entry in (
    Entry("status", "status", ALL_KINDS, "tables.standard:status"),
    Entry("unfinished", "status", ALL_KINDS, "tables.standard:unfinished"),
    Entry("regression_mnll", "scores", PREDICT, "tables.standard:regression_mnll"),
    Entry("regression_rmse", "scores", PREDICT, "tables.standard:regression_rmse"),
    Entry("classification_mnll", "scores", PREDICT, "tables.standard:classification_mnll"),
    Entry("classification_error", "scores", PREDICT, "tables.standard:classification_error"),
    Entry("counts_mnll", "scores", ON_REQUEST, "tables.standard:counts_mnll"),
    Entry("chance", "scores", ON_REQUEST, "tables.chance:chance"),
    Entry("ranks", "ranking", PREDICT, "tables.standard:rank_table"),
    Entry("bayes", "ranking", PREDICT, "tables.standard:bayes"),
    Entry("differences", "differences", ON_REQUEST, "tables.by_setting:differences"),
    Entry("features", "settings", ON_REQUEST, "tables.by_setting:features"),
    Entry("workers", "settings", ON_REQUEST, "tables.by_setting:workers"),
    Entry("p_values", "settings", ON_REQUEST, "tables.objectives:table"),
    Entry("scores_by_n", "settings", ON_REQUEST, "tables.by_setting:scores_by_n"),
    Entry("convergence", "convergence", PREDICT, "tables.convergence:convergence"),
    Entry("efficiency", "chains", SAMPLE, "tables.sampler_efficiency:efficiency"),
    Entry("convergence_order", "chains", SAMPLE, "tables.sampler_efficiency:convergence_order"),
    Entry("chains", "chains", ON_REQUEST, "tables.convergence:chains"),
    Entry("diagnostics", "chains", ON_REQUEST, "tables.convergence:functions"),
    Entry("preconditioners", "solvers", ON_REQUEST, "tables.preconditioners:preconditioners"),
    Entry("cost", "cost", ALL_KINDS, "tables.standard:cost"),
    Entry("all_metrics", "", ALL_KINDS, "tables.standard:all_metrics"),
)}
# fmt: on


def planned(where: Places, study: str, overrides: str) -> Plan:
    """The plan of a study, or of a run of one; UserError for figures and tables that do not exist, too."""
    from gpbench.study.planning import plan as planning

    plan = planning.make(where, *planning.study_words(where, study, overrides))
    for kind in ("figures", "tables"):
        names(asdict(plan.study), kind)
    return plan


def names(study: Mapping[str, Any], what: Literal["figures", "tables"]) -> tuple[str, ...]:
    """The `figures` or `tables` of a study: those that it requests, then those of every study of its kind.

    Raises UserError, with the nearest name, for one that is not registered."""
    registered = {"figures": FIGURES, "tables": TABLES}[what]
    require_known(what.removesuffix("s"), study[what], registered, f"{what} of study {study['name']!r}")
    always = [entry.name for entry in registered.values() if study["kind"] in entry.always_for]
    return tuple(dict.fromkeys([*study[what], *always]))
