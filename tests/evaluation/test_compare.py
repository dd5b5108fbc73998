"""Comparison statistics against scipy, statsmodels, scikit-posthocs, enumeration and simulation."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from gpbench.errors import UserError
from gpbench.evaluation.compare import (
    PairedDifference,
    complete,
    friedman,
    holm,
    min_datasets,
    paired_difference,
    power_statement,
    rank_intervals,
    ranks,
    signed_rank_test,
    wilcoxon_holm,
)


def losses(datasets=12, methods=4, effect=0.0, seed=0):
    """Method j is worse than method 0 by j * effect, plus noise."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((datasets, methods)) + effect * np.arange(methods)
    names = [f"d{row}" for row in range(datasets)], [f"m{column}" for column in range(methods)]
    return pd.DataFrame(values, *names)


def test_ranks_share_ties():
    table = pd.DataFrame([[1.0, 2.0, 2.0], [3.0, 1.0, 2.0]], columns=list("abc"))
    assert ranks(table).to_numpy().tolist() == [[1.0, 2.5, 2.5], [3.0, 1.0, 2.0]]


def test_losses_that_differ_by_rounding_alone_tie():
    """Means of the same errors of five splits, in another order or of records that keep ten digits."""
    errors = [1 / 35, 2 / 35, 3 / 35, 5 / 35, 7 / 35]
    same = [np.mean(errors), np.mean(errors[::-1]), np.mean([float(f"{error:.10g}") for error in errors])]
    assert len(set(same)) > 1
    assert ranks(pd.DataFrame([[*same, 0.3, np.inf]])).to_numpy().tolist() == [[2.0, 2.0, 2.0, 4.0, 5.0]]
    table = wilcoxon_holm(pd.DataFrame([same, same[::-1]], columns=list("abc")))
    assert table["ties"].tolist() == [2, 2, 2]
    assert ranks(pd.DataFrame([[1.0, 1 + 1e-8]])).to_numpy().tolist() == [[1.0, 2.0]]


def test_differences_that_differ_by_rounding_alone_tie():
    """Error rates of 40 rows, five of which differ by one row for the one method and two for the other."""
    a, b = np.array([1, 2, 3, 4, 5, 7, 8]), np.array([2, 3, 4, 5, 6, 6, 7])
    assert len(set(np.abs(a / 40 - b / 40))) > 1
    assert signed_rank_test(a / 40 - b / 40) == signed_rank_test(a - b)


@pytest.mark.parametrize("unit", [1e-15, 1e9])
def test_ranks_do_not_depend_on_the_unit_of_the_losses(unit):
    table = pd.DataFrame([[1.0, 1 + 1e-10, 2.0], [3.0, 2.0, 1.0]], columns=list("abc"))
    assert ranks(unit * table).to_numpy().tolist() == [[1.5, 1.5, 3.0], [3.0, 2.0, 1.0]]
    difference = np.array([1.0, -2.0, 3.0, 3.0, 3 + 1e-8, -4.0])
    # sums of the ranks 1 to 6, of which 3, 4 and 5 are tied at 4
    signs = np.array(list(product((0, 1), repeat=6))) @ [1, 2, 4, 4, 4, 6]
    assert signed_rank_test(unit * difference) == 2 * (signs >= 1 + 3 * 4).mean()


def test_complete_drops_a_data_set_where_a_method_lacks_as_much():
    table = losses(3, 3)
    table.loc["d1", "m2"] = np.nan
    assert complete(table).shape == (2, 3)


def test_complete_drops_the_row_or_column_with_most_missing_cells():
    table = losses(5, 4)
    table["m3"] = np.nan
    table.loc["d2", "m1"] = np.nan
    table.loc["d4", :] = np.nan
    result = complete(table)
    pd.testing.assert_frame_equal(result, table.loc[["d0", "d1", "d3"], ["m0", "m1", "m2"]])
    pd.testing.assert_frame_equal(complete(losses()), losses())
    assert complete(losses() * np.nan).empty


def test_missing_cells_are_never_ranked():
    table = losses()
    table.iloc[0, 0] = np.nan
    for statistic in (ranks, friedman, wilcoxon_holm):
        with pytest.raises(UserError, match="missing cells"):
            statistic(table)


