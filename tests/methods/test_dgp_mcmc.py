"""The two-layer deep GP by MCMC: its target and its conditionals against dense algebra, its chains, its predictions."""

import math

import numpy as np
import pytest
import torch
from gp_cases import each, flat_loss, keys, noise_size
from mcmc_cases import JITTER, NOISE_VARIANCE, SCALES, bumps, chains, gram, hidden_of, method, prior, run
from torch.distributions import MultivariateNormal

from gpbench import streams
from gpbench.data.simulated import generators
from gpbench.methods import dgp_mcmc, dgp_rff
from gpbench.methods.base import State
from gpbench.methods.dgp_mcmc import Hyperparameters
from gpbench.sampling import diagnostics


def test_the_target_is_the_dense_one():
    data = bumps()
    state, m = chains(data), method()
    objective = run(m, data, state, 5)[0, -1]
    x, y, f1 = state.buffers["x"][0, :, 0], state.buffers["y"][0], hidden_of(state)[0]
    top = gram("layer2", f1, f1) + NOISE_VARIANCE * torch.eye(12, dtype=f1.dtype)
    log_marginal = MultivariateNormal(torch.zeros_like(y), top).log_prob(y)
    torch.testing.assert_close(state.memory["log_likelihood"][0], log_marginal, rtol=1e-10, atol=0)
    # the trace lacks the constants of log p(F1); F1 = L v is rounded, and L^-1 magnifies that by 1 / sqrt(jitter)
    log_prior = MultivariateNormal(torch.zeros_like(y), prior(x)).log_prob(f1)
    constant = 0.5 * torch.logdet(prior(x)) + 6 * math.log(2 * math.pi)
    torch.testing.assert_close(-objective, log_marginal + log_prior + constant, rtol=1e-8, atol=0)


def test_the_sign_of_the_hidden_function_changes_nothing():
    data = bumps(rows=[list(range(12))] * 2)
    state = chains(data)
    v = state.params["v"] * torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    value = dgp_mcmc.log_likelihood(v, state.buffers)
    assert value[0] == value[1]
    assert (v[0] != v[1]).all()


