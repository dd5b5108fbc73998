"""Natural-gradient steps of the last layer: where they lead, and that training by them keeps its promises."""

import gp_cases as cases
import numpy as np
import pytest
import torch

from cases import Case, group, trained_by
from gpbench.gp.layers import init_layer
from gpbench.methods import dsvi, svgp
from gpbench.methods.base import State
from gpbench.study.fitting import lightning_module

TITSIAS = {"num_inducing": 3, "jitter": 1e-14, "natural_gradients": "all", "natural_step": 1.0}


def after_step(method: svgp.Method, state: State, batch, noise) -> State:
    """The state after the method's own step alone."""
    state = cases.with_gradient(state)
    cases.flat_loss(method, state, batch, noise).sum().backward()
    moved = method.step_own(state, 0, torch.ones(len(batch.x)))
    assert set(moved) == {f"{method.names[-1]}.whitened_mean", f"{method.names[-1]}.whitened_chol"}
    return State({name: value.detach() for name, value in (state.params | moved).items()}, state.buffers)


def toy_start(seed: int) -> dict[str, torch.Tensor]:
    """The toy's kernel and noise, and any q."""
    generator = torch.Generator().manual_seed(seed)
    params = init_layer("layer1", cases.Z[None], 1, torch.tensor([cases.LENGTHSCALE]).double(), cases.OUTPUTSCALE)
    for name in ("layer1.whitened_mean", "layer1.whitened_chol"):
        params[name] = params[name] + torch.randn(params[name].shape, generator=generator, dtype=torch.float64)
    return params | {"log_noise_variance": torch.tensor([cases.NOISE_VARIANCE]).double().log()}


@pytest.mark.parametrize("seed", range(3))
def test_one_whole_step_from_anywhere_lands_on_the_optimal_q_of_the_toy(seed):
    method = svgp.Method(svgp.Hyperparameters(**TITSIAS), "regression")
    batch, nothing = cases.training_set(cases.X, cases.Y).full(), torch.empty(1, 0).double()
    state = after_step(method, State(toy_start(seed)), batch, nothing)
    # golden: the Titsias bound of the toy, m and the standard deviations of S in closed form, six decimals
    assert -float(cases.flat_loss(method, state, batch, nothing)) == pytest.approx(cases.TITSIAS_BOUND, abs=1e-6)
    mean, variance = method.marginals(state, cases.Z[None], cases.keys(1)[0])
    np.testing.assert_allclose(mean.flatten(), [-0.991832, 0, 0.991832], atol=1e-6)
    np.testing.assert_allclose(variance.sqrt().flatten(), [0.195442, 0.174476, 0.195442], atol=1e-6)


def test_with_fewer_rows_than_inducing_inputs_one_step_gives_the_evidence():
    """Every row is an inducing input then."""
    hyper = TITSIAS | {"num_inducing": 9, "jitter": 1e-10, "lengthscale": cases.LENGTHSCALE}
    given = {"outputscale": cases.OUTPUTSCALE, "noise_variance": cases.NOISE_VARIANCE}
    method = svgp.Method(svgp.Hyperparameters(**hyper | given), "regression")
    data, nothing = cases.training_set(cases.X, cases.Y), torch.empty(1, 0).double()
    state = after_step(method, method.start(data, cases.keys(1)), data.full(), nothing)
    # golden: log N(y; 0, K + noise I) of the toy, six decimals
    assert -float(cases.flat_loss(method, state, data.full(), nothing)) == pytest.approx(cases.EVIDENCE, abs=1e-5)


@pytest.mark.parametrize("separate", ["none", "kernels", "all"])
def test_one_whole_step_is_optimal_for_several_targets_and_for_the_last_layer_of_two(separate):
    x, y = cases.problem("regression")
    data = cases.training_set(x, torch.cat([y, y.square()], 1), [list(range(30)), list(range(8, 40))])
    hyper = {"num_inducing": 6, "separate": separate, "natural_gradients": "all", "natural_step": 1.0}
    method = dsvi.Method(dsvi.Hyperparameters(layers=2, **hyper), "regression", num_targets=2)
    state = cases.perturbed(method.start(data, cases.keys(2)))
    noise = cases.noise_for(method, state, [30, 32])
    state = after_step(method, state, data.full(), noise)
    _, gradient = cases.loss_and_gradient(method, state, data.full(), noise)
    for name in ("layer2.whitened_mean", "layer2.whitened_chol"):
        np.testing.assert_allclose(gradient[name], 0.0, atol=1e-7)
    assert gradient["layer1.whitened_mean"].abs().max() > 1e-3


def natural_case(folders, task: str, **hyper) -> Case:
    return Case("svgp", task, folders, hyper={"natural_gradients": "all"} | hyper)


