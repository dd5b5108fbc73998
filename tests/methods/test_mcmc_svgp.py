"""MCMC-SVGP: the density against golden numbers and dense algebra, its samplers by Geweke, start, prediction.

Golden numbers were computed in dense NumPy, apart from this code, on the toy of gp_cases: at fixed theta the best q(u)
of the variational posterior is N(mean, sd^2) with TITSIAS_BOUND as its normaliser; with Z = X it is the GP's.
"""

import math

import numpy as np
import pytest
import torch
from gp_cases import (
    EVIDENCE,
    LENGTHSCALE,
    NOISE_VARIANCE,
    OUTPUTSCALE,
    TITSIAS_BOUND,
    X,
    Y,
    Z,
    flat_loss,
    hessian,
    keys,
    noise_size,
    split,
    training_set,
)
from scipy import optimize, stats

from gpbench.gp import likelihoods
from gpbench.methods import mcmc_svgp, svgp
from gpbench.methods.base import State
from gpbench.methods.mcmc_svgp import NOISE, Hyperparameters, Method, V
from gpbench.methods.training_rows import Batch
from gpbench.sampling.sghmc import flatten, unflatten

F64 = torch.float64
CLASSES = {"regression": 0, "binary": 2, "multiclass": 3, "counts": 0}
U_MEAN = torch.tensor([-0.991832, 0.0, 0.991832], dtype=F64)
U_SD = torch.tensor([0.195442, 0.174476, 0.195442], dtype=F64)


def method(task: str = "regression", **hyper) -> Method:
    settings = {"num_inducing": 3, "iterations": 30, "jitter": 1e-10, "leapfrogs": 4, "num_samples": 8}
    return Method(Hyperparameters(**settings | hyper), task, CLASSES[task])


def chains(m: Method, z: torch.Tensor = Z, replicas: int = 1, outputs: int = 1) -> State:
    """Chains of the toy at v = 0."""
    ones = torch.ones(replicas, dtype=F64)
    params = {
        V: torch.zeros(replicas, len(z), outputs, dtype=F64),
        "layer1.log_lengthscale": (LENGTHSCALE * ones[:, None]).log(),
        "layer1.log_outputscale": (OUTPUTSCALE * ones).log(),
    }
    if m.task == "regression":
        params[NOISE] = (NOISE_VARIANCE * ones).log()
    return m.chains(params, z.expand(replicas, -1, -1))


def targets(task: str) -> torch.Tensor:
    """Targets of the toy's rows `[5, 1]`."""
    return {"regression": Y, "binary": (Y > 0).to(F64), "counts": (2 + 2 * Y).round(), "multiclass": (1 + Y).round()}[
        task
    ]


def toy(task: str = "regression", replicas: int = 1) -> Batch:
    y = targets(task).expand(replicas, -1, -1)
    return Batch(X.expand(replicas, -1, -1), y, torch.ones(replicas, len(X), dtype=F64))


def log_joint(m: Method, state: State, batch: Batch, params=None) -> torch.Tensor:
    params = state.params | (params or {})
    return m.log_joint(params, m.projection(params, state.buffers[mcmc_svgp.Z], batch.x), batch)