def test_chains_of_a_split_have_one_target_and_start_from_both_signs():
    data, m = bumps(rows=[list(range(12))] * 3), method(iterations=30)
    state = m.start(data, [key._replace(replica=r) for r, key in enumerate(keys(1) * 3)])
    for name in dgp_mcmc.COVARIANCE:
        for r in (1, 2):
            torch.testing.assert_close(state.buffers[name][0], state.buffers[name][r], rtol=1e-9, atol=1e-12)
    v = state.params["v"]
    assert v[0].abs().max() > 1e-3
    torch.testing.assert_close(v[0], -v[1], rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(v[0], v[2], rtol=1e-7, atol=1e-10)


def test_the_variational_fit_learns_and_its_hidden_function_is_that_of_its_draws():
    data, hyper = bumps(50), Hyperparameters(iterations=300)
    settings = dgp_rff.Hyperparameters(
        hidden_width=1, num_features=50, frequencies="prior_fixed", samples_train=200, samples_test=2000
    )
    rff = dgp_rff.Method(settings, "regression")
    state = rff.start(data, keys(1))
    noise = streams.normal(*keys(1), "noise", 0, (1, noise_size(rff, state, 50)), like=data.inputs)
    before = flat_loss(rff, state, data.full(), noise).item()
    state.params, hidden = dgp_mcmc.variational_fit(hyper, data, keys(1))
    assert flat_loss(rff, state, data.full(), noise).item() < before - 50
    draws = rff.functions(state, data.full().x, keys(1)[0])[0][:, 0, :, 0]
    assert ((draws.mean(0) - hidden[0]).abs() < 4.5 * draws.std(0) / math.sqrt(2000)).all()


def test_the_start_is_the_smoothed_function():
    state = chains(bumps())
    x = state.buffers["x"][0, :, 0]
    smoothed = prior(x) @ torch.linalg.solve(
        gram("layer1", x, x) + NOISE_VARIANCE * torch.eye(12, dtype=x.dtype), torch.sin(2 * x)
    )
    torch.testing.assert_close(hidden_of(state)[0], smoothed, rtol=1e-8, atol=1e-10)


def test_without_information_the_chain_returns_to_the_prior():
    # noise of variance 1e8 says nothing of F1: v is N(0, I), whatever it started from
    data, m = bumps(6, [list(range(6))] * 16), method(num_samples=2000, burn_in=0.1)
    state = chains(data, noise_variance=1e8)
    state.params["v"] = state.params["v"] + 3
    state.memory["log_likelihood"] = dgp_mcmc.log_likelihood(state.params["v"], state.buffers)
    run(m, data, state, 300)
    v = torch.stack(state.samples["v"], 1).numpy()
    for values, expected in ((v, 0.0), (v**2, 1.0)):
        ess = diagnostics.summary(values)["ess_bulk"]
        error = values.reshape(-1, 6).std(0) / np.sqrt(ess)
        assert (ess > 500).all()
        assert (np.abs(values.mean((0, 1)) - expected) < 4.5 * error).all()


@pytest.mark.slow
def test_the_chain_samples_the_posterior_of_a_grid():
    # two rows, so that p(v | y) can be summed over a grid; E f1 = 0 by symmetry, whatever the sign of the start
    data, m = bumps(2, [[0, 1]] * 32), method(num_samples=3000, burn_in=0.05)
    state = chains(data)
    run(m, data, state, 750)
    v = torch.stack(state.samples["v"], 1)
    grid = torch.linspace(-6, 6, 241, dtype=torch.float64)
    points = torch.cartesian_prod(grid, grid)
    one = {name: value[:1].expand(len(points), *value.shape[1:]) for name, value in state.buffers.items()}
    weight = (dgp_mcmc.log_likelihood(points, one) - 0.5 * points.square().sum(1)).softmax(0)
    f1, drawn = points @ state.buffers["chol"][0].T, v @ state.buffers["chol"][0].T
    for function in (lambda f: f[..., 0] ** 2, lambda f: f[..., 1] ** 2, lambda f: f.prod(-1), lambda f: f[..., 0]):
        expected, values = (weight * function(f1)).sum().item(), function(drawn).numpy()
        error = values.std() / np.sqrt(diagnostics.summary(values)["ess_bulk"])
        assert abs(values.mean() - expected) < 4 * error


def test_replicas_of_unequal_length_do_what_each_does_alone():
    rows = [list(range(12)), list(range(11)), list(range(2, 12))]
    x = torch.linspace(-3, 3, 7, dtype=torch.float64)[None, :, None].expand(3, -1, -1)
    together, m = chains(bumps(rows=rows)), method()
    trace = run(m, bumps(rows=rows), together, 40)
    predicted, drawn = (each(answer, together, x, keys(3)) for answer in (m.predict, m.functions))
    for r, own in enumerate(rows):
        data, key = bumps(rows=[own]), keys(3)[r]
        alone = chains(data)
        torch.testing.assert_close(run(m, data, alone, 40, first=r)[0], trace[r], rtol=1e-9, atol=1e-9)
        for one, other in zip(alone.samples["v"], together.samples["v"], strict=True):
            torch.testing.assert_close(one[0], other[r, : len(own)], rtol=1e-9, atol=1e-9)
            assert (other[r, len(own) :] == 0).all()
        one = m.predict(alone, x[:1], key)
        np.testing.assert_allclose(one.component_mean, predicted[r].component_mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(one.component_variance, predicted[r].component_variance, rtol=1e-9, atol=1e-9)
        for one, layer in zip(m.functions(alone, x[:1], key), drawn[r], strict=True):
            torch.testing.assert_close(one, layer, rtol=1e-9, atol=1e-9)


def test_the_bottom_layer_at_the_training_inputs_is_f1():
    data = bumps()
    state = chains(data)
    run(method(), data, state, 30)
    x = state.buffers["x"]
    bottom = dgp_mcmc.project(state.buffers, 1, state.buffers["chol"], x, x)
    # K L^-T v = (L L^T - jitter I) L^-T v
    jitter = JITTER * SCALES["layer1"][1]
    correction = jitter * torch.linalg.solve(state.buffers["chol"][0].T, state.params["v"][0])
    mean = dgp_mcmc.product(bottom, state.params["v"])[0]
    torch.testing.assert_close(mean + correction, hidden_of(state)[0], rtol=0, atol=1e-9)
    assert dgp_mcmc.marginal_variance(state.buffers, 1, bottom).max() <= jitter
    state.samples = {"v": [state.params["v"]] * 3}
    hidden, _ = method().functions(state, x, keys(1)[0])
    assert (hidden[:, 0, :, 0] - hidden_of(state)[0]).abs().max() < 6 * math.sqrt(2 * jitter) + correction.abs().max()


def dense_conditionals(state: State, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean `[T]` and covariance `[T, T]` of F1* given F1, by plain algebra."""
    train, f1 = state.buffers["x"][0, :, 0], hidden_of(state)[0]
    gain = torch.linalg.solve(prior(train), gram("layer1", train, x)).T
    return gain @ f1, gram("layer1", x, x) - gain @ gram("layer1", train, x)


@pytest.mark.slow
def test_layers_draw_from_the_dense_conditionals():
    data, draws = bumps(), 2000
    state = chains(data)
    run(method(), data, state, 30)
    state.samples = {"v": [state.params["v"]] * draws}
    x = torch.tensor([-2.5, 0.1, 2.8], dtype=torch.float64)
    f1_draws, f2_draws = (layer[:, 0, :, 0] for layer in method().functions(state, x[None, :, None], keys(1)[0]))
    mean, covariance = dense_conditionals(state, x)
    sd = covariance.diagonal().sqrt()
    assert ((f1_draws.mean(0) - mean).abs() < 4 * sd / math.sqrt(draws)).all()
    # the standard error of a covariance is at most sd_i sd_j sqrt(2 / draws)
    assert ((f1_draws.T.cov() - covariance).abs() < 4 * sd[:, None] * sd * math.sqrt(2 / draws) + 2 * JITTER).all()
    # F2 given F1*: standardised by its own dense conditional, it is white
    train, y = hidden_of(state)[0], state.buffers["y"][0]
    top = gram("layer2", train, train) + NOISE_VARIANCE * torch.eye(12, dtype=y.dtype)
    standardised = []
    for f1, f2 in zip(f1_draws, f2_draws, strict=True):
        gain = torch.linalg.solve(top, gram("layer2", train, f1)).T
        spread = gram("layer2", f1, f1) - gain @ gram("layer2", train, f1) + JITTER * torch.eye(3, dtype=y.dtype)
        chol = torch.linalg.cholesky(spread)
        standardised.append(torch.linalg.solve_triangular(chol, (f2 - gain @ y)[:, None], upper=False)[:, 0])
    white = torch.stack(standardised)
    assert (white.mean(0).abs() < 4 / math.sqrt(draws)).all()
    assert ((white.T.cov() - torch.eye(3, dtype=y.dtype)).abs() < 4 * math.sqrt(2 / draws)).all()


def test_predictions_see_the_spread_of_the_hidden_layer():
    """Mean and variance of F2 + noise, F1* integrated out by Gauss and Hermite's rule."""
    state, draws = chains(bumps()), 600
    state.samples = {"v": [state.params["v"]] * draws}
    x = torch.tensor([-2.8, 0.1, 2.9], dtype=torch.float64)
    found = method().predict(state, x[None, :, None], keys(1)[0])
    mean, covariance = dense_conditionals(state, x)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    train, y, weights = hidden_of(state)[0], state.buffers["y"][0], weights / weights.sum()
    top = torch.linalg.inv(gram("layer2", train, train) + NOISE_VARIANCE * torch.eye(12, dtype=y.dtype))
    for t in range(3):
        f1 = mean[t] + covariance[t, t].sqrt() * torch.from_numpy(nodes)
        cross = gram("layer2", train, f1)
        of_mean = (cross.T @ top @ y).numpy()
        within = SCALES["layer2"][1] - (cross * (top @ cross)).sum(0).numpy() + NOISE_VARIANCE
        spread = np.sqrt(weights @ of_mean**2 - (weights @ of_mean) ** 2)
        assert found.mean()[t, 0] == pytest.approx(weights @ of_mean, abs=4 * spread / math.sqrt(draws) + 1e-6)
        assert found.variance()[t, 0] == pytest.approx(weights @ within + spread**2, rel=0.1)


@pytest.mark.slow
def test_the_predictive_is_the_law_of_the_second_layer_and_the_noise():
    data, draws = bumps(), 1000
    state = chains(data)
    run(method(), data, state, 30)
    state.samples = {"v": [state.params["v"]] * draws}
    x = torch.tensor([-2.5, 0.1, 2.8], dtype=torch.float64)[None, :, None]
    predictive = method().predict(state, x, keys(1)[0])
    assert predictive.component_mean.shape == (draws, 3, 1)
    assert (predictive.component_variance > NOISE_VARIANCE).all()
    y = method().functions(state, x, keys(1)[0])[1][:, 0].numpy()
    sd = np.sqrt(predictive.variance() - NOISE_VARIANCE)
    assert (np.abs(predictive.mean() - y.mean(0)) < 4 * math.sqrt(2) * sd / math.sqrt(draws)).all()
    fourth = ((y - y.mean(0)) ** 4).mean(0)
    assert (np.abs(y.var(0) - sd**2) < 4 * np.sqrt(2 * (fourth - y.var(0) ** 2) / draws)).all()


def test_kept_states_are_the_thinned_ones_after_burn_in():
    m = method(num_samples=100, burn_in=0.1)
    kept = [step for step in range(1, 10_001) if m.keep(step, 10_000)]
    assert kept == list(range(1090, 10_001, 90))  # 10,000 transitions, burn-in 1,000, thinned by 90
    assert [step for step in range(1, 11) if m.keep(step, 10)] == list(range(2, 11))


@pytest.mark.slow
def test_two_modes_and_agreement_between_chains():
    # at the noise of the data the hidden function is known up to its sign
    data = bumps(50, [list(range(50))] * 2)
    m, state = method(num_samples=100), chains(data, noise_variance=0.01)
    state.params["v"] = state.params["v"] * torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    run(m, data, state, 1500)
    f1 = torch.stack([dgp_mcmc.hidden_values(v, state.buffers)[..., 0] for v in state.samples["v"]], 1)
    overlap = torch.nn.functional.cosine_similarity(f1, f1[0, 0], dim=-1)
    assert (overlap.abs() > 0.5).all()  # there are two modes ...
    assert ((overlap[:, 1:] * overlap[:, :-1] < 0).sum(1) > 10).all()  # ... and each chain changes between them
    x = torch.linspace(-1.8, 1.8, 9, dtype=torch.float64)[None, :, None].expand(2, -1, -1)
    one, other = each(m.predict, state, x, keys(2))  # both say the same of y
    h = generators.bump(generators.bump(x[0].numpy()))
    for predictive in (one, other):
        assert np.sqrt(((predictive.mean() - h) ** 2).mean()) < 0.1
    np.testing.assert_allclose(one.mean(), other.mean(), atol=0.1)


def test_single_precision_follows_double_precision():
    data64, data32 = bumps(), bumps(dtype=torch.float32)
    state64, state32 = chains(data64), chains(data32)
    trace64, trace32 = run(method(), data64, state64, 20), run(method(), data32, state32, 20)
    assert state32.params["v"].dtype == torch.float32
    torch.testing.assert_close(trace32.double(), trace64, rtol=1e-2, atol=1e-2)


def test_a_lost_chain_says_so_and_leaves_the_others_alone():
    data = bumps(rows=[list(range(12))] * 2)
    state, healthy, m = chains(data), chains(data), method()
    state.params["v"][0] = torch.nan
    trace, expected = run(m, data, state, 5), run(m, data, healthy, 5)
    assert trace[0].isnan().all()
    torch.testing.assert_close(trace[1], expected[1], rtol=0, atol=0)
