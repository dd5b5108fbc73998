import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from gpbench.gp import likelihoods

MEAN = torch.tensor([[[[0.3], [-1.2], [2.0]]]], dtype=torch.float64)  # [S, R, B, Q] = [1, 1, 3, 1]
VARIANCE = torch.tensor([[[[0.5], [0.1], [2.0]]]], dtype=torch.float64)
NOISE = torch.tensor([0.4], dtype=torch.float64)


def integral(g, mean: float, variance: float) -> float:
    """E g(f) for f ~ N(mean, variance), by adaptive quadrature."""
    sd = variance**0.5
    return quad(lambda f: g(f) * norm.pdf(f, mean, sd), mean - 12 * sd, mean + 12 * sd, epsabs=1e-12, limit=200)[0]


def test_gaussian_closed_forms_agree_with_quadrature():
    y = torch.tensor([[[0.1], [0.5], [-1.0]]], dtype=torch.float64)
    gaussian = likelihoods.Gaussian()
    bound = gaussian.expected_log_prob(y, MEAN, VARIANCE, NOISE)[0, 0]
    marginal = gaussian.log_expected_prob(y, MEAN, VARIANCE, NOISE)[0, 0]
    for b in range(3):
        target, mean, variance = float(y[0, b]), float(MEAN[0, 0, b]), float(VARIANCE[0, 0, b])
        density = lambda f, t=target: norm.pdf(t, f, 0.4**0.5)  # noqa: E731
        log_density = lambda f, t=target: norm.logpdf(t, f, 0.4**0.5)  # noqa: E731
        assert float(bound[b]) == pytest.approx(integral(log_density, mean, variance), abs=1e-9)
        assert float(marginal[b]) == pytest.approx(np.log(integral(density, mean, variance)), abs=1e-9)
    np.testing.assert_allclose(gaussian.log_prob(y, MEAN, NOISE)[0, 0], norm.logpdf(y, MEAN[0], 0.4**0.5)[0, :, 0])


def test_probit_integrals_agree_with_quadrature():
    y = torch.tensor([[[1.0], [0.0], [0.0]]], dtype=torch.float64)
    probit = likelihoods.BernoulliProbit()
    bound, marginal = (
        probit.expected_log_prob(y, MEAN, VARIANCE)[0, 0],
        probit.log_expected_prob(y, MEAN, VARIANCE)[0, 0],
    )
    for b, sign in enumerate([1, -1, -1]):
        mean, variance = float(MEAN[0, 0, b]), float(VARIANCE[0, 0, b])
        expected = integral(lambda f, s=sign: norm.logcdf(s * f), mean, variance)
        assert float(bound[b]) == pytest.approx(expected, abs=1e-6)
        expected = np.log(integral(lambda f, s=sign: norm.cdf(s * f), mean, variance))
        assert float(marginal[b]) == pytest.approx(expected, abs=1e-9)


def test_probit_stays_finite_in_the_tails():
    mean = torch.tensor([[[[-60.0], [60.0]]]], dtype=torch.float64, requires_grad=True)
    y, variance = (
        torch.ones(1, 2, 1, dtype=torch.float64),
        torch.zeros(1, 1, 2, 1, dtype=torch.float64, requires_grad=True),
    )
    value = likelihoods.BernoulliProbit().expected_log_prob(y, mean, variance)
    np.testing.assert_allclose(value.detach()[0, 0], norm.logcdf([-60.0, 60.0]), rtol=1e-6)
    value.sum().backward()
    assert mean.grad.isfinite().all()
    assert variance.grad.isfinite().all()


def classes():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(2, 1, 3, 4)), rng.uniform(0.2, 1.5, (2, 1, 3, 4))
    y = torch.tensor([[[0.0], [2.0], [3.0]]], dtype=torch.float64)
    return y, torch.as_tensor(mean), torch.as_tensor(variance)


def test_robustmax_probability_agrees_with_monte_carlo():
    y, mean, variance = classes()
    largest = likelihoods.RobustMax(4).prob_largest(y, mean, variance)
    f = mean + variance.sqrt() * torch.randn(200_000, 2, 1, 3, 4, generator=torch.Generator().manual_seed(0)).double()
    frequency = (f.argmax(-1) == y[..., 0].long()).double().mean(0)
    # standard error of a frequency is at most 0.5 / sqrt(200,000) = 0.0011
    torch.testing.assert_close(largest, frequency, rtol=0, atol=0.005)


def test_robustmax_probability_agrees_with_adaptive_quadrature():
    y, mean, variance = classes()
    largest = likelihoods.RobustMax(4).prob_largest(y, mean, variance)
    for s, b in np.ndindex(2, 3):
        m, sd, label = mean[s, 0, b].numpy(), variance[s, 0, b].sqrt().numpy(), int(y[0, b])
        others = [c for c in range(4) if c != label]
        below = lambda f, m=m, sd=sd, o=others: norm.cdf((f - m[o]) / sd[o]).prod()  # noqa: E731
        assert float(largest[s, 0, b]) == pytest.approx(integral(below, m[label], sd[label] ** 2), abs=1e-3)


