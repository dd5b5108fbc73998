"""BSGP against what is known in closed form: both objectives' evidence, posterior sds under SGHMC, the priors alone."""

import math

import pytest
import torch
from bsgp_cases import TOY_SD, log_likelihood, posterior_covariance, toy
from gp_cases import hessian, noise_size, split

from gpbench.gp import inducing_priors
from gpbench.methods.base import State
from gpbench.methods.bsgp import PRIOR_LOG_OUTPUTSCALE, Hyperparameters, Method
from gpbench.methods.training_rows import Batch
from gpbench.sampling import moving_window, sghmc
from gpbench.streams import Key

# the VFE posterior of u (means -.991832, 0, .991832; sds .195442, .174476, .195442) and its normaliser, the Titsias
# bound -8.979415 [closed form]
VFE_MEAN_U = torch.tensor([-0.991832, 0.0, 0.991832], dtype=torch.float64)
VFE_SD_U = torch.tensor([0.195442, 0.174476, 0.195442], dtype=torch.float64)

PARTS = ("whitened_values", "log_lengthscale", "log_outputscale")


def test_log_joint_of_vfe_integrates_to_the_titsias_bound():
    _, state, batch = toy()
    method = Method(Hyperparameters(num_inducing=3, jitter=1e-12, objective="vfe"), "regression")
    covariance = posterior_covariance(method, state, batch)
    chol = method.layers(state.params)[0].chol_kzz[0]
    of_u = chol @ covariance @ chol.T
    torch.testing.assert_close(of_u.diagonal().sqrt(), VFE_SD_U, rtol=0, atol=1e-6)
    v = torch.linalg.solve_triangular(chol, VFE_MEAN_U[:, None], upper=False)[:, 0]
    state.params["layer1.whitened_values"] = v.reshape(1, 3, 1)
    log_prior = -0.5 * (v.square() + math.log(2 * math.pi)).sum()
    evidence = log_likelihood(method, state, batch)[0] + log_prior + 0.5 * torch.logdet(2 * math.pi * covariance)
    assert evidence.item() == pytest.approx(-8.979415, abs=2e-6)


def test_objectives_agree_with_every_input_inducing_and_give_the_exact_evidence():
    # Z = X: both have the exact GP's posterior mean and normalise to its evidence -4.524859 [closed form]
    x = torch.linspace(-1, 1, 5, dtype=torch.float64).reshape(1, 5, 1)
    k = 1.3 * torch.exp(-0.5 * ((x[0] - x[0].T) / 0.6) ** 2)
    exact = k @ torch.linalg.solve(k + 0.05 * torch.eye(5, dtype=torch.float64), torch.sin(2 * x[0, :, 0]))
    found = {}
    for objective in ("fitc", "vfe"):
        _, state, batch = toy()
        method = Method(Hyperparameters(num_inducing=5, jitter=1e-12, objective=objective), "regression")
        state.params |= {"layer1.inducing_inputs": x, "layer1.whitened_values": x.new_zeros(1, 5, 1)}

        def value(v, method=method, state=state, batch=batch):
            moved = State(state.params | {"layer1.whitened_values": v.reshape(1, 5, 1)})
            return log_likelihood(method, moved, batch)[0] - 0.5 * v.square().sum()

        zero = torch.zeros(5, dtype=torch.float64)
        precision = -hessian(value, 5)
        mode = torch.linalg.solve(precision, torch.autograd.functional.jacobian(value, zero))
        torch.testing.assert_close(method.layers(state.params)[0].chol_kzz[0] @ mode, exact, rtol=0, atol=1e-8)
        found[objective] = (value(mode) - 0.5 * torch.logdet(precision)).item()  # the 2 pi of prior and mode cancel
    assert found["fitc"] == pytest.approx(-4.524859, abs=2e-6)
    assert found["vfe"] == pytest.approx(-4.524859, abs=2e-6)


