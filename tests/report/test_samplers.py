"""Figures and tables of samplers, and of classifiers by the number of training rows."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from figure_texts import texts
from matplotlib.figure import Figure
from scipy import stats
from synthetic_samplers import (
    CHAINS,
    CHECKPOINTS,
    CUBIC,
    RHO,
    build_estimates,
    build_samplers,
    build_sizes,
    build_weights,
)
from synthetic_study import all_done, build, change_scores

from gpbench.report.figures import calibration, chains, draw, r_hat
from gpbench.report.registry import TABLES
from gpbench.report.scorecard.one_run import scorecard
from gpbench.report.tables import sampler_efficiency
from gpbench.report.tables.by_setting import scores_by_n
from gpbench.report.tables.render import number
from gpbench.report.view import View
from gpbench.sampling import diagnostics

SAMPLERS = ("r_hat", "ess_per_operation", "chain_traces", "ranks")


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    return View(build_samplers(tmp_path_factory.mktemp("samplers") / "s"))


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    return View(build_sizes(tmp_path_factory.mktemp("sizes") / "s"))


def test_the_limit_of_two_chains_of_two_draws_by_hand():
    """(0, 2) and (2, 4): b = W = 2, so R-hat^2 = 1/2 + 3/2. Both variances are 2, so the limit has the 97.5 % quantile
    of chi-squared with one degree of freedom, 5.0239, before the second term."""
    limit = sampler_efficiency.upper_limit(np.sqrt(2.0), np.array([2.0, 2.0]), 2)
    assert limit**2 == pytest.approx(0.5 + 1.5 * 5.0239, rel=1e-5)


def test_the_limit_of_three_chains_has_the_quantile_of_a_table():
    """Variances 1, 2, 3: W = 2, var(W) = 1/3, v = 24; F(0.975; 2, 24) = 4.3187."""
    limit = sampler_efficiency.upper_limit(1.5, np.array([1.0, 2.0, 3.0]), 100)
    assert limit**2 == pytest.approx(0.99 + 4.3187 * (1.5**2 - 0.99), rel=1e-4)


def test_the_slowest_variable_speaks_for_a_split(view):
    found = sampler_efficiency.shrinkage(view).set_index(["dataset", "method", "split", "iteration"])
    assert len(found) == 2 * len(RHO) * 4 * len(CHECKPOINTS)
    prefixes = view.probe("prefixes").query("dataset == 'boston' and method == 'bsgp_2' and split == 1")
    rows = prefixes[prefixes["iteration"] == 800].groupby("quantity")
    ratio = (1 + 1 / CHAINS) * rows["mean"].var() / rows["variance"].mean()
    assert found.loc["boston", "bsgp_2", 1, 800]["r_hat"] == pytest.approx(np.sqrt(799 / 800 + ratio.max()))
    assert (found["upper"] >= found["r_hat"]).all()


def test_chains_that_are_longer_than_others_stand_alone_at_their_end(view, tmp_path):
    """Two chains of two variables are not four of one."""
    for path in view.folder.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    moments, last = view.probe("prefixes"), CHECKPOINTS[-1]
    keys = ["dataset", "method", "split"]
    short = pd.read_parquet(tmp_path / "prefixes.parquet")
    ended = moments.loc[moments["replica"] >= 2, "fit_id"]
    short[~(short["fit_id"].isin(ended) & (short["iteration"] == last))].to_parquet(tmp_path / "prefixes.parquet")
    found = sampler_efficiency.shrinkage(View(tmp_path)).query("iteration == @last").set_index(keys)["r_hat"]
    place, chains = next(iter(moments[(moments["iteration"] == last) & (moments["replica"] < 2)].groupby(keys)))
    mean, variance = (
        chains.sort_values("replica", kind="stable")[name].to_numpy().reshape(2, -1) for name in ("mean", "variance")
    )
    assert found[place] == np.nanmax(diagnostics.gelman_rubin(mean, variance, last))


def test_efficiency_says_what_draws_are_worth(view):
    table = TABLES["efficiency"].function(view)
    rows = table.shown[table.shown["data set"] == "boston"].set_index("method")
    assert list(rows["splits x chains"]) == ["4 x 4"] * 3
    assert list(rows["acceptance %"]) == ["70 / 25"] * 3
    assert ["✗ 4/4" in text for text in rows["min ESS"]] == [False, False, True]
    assert rows.loc["BSGP (2 layers)", "ESS per operation"] == "-", "it takes no operation of O(n^3)"
    data = table.data.set_index(["dataset", "method"]).loc[("boston", "bsgp_1")]
    assert data["ess_per_cubic"] == pytest.approx(data["ess_min"] / CUBIC["bsgp_1"])
    assert data["ess_min_sd"] > 0
    assert data["chains"] == 16
    medians = sampler_efficiency.shrinkage(view).query(
        "dataset == 'boston' and method == 'bsgp_1' and iteration == 2000"
    )
    assert data["r_hat_first_2000_kept"] == medians["r_hat"].median()
    slowest = sampler_efficiency.shrinkage(view).query("dataset == 'boston' and method == 'bsgp_2'")
    last = slowest.groupby("iteration")["r_hat"].median().map(number)[-4:]
    assert rows.loc["BSGP (2 layers)", "R-hat"] == ", ".join(last)


def test_chains_that_stay_at_different_values_have_an_infinite_r_hat(tmp_path):
    folder = build_samplers(tmp_path / "s", ["svgp"], ["boston"], 1)
    prefixes = pd.read_parquet(folder / "prefixes.parquet")
    prefixes.assign(mean=prefixes["fit_id"].str[-1].astype(float), variance=0.0).to_parquet(folder / "prefixes.parquet")
    for name in ("efficiency", "convergence_order"):
        assert set(TABLES[name].function(View(folder)).shown["R-hat"].iloc[0].split(", ")) == {"∞"}


def test_the_order_of_convergence_is_that_of_the_autocorrelations(view):
    table = TABLES["convergence_order"].function(view)
    assert list(table.shown["order"]) == ["1|2|3", "1|2|3"]
    assert list(table.shown["kept draws"]) == ["2000", "2000"]
    assert table.data["p"].max() <= 0.05
    assert len(table.data) == 6


def test_methods_that_are_not_told_apart_share_a_place(tmp_path):
    """Three splits of the same chains under two names tie."""
    folder = build_samplers(tmp_path / "s", ("svgp", "bsgp_1"), ("boston",), 3)
    moments = pd.read_parquet(folder / "prefixes.parquet")
    of_svgp = moments[moments["fit_id"].str.startswith("svgp")]
    copied = of_svgp.assign(fit_id=of_svgp["fit_id"].str.replace("svgp", "bsgp_1"))
    pd.concat([of_svgp, copied]).to_parquet(folder / "prefixes.parquet")
    assert list(TABLES["convergence_order"].function(View(folder)).shown["order"]) == ["1,2"]
    of = {"a": [], "b": []}, {"a": 1, "b": 2}
    orders = [sampler_efficiency._order(of[0], [("a", "b", 1.0, 1.1, p)], of[1]) for p in (0.05, 0.06)]
    assert orders == ["1|2", "1,2"]


def test_curves_of_r_hat_hold_the_medians(view):
    axis = draw(view, "r_hat").axes[0]
    found = sampler_efficiency.shrinkage(view).query("dataset == 'boston' and method == 'svgp'")
    medians = found.groupby("iteration")["r_hat"].median()
    np.testing.assert_allclose(axis.get_lines()[0].get_ydata(orig=False), np.maximum(medians - 1, 1e-3), rtol=1e-9)
    assert list(axis.get_lines()[0].get_xdata(orig=False)) == list(CHECKPOINTS)


def test_marks_of_ess_hold_the_means(view):
    fits = view.done.query("dataset == 'boston'").groupby("method", sort=False)
    raw, per_operation = (bars.lines[0] for bars in draw(view, "ess_per_operation").axes[0].containers)
    drawn = dict(zip(np.round(raw.get_ydata(orig=False)), raw.get_xdata(orig=False), strict=True))
    np.testing.assert_allclose([drawn[i] for i in range(3)], fits["ess_percent"].mean()[list(RHO)])
    assert len(raw.get_xdata(orig=False)) == 3
    drawn = per_operation.get_xdata(orig=False)
    expected = fits["ess_percent"].mean()[["svgp", "bsgp_1"]] / [CUBIC["svgp"], CUBIC["bsgp_1"]]
    np.testing.assert_allclose(np.sort(drawn)[::-1], expected)  # the third takes no such operation


def test_a_published_ess_is_an_open_mark_below_ours(tmp_path):
    folder = build_samplers(tmp_path / "s", ("svgp", "bsgp_1"), ("boston",), 2)
    row = {"source": "someone2020", "item": "Table 1", "dataset": "boston", "method_printed": "MH", "setting": ""}
    row |= {"metric_printed": "ESS", "protocol": "common", "scale": "", "spread": 2.0, "spread_kind": "sample sd"}
    row |= {"splits": 2, "data_sets": 1}
    row |= {"ours_method": "bsgp_1", "ours_metric": "ess_percent", "factor": 1.0, "reason": "", "note": ""}
    scorecard(View(folder), pd.DataFrame([row | {"value": 8.0, "study": ""}])).to_csv(
        folder / "scorecard.csv", index=False
    )
    axis = draw(View(folder), "ess_per_operation").axes[0]
    (mark,) = [bars.lines[0] for bars in axis.containers if bars.lines[0].get_fillstyle() == "none"]
    assert mark.get_xdata(orig=False) == [8.0]
    (ours,) = [bars.lines[0] for bars in axis.containers if bars.lines[0].get_marker() == "o" and bars.lines[0] != mark]
    assert 0.5 < ours.get_ydata(orig=False).max() < mark.get_ydata(orig=False)[0] < 1.5, "downwards"


def test_chains_of_every_sampler_have_a_row(view):
    figure = draw(view, "chain_traces")
    assert len(figure.axes) == 2 * len(RHO) * 3
    trace, acf, shrink = figure.axes[6:9]
    assert len(trace.get_lines()) == CHAINS
    assert len(acf.get_lines()) == CHAINS + 1
    assert acf.get_lines()[-1].get_xdata(orig=False)[1] == 2, "draws are thinned by two"
    assert shrink.get_title("right") == "✗ 4/4 splits"
    drawn = view.probe("draws").query("dataset == 'boston' and method == 'bsgp_2' and quantity == 'log lengthscale 1'")
    own = drawn[drawn["replica"] == 3]
    np.testing.assert_array_equal(trace.get_lines()[3].get_xydata(), own[["draw", "value"]])
    found = sampler_efficiency.shrinkage(view).query("dataset == 'boston' and method == 'bsgp_2'")
    medians = found.groupby("iteration")[["r_hat", "upper"]].median()
    for line, name in zip(shrink.get_lines(), ("r_hat", "upper"), strict=False):
        np.testing.assert_allclose(line.get_ydata(orig=False), np.clip(medians[name] - 1, 1e-3, 30))


def test_values_of_r_hat_beside_a_low_row_do_not_overlap(view):
    figure = draw(view, "chain_traces")
    figure.draw_without_rendering()
    for axis in figure.axes[2::3]:
        boxes = [label.get_window_extent() for label in axis.get_yticklabels()]
        shown = sorted((box for box in boxes if axis.bbox.y0 - 5 < box.y0 < axis.bbox.y1), key=lambda box: box.y0)
        assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(shown))


def test_chains_may_end_before_others():
    drawn = pd.DataFrame({"replica": [0] * 9 + [1] * 4, "draw": [*range(9), *range(4)], "value": [1.0, -1] * 6 + [0]})
    axis = Figure().subplots()
    chains._autocorrelation(axis, drawn)
    short, mean = (axis.get_lines()[i].get_ydata() for i in (1, 2))
    assert (np.isfinite(short).sum(), np.isfinite(mean).sum()) == (4, 9)


def test_autocorrelation_by_hand():
    np.testing.assert_allclose(chains.autocorrelation(np.array([1.0, -1, 1, -1]), 3), [1, -0.75, 0.5, -0.25])
    assert np.isnan(chains.autocorrelation(np.ones(5), 3)).all()


@pytest.mark.parametrize("name", SAMPLERS)
def test_nothing_finished_is_said(tmp_path, name):
    folder = build_samplers(tmp_path / "s", status=lambda *_: ("failed", "no memory"))
    assert "No chains" in texts(draw(View(folder), name))
    assert TABLES["efficiency"].function(View(folder)).shown.empty


def test_a_curve_of_splits_ends_where_fewer_than_half_reach():
    """Straight lines to a degree of 1, 1/2 and 1/4."""
    curves = [(np.array([0.0, end]), np.array([0.0, end])) for end in (1.0, 0.5, 0.25)]
    mean = calibration.mean_curve(curves)
    degree = calibration.GRID[calibration.GRID <= 0.5]
    expected = (2 * degree + np.minimum(degree, 0.25)) / 3  # the shortest holds its last value
    np.testing.assert_allclose(mean[calibration.GRID <= 0.5], expected, atol=1e-12)
    assert np.isnan(mean[calibration.GRID > 0.5]).all()


def test_abstention_is_of_the_smallest_size(sizes):
    shown = texts(draw(sizes, "abstention"))
    assert "10 training rows, 4 splits" in shown
    assert "50 training rows" not in shown


@pytest.mark.parametrize("name", ["score_against_n", "abstention"])
def test_a_data_set_whose_scores_are_undefined_keeps_its_name(tmp_path, name):
    folder = build_sizes(tmp_path / "s", datasets=["banana"])
    change_scores(folder, auc=np.nan, accuracy=np.nan)
    pd.read_parquet(folder / "points.parquet").assign(y=1).to_parquet(folder / "points.parquet")
    figure = draw(View(folder), name)
    assert "undefined" in texts(figure)
    assert figure.axes[0].axison, "an axis that is off has no label"


def test_abstention_begins_with_the_scores_of_all_rows(sizes):
    """No probability of this study is within 0.2 of 1/2. The area is the share of pairs in the right order."""
    small = sizes.done.query("dataset == 'banana' and method == 'svgp' and n_train == 10")["fit_id"]
    fits = [points for _, points in sizes.points[sizes.points["fit_id"].isin(small)].groupby("fit_id")]
    accuracy = np.mean([(points["modal"] == points["y"]).mean() for points in fits])
    ordered = [
        stats.mannwhitneyu(*(points.loc[points["y"] == y, "p1"] for y in (1, 0))).statistic
        / ((points["y"] == 1).sum() * (points["y"] == 0).sum())
        for points in fits
    ]
    begins = [axis.get_lines()[0].get_ydata(orig=False)[0] for axis in draw(sizes, "abstention").axes[:2]]
    np.testing.assert_allclose(begins, [accuracy, np.mean(ordered)])


def test_rejection_begins_at_the_accuracy(tmp_path):
    view = View(build(tmp_path / "s", ["svgp"], ["digits"], 3))
    (axis,) = draw(view, "reject").axes
    points = view.points.assign(right=view.points["modal"] == view.points["y"])
    assert axis.get_lines()[0].get_ydata(orig=False)[0] == pytest.approx(
        points.groupby("fit_id")["right"].mean().mean()
    )


def test_scores_are_averaged_at_each_size(sizes):
    first, _, (bars,) = draw(sizes, "score_against_n").axes[0].containers[0].lines
    fits = sizes.done.query("dataset == 'banana' and method == 'svgp'").groupby("n_train")["accuracy"]
    np.testing.assert_allclose(first.get_ydata(orig=False), fits.mean())
    reach = [np.ptp(bar[:, 1]) / 2 for bar in bars.get_segments()]
    np.testing.assert_allclose(reach, [stats.sem(values) for _, values in fits])
    table = scores_by_n(sizes)
    row = table.shown.query("`data set` == 'banana' and rows == 50 and metric == 'accuracy'").iloc[0]
    assert row["SVGP"] == f"**{fits.mean()[50]:.3f} ± {fits.std()[50]:.3f} (4)**"
    assert row["Constant"].endswith("(4) <"), "worse by 0.1 at a noise of 0.01"
    data = table.data.query("dataset == 'banana' and n_train == 50 and metric == 'accuracy' and method == 'constant'")
    assert data["lower"].item() < data["difference"].item() < data["upper"].item() < 0
    of_size = sizes.done.query("dataset == 'banana' and n_train == 50").pivot(
        index="split", columns="method", values="accuracy"
    )
    expected = stats.ttest_rel(of_size["constant"], of_size["svgp"])
    found = data[["lower", "upper", "p"]].to_numpy()[0]
    assert found == pytest.approx([*expected.confidence_interval(), expected.pvalue])


def test_boxes_of_weights_hold_the_quartiles_of_all_chains_of_the_first_split(tmp_path):
    view = View(build_weights(tmp_path / "s"))
    (axis,) = draw(view, "weights").axes
    kept = view.probe("weights").query("split == 0")
    assert [label.get_text() for label in axis.get_xticklabels()] == ["class 0", "class 1"]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["source 0", "source 1"]
    boxes = [np.unique(box.get_path().vertices[:, 1]) for box in axis.patches]
    found = kept.groupby(["source", "class"])["weight"].quantile([0.25, 0.75])
    np.testing.assert_allclose(np.ravel([(low, high) for low, *_, high in boxes]), found)


def test_weights_of_kernels_stand_fold_by_fold(tmp_path):
    folder = tmp_path / "s"
    build(folder, ["svgp"], ["digits"], 2, all_done)
    learned = {"svgp-digits-0": [0.1, 0.9], "svgp-digits-1": [1.0, 0.0]}
    rows = [
        pd.DataFrame({"fit_id": fit, "source": ["GM", "WM"], "weight": weights}) for fit, weights in learned.items()
    ]
    pd.concat(rows).to_parquet(folder / "kernel_weights.parquet")
    (axis,) = draw(View(folder), "kernel_weights").axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["GM", "WM"]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "2"]
    heights = [[bar.get_height() for bar in bars] for bars in axis.containers]
    assert heights == [[0.1, 1.0], [0.9, 0.0]], "by source, then by fold"


def test_estimates_give_the_posterior_and_their_quantiles(tmp_path):
    """Mean and quantiles of log-normal estimates around a Gaussian likelihood, on the scale of an area of 1."""
    laplace, _, ep, _ = draw(View(build_estimates(tmp_path / "s")), "estimator").axes
    mean, prior, *limits = laplace.get_lines()
    x = mean.get_xdata()
    np.testing.assert_allclose(prior.get_ydata(), 0.7 * np.exp(x - 0.7 * np.exp(x)))  # exponential, of its logarithm
    posterior = np.exp(-((x + 1) ** 2) / 0.18) * prior.get_ydata()
    posterior /= np.trapezoid(posterior, x)
    np.testing.assert_allclose(mean.get_ydata(), posterior, rtol=0.03)  # 400 estimates: 0.1 / 20, six times
    for line, sd, z in zip(limits, (0.5, 0.5, 0.1, 0.1), (-1.96, 1.96, -1.96, 1.96), strict=True):
        ratio = np.log(line.get_ydata() / posterior)
        np.testing.assert_allclose(np.median(ratio), z * sd - sd**2 / 2, atol=0.1 * sd)
    assert len(ep.get_lines()) == 4, "one number of samples only"


def test_ranks_of_equal_chains_are_uniform_and_those_of_a_shifted_one_lean():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((3, 4000)) + np.array([[0.0], [0.0], [3.0]])
    drawn = pd.DataFrame({"replica": np.repeat(range(3), 4000), "value": values.ravel()})
    alike = chains.by_chain(drawn[drawn["replica"] < 2])
    assert all(share.mean() == pytest.approx(1) for share in alike.values())
    # 200 of 4,000 in each bin, of a hypergeometric law with half of the draws: sd 10
    assert all(np.abs(share - 1).max() < 4 * 10 / 200 for share in alike.values())
    assert alike[0] + alike[1] == pytest.approx(2)
    shifted = chains.by_chain(drawn)[2]
    assert shifted[-1] > 2.9
    assert shifted[0] == 0


def test_every_cell_has_its_ranks(view):
    figure = chains.ranks(view)
    shown = [axis for axis in figure.axes if axis.axison]
    assert len(shown) == 2 * len(RHO)
    assert all(len(axis.patches) == CHAINS + 1 for axis in shown)
    assert "boston, BSGP (2 layers)" in texts(figure)
    # as many draws, independent: 95 % of the shares of each chain lie in the band
    drawn = view.probe("draws").query("dataset == 'boston' and method == 'bsgp_2'")
    n, rng = int((drawn["quantity"] == drawn["quantity"].iloc[0]).sum()), np.random.default_rng(0)
    frames = (pd.DataFrame({"replica": np.arange(n) % CHAINS, "value": rng.standard_normal(n)}) for _ in range(200))
    shares = np.array([list(chains.by_chain(frame).values()) for frame in frames])
    band = shown[0].patches[0].get_extents().transformed(shown[0].transData.inverted())
    inside = np.mean((shares > band.y0 - 1e-9) & (shares < band.y1 + 1e-9))
    assert 0.95 - 4 * np.sqrt(0.05 * 0.95 / shares.size) < inside < 0.98, "a law of whole numbers has no 95 %"


def test_densities_are_those_of_the_first_number_of_all_chains(view):
    """Every chain is an autoregression with law N(0, 1), whatever its correlation; those of bsgp_2 start apart."""
    figure = draw(view, "densities")
    panels = figure.axes
    assert [line.get_marker() for line in figure.legends[0].legend_handles] == [""] * len(RHO), "as the curves"
    assert [axis.get_title("left").strip() for axis in panels] == ["boston", "banana"]
    assert [axis.get_xlabel() for axis in panels] == ["log lengthscale 1"] * 2
    for axis in panels:
        assert len(axis.lines) == len(RHO)
        for line in axis.lines[:2]:
            x, density = line.get_data()
            inside = np.abs(x) < 2
            np.testing.assert_allclose(density[inside], stats.norm.pdf(x[inside]), atol=0.06)


def test_samplers_without_a_common_number_have_no_density(view, tmp_path):
    folder = build_samplers(tmp_path / "s", datasets=("boston",), splits=1)
    drawn = pd.read_parquet(folder / "draws.parquet")
    drawn["quantity"] = drawn["fit_id"].str.split("-").str[0] + drawn["quantity"]
    drawn.to_parquet(folder / "draws.parquet")
    assert "no number that all samplers draw" in texts(draw(View(folder), "densities"))


def test_a_data_set_without_draws_has_no_density(tmp_path):
    folder = build_samplers(tmp_path / "s", datasets=("boston", "yacht"), splits=1)
    drawn = pd.read_parquet(folder / "draws.parquet")
    drawn[drawn["fit_id"].str.contains("boston")].to_parquet(folder / "draws.parquet")
    said = texts(draw(View(folder), "densities"))
    assert "no finished fit" in said
    assert "no number that all samplers draw" not in said


def test_tiles_are_shaded_and_numbered_by_medians_over_splits(view):
    rows = [("svgp", 0, 400, 1.05), ("svgp", 1, 400, 1.2), ("svgp", 2, 400, 1.9), ("svgp", 0, 800, 1.02)]
    rows += [("bsgp_1", 0, 400, 150.0), ("bsgp_1", 0, 800, 1.5)]
    r_hats = pd.DataFrame(rows, columns=["method", "split", "iteration", "r_hat"]).assign(dataset="boston")
    axis, without_chains = r_hat.tiles(view, r_hats).axes[:2]
    shades = np.ma.filled(axis.images[0].get_array().astype(float), np.nan)
    np.testing.assert_array_equal(shades, [[1, 0], [3, 2], [np.nan, np.nan]])
    assert [text.get_text() for text in axis.texts] == ["1.20", "1.02", ">99", "1.50"]
    assert axis.get_title("right") == "3 x 4 chains"
    assert without_chains.get_title("right") == "no split with several chains"
    assert without_chains.images[0].get_array().mask.all()
    assert without_chains.get_xlim() == axis.get_xlim()
