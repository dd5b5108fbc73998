"""log int p(y | f)^power N(f; mean, variance) df of every likelihood, against quadrature by parts and in its limits."""

import numpy as np
import pytest
import torch
from scipy.stats import norm, poisson

from gpbench.gp import likelihoods

NOISE, EXPOSURE = 0.4, 2.5
POWERS = [1.0, 0.5, 0.1]
# name -> likelihood, noise variance, log p(y | f) by scipy, values of y
CASES = {
    "gaussian": (
        likelihoods.Gaussian(),
        torch.tensor([NOISE], dtype=torch.float64),
        lambda y, f: norm.logpdf(y, f, NOISE**0.5),
        [-1.0, 0.3, 4.0],
    ),
    "probit": (likelihoods.BernoulliProbit(), None, lambda y, f: norm.logcdf((2 * y - 1) * f), [0.0, 1.0]),
    "poisson": (
        likelihoods.Poisson(EXPOSURE),
        None,
        lambda y, f: poisson.logpmf(y, EXPOSURE * np.exp(f)),
        [0.0, 1.0, 4.0, 20.0],
    ),
}
MARGINALS = [(0.3, 0.5), (-2.0, 0.01), (1.0, 1.0)]


def call(name: str, form: str, y: float, mean: float, variance: float, *more) -> float:
    likelihood, noise, _, _ = CASES[name]
    one = [torch.full((1, 1, 1), y, dtype=torch.float64)]
    one += [torch.full((1, 1, 1, 1), value, dtype=torch.float64) for value in (mean, variance)]
    return float(getattr(likelihood, form)(*one, noise, *more))


def integral(g, mean: float, variance: float, edges=()) -> float:
    """E g(f) for f ~ N(mean, variance), g of arrays, by 40 Gauss-Legendre nodes between each two of many edges."""
    sd = variance**0.5
    edges = np.unique(np.concatenate([mean + sd * np.linspace(-9, 9, 37), edges]))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    half = np.diff(edges)[:, None] / 2
    f = edges[:-1, None] + half * (1 + nodes)
    return float((half * weights * g(f) * norm.pdf(f, mean, sd)).sum())


EVERY = [(name, y, *marginal) for name, case in CASES.items() for y in case[3] for marginal in MARGINALS]


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize(("name", "y", "mean", "variance"), EVERY)
def test_power_form_is_the_integral(name, y, mean, variance, power):
    log_prob = CASES[name][2]
    expected = np.log(integral(lambda f: np.exp(power * log_prob(y, f)), mean, variance))
    assert call(name, "log_power_prob", y, mean, variance, power) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("power", [0.9, *POWERS[1:], 0.01])
@pytest.mark.parametrize("variance", [10.0, 100.0, 1e4])
@pytest.mark.parametrize("mean", [-5.0, -2.0, 0.0, 3.0])
def test_power_form_of_the_probit_holds_at_large_variances(mean, variance, power):
    """20 nodes of Gauss and Hermite were off by 0.18 nats here."""
    expected = integral(lambda f: np.exp(power * norm.logcdf(f)), mean, variance, edges=np.linspace(-8, 8, 33))
    error = 1e-10 if variance / (1 + power * variance) <= 20 else 1e-4
    assert call("probit", "log_power_prob", 1.0, mean, variance, power) == pytest.approx(np.log(expected), abs=error)


@pytest.mark.parametrize(("variance", "error"), [(1.0, 2e-10), (10.0, 3e-4), (30.0, 6e-3), (100.0, 0.06)])
def test_the_stated_error_of_the_expected_log_probit(variance, error):
    found = []
    for mean in (-5.0, -2.0, -0.3, 0.0, 1.0, 3.0):
        exact = integral(norm.logcdf, mean, variance)
        found.append(abs(call("probit", "expected_log_prob", 1.0, mean, variance) - exact))
    assert error / 4 < max(found) < error


@pytest.mark.parametrize(("name", "y", "mean", "variance"), EVERY)
def test_expectation_is_the_integral(name, y, mean, variance):
    log_prob = CASES[name][2]
    expected = integral(lambda f: log_prob(y, f), mean, variance)
    assert call(name, "expected_log_prob", y, mean, variance) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("name", "y", "mean", "variance"), EVERY)
