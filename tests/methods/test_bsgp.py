"""BSGP: the FITC joint against dense algebra, the chain against the known posterior, replicas, prediction."""

import math

import numpy as np
import pytest
import torch
from bsgp_cases import TOY_MEAN, TOY_MEAN_U, TOY_SD, TOY_SD_U, log_likelihood, posterior_covariance, toy
from gp_cases import each, noise_size, split
from scipy import stats

from gpbench.methods.base import State
from gpbench.methods.bsgp import Hyperparameters, Method
from gpbench.methods.training_rows import Batch, TrainingSet
from gpbench.sampling import sghmc
from gpbench.streams import Key

KEYS = [Key("toy", "common", split) for split in range(3)]


def training_set(task: str = "regression", counts=(40, 39, 40), dtype=torch.float64) -> TrainingSet:
    """sin(2 x_1) + x_2 / 2 with noise, cut at quantiles into classes; replica r takes the first counts[r] rows."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 2))
    y = np.sin(2 * x[:, :1]) + 0.5 * x[:, 1:] + 0.1 * rng.standard_normal((40, 1))
    if task != "regression":
        y = np.digitize(y, np.quantile(y, [0.5] if task == "binary" else [0.3, 0.6]))
    count = torch.tensor(counts)
    rows = torch.arange(40).repeat(len(counts), 1)
    shift = torch.zeros(len(counts), 2, dtype=dtype)
    scale = torch.ones_like(shift)
    return TrainingSet(
        torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype), torch.where(rows < count[:, None], rows, 0), count,
        shift, scale, shift[:, :1], scale[:, :1],
    )  # fmt: skip


def small(task: str = "regression", **hyper) -> Method:
    classes = {"regression": 0, "binary": 2, "multiclass": 3}[task]
    return Method(Hyperparameters(**({"num_inducing": 8, "num_samples": 4, "window": 3} | hyper)), task, classes)


def run(method: Method, state: State, batch: Batch, steps: int) -> list[torch.Tensor]:
    """`steps` transitions; the noise belongs to (replica, step), and more rows only lengthen it."""
    losses, size = [], noise_size(method, state, 40)
    for step in range(steps):
        noise = np.stack([np.random.default_rng((step, r)).standard_normal(size) for r in range(len(batch.x))])
        noise = torch.from_numpy(noise[:, : noise_size(method, state, batch.x.shape[1])]).to(batch.x)
        losses.append(method.step(state, batch, split(method, state, batch, noise), step, steps))
        if method.keep(step + 1, steps):
            for name, value in state.params.items():
                state.samples.setdefault(name, []).append(value.clone())
    return losses


def test_log_joint_integrates_to_the_fitc_evidence():
    # at the mode of a quadratic: log Z = log p(y, v*) + log det(2 pi Sigma) / 2; FITC evidence -4.699464 [closed form]
    method, state, batch = toy()
    covariance = posterior_covariance(method, state, batch)
    torch.testing.assert_close(covariance.diagonal().sqrt(), TOY_SD, rtol=0, atol=1e-6)
    chol = method.layers(state.params)[0].chol_kzz[0]
    torch.testing.assert_close(chol @ TOY_MEAN, TOY_MEAN_U, rtol=0, atol=2e-6)
    torch.testing.assert_close((chol @ covariance @ chol.T).diagonal().sqrt(), TOY_SD_U, rtol=0, atol=1e-6)
    state.params["layer1.whitened_values"] = TOY_MEAN.reshape(1, 3, 1)
    log_prior = -0.5 * (TOY_MEAN.square() + math.log(2 * math.pi)).sum()
    evidence = log_likelihood(method, state, batch)[0] + log_prior + 0.5 * torch.logdet(2 * math.pi * covariance)
    assert evidence.item() == pytest.approx(-4.699464, abs=2e-6)


def test_predictive_averages_to_that_of_fitc():
    # six states with exactly the posterior's mean and covariance; FITC at 0.25: 0.311039 and 0.156836 [closed form]
    method, state, batch = toy()
    chol = torch.linalg.cholesky(posterior_covariance(method, state, batch))
    corners = math.sqrt(3) * torch.cat([chol.T, -chol.T])
    for name, value in state.params.items():
        state.samples[name] = [value] * 6
    state.samples["layer1.whitened_values"] = list((TOY_MEAN + corners)[:, None, :, None])
    predictive = method.predict(state, torch.tensor([[[0.25]]], dtype=torch.float64), KEYS[0])
    assert predictive.mean().item() == pytest.approx(0.311039, abs=2e-6)
    assert predictive.variance().item() - 0.05 == pytest.approx(0.156836, abs=2e-6)


def test_one_state_predicts_its_own_conditional():
    method, state, batch = toy()
    state.params["layer1.whitened_values"] = TOY_MEAN.reshape(1, 3, 1)
    predictive = method.predict(state, batch.x, KEYS[0])
    np.testing.assert_allclose(predictive.log_prob(batch.y[0].numpy()).sum(), log_likelihood(method, state, batch)[0])


@pytest.mark.slow
def test_chains_sample_the_posterior_of_the_toy():
    # 1,024 chains; 5 nearly independent states of each: standard errors 0.003 of a mean and 1 % of a sd, and
    # the finite step adds 1 % to the sd
    chains = 1024
    method, state, batch = toy(chains)
    params = {"layer1.whitened_values": state.params["layer1.whitened_values"]}
    memory, generator, kept = sghmc.init(params), torch.Generator().manual_seed(0), []
    num_data = torch.full((chains,), 5.0, dtype=torch.float64)
    for step in range(1500):
        (v,) = params.values()
        v.requires_grad_()
        potential = -method.log_joint(state.params | params, state.buffers, batch, torch.empty(0))
        (gradient,) = torch.autograd.grad(potential.sum(), v)
        noise = torch.randn(chains, 3, generator=generator, dtype=torch.float64)
        params, memory = sghmc.step(
            {"layer1.whitened_values": v.detach()}, {"layer1.whitened_values": gradient}, memory, noise, num_data,
            step_size=0.02, friction=0.05, adapt=step < 1000,
        )  # fmt: skip
        if step >= 1000 and step % 100 == 99:
            kept.append(params["layer1.whitened_values"][..., 0])
    draws = torch.cat(kept)
    torch.testing.assert_close(draws.mean(0), TOY_MEAN, rtol=0, atol=0.012)
    torch.testing.assert_close(draws.std(0), TOY_SD, rtol=0.04, atol=0)


def test_fitc_is_at_least_vfe():
    method, state, batch = toy()
    state.params["layer1.whitened_values"] = torch.randn(1, 3, 1, dtype=torch.float64)
    layers = method.layers(state.params)
    mean, variance = (part[None] for part in method.propagate(layers, {}, batch.x, torch.empty(0)))
    noise = state.params["log_noise_variance"].exp()
    fitc = method.likelihood.log_expected_prob(batch.y, mean, variance, noise)[0, 0]
    vfe = method.likelihood.expected_log_prob(batch.y, mean, variance, noise)[0, 0]
    # rows 0, 2, 4 lie on Z, where the conditional is a point and the two agree
    torch.testing.assert_close(fitc[::2], vfe[::2], rtol=1e-6, atol=1e-6)
    assert bool((fitc[1::2] > vfe[1::2] + 0.1).all())


@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_gradient_agrees_with_finite_differences(task):
    method, data = small(task, layers=2, num_inducing=3), training_set(task, counts=(40,))
    state, batch = method.start(data, KEYS[:1]), data.full()
    hidden = torch.randn(1, 1, 40, 30, dtype=torch.float64)
    names = [name for name in state.params if name != "log_noise_variance"]
    values = [(state.params[name] + 0.1 * torch.randn_like(state.params[name])).requires_grad_() for name in names]

    def log_joint(*values):
        return method.log_joint(state.params | dict(zip(names, values, strict=True)), state.buffers, batch, hidden)

    assert torch.autograd.gradcheck(log_joint, values, rtol=1e-3, atol=1e-4)


def test_a_hidden_layer_without_amplitude_changes_nothing():
    deep, shallow, data = small(layers=2), small(layers=1), training_set()
    state, reference = deep.start(data, KEYS), shallow.start(data, KEYS)
    state.params["layer1.log_outputscale"] -= 40
    v = torch.randn(3, 8, 1, dtype=torch.float64)
    state.params["layer2.whitened_values"] = reference.params["layer1.whitened_values"] = v
    hidden = torch.randn(1, 3, 40, 30, dtype=torch.float64)
    mean, variance = deep.propagate(deep.layers(state.params), state.buffers, data.full().x, hidden)
    expected = shallow.propagate(shallow.layers(reference.params), {}, data.full().x, hidden[:0])
    # but for the least standard deviation of a hidden value, 1e-6
    torch.testing.assert_close(mean, expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(variance, expected[1], rtol=1e-5, atol=1e-5)


def test_the_prior_is_scipys_and_the_window_as_long_as_asked_for():
    """Up to a constant, so between two states, of two layers."""
    method, values = small(layers=2, sampled="u_theta_z"), []
    state = method.start(training_set(counts=(40,)), KEYS[:1])
    moved = {name: value + 0.1 * torch.randn_like(value) for name, value in state.params.items()}
    for params in (state.params, moved):
        expected = sum(
            stats.norm.logpdf(value, math.log(0.05) if name.endswith("outputscale") else 0.0).sum()
            for name, value in params.items()
            if name != "log_noise_variance"
        )
        values.append(method.log_prior(method.layers(params), params).item() - expected)
    assert values[0] == pytest.approx(values[1], abs=1e-9)
    assert state.memory["window"].shape[1] == 3


@pytest.mark.parametrize(("task", "layers"), [("regression", 2), ("multiclass", 1)])
def test_batched_chains_equal_one_at_a_time(task, layers):
    method, data = small(task, layers=layers), training_set(task)
    together, x = method.start(data, KEYS), torch.randn(3, 6, 2, dtype=torch.float64)
    losses = run(method, together, data.full(), 8)
    predictives = each(method.predict, together, x, KEYS)
    # the second replica lacks a row: alone it has no padding
    n = 39
    scaling = (part[1:2] for part in (data.x_shift, data.x_scale, data.y_shift, data.y_scale))
    own = TrainingSet(data.inputs, data.targets, data.rows[1:2, :n], data.count[1:2], *scaling)
    alone = method.start(own, KEYS[1:2])
    batch, size = own.full(), noise_size(method, alone, n)
    for step in range(8):
        longest = np.random.default_rng((step, 1)).standard_normal(noise_size(method, alone, 40))
        noise = torch.from_numpy(longest[:size])[None]
        loss = method.step(alone, batch, split(method, alone, batch, noise), step, 8)
        torch.testing.assert_close(loss[0], losses[step][1], rtol=1e-9, atol=0)
        if method.keep(step + 1, 8):
            for name, value in alone.params.items():
                alone.samples.setdefault(name, []).append(value.clone())
    for name, value in alone.params.items():
        torch.testing.assert_close(value[0], together.params[name][1], rtol=1e-9, atol=1e-11)
    predictive = method.predict(alone, x[1:2], KEYS[1])
    np.testing.assert_allclose(predictive.mean(), predictives[1].mean(), rtol=1e-8)


def test_a_diverged_chain_is_nan_and_leaves_the_others_alone():
    method, data = small(), training_set(counts=(40, 40))
    state, healthy = method.start(data, KEYS[:2]), method.start(data, KEYS[:2])
    state.params["layer1.whitened_values"][1, 0] = torch.nan
    losses, expected = run(method, state, data.full(), 4), run(method, healthy, data.full(), 4)
    assert all(loss[1].isnan() for loss in losses)
    torch.testing.assert_close(torch.stack(losses)[:, 0], torch.stack(expected)[:, 0], rtol=1e-12, atol=0)


@pytest.mark.parametrize(("steps", "kept"), [(100, 4), (6, 3), (1, 1)])
def test_states_are_kept_evenly_after_burn_in(steps, kept):
    method = small()
    chosen = [step for step in range(1, steps + 1) if method.keep(step, steps)]
    assert len(chosen) == kept
    assert chosen[-1] == steps
    assert len(set(np.diff(chosen))) <= 2
    assert chosen[0] > steps // 2


def test_parts_of_updates_are_rounded_and_leave_one():
    # 0.29 * 100 is less than 29 in floating point
    assert [small(burn_in=0.29).burn_in(steps) for steps in (1, 2, 100)] == [0, 1, 29]


def test_preconditioner_and_noise_stay_after_burn_in():
    method, data = small(), training_set()
    state = method.start(data, KEYS)
    noise = torch.zeros(3, noise_size(method, state, 40), dtype=torch.float64)
    method.step(state, data.full(), split(method, state, data.full(), noise), 0, 2)
    before = {"noise": state.params["log_noise_variance"], "square": state.memory["gradient_square"]}
    assert before["noise"].abs().min() == pytest.approx(method.hyper.learning_rate, rel=1e-3)
    method.step(state, data.full(), split(method, state, data.full(), noise), 1, 2)
    torch.testing.assert_close(state.params["log_noise_variance"], before["noise"], rtol=0, atol=0)
    torch.testing.assert_close(state.memory["gradient_square"], before["square"], rtol=0, atol=0)


@pytest.mark.parametrize(
    # the prior's small outputscale (median 0.05) keeps probabilities of 40 rows near one half
    ("task", "dtype", "gain"),
    [("regression", torch.float32, 0.2), ("binary", torch.float64, 0.1)],
)
@pytest.mark.slow
def test_learning_beats_the_constant_predictor(task, dtype, gain):
    method, data = small(task, num_samples=20, step_size=0.05), training_set(task, counts=(40,), dtype=dtype)
    state = method.start(data, KEYS[:1])
    run(method, state, data.full(), 600)
    assert all(value.dtype == dtype for value in state.params.values())
    predictive = method.predict(state, data.full().x, KEYS[0])
    y = data.targets.double().numpy()
    constant = -math.log(2) if task == "binary" else -0.5 * np.log(2 * np.pi * np.e * y.var())
    assert predictive.log_prob(y if task == "regression" else y[:, 0]).mean() > constant + gain


@pytest.mark.parametrize("sampled", ["u", "u_theta", "u_theta_z"])
def test_the_chain_moves_what_is_sampled_and_adam_the_rest(sampled):
    method, data = small(sampled=sampled, layers=2, optimise_every=2), training_set()
    state = method.start(data, KEYS)
    start = dict(state.params)
    noise = torch.zeros(3, noise_size(method, state, 40), dtype=torch.float64)
    assert set(method.sampled(state.params)) | set(method.optimised(state.params)) == set(state.params)
    method.step(state, data.full(), split(method, state, data.full(), noise), 1, 100)  # no Adam step
    moved = {name for name, value in state.params.items() if not torch.equal(value, start[name])}
    assert moved == set(method.sampled(start))
    method.step(state, data.full(), split(method, state, data.full(), noise), 2, 100)
    for name, value in method.optimised(state.params).items():
        assert not torch.equal(value, start[name]), name
        # the first step of Adam is one learning rate long, whatever the gradient
        assert (value - start[name]).abs().max().item() <= method.hyper.learning_rate * 1.001
    before = method.optimised(state.params)
    method.step(state, data.full(), split(method, state, data.full(), noise), 52, 100)  # burn-in is over
    for name, value in before.items():
        torch.testing.assert_close(state.params[name], value, rtol=0, atol=0)


def test_adam_climbs_the_likelihood_of_what_is_not_sampled():
    method, data = small(sampled="u", window=1), training_set(counts=(40,))
    state, batch = method.start(data, KEYS[:1]), data.full()
    fixed = method.sampled(state.params)

    def value():
        return log_likelihood(method, State(state.params | fixed, state.buffers), batch).item()

    before = value()
    for count in range(100):
        state.params |= fixed
        method._optimise(state, batch, torch.zeros(1, 1), torch.empty(0), count)
    assert value() > before + 1


def test_rates_of_adam_fall_with_the_noise_that_a_start_found():
    """The first step of Adam is one learning rate long, whatever the gradient."""
    moved = []
    for pace in (1.0, 0.1):
        method, data = small(sampled="u", window=1), training_set(counts=(40,))
        state = method.start(data, KEYS[:1])
        before = state.params["log_noise_variance"]
        state.buffers["pace"] = torch.tensor([[pace]], dtype=torch.float64)
        method._optimise(state, data.full(), torch.zeros(1, 1), torch.empty(0), 0)
        moved.append((state.params["log_noise_variance"] - before).abs().item())
    assert moved == pytest.approx([method.hyper.learning_rate, 0.1 * method.hyper.learning_rate], rel=1e-3)


def test_a_prior_of_inducing_inputs_that_are_not_sampled_is_refused():
    assert "inducing inputs that are sampled" in Hyperparameters(prior="dpp", sampled="u").impossible("regression")
    assert not Hyperparameters(prior="dpp").impossible("regression")


def test_strauss_and_uniform_are_the_same_chain_and_dpp_is_another():
    states = {}
    for prior in ("uniform", "strauss", "dpp"):
        method, data = small(prior=prior), training_set()
        states[prior] = method.start(data, KEYS)
        run(method, states[prior], data.full(), 5)
    z = {prior: state.params["layer1.inducing_inputs"] for prior, state in states.items()}
    torch.testing.assert_close(z["strauss"], z["uniform"], rtol=0, atol=0)
    assert not torch.equal(z["dpp"], z["uniform"])


def test_objectives_differ_in_depth_and_task():
    for task in ("regression", "binary", "multiclass"):
        data, values = training_set(task, counts=(40,)), {}
        for objective in ("fitc", "vfe"):
            method = small(task, objective=objective, layers=2)
            state = method.start(data, KEYS[:1])
            hidden = torch.zeros(1, 1, 40, 30, dtype=torch.float64)
            values[objective] = method.log_joint(state.params, state.buffers, data.full(), hidden).item()
        assert values["fitc"] > values["vfe"], f"Jensen, {task}"