def posterior(m: Method, state: State, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and covariance of v given theta, and log of the integral over v, of a Gaussian likelihood."""
    size = state.params[V].shape[1]

    def value(v):
        return log_joint(m, state, batch, {V: v.reshape(1, size, 1)})[0]

    zero = torch.zeros(size, dtype=F64, requires_grad=True)
    precision = -hessian(value, size)
    mean = torch.linalg.solve(precision, torch.autograd.grad(value(zero), zero)[0])
    # density and prior of v are without (2 pi)^(-M/2), the integral without (2 pi)^(M/2)
    log_integral = value(mean) - 0.5 * torch.logdet(precision) - m.log_prior(m.theta(state.params))[0]
    return mean, torch.linalg.inv(precision), float(log_integral)


def test_given_theta_the_density_is_the_variational_posterior():
    m = method()
    state = chains(m)
    mean, covariance, log_integral = posterior(m, state, toy())
    chol = m.layer(state.params, state.buffers[mcmc_svgp.Z]).chol_kzz[0]
    torch.testing.assert_close(chol @ mean, U_MEAN, rtol=0, atol=1e-6)
    torch.testing.assert_close((chol @ covariance @ chol.T).diagonal().sqrt(), U_SD, rtol=0, atol=1e-6)
    assert log_integral == pytest.approx(TITSIAS_BOUND, abs=1e-6)


def test_with_every_row_an_inducing_input_it_is_the_gp():
    m = method()
    state = chains(m, X)
    mean, _, log_integral = posterior(m, state, toy())
    assert log_integral == pytest.approx(EVIDENCE, abs=1e-6)
    k = OUTPUTSCALE * torch.exp(-0.5 * ((X - X.T) / LENGTHSCALE) ** 2)
    expected = k @ torch.linalg.solve(k + NOISE_VARIANCE * torch.eye(5, dtype=F64), Y[:, 0])
    chol = m.layer(state.params, state.buffers[mcmc_svgp.Z]).chol_kzz[0]
    torch.testing.assert_close(chol @ mean, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("task", ["binary", "counts"])
def test_the_bound_of_svgp_stays_below_the_log_integral(task):
    # one inducing input: the integral over v by quadrature; the bound at many q(v), the best of which is nearly as high
    z, m = torch.zeros(1, 1, dtype=F64), method(task)
    state = chains(m, z)
    v = torch.linspace(-8, 8, 4001, dtype=F64)
    values = log_joint(m, chains(m, z, len(v)), toy(task, len(v)), {V: v[:, None, None]})
    prior = m.log_prior(m.theta(state.params))[0]
    log_integral = float((values - prior).logsumexp(0) + (v[1] - v[0]).log() - 0.5 * math.log(2 * math.pi))
    other = svgp.Method(svgp.Hyperparameters(num_inducing=1, jitter=1e-10), task, CLASSES[task])
    mean, sd = torch.meshgrid(torch.linspace(-1, 2, 61), torch.linspace(0.1, 1.2, 23), indexing="ij")
    q = {
        "layer1.whitened_mean": mean.to(F64).reshape(-1, 1, 1),
        "layer1.whitened_chol": sd.to(F64).reshape(-1, 1, 1, 1),
    }
    grid = chains(m, z, mean.numel())
    params = m.theta(grid.params) | q | {mcmc_svgp.Z: grid.buffers[mcmc_svgp.Z]}
    best = -float(flat_loss(other, State(params), toy(task, mean.numel()), torch.empty(len(mean), 0)).min())
    assert best < log_integral < best + 0.02


@pytest.mark.parametrize("task", CLASSES)
def test_gradients_against_finite_differences(task):
    m = method(task)
    state, batch = chains(m, outputs=m.likelihood.num_outputs), toy(task)
    start = flatten(state.params)
    start = start + 0.3 * torch.from_numpy(np.random.default_rng(0).standard_normal(start.shape))

    def value(position):
        return log_joint(m, state, batch, unflatten(position, state.params))

    assert torch.autograd.gradcheck(value, start.requires_grad_())


@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_rows_in_chunks_are_the_rows_at_once(task, monkeypatch):
    m = method(task)
    state, batch = chains(m, outputs=m.likelihood.num_outputs, replicas=2), toy(task, 2)
    found = []
    for elements in (mcmc_svgp.CHUNK_ELEMENTS, 6):  # two rows of three inducing inputs
        monkeypatch.setattr(mcmc_svgp, "CHUNK_ELEMENTS", elements)
        leaf = flatten(state.params).requires_grad_()
        value = log_joint(m, state, batch, unflatten(leaf, state.params))
        found.append((value.detach(), *torch.autograd.grad(value.sum(), leaf)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_prior_is_a_gamma_of_theta():
    m = method(lengthscale_shape=2.0, lengthscale_rate=3.2)
    theta = {"layer1.log_lengthscale": torch.tensor([[0.3, -0.2]]), "layer1.log_outputscale": torch.tensor([0.7])}
    expected = stats.gamma(2, scale=1 / 3.2).logpdf(np.exp([0.3, -0.2])).sum() + 0.1  # + log theta: Jacobian
    expected += stats.gamma(1).logpdf(np.exp(0.7)) + 0.7
    constant = 2 * (2 * math.log(3.2) - math.lgamma(2))
    assert float(m.log_prior(theta)) == pytest.approx(expected - constant, abs=1e-5)


def test_draws_of_v_are_those_of_the_best_gaussian():
    m, replicas = method(), 1000
    state, batch = chains(m, replicas=replicas), toy(replicas=replicas)
    mean, covariance, _ = posterior(m, chains(m), toy())
    theta = m.theta(state.params)
    known = m.known_projection(theta, state.buffers[mcmc_svgp.Z], batch.x)
    v, rng = {V: state.params[V]}, np.random.default_rng(0)
    for _ in range(25):
        noise = torch.from_numpy(rng.standard_normal((replicas, 3 + 3)))
        v, _ = m.move(state, v, lambda v: m.log_joint(v | theta, known, batch), noise, 0, 10_000)
    draws = v[V][..., 0]
    error = (covariance.diagonal() / replicas).sqrt()
    assert ((draws.mean(0) - mean).abs() < 4 * error).all()
    scale = covariance.diagonal().sqrt()
    assert ((draws.T.cov() - covariance).abs() < 4 * math.sqrt(2 / replicas) * scale[:, None] * scale).all()


@pytest.mark.parametrize("sampler", ["joint", "gibbs"])
def test_getting_it_right(sampler):
    """geweke2004: a transition of (v, theta) given y, then y anew from its likelihood; with Z = X that is all of the
    model. Chains start from exact draws and are independent: an average over a chain is one observation."""
    m, chains_, steps, rng = method(sampler=sampler, jitter=1e-8), 5000, 12, np.random.default_rng(0)
    x = torch.tensor([-1.0, 0.0, 1.5], dtype=F64)[:, None]
    state, seen = m.chains(prior_draws(rng, chains_), x.expand(chains_, -1, -1)), []
    state.memory = state.memory | {
        f"{name}.averaged": torch.full((chains_,), math.log(size), dtype=F64)
        for name, size in (("hmc", 0.6), ("walk", 1.0))
    }
    for step in range(steps):
        y = simulate(m, state, x, rng)
        seen.append(bounded(m, state, x, y))
        batch = Batch(x.expand(chains_, -1, -1), y, torch.ones(chains_, 3, dtype=F64))
        noise = torch.from_numpy(rng.standard_normal((chains_, noise_size(m, state, 3))))
        before = flatten(state.params)
        m.step(state, batch, split(m, state, batch, noise), 100 + step, 100)  # of 100 steps all 30 of burn-in are over
        moved = (flatten(state.params) != before).double().mean(0)
        assert (moved > 0.2).all()
        assert (moved < 0.8).all()
    simulated = torch.stack(seen[1:]).mean(0)  # [functions, chains]
    fresh = m.chains(prior_draws(rng, 50_000), x.expand(50_000, -1, -1))
    direct = bounded(m, fresh, x, simulate(m, fresh, x, rng))
    error = (simulated.var(1) / chains_ + direct.var(1) / 50_000).sqrt()
    z = ((simulated.mean(1) - direct.mean(1)) / error).abs()
    assert float(z.max()) < stats.norm.isf(0.005 / len(z)), z


def prior_draws(rng, count: int) -> dict[str, torch.Tensor]:
    """v ~ N(0, I) of three inducing inputs, theta ~ Gamma(1, 1)."""
    logs = torch.from_numpy(np.log(rng.gamma(1.0, size=(3, count))))
    v = torch.from_numpy(rng.standard_normal((count, 3, 1)))
    return {V: v, "layer1.log_lengthscale": logs[0][:, None], "layer1.log_outputscale": logs[1], NOISE: logs[2]}


def values(m: Method, state: State, x: torch.Tensor) -> torch.Tensor:
    """f(X) = L v `[R, 3, 1]`."""
    return m.layer(state.params, state.buffers[mcmc_svgp.Z]).chol_kzz @ state.params[V]


def simulate(m: Method, state: State, x: torch.Tensor, rng) -> torch.Tensor:
    f = values(m, state, x)
    return f + state.params[NOISE].exp().sqrt()[:, None, None] * torch.from_numpy(rng.standard_normal(f.shape))


def bounded(m: Method, state: State, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Test functions of the joint law, none of which has a tail `[functions, R]`."""
    theta = torch.cat([value.reshape(len(y), -1) for value in m.theta(state.params).values()], 1)
    u = -torch.expm1(-theta.exp())  # the distribution function of Gamma(1, 1)
    h, w, t = (
        torch.tanh(values(m, state, x))[..., 0],
        torch.special.ndtr(state.params[V][..., 0]),
        torch.tanh(y)[..., 0],
    )
    parts = [u, u.square(), u[:, :1] * u[:, 1:], w, w.square(), h.square(), h * t, u * h.square(), u * t.square()]
    return torch.cat(parts, 1).T


def started(task: str = "regression", replicas: int = 1, rows: int = 5, **hyper):
    data = training_set(X, targets(task), [list(range(rows))] * replicas)
    m = method(task, **hyper)
    return m, data, m.start(data, keys(replicas))


def test_the_start_is_the_optimum_of_bound_and_prior():
    m, _, state = started(iterations=400, num_inducing=5)  # Z = X: the bound is the evidence

    def evidence(position):
        lengthscale, outputscale, noise = np.exp(position)
        k = outputscale * np.exp(-0.5 * ((X - X.T).numpy() / lengthscale) ** 2) + noise * np.eye(5)
        return stats.multivariate_normal(np.zeros(5), k).logpdf(Y[:, 0].numpy()) + (position - np.exp(position)).sum()

    best = -optimize.minimize(lambda position: -evidence(position), np.zeros(3)).fun
    assert best > evidence(np.zeros(3)) + 1
    assert evidence(flatten(m.theta(state.params))[0].numpy()) == pytest.approx(best, abs=0.01)


@pytest.mark.slow
def test_inducing_inputs_move_after_their_time_and_stay_in_the_chain():
    _, _, early = started(iterations=mcmc_svgp.FIXED)
    m, data, late = started(iterations=mcmc_svgp.FIXED + 20)
    z = late.buffers[mcmc_svgp.Z].clone()
    assert not torch.allclose(early.buffers[mcmc_svgp.Z], z)
    normals = torch.from_numpy(np.random.default_rng(0).standard_normal((1, noise_size(m, late, 5))))
    m.step(late, data.full(), split(m, late, data.full(), normals), 0, 10)
    assert torch.equal(late.buffers[mcmc_svgp.Z], z)


def test_every_row_is_an_inducing_input_where_as_many_are_asked_for():
    _, _, state = started(num_inducing=20, iterations=mcmc_svgp.FIXED + 20)
    torch.testing.assert_close(state.buffers[mcmc_svgp.Z][0].sort(0).values, X, rtol=0, atol=0)
    unlike = training_set(X, Y, [[0, 1, 2, 3, 4], [0, 1, 2, 3]])
    with pytest.raises(ValueError, match="5 inducing inputs are as many as the rows of some splits"):
        method(num_inducing=5).start(unlike, keys(2))


def test_chains_of_a_split_share_inducing_inputs_and_start_apart():
    data = training_set(X, Y, [list(range(5))] * 2)
    m = method()
    state = m.start(data, [keys(1)[0], keys(1)[0]._replace(replica=1)])
    torch.testing.assert_close(*state.buffers[mcmc_svgp.Z], rtol=1e-9, atol=1e-9)
    for name, value in m.theta(state.params).items():
        torch.testing.assert_close(value[0], value[1], rtol=1e-9, atol=1e-9, msg=name)
    assert not torch.allclose(state.params[V][0], state.params[V][1])


def test_the_predictive_averages_the_kept_states():
    m, _, state = started()
    rng, x = np.random.default_rng(0), torch.tensor([-0.7, 0.2, 3.0], dtype=F64)[None, :, None]
    kept = [
        {name: value + 0.3 * torch.from_numpy(rng.standard_normal(value.shape)) for name, value in state.params.items()}
        for _ in range(4)
    ]
    state.samples = {name: [params[name] for params in kept] for name in state.params}
    predictive = m.predict(state, x, keys(1)[0])
    z = state.buffers[mcmc_svgp.Z][0]
    for params, mean, variance in zip(kept, predictive.component_mean, predictive.component_variance, strict=True):
        lengthscale, outputscale, noise = (float(v) for v in flatten(m.theta(params)).exp()[0])
        k = lambda a, b: outputscale * torch.exp(-0.5 * ((a - b.T) / lengthscale) ** 2)  # noqa: B023, E731
        kzz = k(z, z) + 1e-10 * outputscale * torch.eye(3, dtype=F64)
        u = torch.linalg.cholesky(kzz) @ params[V][0]
        weights = torch.linalg.solve(kzz, k(z, x[0]))
        expected = outputscale - (weights * k(z, x[0])).sum(0) + noise
        np.testing.assert_allclose(mean, weights.T @ u, atol=1e-7)
        np.testing.assert_allclose(variance[:, 0], expected, atol=1e-7)


def test_functions_go_through_the_inducing_values():
    m, _, state = started(num_inducing=5)
    state.samples = {name: [value, 0.5 * value] for name, value in state.params.items()}
    z = state.buffers[mcmc_svgp.Z]
    (functions,) = m.functions(state, z, keys(1)[0])
    for params, f in zip(state.kept(), functions, strict=True):
        torch.testing.assert_close(f, m.layer(params, z).chol_kzz @ params[V], rtol=0, atol=1e-4)


@pytest.mark.parametrize("task", CLASSES)
@pytest.mark.parametrize("sampler", ["joint", "gibbs"])
@pytest.mark.slow
def test_single_precision_follows_double_precision(task, sampler):
    found = []
    for dtype in (F64, torch.float32):
        data = training_set(X.to(dtype), targets(task).to(dtype))
        m = method(task, sampler=sampler, jitter=1e-4)
        state = m.start(data, keys(1))
        state.params = {name: torch.full_like(value, 0.1) for name, value in state.params.items()}
        state.buffers[mcmc_svgp.Z] = Z[None].to(dtype)
        losses = []
        for step in range(4):
            normals = np.random.default_rng(step).standard_normal((1, noise_size(m, state, 5)))
            losses.append(
                m.step(state, data.full(), split(m, state, data.full(), torch.from_numpy(normals).to(dtype)), step, 10)
            )
        assert all(value.dtype == dtype for value in (*state.params.values(), *state.memory.values()))
        found.append(torch.stack(losses).double())
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sampler", ["joint", "gibbs"])
def test_the_objective_is_that_of_the_state_left(sampler):
    """So the density by which a walk of theta is accepted has the a_n of the theta that it goes to."""
    m, data, state = started(sampler=sampler)
    batch, seen = data.full(), []
    for step in range(15):
        before = state.params["layer1.log_lengthscale"]
        normals = np.random.default_rng(step).standard_normal((1, noise_size(m, state, 5)))
        objective = m.step(state, batch, split(m, state, batch, torch.from_numpy(normals)), step, 40)
        projection = m.projection(state.params, state.buffers[mcmc_svgp.Z], batch.x)
        torch.testing.assert_close(-objective, m.log_joint(state.params, projection, batch), rtol=1e-9, atol=1e-9)
        seen.append(bool((state.params["layer1.log_lengthscale"] != before).any()))
    assert any(seen)


def test_long_jumps_can_be_tuned_for():
    m, data, state = started(tuning="esjd", sampler="gibbs")
    assert m.tuner.penalty == 0
    assert method(tuning="esjd").tuner.penalty == 0.5
    assert (m.walk_unit, method(sampler="gibbs").walk_unit) == (3, 1)
    for step in range(20):
        normals = np.random.default_rng(step).standard_normal((1, noise_size(m, state, 5)))
        m.step(state, data.full(), split(m, state, data.full(), torch.from_numpy(normals)), step, 40)
    for name in ("hmc", "walk"):
        trials = state.memory[f"{name}.trials"]
        assert int((trials[0, :, 1] > 0).sum()) == 12  # burn-in
    assert (state.memory["walk.trials"][0, :12, 1] == 1).all()


def test_step_sizes_are_learnt_for_the_acceptances_of_hmc_and_of_a_walk():
    m = method(step_size=0.02, leapfrogs=7)
    assert (m.tuner.target, m.tuner.step_size, m.tuner.leapfrogs) == (0.8, 0.02, 7)
    assert (m.walk_tuner.target, m.walk_tuner.step_size) == (0.3, 0.02)


def test_exposure_is_for_counts():
    assert Hyperparameters(exposure=0.5).impossible("regression") == "exposure is for counts, not regression"
    assert Hyperparameters(exposure=0.5).impossible("counts") == Hyperparameters().impossible("binary") == ""
    assert isinstance(method("counts", exposure=0.5).likelihood, likelihoods.Poisson)
    assert method("counts", exposure=0.5).likelihood.log_exposure == math.log(0.5)
