"""Data sets that are drawn from a formula."""

import numpy as np
import pytest
from scipy import stats

from gpbench.data.simulated import generators
from gpbench.errors import UserError


def test_composed_bumps_follow_their_law():
    x, y, names = generators.draw("composed_bumps")
    assert (x.shape, y.shape, names) == ((550, 1), (550,), ["x"])
    assert stats.kstest(x[:, 0], stats.uniform(-2, 4).cdf).pvalue > 0.01
    inner = 2 * x[:, 0] * np.exp(-(x[:, 0] ** 2))
    residual = y - 2 * inner * np.exp(-(inner**2))
    assert stats.kstest(residual, stats.norm(0, 0.1).cdf).pvalue > 0.01  # 0.01 is the variance
    assert abs(np.corrcoef(residual, x[:, 0])[0, 1]) < 4 / np.sqrt(550)


def test_the_bump_peaks_where_its_derivative_vanishes():
    # h'(x) = 2 (1 - 2 x^2) exp(-x^2) is 0 at 1 / sqrt 2, where h = sqrt(2 / e)
    assert generators.bump(np.array(0.5**0.5)) == pytest.approx((2 / np.e) ** 0.5)
    assert generators.bump(np.array(-0.3)) == -generators.bump(np.array(0.3))


def test_three_classes_are_gaussians_in_both_parts():
    """Class after class, training rows before test rows; covariances A A^T of the recipe by hand."""
    x, y, names = generators.draw("three_classes")
    assert (x.shape, names) == ((1500, 2), ["x0", "x1"])
    np.testing.assert_array_equal(y, np.tile(np.repeat([0, 1, 2], 250), 2))
    means = [(-1.0, -0.5), (1.0, 0.0), (0.0, 1.5)]
    covariances = [[[0.36, 0.3], [0.3, 1.06]], [[0.36, -0.3], [-0.3, 0.61]], [[1.96, 0.0], [0.0, 0.25]]]
    for number, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        white = np.linalg.solve(np.linalg.cholesky(covariance), (x[y == number] - mean).T)
        assert stats.kstest((white**2).sum(0), stats.chi2(2).cdf).pvalue > 0.01
        assert stats.kstest(np.arctan2(*white), stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 0.01


def test_numbers_are_the_same_each_time_and_have_nine_decimals():
    one, other = generators.draw("composed_bumps"), generators.draw("composed_bumps")
    for a, b in zip(one[:2], other[:2], strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, a.round(9))


@pytest.mark.parametrize(
    "drawn",
    [
        (np.zeros((4, 1)), np.zeros((2, 4)), ["x"]),
        (np.zeros((4, 1)), np.zeros(3), ["x"]),
        (np.zeros(4), np.zeros(4), ["x"]),
        (np.zeros((4, 2)), np.zeros(4), ["x"]),
        (np.zeros((4, 1)), np.zeros(4, bool), ["x"]),
    ],
)
def test_what_is_no_table_of_numbers_is_one_line(drawn, monkeypatch):
    monkeypatch.setitem(generators.GENERATORS, "wrong", lambda: drawn)
    with pytest.raises(UserError, match=r"'wrong': numbers x \[N, D\], y \[N\] or \[N, P\] and D names, not x \[4"):
        generators.draw("wrong")


def test_lists_are_arrays(monkeypatch):
    monkeypatch.setitem(generators.GENERATORS, "lists", lambda: ([[1.0], [2.0]], [0, 1], ["x"]))
    x, y, _ = generators.draw("lists")
    assert (x.tolist(), y.tolist()) == ([[1.0], [2.0]], [0, 1])


def test_an_unknown_generator_is_one_line():
    with pytest.raises(UserError, match="unknown simulated data set 'composed_bump'.*did you mean 'composed_bumps'"):
        generators.draw("composed_bump")
