"""Bayesian comparisons against baycomp, a closed form and cases that have one answer."""

from dataclasses import asdict

import baycomp
import numpy as np
import pytest
from scipy import stats

from gpbench.errors import UserError
from gpbench.evaluation.compare import paired_difference
from gpbench.evaluation.practical import ROPES, Posterior, correlated_t_posterior, decision, signed_rank_posterior


def scores(n, shift, spread=0.02, seed=0):
    rng = np.random.default_rng(seed)
    b = rng.normal(size=n)
    return b + shift + spread * rng.normal(size=n), b


@pytest.mark.parametrize("runs", [1, 3])
def test_correlated_t_is_baycomp_where_folds_divide(runs):
    """Runs of ten-fold cross-validation: a tenth of the rows is tested."""
    a, b = scores(10 * runs, 0.008)
    found = correlated_t_posterior(a, b, 0.1, "mnll")
    # theirs are scores of which more is better
    expected = baycomp.two_on_single(-a, -b, rope=0.01, runs=runs)
    np.testing.assert_allclose([found.a_better, found.equal, found.b_better], expected, rtol=1e-9)
    assert min(expected) > 0.001, "a case in which all three have mass"


def test_correlated_t_by_hand():
    """Differences 1, 2, 3, 4; s^2 = 5/3, 20 % test rows: error^2 = (1/4 + 1/4) 5/3, three degrees of freedom."""
    found = correlated_t_posterior([1, 2, 3, 4, np.nan], [0, 0, 0, 0, 0], 0.2, "mnll")
    posterior = stats.t(3, loc=2.5, scale=np.sqrt(5 / 6))
    assert found.a_better == pytest.approx(posterior.cdf(-0.01), rel=1e-12)
    assert found.b_better == pytest.approx(posterior.sf(0.01), rel=1e-12)


def test_posterior_and_interval_share_their_error():
    """A 90 % interval that ends at the ROPE leaves 5 % of the posterior below it."""
    a, b = scores(12, 0.05)
    interval = paired_difference(a, b, 0.1, level=0.9)
    shifted = correlated_t_posterior(a - interval.lower + 0.01, b, 0.1, "mnll")
    assert shifted.b_better == pytest.approx(0.95, rel=1e-9)


def test_without_variation_nothing_is_decided_but_that_equal_scores_are_equal():
    """Two splits of 35 test rows show the same difference of two errors by chance."""
    b = np.zeros(2)
    assert correlated_t_posterior(b, b, 0.1, "error") == Posterior(0.0, 1.0, 0.0)
    assert decision(correlated_t_posterior(b + 2 / 35, b, 0.1, "error")) == "undecided"


def test_rmse_is_compared_by_ratio():
    a, b = scores(10, 0.0)
    a, b = 2 + a / 10, 2 + b / 10
    thousandfold = correlated_t_posterior(1000 * a, 1000 * b, 0.1, "rmse")
    assert asdict(thousandfold) == pytest.approx(asdict(correlated_t_posterior(a, b, 0.1, "rmse")))
    assert signed_rank_posterior(1.009 * b, b, "rmse").equal > 0.95
    assert signed_rank_posterior(1.02 * b, b, "rmse").b_better > 0.95
    assert np.isfinite(ROPES["rmse"].scale([0.0, 1.0])).all()


def test_signed_rank_distinguishes_better_equal_and_worse():
    a, b = scores(13, 0.0, spread=0.001)
    assert signed_rank_posterior(a, b, "mnll").equal > 0.95
    assert signed_rank_posterior(a - 0.1, b, "mnll").a_better > 0.95
    assert signed_rank_posterior(a + 0.1, b, "mnll").b_better > 0.95


@pytest.mark.parametrize("shift", [0.0, 0.01, 0.02])
def test_signed_rank_is_baycomp(shift):
    """Within four standard errors of two times 20,000 draws."""
    a, b = scores(13, shift)
    found = signed_rank_posterior(a, b, "mnll", draws=20_000)
    expected = baycomp.two_on_multiple(-a, -b, rope=0.01, nsamples=20_000, random_state=0)
    error = np.sqrt(2 * np.multiply(expected, np.subtract(1, expected)) / 20_000)
    assert (np.abs(np.subtract([found.a_better, found.equal, found.b_better], expected)) <= 4 * error + 1e-3).all()
    assert sum(p > 0.01 for p in expected) >= 2, "not a trivial case"


def test_signed_rank_mirrors_and_repeats():
    a, b = scores(13, 0.01)
    found, mirrored = signed_rank_posterior(a, b, "mnll"), signed_rank_posterior(b, a, "mnll")
    assert found == Posterior(mirrored.b_better, mirrored.equal, mirrored.a_better)
    assert found == signed_rank_posterior(a, b, "mnll")
    assert found.a_better + found.equal + found.b_better == pytest.approx(1)
    assert 0.05 < found.b_better < 0.95, "not a trivial case"


def test_one_data_set_decides_nothing():
    assert decision(signed_rank_posterior([9.0], [1.0], "mnll")) == "undecided"


def test_missing_or_infinite_losses_are_refused():
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="finite losses"):
            signed_rank_posterior([1.0, bad], [1.0, 2.0], "mnll")
    with pytest.raises(UserError, match="at least 2 splits"):
        correlated_t_posterior([1.0, np.nan], [1.0, 2.0], 0.1, "mnll")


def test_a_decision_needs_the_stated_probability():
    assert decision(Posterior(0.95, 0.05, 0.0)) == "a_better"
    assert decision(Posterior(0.0, 0.96, 0.04)) == "equal"
    assert decision(Posterior(0.94, 0.06, 0.0)) == "undecided"


@pytest.mark.parametrize("rate", [0.05, 0.06, 0.07])
def test_differences_of_just_the_rope_lie_on_its_border_whatever_their_rounding(rate):
    """0.06 - 0.05 is below 0.01 in double precision, 0.07 - 0.06 is above it."""
    first, second = np.full(6, rate), np.full(6, rate + 0.01).round(2)
    exact = signed_rank_posterior(np.zeros(6), np.full(6, 0.01), "error")
    assert signed_rank_posterior(first, second, "error") == exact
    # half of the mass on the border, less than 1/2, against all the rest
    assert exact == Posterior(0.0, 1.0, 0.0)
