"""The players of `ipvi_dgp` in turn, against `ipvi_dgp` and against two optimisers."""

import dataclasses

import numpy as np
import pytest
import torch

from cases import Case, assert_same, group, with_hyper
from gpbench.methods import ipvi_dgp, ipvi_in_turn
from gpbench.methods.base import State
from gpbench.study.fitting import lightning_module

TASKS = ["regression", "binary", "multiclass"]
NAME = "ipvi_dgp_2_in_turn"


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return Case(NAME, "regression", tmp_path_factory, few=True)


def started(case: Case, **hyper) -> lightning_module.GradientFit:
    fit = lightning_module.GradientFit(
        group(with_hyper(case.cell, **hyper), 0), case.table, case.folder(), torch.device("cpu")
    )
    fit.configure_optimizers()
    return fit


def params(fit) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in fit.state.params.items()}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.slow
def test_moving_together_is_ipvi_dgp_bit_for_bit(task, tmp_path_factory):
    """Which is the default."""
    assert ipvi_in_turn.Hyperparameters().moves == "together"
    ours = Case(NAME, task, tmp_path_factory, hyper={"moves": "together"}, few=True)
    other = Case("ipvi_dgp_2", task, tmp_path_factory, few=True)
    assert_same(ours.alone[0], other.alone[0])


def test_in_turn_is_not_together(case):
    assert not case.alone[0].points.equals(Case("ipvi_dgp_2", "regression", case.folders, few=True).alone[0].points)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kernel", ["rbf", "rbf + matern32 * periodic"])
def test_every_parameter_is_one_players(task, kernel, tmp_path_factory):
    fit = started(Case(NAME, task, tmp_path_factory), kernel=kernel)
    discriminators, others = fit.method.players()
    assert discriminators.isdisjoint(others)
    assert discriminators | others == set(fit.state.params)
    assert discriminators == {name for name in fit.state.params if "discriminator" in name}


def test_one_player_moves_at_a_time(case):
    fit = started(case)
    for step in range(4):
        before = params(fit)
        fit.advance(*fit.draw(step), step)
        moved = {name for name, value in params(fit).items() if not torch.equal(value, before[name])}
        assert moved == set(fit.method.players()[step % 2])


def test_two_optimisers_in_turn_move_the_same_way(case):
    """Each sees the gradient of the loss where the other has left off."""
    fit = started(case)
    plain = ipvi_dgp.Method(
        ipvi_dgp.Hyperparameters(
            **{f.name: getattr(fit.method.hyper, f.name) for f in dataclasses.fields(ipvi_dgp.Hyperparameters)}
        ),
        "regression",
    )
    mine = {name: value.clone().requires_grad_() for name, value in params(fit).items()}
    adams = []
    for player in fit.method.players():
        settings = [
            {"params": [mine[name]], "lr": plain.rates(name)[0], "betas": (0.5, 0.999)} for name in sorted(player)
        ]
        adams.append(torch.optim.Adam(settings))
    for step in range(6):
        batch, noise = fit.draw(step)
        adams[step % 2].zero_grad()
        plain.loss(State(mine, fit.state.buffers), batch, noise).sum().backward()
        adams[step % 2].step()
        fit.advance(batch, noise, step)
    for name, value in params(fit).items():
        np.testing.assert_allclose(value, mine[name].detach(), rtol=1e-7, atol=1e-9, err_msg=name)