def fit(case: Case, *splits: int) -> lightning_module.GradientFit:
    made = lightning_module.GradientFit(group(case.cell, *splits), case.table, case.folder(), torch.device("cpu"))
    made.configure_optimizers()
    return made


def test_adam_moves_the_rest_alone(tmp_path_factory):
    made = fit(natural_case(tmp_path_factory, "regression"), 0)
    before = {name: value.detach().clone() for name, value in made.state.params.items()}
    for step in (0, 1):  # where q starts, at the prior, the bound is flat in Z
        made.advance(*made.draw(step), step)
    held = {name for name, value in made.state.params.items() if value in made.adam.state}
    assert set(before) - held == {"layer1.whitened_mean", "layer1.whitened_chol"}
    assert all(not torch.equal(value, before[name]) for name, value in made.state.params.items())


def test_a_replica_that_is_not_finite_is_not_moved(tmp_path_factory, monkeypatch):
    made = fit(natural_case(tmp_path_factory, "regression"), 0, 1)
    made.advance(*made.draw(0), 0)
    loss, infinite = made.method.loss, torch.tensor([0.0, torch.inf])
    monkeypatch.setattr(made.method, "loss", lambda *arguments: loss(*arguments) + infinite)
    before = {name: value.detach().clone() for name, value in made.state.params.items()}
    made.advance(*made.draw(1), 1)
    for name, value in made.state.params.items():
        assert torch.equal(value[1], before[name][1]), name
        assert not torch.equal(value[0], before[name][0]), name


def test_a_step_too_long_is_shortened(tmp_path_factory):
    case = natural_case(tmp_path_factory, "regression", natural_step=5.0)
    (outcome,) = case.fit(group(case.cell, 0))
    assert outcome.status == "done"


def test_robust_max_bears_the_usual_step(tmp_path_factory):
    (outcome,) = (case := natural_case(tmp_path_factory, "multiclass")).fit(group(case.cell, 0))
    assert outcome.status == "done"
    objectives = [row["objective"] for row in outcome.trace]
    assert objectives[-1] > objectives[0]


def test_the_first_rates_grow_where_a_whole_step_is_not_the_best_one():
    rates = {}
    for task in ("regression", "binary"):
        hyper = svgp.Hyperparameters(natural_gradients="all", natural_step=0.1)
        rates[task] = [svgp.Method(hyper, task).natural_rate(step) for step in range(7)]
    assert rates["regression"] == [0.1] * 7
    np.testing.assert_allclose(rates["binary"][:5], 1e-4 * 1000 ** (np.arange(5) / 5), rtol=1e-12)
    assert rates["binary"][5:] == [0.1, 0.1]


def test_adam_follows_the_gradient_where_the_natural_step_led(tmp_path_factory):
    """To the precision that the factor of K_ZZ leaves of the order in which numbers lie in memory."""
    made = fit(natural_case(tmp_path_factory, "regression"), 0)
    made.advance(*made.draw(0), 0)
    batch, noise = made.draw(1)
    state = cases.with_gradient(State({k: v.detach() for k, v in made.state.params.items()}))
    made.method.loss(state, batch, noise).sum().backward()
    q = made.method.step_own(state, 1, torch.ones(1))
    moved = cases.with_gradient(State({k: v.detach() for k, v in (state.params | q).items()}))
    loss = made.method.loss(moved, batch, noise)
    loss.sum().backward()
    torch.testing.assert_close(made.advance(batch, noise, 1), loss.detach(), rtol=1e-6, atol=0)
    for name, value in made.state.params.items():
        if name in q:
            assert value.grad is None
            torch.testing.assert_close(value.detach(), q[name], rtol=1e-6, atol=1e-6)
        else:
            torch.testing.assert_close(value.grad, moved.params[name].grad, rtol=1e-5, atol=1e-5, msg=name)


def test_they_learn_faster_than_adam(tmp_path_factory):
    bounds = {}
    for chosen in ("none", "all"):
        case = natural_case(tmp_path_factory, "regression", natural_gradients=chosen, optimiser="adam")
        bounds[chosen] = case.fit(group(case.cell, 0))[0].trace[-1]["objective"]
    assert bounds["all"] > bounds["none"] + 10


def test_workers_that_share_mini_batches_make_the_fit_of_one_process(tmp_path_factory):
    case = natural_case(tmp_path_factory, "regression", batch_size=16)
    made = group(case.cell, 0)
    ((outcome,), (alone,)) = (case.fit(one) for one in (trained_by(made, "synchronous", 2), made))
    for name, value in alone.model["params"].items():
        torch.testing.assert_close(outcome.model["params"][name], value, rtol=1e-9, atol=1e-9)
