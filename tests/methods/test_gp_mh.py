"""Metropolis-Hastings over covariance parameters: proposals and their acceptance, by dense algebra."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import multivariate_normal

from gpbench.methods import gp_mh
from gpbench.methods.base import Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.streams import Key

KEY = Key("smooth", "common", 0)
SETTINGS = {"shape": 2.0, "rate": 1.5, "jitter": 1e-6, "subset": 20}


def rows(n=20) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, n, 2, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(1, n, 1, generator=generator, dtype=torch.float64)
    return Batch(x, torch.sin(2 * x[..., :1]) + 0.3 * x[..., 1:] + noise, torch.ones(1, n, dtype=torch.float64))


def method(**settings) -> gp_mh.Method:
    return gp_mh.Method(gp_mh.Hyperparameters(**SETTINGS | settings), "regression")


def covariance(psi: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """sigma exp(-sum_d tau_d (x_d - x'_d)^2)."""
    return np.exp(psi[0] - (np.exp(psi[2:]) * np.square(one[:, None] - other)).sum(2))


def noisy(psi: np.ndarray, x: np.ndarray) -> np.ndarray:
    return covariance(psi, x, x) + (np.exp(psi[1]) + 1e-6 * np.exp(psi[0])) * np.eye(len(x))


def log_joint(psi: np.ndarray, train: Batch) -> float:
    """log p(y | psi) + log p(psi), but for the constant of the prior."""
    x, y = train.x[0].numpy(), train.y[0, :, 0].numpy()
    return multivariate_normal.logpdf(y, np.zeros(len(y)), noisy(psi, x)) + (2.0 * psi - 1.5 * np.exp(psi)).sum()


def step(made: gp_mh.Method, state: State, train: Batch, kick: np.ndarray, uniform: float, number=2) -> torch.Tensor:
    """A step of ten, of which two are burn-in, by a given move and a given uniform number."""
    fixed = torch.from_numpy(np.append(kick, ndtri(uniform)))[None]
    return made.step(state, train, Noise(fixed, torch.zeros(1, 0)), number, 10)


def move_of_ratio(state: State, train: Batch, log_ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """A move along a line whose log ratio of posteriors is that, and psi after it with a step size of 1."""
    psi, root = state.params["psi"][0].numpy(), state.buffers["root"][0].numpy()
    direction = np.array([1.0, -0.5, 0.7, 0.2])[: len(psi)]
    wanted = log_joint(psi, train) + log_ratio
    kick = brentq(lambda length: log_joint(psi + length * root @ direction, train) - wanted, 0, 4) * direction
    return kick, psi + root @ kick


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("log_ratio", [-0.7, -3.0])
@pytest.mark.parametrize("accepted", [True, False])
def test_a_proposal_is_accepted_with_the_ratio_of_the_posteriors(ard, log_ratio, accepted):
    """By a uniform number 1% below the ratio, or above it."""
    train, made = rows(), method(ard=ard)
    state = made.init(train, KEY)
    psi = state.params["psi"][0].numpy().copy()
    kick, proposed = move_of_ratio(state, train, log_ratio)
    ratio = math.exp(log_joint(proposed, train) - log_joint(psi, train))
    assert ratio == pytest.approx(math.exp(log_ratio))
    loss = step(made, state, train, kick, ratio * (0.99 if accepted else 1.01))
    expected = proposed if accepted else psi
    np.testing.assert_allclose(state.params["psi"][0], expected, rtol=0, atol=1e-12)
    assert float(loss) == pytest.approx(-log_joint(expected, train), abs=1e-7)
    assert float(state.memory["log_joint"]) == pytest.approx(log_joint(expected, train), abs=1e-7)
    assert float(made.report(state)["acceptance_theta"]) == pytest.approx(ratio, abs=1e-7)


def test_a_proposal_uphill_is_always_accepted():
    train, made = rows(), method()
    state = made.init(train, KEY)
    state.params["psi"] = state.params["psi"] + 1.0
    state.memory["log_joint"] = made.log_joint(state.params["psi"], train)
    root = state.buffers["root"][0].numpy()
    kick = np.linalg.solve(root, -0.5 * np.ones(3))
    assert log_joint(state.params["psi"][0].numpy() - 0.5, train) > log_joint(state.params["psi"][0].numpy(), train)
    before = state.params["psi"].clone()
    step(made, state, train, kick, 1 - 1e-9)
    torch.testing.assert_close(state.params["psi"], before - 0.5)
    assert float(made.report(state)["acceptance_theta"]) == 1.0


def test_a_proposal_without_a_density_is_rejected():
    train, made = rows(), method()
    state = made.init(train, KEY)
    before = state.params["psi"].clone()
    step(made, state, train, np.full(3, 1e6), 1e-9)
    assert torch.equal(state.params["psi"], before)
    assert float(made.report(state)["acceptance_theta"]) == 0.0


def test_step_sizes_are_learnt_in_burn_in_and_scale_the_move_afterwards():
    """By the first step of dual averaging (`sampling.tuning`), for 0.3 accepted, from a step size of 1."""
    train, made = rows(), method()
    state = made.init(train, KEY)
    psi = state.params["psi"][0].numpy().copy()
    kick, proposed = move_of_ratio(state, train, -0.7)
    acceptance = math.exp(log_joint(proposed, train) - log_joint(psi, train))
    step(made, state, train, kick, 1 - 1e-9, number=0)
    assert float(made.report(state)["acceptance_theta"]) == 0.0, "counted after burn-in only"
    size = 10 * math.exp(-20 * (0.3 - acceptance) / 11)
    assert float(state.memory["walk.averaged"].exp()) == pytest.approx(size, rel=1e-6)
    root, small = state.buffers["root"][0].numpy(), np.array([1e-4, 0.0, 0.0])
    step(made, state, train, small, 1e-9)
    np.testing.assert_allclose(state.params["psi"][0], psi + size * root @ small, rtol=0, atol=1e-9)
    assert float(state.memory["walk.averaged"].exp()) == pytest.approx(size, rel=1e-6)


def test_predictions_are_a_mixture_over_kept_parameters():
    train, made = rows(), method()
    state = made.init(train, KEY)
    psi = state.params["psi"]
    state.samples = {"psi": [psi, psi + torch.tensor([[0.3, -0.2, 0.5]], dtype=torch.float64)]}
    x, test = train.x[0].numpy(), train.x[0, :5].numpy() + 0.1
    found = made.predict(state, torch.from_numpy(test)[None], KEY)
    for s, kept in enumerate(value[0].numpy() for value in state.samples["psi"]):
        cross = covariance(kept, test, x)
        known = np.linalg.solve(noisy(kept, x), cross.T)
        noise = np.exp(kept[1]) + 1e-6 * np.exp(kept[0])
        np.testing.assert_allclose(found.component_mean[s].ravel(), train.y[0, :, 0].numpy() @ known, atol=1e-6)
        variance = np.exp(kept[0]) - (cross.T * known).sum(0) + noise
        np.testing.assert_allclose(found.component_variance[s].ravel(), variance, atol=1e-6)
