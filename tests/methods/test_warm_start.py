"""Where fits start: Adam on a method's objective, what stays still, which rows a step takes."""

import gp_cases as cases
import pytest
import torch

from gpbench.methods import dgp_rff, exact_gp, svgp, warm_start

X, Y = cases.problem("regression", 30)
DATA = cases.training_set(X, Y)


def moved(method, iterations: int = 1, **how) -> dict[str, torch.Tensor]:
    """By how much each parameter moves."""
    before = method.start(DATA, cases.keys(1)).params
    after = warm_start.maximise(method, DATA, cases.keys(1), iterations, **how).params
    return {name: after[name] - value for name, value in before.items()}


def test_a_first_step_of_adam_moves_what_is_neither_frozen_nor_held_by_the_learning_rate():
    method = dgp_rff.Method(dgp_rff.Hyperparameters(learning_rate=0.02, num_features=5), "regression")
    frozen, still = method.frozen(0, 1), {"layer1.weight_mean"}
    assert {"layer1.log_lengthscale", "log_noise_variance"} <= frozen
    for name, change in moved(method, still=lambda step: still).items():
        if name in frozen | still:
            assert not change.any(), name
        else:
            assert change.abs().max().item() == pytest.approx(0.02, rel=1e-3), name


def test_a_prior_pulls_the_optimum():
    """A narrow one at the logarithm of 1/2 leaves the lengthscales there."""
    method = svgp.Method(svgp.Hyperparameters(num_inducing=4, learning_rate=0.05), "regression")
    name = "layer1.log_lengthscale"
    start = method.start(DATA, cases.keys(1)).params[name]
    change = moved(method, 200, log_prior=lambda params: -1e4 * (params[name] + 0.7).square().sum(1))[name]
    torch.testing.assert_close(start + change, torch.full_like(start, -0.7), rtol=0, atol=0.01)


def test_mini_batches_are_drawn_anew_and_stand_for_all_rows(monkeypatch):
    monkeypatch.setattr(warm_start, "START_ROWS", 6)
    method, seen = svgp.Method(svgp.Hyperparameters(num_inducing=4), "regression"), []
    loss = method.loss
    monkeypatch.setattr(method, "loss", lambda state, batch, noise: seen.append(batch) or loss(state, batch, noise))
    moved(method, 3)
    assert [batch.weight.tolist() for batch in seen] == 3 * [[[5.0] * 6]]
    assert len({tuple(batch.x.flatten().tolist()) for batch in seen}) == 3
    assert all((row == X).all(1).any() for batch in seen for row in batch.x[0])


def test_l_bfgs_on_some_rows_goes_on_for_a_hundredth_of_a_nat_a_row(monkeypatch):
    asked, minimise = [], warm_start.lbfgs.minimise
    monkeypatch.setattr(warm_start.lbfgs, "minimise", lambda *of: asked.append(of[2:]) or minimise(*of))
    monkeypatch.setattr(warm_start, "MANY_ROWS", 29)
    monkeypatch.setattr(warm_start, "START_ROWS", 20)
    exact_gp.Method(exact_gp.Hyperparameters(), "regression").start(DATA, cases.keys(1))
    assert asked == [(300, pytest.approx(0.2))]