def test_friedman_is_scipys_and_its_f_is_the_variance_ratio_of_the_ranks():
    """Iman and Davenport's F is the F of a two-way analysis of variance of the ranks, computed here by hand."""
    table = losses(effect=0.5)
    result = friedman(table)
    expected = stats.friedmanchisquare(*table.to_numpy().T)
    assert (result.chi_squared, result.p_chi_squared) == pytest.approx((expected.statistic, expected.pvalue))
    rank, n, k = table.rank(axis=1).to_numpy(), 12, 4
    between = n * ((rank.mean(axis=0) - rank.mean()) ** 2).sum() / (k - 1)
    within = ((rank - rank.mean(axis=0)) ** 2).sum() / ((n - 1) * (k - 1))
    assert result.f == pytest.approx(between / within)
    assert result.p_f == pytest.approx(stats.f.sf(result.f, 3, 33))


def test_friedman_at_its_extremes():
    same_order = friedman(pd.DataFrame(np.tile([1.0, 2.0, 3.0], (6, 1))))
    assert (same_order.f, same_order.p_f) == (np.inf, 0.0)
    nearly = friedman(pd.DataFrame([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]))
    assert (nearly.chi_squared, nearly.f) == pytest.approx((3, 3)), "of at most 4"
    all_tied = friedman(pd.DataFrame(np.ones((6, 3))))
    assert (all_tied.chi_squared, all_tied.p_f) == (0.0, 1.0)
    with pytest.raises(UserError, match="at least 2 x 3"):
        friedman(losses(methods=2))


@pytest.mark.parametrize("n", [1, 5, 12, 30])
def test_signed_rank_without_ties_is_scipys_exact_test(n):
    difference = np.random.default_rng(n).standard_normal(n) + 0.3
    expected = stats.wilcoxon(difference, method="exact").pvalue
    assert signed_rank_test(difference) == pytest.approx(expected, rel=1e-10)


def test_signed_rank_with_ties_is_enumeration_of_signs():
    difference = np.array([1.0, -1.0, 2.0, 2.0, 2.0, -3.0, 0.0, 5.0, 5.0])
    rank = stats.rankdata(np.abs(difference[difference != 0]))
    sums = np.array([rank[np.array(signs) > 0].sum() for signs in product((-1, 1), repeat=8)])
    observed = rank[difference[difference != 0] > 0].sum()
    expected = 2 * min((sums <= observed).mean(), (sums >= observed).mean())
    assert signed_rank_test(difference) == pytest.approx(expected, rel=1e-12)
    assert signed_rank_test(np.zeros(4)) == 1.0
    with pytest.raises(ValueError, match="NaN"):
        signed_rank_test([1.0, np.nan])


def test_many_signed_rank_tests_at_once_are_the_single_ones():
    difference = np.random.default_rng(0).integers(-3, 4, size=(9, 12)).astype(float)
    assert (difference == 0).any(axis=0).any(), "a case with zeros and ties"
    np.testing.assert_array_equal(signed_rank_test(difference), [signed_rank_test(column) for column in difference.T])


def test_holm_is_statsmodels():
    p = np.random.default_rng(0).random(20) ** 3
    np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1])


def test_wilcoxon_holm_is_scikit_posthocs():
    import scikit_posthocs  # and seaborn with it, which every worker would import to collect this file

    table = losses(effect=0.8)
    pairs = wilcoxon_holm(table)
    melted = table.melt(var_name="method", value_name="loss")
    oracle = scikit_posthocs.posthoc_wilcoxon(melted, "loss", "method", method="exact", p_adjust="holm")
    expected = [oracle.loc[a, b] for a, b in zip(pairs["a"], pairs["b"], strict=True)]
    np.testing.assert_allclose(pairs["p_holm"], expected)
    assert (pairs["wins"] + pairs["ties"] + pairs["losses"] == 12).all()
    worst = pairs.set_index(["a", "b"]).loc[("m0", "m3")]
    assert worst["reject"]
    assert worst["median_difference"] == pytest.approx((table["m0"] - table["m3"]).median())


def test_wilcoxon_holm_keeps_the_family_wise_error():
    """Any rejection under the null counts; the bound is 4 standard errors over 300 tables."""
    errors = sum(wilcoxon_holm(losses(seed=seed))["reject"].any() for seed in range(300))
    assert errors / 300 <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 300)


