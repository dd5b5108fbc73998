import gp_cases as cases
import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

from cases import CONF, composed
from gpbench.gp import linalg, sparse
from gpbench.gp.layers import layer
from gpbench.methods import chained_gp, svgp
from gpbench.methods.base import State
from gpbench.predictive.scale_mixtures import ScaleMixture

PROCESSES = ["heteroscedastic", "student_t"]
KEY = cases.keys(1)[0]


def method(likelihood: str, targets: int = 1, **settings) -> chained_gp.Method:
    small = {"num_inducing": 6, "likelihood": likelihood}
    return chained_gp.Method(chained_gp.Hyperparameters(**small | settings), "regression", num_targets=targets)


def problem(ours: chained_gp.Method, n: int = 12):
    """A state off its start, and all rows."""
    x, y = cases.problem("regression", n)
    y = torch.cat([y, 0.5 - y.square()], 1)[:, : ours.num_targets]
    data = cases.training_set(x, y)
    return cases.perturbed(ours.start(data, cases.keys(1)), 0.3), data.full()


def loss(ours, state, batch) -> torch.Tensor:
    return cases.flat_loss(ours, state, batch, torch.empty(1, 0).double())


def marginals(ours, state, x) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance `[B, Q]` of the latent functions."""
    with torch.no_grad():
        moments = sparse.conditional(x, layer(state.params, "layer1", ours.hyper.jitter))
    return tuple(moment[0].numpy() for moment in moments)


def divergence(state) -> float:
    """sum_h KL[q(v_h) || N(0, I)] by torch.distributions."""
    mean, chol = state.params["layer1.whitened_mean"][0], state.params["layer1.whitened_chol"][0].tril()
    total = 0.0
    for m, root in zip(mean.T, chol, strict=True):
        q = torch.distributions.MultivariateNormal(m, root @ root.T)
        prior = torch.distributions.MultivariateNormal(torch.zeros_like(m), torch.eye(len(m)).double())
        total += float(torch.distributions.kl_divergence(q, prior))
    return total


GRID = np.linspace(-9, 9, 151)
NORMAL = stats.norm.pdf(GRID) / stats.norm.pdf(GRID).sum()


def expected(ours, state, y, mean, variance) -> float:
    """E log p(y | f, g) of one row and target by a dense sum; mean, variance `[1 or 2]`, f first."""
    params, sd = {name: value.detach().numpy() for name, value in state.params.items()}, np.sqrt(variance)
    s = float(np.exp(params["log_noise_variance"][0]))
    f = mean[0] + sd[0] * GRID
    if ours.hyper.likelihood == "student_t":
        nu = 2 + float(np.exp(params["log_excess_freedom"][0]))
        return NORMAL @ stats.t.logpdf(y, nu, f, np.sqrt(s))
    g = mean[1] + sd[1] * GRID
    return NORMAL @ stats.norm.logpdf(y, f[:, None], np.sqrt(s * np.exp(g))) @ NORMAL


@pytest.mark.parametrize("likelihood", PROCESSES)
@pytest.mark.parametrize("targets", [1, 2])
def test_the_bound_is_that_of_a_dense_sum_over_f_and_g(likelihood, targets):
    ours = method(likelihood, targets)
    state, batch = problem(ours)
    mean, variance = marginals(ours, state, batch.x)
    terms = [
        expected(ours, state, float(batch.y[0, n, p]), mean[n, p::targets], variance[n, p::targets])
        for n in range(12)
        for p in range(targets)
    ]
    assert -float(loss(ours, state, batch)) == pytest.approx(sum(terms) - divergence(state), rel=1e-6)


@pytest.mark.parametrize("likelihood", PROCESSES)
@pytest.mark.slow
def test_the_best_bound_is_below_the_evidence_and_near_it(likelihood):
    """Four rows, Z at them: the evidence is the mean of p(y | f, g) over 400,000 draws from the prior."""
    ours = method(likelihood, num_inducing=4, noise_variance=0.2, inducing_start="rows")
    x, y = cases.problem("regression", 4)
    data = cases.training_set(x, y)
    state = ours.start(data, cases.keys(1))
    if likelihood == "heteroscedastic":  # the more is unknown of g, the more the factorised q loses
        state.params["layer1.log_outputscale"][:, 1] = -2.0
    state = cases.with_gradient(state)
    q = [value for name, value in state.params.items() if "whitened" in name]
    adam = torch.optim.Adam(q, lr=0.02)
    for _ in range(500):
        adam.zero_grad()
        loss(ours, state, data.full()).backward(inputs=q)
        adam.step()
    bound = -loss(ours, state, data.full()).item()
    kernel = layer(state.params, "layer1", 1e-6).kernel
    covariance = kernel.covariance(x.expand(1, *x.shape), x.expand(1, *x.shape)).detach().numpy().reshape(-1, 4, 4)
    rng = np.random.default_rng(0)
    f, *g = (rng.multivariate_normal(np.zeros(4), one, 400_000) for one in covariance)
    if likelihood == "student_t":
        log = stats.t.logpdf(y.numpy()[:, 0], 4.0, f, np.sqrt(0.2)).sum(1)
    else:
        log = stats.norm.logpdf(y.numpy()[:, 0], f, np.sqrt(0.2 * np.exp(g[0]))).sum(1)
    weight = np.exp(log)
    evidence, error = np.log(weight.mean()), weight.std() / weight.mean() / np.sqrt(len(weight))
    assert evidence - 0.2 < bound < evidence + 4 * error


def as_svgp(ours: chained_gp.Method, state: State) -> tuple[svgp.Method, State]:
    """`svgp` with what `ours` knows of f and of the noise."""
    params = {name: value for name, value in state.params.items() if name != "log_excess_freedom"}
    for name, value in params.items():
        if ours.num_outputs == 2 and name.startswith("layer1.") and name != "layer1.inducing_inputs":
            params[name] = value[..., :1] if name.endswith("mean") else value[:, :1]
    settings = {"num_inducing": 6, "separate": ours.hyper.separate}
    return svgp.Method(svgp.Hyperparameters(**settings), "regression"), State(params)


@pytest.mark.parametrize("likelihood", PROCESSES)
def test_a_noise_process_that_is_constant_gives_svgp(likelihood):
    """g of no variance at its prior, or nu = 10^9: bound, gradients and predictions."""
    ours = method(likelihood)
    state, batch = problem(ours)
    if likelihood == "student_t":
        state.params["log_excess_freedom"] = torch.tensor([9.0]).double() * np.log(10)
    else:
        state.params["layer1.log_outputscale"][:, 1] = -60.0
        state.params["layer1.whitened_mean"][..., 1] = 0.0
        state.params["layer1.whitened_chol"][:, 1] = torch.eye(6)
    plain, known = as_svgp(ours, state)
    nothing = torch.empty(1, 0).double()
    value, gradient = cases.loss_and_gradient(ours, state, batch, nothing)
    same, plain_gradient = cases.loss_and_gradient(plain, known, batch, nothing)
    torch.testing.assert_close(value, same, rtol=1e-6, atol=0)
    for name, one in as_svgp(ours, State(gradient))[1].params.items():
        if name != "layer1.inducing_inputs" or likelihood == "student_t":  # of g, its KL moves no Z
            torch.testing.assert_close(one, plain_gradient[name], rtol=1e-5, atol=1e-5)
    test = cases.problem("regression", 30)[0][None, 12:]
    here, there = ours.predict(state, test, KEY), plain.predict(known, test, KEY)
    y = there.mean() + 0.3
    np.testing.assert_allclose(here.log_prob(y), there.log_prob(y), rtol=1e-5)
    np.testing.assert_allclose(here.crps(y), there.crps(y), rtol=1e-5)


@pytest.mark.parametrize("likelihood", PROCESSES)
def test_predictive_density_is_the_integral_over_f_and_g(likelihood):
    """By SciPy's adaptive quadrature of p(y | f, g), also at 8 standard deviations; see below for those far off."""
    ours = method(likelihood)
    state, _ = problem(ours)
    x = cases.problem("regression", 3)[0]
    mean, variance = marginals(ours, state, x[None])
    predictive = ours.predict(state, x[None], KEY)
    s = float(state.params["log_noise_variance"].exp())
    for away in (0.0, 1.0, 8.0):
        y = predictive.mean() + away * np.sqrt(predictive.variance())
        for row in range(3):
            m, sd, at = mean[row], np.sqrt(variance[row]), float(y[row, 0])
            if likelihood == "student_t":
                nu = 2 + float(state.params["log_excess_freedom"].exp())

                def density(f, m=m, sd=sd, at=at, nu=nu):
                    return stats.t.pdf(at, nu, f, np.sqrt(s)) * stats.norm.pdf(f, m[0], sd[0])

                ends = m[0] - 12 * sd[0], m[0] + 12 * sd[0]
            else:

                def density(g, m=m, sd=sd, at=at):
                    noisy = np.sqrt(sd[0] ** 2 + s * np.exp(g))
                    return stats.norm.pdf(at, m[0], noisy) * stats.norm.pdf(g, m[1], sd[1])

                ends = m[1] - 12 * sd[1], m[1] + 12 * sd[1]
            exact = integrate.quad(density, *ends, epsabs=0, epsrel=1e-10, limit=400)[0]
            assert predictive.log_prob(y)[row, 0] == pytest.approx(np.log(exact), abs=1e-6)


