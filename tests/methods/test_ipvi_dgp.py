import math

import gp_cases as cases
import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from cases import Case, group
from gpbench.gp import kernels, linalg, sparse
from gpbench.methods import ipvi_dgp
from gpbench.methods.base import State
from gpbench.study.fitting import lightning_module

CLASSES = {"regression": 0, "binary": 2, "multiclass": 3}
DISCRIMINATOR = ("layer1.discriminator_weight", "layer1.discriminator_bias")


def method(task: str = "regression", **settings) -> ipvi_dgp.Method:
    small = {"num_inducing": 6, "num_samples": 5, "samples_test": 3, "outputscale": 0.8}
    return ipvi_dgp.Method(ipvi_dgp.Hyperparameters(**small | settings), task, CLASSES[task])


def problem(ours: ipvi_dgp.Method, n: int = 20):
    """A state off its start, all rows, and noise."""
    x, y = cases.problem(ours.task, n)
    data = cases.training_set(x, y)
    state = cases.perturbed(ours.start(data, cases.keys(1)))
    return state, data.full(), cases.noise_for(ours, state, [n])


def with_params(state: State, **params: torch.Tensor) -> State:
    """Names with _ for the dot."""
    return State(state.params | {k.replace("_", ".", 1): v for k, v in params.items()}, state.buffers)


def silent(state: State) -> State:
    """T = 0 in every layer."""
    zero = {k: torch.zeros_like(v) for k, v in state.params.items() if "discriminator" in k}
    return State(state.params | zero, state.buffers)


def generator_of(weights: torch.Tensor, inputs: torch.Tensor, bias: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"layer1_generator_weight": torch.cat([weights, inputs])[None], "layer1_generator_bias": bias[None]}


