"""Bins and bands against scipy, and their stated probability under a calibrated predictive."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gpbench.evaluation.calibration import (
    binned,
    coverage,
    coverage_curve,
    expected_calibration_error,
    histograms,
    pit_histogram,
    reliability_curve,
)


def pit_counts(pit):
    points = pd.DataFrame({"pit": pit})
    return histograms(points, "regression")["pit"]["count"]


def test_the_band_of_a_pit_histogram_is_bonferroni_s():
    table = pit_histogram(pit_counts(np.linspace(0, 1, 200)), bins=10, level=0.9)
    lower, upper = stats.binom.interval(1 - 0.1 / 10, 200, 0.1)
    assert (table["lower"] == lower).all()
    assert (table["upper"] == upper).all()


def test_pit_histogram_counts_every_point_once():
    table = pit_histogram(pit_counts([0.0, 0.05, 0.1, 0.95, 1.0]), bins=10)
    assert table["count"].tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert table["left"].iloc[0] == 0
    assert (table["expected"] == 0.5).all()


def test_pit_band_is_simultaneous():
    """At most 5% of uniform samples leave the band anywhere; the bound is 4 standard errors over 400 samples."""
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(400):
        table = pit_histogram(pit_counts(rng.random(200)), bins=10, level=0.95)
        outside += not table["count"].between(table["lower"], table["upper"]).all()
    assert outside / 400 <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 400)


def test_pit_band_shows_overconfidence():
    pit = stats.norm.cdf(2 * np.random.default_rng(1).standard_normal(500))
    table = pit_histogram(pit_counts(pit))
    assert table["count"].iloc[0] > table["upper"].iloc[0]
    assert table["count"].iloc[-1] > table["upper"].iloc[-1]


def test_coverage_curve_counts_central_intervals():
    pit = np.random.default_rng(3).random(200)
    table = coverage_curve(pit_counts(pit))
    np.testing.assert_allclose(table["nominal"], np.linspace(0.05, 0.95, 19), rtol=1e-12)
    assert table["empirical"].tolist() == [coverage(pit, level) for level in table["nominal"]]
    assert coverage([0.25, 0.75, 0.5, 0.8], 0.5) == 0.75, "with the ends of the interval"


def test_reliability_curve_by_hand():
    table = reliability_curve(binned([0.55, 0.58, 0.95, 1.0], [True, False, True, True], bins=10))
    filled = table[table["count"] > 0]
    assert filled.index.tolist() == [5, 9]
    np.testing.assert_allclose(filled["confidence"], [0.565, 0.975])
    np.testing.assert_allclose(filled["fraction"], [0.5, 1.0])
    assert filled["count"].tolist() == [2, 2]
    assert table.loc[table["count"] == 0, ["confidence", "fraction"]].isna().all().all()
    expected = (2 * abs(0.5 - 0.565) + 2 * (1 - 0.975)) / 4
    assert expected_calibration_error([0.55, 0.58, 0.95, 1.0], [True, False, True, True], bins=10) == pytest.approx(
        expected
    )


def test_a_sum_of_weights_that_rounds_above_one_is_one():
    """As the distribution function of a mixture of weighted scales may, far out."""
    beyond = np.nextafter(1.0, 2.0)
    np.testing.assert_array_equal(pit_counts([0.5, beyond]), pit_counts([0.5, 1.0]))


def test_values_outside_the_unit_interval_are_refused():
    with pytest.raises(ValueError, match=r"lie in \[0, 1\]"):
        pit_counts([0.5, 1.2])
    with pytest.raises(ValueError, match=r"lie in \[0, 1\]"):
        binned([np.nan], [True])