def chain_sds(step_size: float) -> torch.Tensor:
    """Sds of v on the toy with exact gradients and preconditioner 1: 2,048 chains, 5 states 50 transitions apart."""
    chains, name = 2048, "layer1.whitened_values"
    method, state, batch = toy(chains)
    generator, kept = torch.Generator().manual_seed(1), []
    params, num_data = {name: state.params[name]}, torch.full((chains,), 5.0, dtype=torch.float64)
    memory = sghmc.init(params)
    for step in range(451):
        v = params[name].requires_grad_()
        potential = -method.log_joint(state.params | params, state.buffers, batch, torch.empty(0))
        (gradient,) = torch.autograd.grad(potential.sum(), v)
        noise = torch.randn(chains, 3, generator=generator, dtype=torch.float64)
        params, memory = sghmc.step(
            {name: v.detach()},
            {name: gradient},
            memory,
            noise,
            num_data,
            step_size=step_size,
            friction=0.05,
            adapt=False,
        )
        if step >= 250 and step % 50 == 0:
            kept.append(params[name][..., 0])
    return torch.cat(kept).std(0)


@pytest.mark.slow
def test_posterior_sds_are_within_five_percent_and_the_bias_of_the_step_is_the_closed_form():
    # 10,000 nearly independent states: standard error 0.7 % of a sd. With preconditioner 1 every eigendirection of the
    # posterior of v is a harmonic potential of its own, whose stationary variance `sampling.sghmc` states
    method, state, batch = toy()
    variance, directions = torch.linalg.eigh(posterior_covariance(method, state, batch))
    excess = {}
    for step_size in (0.1, 0.4):
        h = step_size**2 / (5 * variance)
        stationary = (directions.square() @ (variance / (1 - h / (2 * (2 - 0.05))))).sqrt()
        found = chain_sds(step_size)
        torch.testing.assert_close(found, stationary, rtol=0.03, atol=0)
        excess[step_size] = found / TOY_SD - 1
    assert excess[0.1].abs().max() < 0.05
    assert excess[0.4].min() > 0.06
    assert excess[0.4].mean() > 3 * excess[0.1].mean()


@pytest.mark.slow
def test_a_flat_likelihood_leaves_the_priors():
    # rows of weight 0: v ~ N(0, I), log lengthscale ~ N(0, 1), log outputscale ~ N(log 0.05, 1), Z ~ N(0, I)
    chains = 1000
    method, state, batch = toy(chains)
    flat = Batch(batch.x, batch.y, torch.zeros_like(batch.weight))
    generator = torch.Generator().manual_seed(0)
    params, num_data = method.sampled(state.params), torch.ones(chains, dtype=torch.float64)
    memory = sghmc.init(params)
    for step in range(500):
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        potential = -method.log_joint(state.params | leaves, {}, flat, torch.empty(0))
        gradient = dict(zip(leaves, torch.autograd.grad(potential.sum(), list(leaves.values())), strict=True))
        noise = torch.randn(chains, sghmc.flatten(params).shape[1], generator=generator, dtype=torch.float64)
        params, memory = sghmc.step(
            params, gradient, memory, noise, num_data, step_size=0.1, friction=0.05, adapt=step < 200
        )
    for name, value in params.items():
        draws = value.reshape(chains, -1)
        mean = math.log(0.05) if name.endswith("log_outputscale") else 0.0
        # the last states of independent chains; five standard errors
        assert (draws.mean(0) - mean).abs().max() < 5 / math.sqrt(chains), name
        assert (draws.std(0) - 1).abs().max() < 5 / math.sqrt(2 * chains), name


def test_a_mini_batch_stands_for_all_rows():
    """Five rows of weight 2 are ten rows: the same potential and the same N in the step, and so the same chain."""
    method, state, _ = toy(2)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64).expand(2, 5)[..., None]
    one = torch.ones(2, 5, dtype=torch.float64)
    whole = Batch(torch.cat([x, x], 1), torch.cat([x, x], 1), torch.cat([one, one], 1))
    ends = []
    for batch in (Batch(x, x, 2 * one), whole):
        chain = State(dict(state.params), state.buffers)
        chain.memory = sghmc.init(method.sampled(chain.params)) | moving_window.init(
            method.sampled(chain.params), method.optimised(chain.params), method.hyper.window
        )
        source = torch.Generator().manual_seed(0)
        for step in range(6):
            noise = torch.randn(2, noise_size(method, chain, 0), generator=source, dtype=torch.float64)
            method.step(chain, batch, split(method, chain, batch, noise), step, 10)
        ends.append(chain.params)
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("friction", [0.05, 0.4])
def test_a_step_after_burn_in_has_the_friction_set(friction):
    """p <- (1 - b) p - e^2 G + N(0, 2 b e^2 / N): from one place without momentum and noise, with p = 1, with noise."""
    _, state, batch = toy(3)
    method = Method(Hyperparameters(num_inducing=3, friction=friction, step_size=0.02), "regression")
    state.memory, before = sghmc.init(method.sampled(state.params)), sghmc.flatten(method.sampled(state.params))
    state.memory["momentum"][1] = 1.0
    noise = torch.zeros(3, noise_size(method, state, 5), dtype=torch.float64)
    noise[2, : 1 + before.shape[1]] = 1.0
    method.step(state, batch, split(method, state, batch, noise), 9, 10)
    without, with_momentum, with_noise = sghmc.flatten(method.sampled(state.params)) - before
    torch.testing.assert_close(with_momentum - without, torch.full_like(without, 1 - friction))
    torch.testing.assert_close(with_noise - without, torch.full_like(without, 0.02 * math.sqrt(2 * friction / 5)))