def test_infinite_losses_rank_last_and_tie():
    table = pd.DataFrame({"a": [1.0, np.inf, 2.0], "b": [np.inf, np.inf, 3.0]})
    row = wilcoxon_holm(table).iloc[0]
    assert (row["wins"], row["ties"], row["losses"], row["p"]) == (2, 1, 0, 0.5)
    assert ranks(pd.DataFrame([[-np.inf, 1.0, np.inf, np.inf]])).to_numpy().tolist() == [[1, 2, 3.5, 3.5]]


@pytest.mark.parametrize(("k", "expected"), [(2, 6), (3, 7), (8, 11)])
def test_min_datasets_is_where_the_most_consistent_scores_are_first_rejected(k, expected):
    """k = 2: 2/2^6 = 0.031 <= 0.05 < 2/2^5, the textbook case."""
    assert min_datasets(k) == expected
    always_the_same_order = pd.DataFrame(np.tile(np.arange(k, dtype=float), (expected, 1)))
    assert not wilcoxon_holm(always_the_same_order[1:])["reject"].any()
    assert wilcoxon_holm(always_the_same_order)["reject"].any()


def test_a_p_value_of_just_alpha_is_rejected():
    """Five data sets of one sign have p = 2/2^5."""
    same_order = pd.DataFrame(np.tile([1.0, 2.0], (5, 1)))
    assert wilcoxon_holm(same_order, alpha=1 / 16)["reject"].tolist() == [True]
    assert min_datasets(2, alpha=1 / 16) == 5


def test_power_statement_tells_whether_there_are_enough_data_sets():
    assert "at least 11 data sets to reject anything; 7 cannot suffice" in power_statement(8, 7)
    assert "11 suffice" in power_statement(8, 11)


def test_rank_intervals_hold_the_mean_and_shrink_to_it_without_variation():
    table = rank_intervals(losses(effect=1.0), resamples=500)
    assert table.index[0] == "m0"
    assert table["mean_rank"].between(table["lower"], table["upper"]).all()
    assert (table["lower"] < table["upper"]).any()
    fixed = rank_intervals(pd.DataFrame(np.tile([1.0, 2.0], (6, 1))), resamples=50)
    np.testing.assert_allclose(fixed.to_numpy(), [[1, 1, 1], [2, 2, 2]])
    few = rank_intervals(pd.DataFrame(np.tile([1.0, 2.0], (5, 1))), resamples=50)
    assert few["mean_rank"].tolist() == [1, 2]
    assert few[["lower", "upper"]].isna().all(axis=None)


def test_rank_intervals_have_the_standard_error_of_a_mean():
    """Golden number: +-1.96 standard errors (divisor n) of the ranks, for many data sets."""
    table = losses(datasets=400)
    intervals = rank_intervals(table, resamples=4_000).loc["m0"]
    expected = 2 * 1.96 * ranks(table)["m0"].std(ddof=0) / np.sqrt(400)
    assert intervals["upper"] - intervals["lower"] == pytest.approx(expected, rel=0.1)


def test_paired_difference_by_hand():
    """Nadeau and Bengio: differences 1, 2, 3, 4; s^2 = 5/3; 10% test rows: factor 1/4 + 1/9; t_3(0.975) = 3.1824."""
    result = paired_difference([2, 4, 6, 8, np.nan], [1, 2, 3, 4, 5], test_fraction=0.1)
    error = np.sqrt((1 / 4 + 1 / 9) * 5 / 3)
    assert result.n == 4
    assert result.mean == 2.5
    assert result.upper - result.mean == pytest.approx(3.182446 * error, rel=1e-6)
    assert result.mean - result.lower == pytest.approx(3.182446 * error, rel=1e-6)
    assert result.p == pytest.approx(2 * stats.t(3).sf(2.5 / error))


def test_paired_difference_without_variation():
    assert paired_difference([1, 1], [1, 1], 0.1).p == 1.0
    assert paired_difference([2, 2], [1, 1], 0.1) == PairedDifference(1.0, -np.inf, np.inf, 1.0, 2)


@pytest.mark.parametrize(
    ("a", "fraction", "message"),
    [([1.0], 0.1, "at least 2 splits"), ([1.0, np.inf], 0.1, "finite losses"), ([1.0, 2.0], 1.0, "must lie in")],
)
def test_paired_difference_refuses_what_it_cannot_answer(a, fraction, message):
    with pytest.raises(UserError, match=message):
        paired_difference(a, np.where(np.isinf(a), a, 0), fraction)  # equal infinities are no difference of zero