def test_moments_are_those_of_the_gaussian_that_a_linear_generator_draws_from():
    """v_mk ~ N((z_m C + b)_k, sum_j W_jk^2), to Monte Carlo error."""
    x, y = cases.problem("regression")
    ours = ipvi_dgp.Method(ipvi_dgp.Hyperparameters(num_inducing=6, outputscale=0.8), "regression", num_targets=2)
    rng = np.random.default_rng(1)
    w, c, b = (torch.as_tensor(rng.normal(size=shape)) for shape in ((2, 2), (3, 2), (2,)))
    state = with_params(ours.start(cases.training_set(x, y), cases.keys(1)), **generator_of(w, c, b))
    samples = 20_000
    e = torch.randn(1, samples, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, variance = ours.moments(state, "layer1", e, x[None])
    z = state.params["layer1.inducing_inputs"]
    kernel = kernels.read("rbf", state.params, "layer1.")
    chol = torch.linalg.cholesky(kernel.covariance(z, z) + 0.8e-6 * torch.eye(6))
    root = w.square().sum(0).sqrt()[:, None, None] * torch.eye(6)
    expected_mean, expected_variance = sparse.conditional(x[None], sparse.Layer(z, chol, z @ c + b, root[None], kernel))
    torch.testing.assert_close(mean, expected_mean, rtol=0, atol=float(5 * (expected_variance / samples).sqrt().max()))
    torch.testing.assert_close(variance, expected_variance, rtol=5 * (2 / samples) ** 0.5, atol=0)


def test_with_q_the_prior_no_discriminator_is_better_than_none():
    """The gradient of its cost at T = 0 is 1/2 sum_m E_q - E_p of (v, z, 1): zero for a generator that passes e on."""
    ours = method(num_samples=4000)
    state, batch, noise = problem(ours)
    passing = generator_of(torch.eye(1).double(), torch.zeros(3, 1).double(), torch.zeros(1).double())
    state = silent(with_params(state, **passing))
    _, gradient = cases.loss_and_gradient(ours, state, batch, noise)
    standard_error = 0.5 * (2 * 6 / 4000) ** 0.5
    assert abs(gradient[DISCRIMINATOR[0]][0, 0, 0]) < 4 * standard_error
    np.testing.assert_allclose(gradient[DISCRIMINATOR[0]][0, 1:], 0, atol=1e-12)
    np.testing.assert_allclose(gradient[DISCRIMINATOR[1]], 0, atol=1e-12)


def test_the_best_discriminator_is_the_log_density_ratio():
    """For q = N(b, 1): log q(v) / p(v) = b v - b^2 / 2, and E_q T the divergence b^2 / 2 of every inducing input."""
    bias, num_inducing = 0.8, 4
    ours = method(num_samples=5000, num_inducing=num_inducing)
    state, batch, noise = problem(ours, n=5)
    passing = generator_of(torch.eye(1).double(), torch.zeros(3, 1).double(), torch.tensor([bias]).double())
    state = cases.with_gradient(silent(with_params(state, **passing)))
    psi = [state.params[name] for name in DISCRIMINATOR]
    adam = torch.optim.Adam(psi, lr=0.1)
    for _ in range(120):
        for value, gradient in zip(
            psi, torch.autograd.grad(cases.flat_loss(ours, state, batch, noise).sum(), psi), strict=True
        ):
            value.grad = gradient
        adam.step()
    with torch.no_grad():
        divergence = cases.flat_loss(ours, state, batch, noise) - cases.flat_loss(ours, silent(state), batch, noise)
    # 20,000 draws from q and p each, with information s (1 - s) > 0.2 a draw: a standard error of 0.01
    assert psi[0][0, 0, 0].item() == pytest.approx(bias, abs=0.05)
    assert divergence.item() / num_inducing == pytest.approx(bias**2 / 2, abs=0.05)


def test_without_discriminator_the_loss_is_the_likelihood_of_the_moments():
    ours = method()
    state, batch, noise = problem(ours)
    e, _, hidden = ours._by_layer(state, cases.split(ours, state, batch, noise))
    mean, variance = ours.propagate(state, batch.x, e, hidden)
    sd = (variance + state.params["log_noise_variance"].exp()).sqrt()
    expected = -torch.distributions.Normal(mean, sd).log_prob(batch.y).sum()
    torch.testing.assert_close(cases.flat_loss(ours, silent(state), batch, noise)[0], expected)


def test_gradient_of_the_likelihood_agrees_with_finite_differences():
    ours = method(layers=2, num_inducing=2, num_samples=2)
    state, batch, noise = problem(ours, n=4)
    state = silent(state)
    names = [name for name in state.params if "discriminator" not in name]

    def loss(*values):
        params = state.params | dict(zip(names, values, strict=True))
        return cases.flat_loss(ours, State(params, state.buffers), batch, noise)

    assert torch.autograd.gradcheck(loss, [state.params[name].requires_grad_() for name in names], atol=1e-4)


def test_every_player_follows_its_own_objective_only():
    ours = method(layers=2)
    state, batch, noise = problem(ours)
    _, gradient = cases.loss_and_gradient(ours, state, batch, noise)
    _, alone = cases.loss_and_gradient(ours, silent(state), batch, noise)
    e, prior, _ = ours._by_layer(state, cases.split(ours, state, batch, noise))
    for number, name in enumerate(ours.names):
        p = {k.removeprefix(f"{name}."): v for k, v in state.params.items() if k.startswith(name)}
        z = p["inducing_inputs"][:, None].expand(-1, 5, -1, -1)
        drawn = torch.cat([e[number], z], -1) @ p["generator_weight"] + p["generator_bias"]
        # kernel and inducing inputs see no discriminator; for noise the same is checked below
        for part in ("inducing_inputs", "log_lengthscale", "log_outputscale"):
            torch.testing.assert_close(gradient[f"{name}.{part}"], alone[f"{name}.{part}"], rtol=1e-12, atol=1e-12)
        # the generator's gradient differs by that of sum_m E_q T, in closed form
        slope = p["discriminator_weight"][0, : drawn.shape[-1], 0]
        difference = {k: gradient[f"{name}.generator_{k}"] - alone[f"{name}.generator_{k}"] for k in ("weight", "bias")}
        torch.testing.assert_close(difference["bias"][0], 6 * slope)
        inputs = torch.cat([e[number], z], -1).mean(1).sum(1)
        torch.testing.assert_close(difference["weight"][0], inputs.T @ slope[None])
        # the discriminator's is that of the cross entropy, whatever the data
        psi = [p[f"discriminator_{k}"].clone().requires_grad_() for k in ("weight", "bias")]
        logits = [torch.cat([v, z], -1) @ psi[0] + psi[1] for v in (drawn, prior[number])]
        cost = sum(
            binary_cross_entropy_with_logits(part, torch.full_like(part, label), reduction="sum") / 5
            for part, label in zip(logits, (1.0, 0.0), strict=True)
        )
        for k, expected in zip(("weight", "bias"), torch.autograd.grad(cost, psi), strict=True):
            torch.testing.assert_close(gradient[f"{name}.discriminator_{k}"], expected)
    torch.testing.assert_close(gradient["log_noise_variance"], alone["log_noise_variance"], rtol=1e-12, atol=1e-12)


def test_every_player_moves_at_its_own_rate(tmp_path_factory):
    """Adam's first step is the rate, in the direction of the gradient."""
    rates = {"discriminator_rate": 0.03, "generator_rate": 0.002, "learning_rate": 0.01}
    case = Case("ipvi_dgp_2", "regression", tmp_path_factory, hyper=rates)
    fit = lightning_module.GradientFit(group(case.cell, 0), case.table, case.folder(), torch.device("cpu"))
    adam, before = fit.configure_optimizers(), {k: v.detach().clone() for k, v in fit.state.params.items()}
    fit.advance(*fit.draw(0), 0)
    assert {part["betas"] for part in adam.param_groups} == {(0.5, 0.999)}
    for name, value in fit.state.params.items():
        kind = next((k for k in ("discriminator", "generator") if k in name), "learning")
        moved = (value.detach() - before[name]).abs()
        np.testing.assert_allclose(moved, rates[f"{kind}_rate"], rtol=1e-3, err_msg=name)


def test_a_hidden_layer_that_adds_nothing_changes_nothing():
    deep, shallow = method(layers=2), method()
    state, batch, _ = problem(deep)
    vanishing = {"layer1.log_outputscale": torch.full((1,), -60.0).double()}
    state = State(state.params | vanishing, state.buffers)
    one = {k.replace("layer2", "layer1"): v for k, v in state.params.items() if not k.startswith("layer1")}
    e = [torch.randn(1, 5, 6, k, generator=torch.Generator().manual_seed(k), dtype=torch.float64) for k in (3, 1)]
    hidden = [torch.ones(1, 20, 3).double()]
    there = deep.propagate(state, batch.x, e, hidden)
    here = shallow.propagate(State(one), batch.x, e[1:], [])
    for ours, expected in zip(there, here, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_players_start_at_glorots_uniform_weights_and_the_scale_that_robust_max_cannot_see_stays():
    """Of 30 values and 40 inputs to 30 values, or to one: within sqrt(6 / 100) and sqrt(6 / 71)."""
    ours = method("multiclass", layers=2)
    state = ours.start(cases.training_set(*cases.problem("multiclass", num_inputs=40)), cases.keys(1))
    for player, size in (("generator", 30), ("discriminator", 1)):
        weights = state.params[f"layer1.{player}_weight"].abs()
        assert weights.shape == (1, 70, size)
        assert 0.9 < float(weights.max()) / math.sqrt(6 / (70 + size)) < 1
        assert not state.params[f"layer1.{player}_bias"].any()
    assert ours.frozen(0, 1) == {"layer2.log_outputscale"}
    assert not method("binary").frozen(0, 1)


def test_predictions_do_not_depend_on_how_rows_are_cut(monkeypatch):
    ours = method(layers=2)
    state, batch, _ = problem(ours)
    whole = ours.predict(state, batch.x, cases.keys(1)[0])
    monkeypatch.setattr(sparse, "CHUNK_ELEMENTS", 5 * 3 * 7)  # 7 rows at once
    cut = ours.predict(state, batch.x, cases.keys(1)[0])
    for one, other in zip(cases.arrays(whole), cases.arrays(cut), strict=True):
        assert one.shape[0] == 3
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("task", CLASSES)
def test_batched_is_looped_and_padding_changes_nothing(task):
    cases.assert_batched_is_looped(method(task, layers=2), task)


def test_nan_stays_in_its_replica():
    linalg.events()
    cases.assert_nan_stays_in_its_replica(method(layers=2), "regression")
    linalg.events()
