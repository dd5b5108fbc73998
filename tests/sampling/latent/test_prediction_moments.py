"""Predictive moments of f by dense algebra: of kept states (f, psi), and by Laplace's approximation given psi."""

import numpy as np
import pytest
import torch
from scipy import special

from gpbench.gp import latent_likelihoods
from gpbench.gp.jitter import DEFAULT_JITTER
from gpbench.sampling.latent import approximations, prediction
from gpbench.sampling.latent.model import Model, Prior

F64 = torch.float64
STATES, ROWS, NEW = 3, (7, 5), 4
"""Kept states, rows of each replica, new rows."""


def problem():
    """A model of two replicas, the second with padding, kept states of it, and new rows."""
    rng = np.random.default_rng(0)
    replicas, longest = len(ROWS), max(ROWS)
    weight = torch.tensor([[1.0] * rows + [0.0] * (longest - rows) for rows in ROWS], dtype=F64)
    x, new = (torch.from_numpy(rng.random((replicas, rows, 2))) for rows in (longest, NEW))
    y = weight * torch.from_numpy(rng.integers(0, 2, (replicas, longest)))
    law = latent_likelihoods.named("logit", 2)
    model = Model(x * weight[..., None], y, weight, law, Prior(1, 1), Prior(1, 1), ard=True)
    psi = torch.from_numpy(rng.normal([-1.2, -0.9, 0.5], 0.3, (STATES, replicas, 3)))
    f = weight * torch.from_numpy(rng.standard_normal((STATES, replicas, longest)))
    return model, {"psi": psi, "f": f}, new


def covariances(model, kept, new):
    """Number of state and of replica, K, k_* `[n, T]` and k_** of its rows without padding."""
    for s, r in np.ndindex(STATES, len(ROWS)):
        *tau, sigma = kept["psi"][s, r].exp().numpy()
        x, other = model.x[r, : ROWS[r]].numpy(), new[r].numpy()
        kernel = [sigma * np.exp(-0.5 * np.square((x[:, None] - b) / tau).sum(-1)) for b in (x, other)]
        yield s, r, kernel[0] + DEFAULT_JITTER * sigma * np.eye(len(x)), kernel[1], sigma


@pytest.mark.parametrize("elements", [1, 2**22])
def test_given_f_they_are_those_of_the_conditional_normal(elements, monkeypatch):
    monkeypatch.setattr(prediction, "CHUNK_ELEMENTS", elements)
    model, kept, new = problem()
    mean, variance = prediction.moments(model, kept, new, None)
    assert mean.shape == variance.shape == (STATES, len(ROWS), NEW)
    for s, r, k, cross, sigma in covariances(model, kept, new):
        weights = np.linalg.solve(k, cross)
        f = kept["f"][s, r, : ROWS[r]].numpy()
        np.testing.assert_allclose(mean[s, r], weights.T @ f, rtol=1e-6)
        np.testing.assert_allclose(variance[s, r], sigma - (cross * weights).sum(0), rtol=1e-6)


def test_given_psi_they_are_those_of_laplaces_approximation(monkeypatch):
    monkeypatch.setattr(approximations, "TOLERANCE", 1e-22)
    model, kept, new = problem()
    mean, variance = prediction.moments(model, {"psi": kept["psi"]}, new, "laplace")
    for s, r, k, cross, sigma in covariances(model, kept, new):
        y = model.y[r, : ROWS[r]].numpy()
        f = np.zeros(len(y))
        for _ in range(30):
            p = special.expit(f)
            w = p * (1 - p)
            f = np.linalg.solve(np.linalg.inv(k) + np.diag(w), w * f + y - p)
        np.testing.assert_allclose(mean[s, r], cross.T @ (y - p), rtol=1e-6)
        lost = (cross * np.linalg.solve(k + np.diag(1 / w), cross)).sum(0)
        np.testing.assert_allclose(variance[s, r], sigma - lost, rtol=1e-6)
