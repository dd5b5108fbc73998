"""The mountain car: its dynamics, what its agent learns, and the value function that is stored of it."""

import itertools

import numpy as np
import pytest

from gpbench.data.simulated import generators
from gpbench.data.simulated import mountain_car as car


@pytest.fixture(scope="module")
def learned():
    return car.learn(np.random.default_rng(0))


@pytest.fixture(scope="module")
def surface():
    """Cost-to-go `[100, 100]` with the positions and velocities of its grid."""
    x, y, names = generators.draw("mountain_car")
    assert (x.shape, y.shape, names) == ((10_000, 2), (10_000,), ["position", "velocity"])
    grid = x.reshape(100, 100, 2)
    return y.reshape(100, 100), grid[:, 0, 0], grid[0, :, 1]


def test_the_car_keeps_to_the_road():
    assert car.move(-1.19, -0.07, -1) == (-1.2, 0.0), "the wall on the left stops it"
    assert car.move(0.0, 0.0699, 1)[1] <= 0.07
    # at the bottom of the valley, cos(3 p) = 0, nothing but the engine moves it
    assert car.move(-np.pi / 6, 0.0, 1)[1] == pytest.approx(0.001, abs=1e-8)
    assert car.move(-np.pi / 6, 0.01, 0)[1] == pytest.approx(0.01, abs=1e-8)


def test_the_engine_is_too_weak_for_the_hill():
    position, velocity = -0.5, 0.0
    for _ in range(200):
        position, velocity = car.move(position, velocity, 1)
        assert position < 0.0


def test_a_state_has_a_tile_of_its_own_in_every_tiling():
    corners = itertools.product(car.POSITION, car.VELOCITY)
    for state in (*corners, (-0.5, 0.0)):
        assert [tile // 81 for tile in car.tiles(*state)] == list(range(8))
    near, far = car.tiles(-0.5, 0.0), car.tiles(-0.5 + 1.8 / 8, 0.0)
    assert not set(near) & set(far), "a tile is an eighth of the range wide"
    shared = len(set(near) & set(car.tiles(-0.5 + 1.8 / 64, 0.0)))
    assert shared == 7, "tilings lie an eighth of a tile aside"


@pytest.mark.slow
def test_the_agent_learns_to_swing_out_of_the_valley(learned):
    """Sutton and Barto's figure 10.2: hundreds of steps at first, between 100 and 200 in the end."""
    _, steps = learned
    assert len(steps) == car.EPISODES
    assert np.mean(steps[:10]) > 400
    assert 100 < np.mean(steps[-100:]) < 130
    assert max(steps[-100:]) < 200


@pytest.mark.slow
def test_costs_are_the_steps_that_the_greedy_agent_takes(learned):
    weights, _ = learned
    position, velocity, steps = -0.5, 0.0, 0
    expected = -car.greedy(weights, car.tiles(position, velocity))[1]
    while position < car.GOAL:
        action, _ = car.greedy(weights, car.tiles(position, velocity))
        position, velocity = car.move(position, velocity, action - 1)
        steps += 1
    assert steps == pytest.approx(expected, rel=0.15)


@pytest.mark.slow
def test_the_surface_is_that_of_the_figures(surface):
    """Up to about 120 at rest in the valley (Sutton and Barto, figure 10.1; 116 in ashman2020), nothing at the goal."""
    y, position, velocity = surface
    assert -3 < y.min() < 1
    assert 105 < y.max() < 125
    highest = np.unravel_index(y.argmax(), y.shape)
    assert position[highest[0]] == pytest.approx(-0.55, abs=0.1)
    assert velocity[highest[1]] == pytest.approx(0.0, abs=0.01)
    assert np.abs(y[position > 0.55]).mean() < 1
    cliff = y[np.abs(position - 0.35).argmin()]
    assert cliff[np.abs(velocity + 0.01).argmin()] > 50 + cliff[np.abs(velocity - 0.03).argmin()], "one more swing"
