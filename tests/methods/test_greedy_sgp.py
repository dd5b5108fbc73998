"""The greedy sparse GP: its bound is that of `sgpr`, its rows beat random ones, M with all rows is the exact GP."""

import dataclasses

import pytest
import torch

from gpbench.methods import exact_gp, greedy_sgp
from gpbench.methods.base import State
from gpbench.methods.training_rows import Batch
from gpbench.streams import Key

KEY = Key("smooth", "common", 0)


def rows(n=60) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, n, 2, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(1, n, 1, generator=generator, dtype=torch.float64)
    return Batch(x, torch.sin(2 * x[..., :1]) + 0.3 * x[..., 1:] + noise, torch.ones(1, n, dtype=torch.float64))


def method(**settings) -> greedy_sgp.Method:
    return greedy_sgp.Method(greedy_sgp.Hyperparameters(**{"num_inducing": 8} | settings), "regression")


def test_rows_chosen_greedily_beat_rows_at_random():
    train, made = rows(), method()
    state = made.init(train, KEY)
    assert len(set(state.buffers[greedy_sgp.ROWS][0].tolist())) == 8
    chosen = -made.profile(state, train)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        others = train.x[:, torch.randperm(60, generator=generator)[:8]]
        assert -made.profile(State(state.params, state.buffers | {greedy_sgp.Z: others}), train) < chosen


def test_with_all_rows_it_is_the_exact_gp():
    train, made = rows(12), method(num_inducing=12)
    state = greedy_sgp.fit(made.hyper, train, KEY)
    state.params["log_noise_variance"] = torch.tensor([0.1], dtype=torch.float64).log()
    exact = exact_gp.Method(dataclasses.replace(exact_gp.Hyperparameters(), ard=False), "regression")
    loss = exact.loss(State(state.params), train, None)
    torch.testing.assert_close(made.profile(state, train), loss, rtol=0, atol=1e-4)


def test_restarts_find_a_bound_at_least_as_good():
    train = rows()
    values = [-made.profile(greedy_sgp.fit(made.hyper, train, KEY), train) for made in (method(), method(restarts=1))]
    assert values[0] > values[1] - 0.5


def test_a_formula_of_another_kernel_is_refused():
    assert "rbf" in greedy_sgp.Hyperparameters(kernel="matern52").impossible("regression")
    assert greedy_sgp.Hyperparameters().impossible("regression") == ""
    assert greedy_sgp.Hyperparameters(num_inducing=9).least_rows() == 9


def test_more_rows_asked_for_than_there_are_are_all_rows():
    state = method(num_inducing=50).init(rows(12), KEY)
    assert sorted(state.buffers[greedy_sgp.ROWS][0].tolist()) == list(range(12))


@pytest.mark.parametrize("candidates", [1, 5])
def test_few_candidates_are_enough_to_choose(candidates):
    state = method(candidates=candidates).init(rows(), KEY)
    assert len(set(state.buffers[greedy_sgp.ROWS][0].tolist())) == 8
