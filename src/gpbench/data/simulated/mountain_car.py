"""The value function of the mountain car: an under-powered car that has to swing out of a valley.

State      position p in [-1.2, 0.6], velocity v in [-0.07, 0.07]; an action a in {-1, 0, 1} costs 1 and moves
           v <- v + 0.001 a - 0.0025 cos(3 p),  p <- p + v,  both kept in their ranges (v = 0 at the left wall),
           from p ~ U(-0.6, -0.4) at rest until p >= 0.5.
Agent      semi-gradient SARSA, greedy and undiscounted:  w_a <- w_a + alpha (-1 + Q(s', a') - Q(s, a)) on the tiles
           of s, Q(s, a) the sum of the weights of a on them: 8 tilings of 8 x 8 tiles, initially zero, so that untried
           actions look best.

Source: Sutton and Barto, Reinforcement Learning, 2nd edition (2018), example 10.1. ashman2020 (figure 1) shows
-max_a Q without the number of episodes or alpha; theirs reaches from -0.8 to 116.
"""

import math

import numpy as np

from gpbench.data.simulated.reproducible import Draw, stream

POSITION, VELOCITY, GOAL = (-1.2, 0.6), (-0.07, 0.07), 0.5
TILINGS, TILES = 8, 8
ALPHA, EPISODES = 0.3 / TILINGS, 3000
SIDE = 100

Weights = list[list[float]]  # [action, tile]


def move(position: float, velocity: float, action: int) -> tuple[float, float]:
    """The next state; action -1, 0 or 1."""
    # the last bit of a cosine depends on the machine; all other arithmetic here is exactly rounded
    velocity += 0.001 * action - 0.0025 * round(math.cos(3 * position), 6)
    velocity = min(max(velocity, VELOCITY[0]), VELOCITY[1])
    position += velocity
    return (position, velocity) if position >= POSITION[0] else (POSITION[0], 0.0)


def tiles(position: float, velocity: float) -> list[int]:
    """The tile that contains a state in each tiling; tiling t is shifted by (t, 3 t mod 8) eighths of a tile."""
    across = TILES * (position - POSITION[0]) / (POSITION[1] - POSITION[0])
    up = TILES * (velocity - VELOCITY[0]) / (VELOCITY[1] - VELOCITY[0])
    side = TILES + 1
    return [(t * side + int(across + t / TILINGS)) * side + int(up + 3 * t % TILINGS / TILINGS) for t in range(TILINGS)]


def value(weights: list[float], active: list[int]) -> float:
    """Q of an action on the tiles of a state; the sum is exactly rounded, so that its order does not matter."""
    return math.fsum(weights[tile] for tile in active)


def greedy(weights: Weights, active: list[int]) -> tuple[int, float]:
    """The best action (0, 1, 2 for -1, 0, 1; the first of several) and its value."""
    values = [value(action_weights, active) for action_weights in weights]
    best = max(values)
    return values.index(best), best


def episode(weights: Weights, position: float) -> int:
    """Learn during one episode, from rest to the goal; returns its number of steps."""
    velocity, steps = 0.0, 0
    active = tiles(position, velocity)
    action, _ = greedy(weights, active)
    while position < GOAL:
        position, velocity = move(position, velocity, action - 1)
        steps += 1
        ahead = tiles(position, velocity)
        next_action, next_value = greedy(weights, ahead) if position < GOAL else (0, 0.0)
        change = ALPHA * (-1 + next_value - value(weights[action], active))
        for tile in active:
            weights[action][tile] += change
        active, action = ahead, next_action
    return steps


def learn(rng: np.random.Generator) -> tuple[Weights, list[int]]:
    """Weights after `EPISODES` episodes, and the number of steps of each episode."""
    weights = [[0.0] * (TILINGS * (TILES + 1) ** 2) for _ in range(3)]
    return weights, [episode(weights, start) for start in rng.uniform(-0.6, -0.4, EPISODES).tolist()]


def cost_to_go() -> Draw:
    """-max_a Q on a regular grid of 100 x 100 states: inputs `[10000, 2]`, position slowest, and targets."""
    weights, _ = learn(stream())
    axes = (np.linspace(*POSITION, SIDE), np.linspace(*VELOCITY, SIDE))
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    y = np.array([0.0 - greedy(weights, tiles(*state))[1] for state in x.tolist()])  # no cost is 0, not -0
    return x, y, ["position", "velocity"]
