"""The moving window of Monte Carlo EM: whose states it draws."""

import pytest
import torch

from gpbench.sampling import moving_window

WINDOW, CHAINS = 4, 50


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9])
def test_only_states_that_were_put_aside_are_drawn(count):
    """The state of step t is t + 1, so that an unfilled place, which holds 0, is told from all of them."""
    parameters = {"phi": torch.zeros(CHAINS, 1, dtype=torch.float64)}
    memory = moving_window.init({"v": parameters["phi"]}, parameters, WINDOW)
    normals, seen = torch.Generator().manual_seed(0), []

    def loss(params):
        seen.append(params["v"][:, 0].tolist())
        return (params["phi"] - params["v"]).square().sum(1)

    for step in range(count + 1):
        chain = {"v": torch.full((CHAINS, 1), step + 1.0, dtype=torch.float64)}
        choice = torch.randn(CHAINS, generator=normals, dtype=torch.float64)
        _, moved = moving_window.step(chain, parameters, memory, choice, loss, count=step, learning_rate=0.1)
        memory |= moved
    assert set(seen[-1]) == set(range(max(0, count - WINDOW + 1) + 1, count + 2))


def test_the_steps_are_those_of_adam():
    """torch's, with the state as the only one of the window."""
    phi, memory = torch.tensor([[1.0, -2.0]], dtype=torch.float64), {}
    parameter = phi.clone().requires_grad_()
    adam = torch.optim.Adam([parameter], lr=0.1)

    def loss(params):
        return (params["phi"] - params["v"]).pow(4).sum(1)

    parameters = {"phi": phi}
    memory = moving_window.init({"v": phi}, parameters, 1)
    for step in range(12):
        chain = {"v": torch.tensor([[0.1 * step, 0.5]], dtype=torch.float64)}
        adam.zero_grad()
        loss({"phi": parameter} | chain).sum().backward()
        adam.step()
        parameters, moved = moving_window.step(
            chain, parameters, memory, torch.zeros(1), loss, count=step, learning_rate=0.1
        )
        memory |= moved
        torch.testing.assert_close(parameters["phi"], parameter.detach(), rtol=1e-12, atol=1e-12)