def test_limits_of_the_power(name, y, mean, variance):
    """Power 1 is the predictive density; power -> 0 the expectation, whose next term is power/2 Var(log p)."""
    there = call(name, "log_expected_prob", y, mean, variance)
    assert call(name, "log_power_prob", y, mean, variance, 1.0) == there
    power = 1e-7
    limit = call(name, "log_power_prob", y, mean, variance, power) / power
    assert limit == pytest.approx(call(name, "expected_log_prob", y, mean, variance), abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_limits_of_the_power_of_robustmax(num_classes):
    rng = np.random.default_rng(0)
    y = torch.as_tensor(rng.integers(0, num_classes, (1, 6, 1))).double()
    mean, variance = (torch.as_tensor(rng.uniform(0.5, 1, (2, 1, 6, num_classes))) for _ in range(2))
    robustmax = likelihoods.RobustMax(num_classes)
    limit = robustmax.log_power_prob(y, mean, variance, None, 1e-7) / 1e-7
    torch.testing.assert_close(limit, robustmax.expected_log_prob(y, mean, variance), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        robustmax.log_power_prob(y, mean, variance, None, 1.0), robustmax.log_expected_prob(y, mean, variance)
    )


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name):
    likelihood, noise, _, ys = CASES[name]
    y = torch.tensor(ys, dtype=torch.float64)[None, :, None]
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, 1, len(ys), 1, generator=generator, dtype=torch.float64, requires_grad=True)
    variance = torch.rand(2, 1, len(ys), 1, generator=generator, dtype=torch.float64).add(0.1).requires_grad_()
    for power in POWERS:
        function = lambda m, v, a=power: likelihood.log_power_prob(y, m, v, noise, a)  # noqa: E731
        assert torch.autograd.gradcheck(function, [mean, variance])


def test_targets_of_a_row_add_up():
    """Two targets of a Gaussian are independent given their two functions."""
    rng = np.random.default_rng(1)
    y, (mean, variance) = (
        torch.as_tensor(rng.normal(size=(1, 5, 2))),
        torch.as_tensor(rng.uniform(size=(2, 3, 1, 5, 2))),
    )
    noise = torch.tensor([NOISE], dtype=torch.float64)
    both = likelihoods.Gaussian(2).log_power_prob(y, mean, variance, noise, 0.5)
    each = [
        likelihoods.Gaussian().log_power_prob(
            y[..., i : i + 1], mean[..., i : i + 1], variance[..., i : i + 1], noise, 0.5
        )
        for i in range(2)
    ]
    torch.testing.assert_close(both, sum(each))


def test_poisson_integrals_hold_where_the_likelihood_is_narrow():
    """As stated: 1e-5 nats where y variance <= 20, 0.02 at 100; the errors at 100 are real, hence the lower bound."""
    for y, variance, error in ((20.0, 1.0, 1e-5), (200.0, 0.1, 1e-5), (100.0, 1.0, 0.02), (1000.0, 0.1, 0.02)):
        mean = np.log(y / EXPOSURE)
        expected = np.log(integral(lambda f, y=y: poisson.pmf(y, EXPOSURE * np.exp(f)), mean, variance))
        wrong = abs(call("poisson", "log_expected_prob", y, mean, variance) - expected)
        assert wrong < error
        assert error < 0.01 or wrong > 0.005


def test_poisson_predictive_scores_as_the_likelihood():
    mean, variance = (
        torch.rand(3, 4, 1, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (0, 1)
    )
    poisson_ = likelihoods.for_task("counts", 0, exposure=EXPOSURE)
    predictive = poisson_.predictive(mean, variance)
    for y in range(6):
        each = poisson_.log_expected_prob(torch.full((1, 4, 1), float(y)).double(), mean[:, None], variance[:, None])
        expected = each[:, 0].logsumexp(0) - np.log(3)
        np.testing.assert_allclose(predictive.log_prob(np.full((4, 1), y))[:, 0], expected, rtol=1e-10)
    lognormal = EXPOSURE * torch.exp(mean + variance / 2).mean(0)
    np.testing.assert_allclose(predictive.mean(), lognormal, rtol=1e-8)