@pytest.mark.parametrize("form", ["expected_log_prob", "log_expected_prob"])
def test_robustmax_gradient_agrees_with_finite_differences(form):
    y, mean, variance = classes()
    function = getattr(likelihoods.RobustMax(4), form)
    assert torch.autograd.gradcheck(lambda m, v: function(y, m, v), [mean.requires_grad_(), variance.requires_grad_()])


def test_robustmax_gradient_is_finite_where_a_class_has_no_chance():
    y = torch.zeros(1, 1, 1, dtype=torch.float64)
    mean = torch.tensor([[[[-80.0, 80.0, 0.0]]]], dtype=torch.float64, requires_grad=True)
    variance = torch.full((1, 1, 1, 3), 1e-3, dtype=torch.float64, requires_grad=True)
    value = likelihoods.RobustMax(3).expected_log_prob(y, mean, variance)
    assert float(value.detach()) == pytest.approx(np.log(1e-3 / 2))
    value.sum().backward()
    assert mean.grad.isfinite().all()
    assert variance.grad.isfinite().all()


def test_robustmax_is_the_limit_of_known_functions():
    y, f, _ = classes()
    robustmax = likelihoods.RobustMax(4)
    log_prob = robustmax.log_prob(y, f)
    zero = torch.zeros_like(f)
    torch.testing.assert_close(robustmax.expected_log_prob(y, f, zero), log_prob)
    torch.testing.assert_close(robustmax.log_expected_prob(y, f, zero), log_prob)


def test_softmax_is_a_log_softmax_and_asks_for_samples():
    y, f, variance = classes()
    softmax = likelihoods.Softmax(4)
    expected = torch.stack([f[:, :, b].log_softmax(-1)[..., int(y[0, b])] for b in range(3)], -1)
    torch.testing.assert_close(softmax.log_prob(y, f), expected)
    for form in (softmax.expected_log_prob, softmax.log_expected_prob):
        with pytest.raises(ValueError, match="sample f"):
            form(y, f, variance)
    with pytest.raises(ValueError, match="sample f"):
        softmax.predictive(f[:, 0], variance[:, 0])
    np.testing.assert_allclose(softmax.predictive(f[:, 0]).component_probs, f[:, 0].softmax(-1))


def test_predictive_of_a_gaussian_adds_the_noise():
    predictive = likelihoods.Gaussian().predictive(MEAN[:, 0], VARIANCE[:, 0], NOISE[0])
    np.testing.assert_allclose(predictive.variance(), VARIANCE[0, 0].numpy() + 0.4)


def test_predictive_probabilities_are_those_of_the_likelihood():
    y, mean, variance = classes()
    robustmax = likelihoods.RobustMax(4)
    probs = np.asarray(robustmax.predictive(mean[:, 0], variance[:, 0]).component_probs)
    for b in range(3):
        expected = robustmax.log_expected_prob(y, mean, variance)[:, 0, b].exp()
        np.testing.assert_allclose(probs[:, b, int(y[0, b])], expected, atol=1e-3)
    probs = np.asarray(likelihoods.BernoulliProbit().predictive(MEAN[:, 0], VARIANCE[:, 0]).component_probs)
    ones = torch.ones(1, 3, 1, dtype=torch.float64)
    expected = likelihoods.BernoulliProbit().log_expected_prob(ones, MEAN, VARIANCE)[0, 0].exp()
    np.testing.assert_allclose(probs[0, :, 1], expected)
    np.testing.assert_allclose(probs.sum(-1), 1.0)


def test_task_chooses_the_likelihood():
    assert isinstance(likelihoods.for_task("regression", 0), likelihoods.Gaussian)
    assert isinstance(likelihoods.for_task("binary", 2), likelihoods.BernoulliProbit)
    assert likelihoods.for_task("multiclass", 5).num_outputs == 5
    assert isinstance(likelihoods.for_task("multiclass", 5, multiclass="softmax"), likelihoods.Softmax)
    assert likelihoods.for_task("counts", 0, exposure=2.0).log_exposure == pytest.approx(np.log(2))
    with pytest.raises(ValueError, match="ranking"):
        likelihoods.for_task("ranking", 0)


def test_gaussian_expectation_and_its_gradient_are_those_of_its_formula():
    generator = torch.Generator().manual_seed(0)
    y, mean, variance, noise = (
        0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)
        for shape in [(2, 4, 2), (3, 2, 4, 2), (3, 2, 4, 2), (2,)]
    )
    leaves = [value.requires_grad_() for value in (mean, variance, noise)]
    by_formula = -0.5 * (
        ((y - mean).square() + variance) / noise[:, None, None] + (2 * torch.pi * noise[:, None, None]).log()
    )
    expected = likelihoods.Gaussian(2).expected_log_prob(y, *leaves)
    torch.testing.assert_close(expected, by_formula.sum(-1), rtol=1e-13, atol=1e-13)
    weight = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad((weight * value).sum(), leaves) for value in (expected, by_formula.sum(-1))]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