@pytest.mark.parametrize("away", [12.0, 20.0, 40.0])
@pytest.mark.parametrize("sd", [0.05, 0.15, 0.6, 2.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_density_of_a_gross_outlier_is_the_integral_over_the_noise(away, sd, dtype):
    """Under noise that q(g) all but excludes; the integrand around its largest value, which SciPy finds."""
    moments = torch.tensor([[[[0.0, 0.3]]], [[[0.01, sd**2]]]], dtype=dtype)
    params = {"log_noise_variance": torch.zeros(1, dtype=dtype)}
    mean, variance, weights = chained_gp.Heteroscedastic().mixture(*moments, params)
    predictive = ScaleMixture(mean[0], variance[:, 0], weights)
    y = away * float(np.sqrt(predictive.variance()[0, 0]))

    def log_density(g: float) -> float:
        return stats.norm.logpdf(y, 0, np.sqrt(0.01 + np.exp(g))) + stats.norm.logpdf(g, 0.3, sd)

    peak = optimize.minimize_scalar(lambda g: -log_density(g), (0.3, 0.4)).x
    ends = peak - 9 * sd, peak + 9 * sd
    shape = integrate.quad(lambda g: np.exp(log_density(g) - log_density(peak)), *ends, epsabs=0, limit=400)[0]
    exact = log_density(peak) + np.log(shape)
    assert predictive.log_prob([[y]])[0, 0] == pytest.approx(exact, abs=1e-6 if dtype == torch.float64 else 1e-2)


@pytest.mark.slow
def test_each_process_finds_its_own_noise():
    """Of 400 rows in one dimension: log sd of the noise along x, and degrees of freedom and scale."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-3, 3, (400, 1)), 0)
    log_sd = -1.5 + np.sin(x)
    y = np.sin(2 * x) + np.exp(log_sd) * rng.normal(size=x.shape)
    ours = method("heteroscedastic", num_inducing=12)
    state, _ = cases.train(ours, cases.training_set(torch.tensor(x), torch.tensor(y)), 500)
    g, _ = (part[:, 1:] for part in marginals(ours, state, torch.tensor(x)[None]))
    found = 0.5 * (state.params["log_noise_variance"].item() + g)
    assert np.abs(found - log_sd).mean() < 0.25  # 0.6 for a constant

    y = np.sin(2 * x) + 0.2 * rng.standard_t(4, size=x.shape)
    ours = method("student_t", num_inducing=12)
    state, _ = cases.train(ours, cases.training_set(torch.tensor(x), torch.tensor(y)), 500)
    assert 0.15 < state.params["log_noise_variance"].exp().sqrt().item() < 0.25
    assert 2.5 < 2 + state.params["log_excess_freedom"].exp().item() < 8


@pytest.mark.parametrize("likelihood", PROCESSES)
def test_batched_is_looped_and_padding_changes_nothing(likelihood):
    cases.assert_batched_is_looped(method(likelihood), "regression")


@pytest.mark.parametrize("likelihood", PROCESSES)
def test_nan_stays_in_its_replica(likelihood):
    linalg.events()
    cases.assert_nan_stays_in_its_replica(method(likelihood), "regression")
    linalg.events()


@pytest.mark.parametrize("nu", [2.05, 3.0, 30.0])
def test_the_mixture_of_student_t_has_its_variance_however_heavy_its_tail(nu):
    log_r, weights = chained_gp.log_gamma(nu)
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    assert weights @ np.exp(-log_r) == pytest.approx(stats.t.var(nu), rel=1e-4)


def test_the_degrees_of_freedom_start_where_they_are_set():
    state = method("student_t", degrees_of_freedom=7.0).start(cases.training_set(cases.X, cases.Y), cases.keys(1))
    assert chained_gp.freedom(state.params).item() == pytest.approx(7)


def test_what_is_fixed_stays():
    assert method("student_t", fixed="all").frozen(0, 1) >= {"log_noise_variance", "log_excess_freedom"}
    assert "log_excess_freedom" not in method("student_t", fixed="kernel").frozen(0, 1)


def test_settings_that_make_no_sense_are_refused():
    refused = chained_gp.Hyperparameters(natural_gradients="all").impossible("regression")
    assert refused == "natural_gradients are for svgp and dsvi, not for likelihood heteroscedastic"
    assert chained_gp.Hyperparameters().impossible("regression") == ""


def test_presets():
    one, other = (composed(CONF, "method", name).hyper for name in ("heteroscedastic_gp", "student_t_gp"))
    assert (one.likelihood, one.separate) == ("heteroscedastic", "kernels")
    assert (other.likelihood, other.separate) == ("student_t", "none")
