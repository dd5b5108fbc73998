"""The greedy sparse GP: its bound is that of `sgpr`, its rows beat random ones, M with all rows is the exact GP."""

import dataclasses

import pytest
import torch

from gpbench.gp import greedy
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


@pytest.mark.parametrize("lengthscale", [0.02, 300.0])
def test_restarts_find_a_better_bound_from_a_bad_start(lengthscale):
    """From which a single ascent ends where all of the targets is noise."""
    train = rows()
    one, five = (
        -float(made.profile(made.init(train, KEY), train))
        for made in (method(lengthscale=lengthscale, restarts=number) for number in (1, 5))
    )
    assert five > one + 20


@pytest.mark.parametrize(("restarts", "lengthscales"), [(1, [0.6]), (3, [0.3, 0.6, 1.2])])
def test_restarts_begin_a_factor_of_two_apart_and_the_best_end_is_taken(restarts, lengthscales, monkeypatch):
    train, made, ascents = rows(), method(restarts=restarts, lengthscale=0.6, alternations=2), []
    ascend = made.ascend

    def keeping(state, train):
        ascents.append((state, ascend(state, train)))
        return ascents[-1][1]

    monkeypatch.setattr(made, "ascend", keeping)
    state = made.init(train, KEY)
    assert [float(start.params["log_lengthscale"].exp()) for start, _ in ascents] == pytest.approx(lengthscales)
    best = min((end for _, end in ascents), key=lambda end: float(made.profile(end, train)))
    assert torch.equal(state.params["log_lengthscale"], best.params["log_lengthscale"])


@pytest.mark.parametrize("alternations", [2, 3, 5])
def test_choices_and_ascents_alternate(alternations, monkeypatch):
    """The first ascent from five lengthscales; the last is the trainer's."""
    made, order = method(alternations=alternations), []
    for name in ("choose", "ascend"):
        monkeypatch.setattr(made, name, noted(order, name, getattr(made, name)))
    made.init(rows(), KEY)
    assert order == ["choose"] + 5 * ["ascend"] + (alternations - 2) * ["choose", "ascend"] + ["choose"]


def noted(order: list[str], name: str, call):
    """The call, which notes its name."""

    def noting(*words):
        order.append(name)
        return call(*words)

    return noting


def test_a_formula_of_another_kernel_is_refused():
    assert "rbf" in greedy_sgp.Hyperparameters(kernel="matern52").impossible("regression")
    assert greedy_sgp.Hyperparameters().impossible("regression") == ""
    assert greedy_sgp.Hyperparameters(num_inducing=9).least_rows() == 9


def test_more_rows_asked_for_than_there_are_are_all_rows():
    state = method(num_inducing=50).init(rows(12), KEY)
    assert sorted(state.buffers[greedy_sgp.ROWS][0].tolist()) == list(range(12))


@pytest.mark.parametrize("candidates", [1, 5, 500])
def test_few_candidates_are_enough_to_choose(candidates, monkeypatch):
    numbers, insert = [], greedy.insert

    def counting(model, chosen, among):
        numbers.append(among.shape[1])
        return insert(model, chosen, among)

    monkeypatch.setattr(greedy, "insert", counting)
    state = method(candidates=candidates, alternations=2).init(rows(), KEY)
    assert len(set(state.buffers[greedy_sgp.ROWS][0].tolist())) == 8
    assert numbers == 2 * [min(candidates, 60 - chosen) for chosen in range(8)]
