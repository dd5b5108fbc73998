"""Derivatives by finite differences, information and samples by sums or Monte Carlo, predictives by quadrature."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from gpbench.gp import latent_likelihoods
from gpbench.gp.latent_likelihoods import Ordinal

F64 = torch.float64
CASES = {
    "logit": [0.0, 1.0],
    "probit": [0.0, 1.0],
    "poisson": [0.0, 1.0, 4.0, 30.0],
    "volatility": [0.0, -0.3, 2.5],
    "ordinal": [0.0, 1.0, 2.0, 4.0],
}
"""Name -> targets that are tried."""
F = torch.tensor([-6.0, -1.7, -0.2, 0.0, 0.9, 3.1], dtype=F64)


def pairs(name):
    y = torch.tensor(CASES[name], dtype=F64)
    return y[:, None].expand(-1, len(F)), F.expand(len(y), -1)


def likelihood(name):
    return latent_likelihoods.named(name, num_classes=5)


def slope(function, f, step=1e-4):
    """Central difference."""
    return (function(f + step) - function(f - step)) / (2 * step)


@pytest.mark.parametrize("name", CASES)
def test_derivatives(name):
    model, (y, f) = likelihood(name), pairs(name)
    for derivative, function in (
        (model.gradient(y, f), lambda f: model.log_prob(y, f)),
        (-model.curvature(y, f), lambda f: model.gradient(y, f)),
        (model.third(y, f), lambda f: -model.curvature(y, f)),
    ):
        torch.testing.assert_close(derivative, slope(function, f), rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("name", CASES)
def test_the_information_is_the_mean_curvature_and_the_mean_squared_gradient(name):
    model, count = likelihood(name), 200_000
    f = F.clamp(-3, 3)[:, None].expand(-1, count)
    uniform = torch.from_numpy(np.random.default_rng(0).random((len(F), count)))
    y, information = model.sample(f, uniform), model.information(F.clamp(-3, 3))
    for values in (model.curvature(y, f), model.gradient(y, f).square()):
        error = values.std(1) / math.sqrt(count)
        assert ((values.mean(1) - information).abs() <= 4 * error + 1e-12).all()


@pytest.mark.parametrize("name", ["logit", "probit", "poisson", "ordinal"])
def test_probabilities_sum_to_one_and_samples_have_them(name):
    model, f = likelihood(name), torch.full((400,), 0.7, dtype=F64)
    y = torch.arange({"poisson": 60, "ordinal": 5}.get(name, 2)).to(F64)
    mass = model.log_prob(y, torch.full_like(y, 0.7)).exp()
    assert float(mass.sum()) == pytest.approx(1, abs=1e-12)
    drawn = model.sample(f, (torch.arange(400).to(F64) + 0.5) / 400)
    share = torch.stack([(drawn == value).to(F64).mean() for value in y])
    torch.testing.assert_close(share, mass, rtol=0, atol=1 / 400)


def test_volatility_integrates_to_one():
    model = likelihood("volatility")
    total, _ = integrate.quad(
        lambda y: math.exp(model.log_prob(torch.tensor(y, dtype=F64), torch.tensor(0.4, dtype=F64))), -30, 30
    )
    assert total == pytest.approx(1, abs=1e-9)
    drawn = model.sample(torch.full((999,), 0.4, dtype=F64), torch.arange(1, 1000).to(F64) / 1000)
    assert float(stats.kstest(drawn.numpy(), stats.norm(scale=math.exp(0.4)).cdf).statistic) < 2e-3


def test_ordinal_probabilities_are_right_far_in_the_tails():
    # where torch's log Phi itself is good to 5e-9
    f = torch.tensor([-40.0, 40.0], dtype=F64)
    model, y = Ordinal(5), torch.tensor([4.0, 0.0], dtype=F64)
    ends = [(model.thresholds[4] - f[0]) / 0.5, (model.thresholds[1] - f[1]) / 0.5]
    expected = [stats.norm.logsf(float(ends[0])), stats.norm.logcdf(float(ends[1]))]
    np.testing.assert_allclose(model.log_prob(y, f), expected, rtol=1e-8)
    assert model.gradient(y, f).isfinite().all()
    assert (model.curvature(y, f) > 0).all()


@pytest.mark.parametrize("name", CASES)
def test_the_predictive_is_the_integral_over_f(name):
    model, mean, variance = likelihood(name), 0.4, 0.6
    y = CASES[name][-1] if name != "poisson" else 4.0
    expected, _ = integrate.quad(
        lambda f: (
            math.exp(model.log_prob(torch.tensor(y, dtype=F64), torch.tensor(f, dtype=F64)))
            * stats.norm.pdf(f, mean, math.sqrt(variance))
        ),
        -8,
        8,
        epsabs=1e-12,
    )
    predictive = model.predictive(torch.full((3, 1), mean, dtype=F64), torch.full((3, 1), variance, dtype=F64))
    target = np.array([y]) if name in ("logit", "probit", "ordinal") else np.array([[y]])
    # a Gaussian mixture of 20 points for volatility, quadrature or a closed form for the others
    tolerance = 0.02 if name == "volatility" else 1e-5
    assert float(np.exp(predictive.log_prob(target)).item()) == pytest.approx(expected, rel=tolerance)


def test_ordered_classes_are_nearly_equally_likely_a_priori():
    """At f ~ N(0, e^2), seen through noise of standard deviation 1/2, between thresholds that are fixed."""
    edges = math.e * stats.norm.ppf(np.linspace(0, 1, 6))
    expected = np.diff(stats.norm.cdf(edges, scale=math.sqrt(math.e**2 + 0.25)))
    zero = torch.zeros(1, 1, dtype=F64)
    found = likelihood("ordinal").predictive(zero, zero + math.e**2).probabilities()[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(found, 0.2, rtol=0.02)