def test_hidden_values_are_a_sample_of_the_dense_conditional():
    method = Method(Hyperparameters(num_inducing=3, layers=2), "regression")
    x = torch.linspace(-1, 1, 6, dtype=torch.float64)[None, :, None]
    state = method.init(Batch(x, torch.sin(2 * x), torch.ones(1, 6, dtype=torch.float64)), Key("toy", "toy", 0))
    source = torch.Generator().manual_seed(0)
    for name, value in state.params.items():
        state.params[name] = value + 0.5 * torch.randn(value.shape, generator=source, dtype=torch.float64)
    eps = torch.randn(1, 1, 6, 1, generator=source, dtype=torch.float64)

    def conditional(name, f):
        z, v, lengthscale, scale = (state.params[f"{name}.{part}"][0] for part in ("inducing_inputs", *PARTS))
        zz, zx = (scale.exp() * (-0.5 * torch.cdist(z, to).square() / (2 * lengthscale).exp()).exp() for to in (z, f))
        root = torch.linalg.cholesky(zz + method.hyper.jitter * scale.exp() * torch.eye(3))
        a = torch.linalg.solve(root, zx)
        return a.mT @ v, (scale.exp() - a.square().sum(0))[:, None]

    mean, variance = conditional("layer1", x[0])
    expected = conditional("layer2", x[0] * state.buffers["layer1.mean_map"][0] + mean + variance.sqrt() * eps[0, 0])
    found = method.propagate(method.layers(state.params), state.buffers, x, eps)
    for ours, other in zip(found, expected, strict=True):
        torch.testing.assert_close(ours[0], other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("prior", ["normal", "dpp"])
def test_every_layer_has_its_priors(prior):
    method = Method(Hyperparameters(num_inducing=3, layers=3, hidden_width=2, prior=prior), "regression")
    x = torch.randn(1, 20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = method.init(Batch(x, x[..., :1], torch.ones(1, 20, dtype=torch.float64)), Key("toy", "toy", 0))
    source = torch.Generator().manual_seed(1)
    for name, value in state.params.items():
        state.params[name] = value + 0.3 * torch.randn(value.shape, generator=source, dtype=torch.float64)
    layers, expected = method.layers(state.params), torch.zeros(1, dtype=torch.float64)
    for number, layer in enumerate(layers, 1):
        parts = {part: state.params[f"layer{number}.{part}"] for part in PARTS}
        parts["log_outputscale"] = parts["log_outputscale"] - PRIOR_LOG_OUTPUTSCALE
        expected = expected - 0.5 * sum(value.square().sum() for value in parts.values())
        expected = expected + inducing_priors.log_prior(prior, layer.inducing_inputs, layer.chol_kzz)
    torch.testing.assert_close(method.log_prior(layers, state.params), expected, rtol=1e-12, atol=0)


def test_every_state_has_its_own_noise_in_the_hidden_layers():
    """Of two states that are the same, predictions differ where a hidden layer does not know its values, and only
    there."""
    x = torch.linspace(-1, 1, 20, dtype=torch.float64)[None, :, None]
    for layers in (1, 2):
        method = Method(Hyperparameters(num_inducing=3, layers=layers, outputscale=1.0, lengthscale=0.1), "regression")
        state = method.init(Batch(x, torch.sin(2 * x), torch.ones(1, 20, dtype=torch.float64)), Key("toy", "toy", 0))
        last = f"layer{layers}.whitened_values"
        state.params[last] = torch.ones_like(state.params[last])
        state.samples = {name: [value] * 2 for name, value in state.params.items()}
        one, other = method.predict(state, x, Key("toy", "toy", 0)).component_mean
        assert (abs(one - other).max() > 0.01) == (layers > 1)
