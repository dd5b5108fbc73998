"""Kernels by formula in latent GPs: the covariance and its gradient, the joint-distribution test, what is refused."""

import dataclasses

import geweke
import numpy as np
import pytest
import torch

from gpbench.gp import kernels
from gpbench.methods.mcmc_gp import Hyperparameters
from gpbench.sampling.latent import joint, schemes, whitened

F64 = torch.float64
FORMULAS = (
    "matern12",
    "matern32",
    "matern52",
    "arccosine",
    "linear",
    "periodic",
    "rbf * periodic",
    "matern52 * linear",
)


def model(formula, chains=3, **settings):
    return dataclasses.replace(geweke.model("logit", chains, **settings), formula=formula)


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("formula", FORMULAS)
def test_psi_are_the_parameters_of_the_formula(formula, ard):
    m, rng = model(formula, ard=ard), np.random.default_rng(0)
    psi = torch.from_numpy(0.3 * rng.standard_normal((3, m.num_parameters)))
    start = kernels.start(formula, torch.zeros(3, 2 if ard else 1, dtype=F64), torch.zeros(3, dtype=F64))
    names = [*(name for name in start if "outputscale" not in name), "log_outputscale"]
    parts = psi.split([start[name].shape[1] if start[name].ndim > 1 else 1 for name in names], 1)
    params = {name: part.reshape(start[name].shape) for name, part in zip(names, parts, strict=True)}
    kernel = kernels.read(formula, params)
    jitter = 1e-6 * kernel.scale[:, None, None] * torch.eye(4, dtype=F64)
    torch.testing.assert_close(m.covariance(psi), kernel.covariance(m.x, m.x) + jitter)
    torch.testing.assert_close(m.cross(psi, m.x[:, :2]), kernel.covariance(m.x, m.x[:, :2]))
    weights = torch.from_numpy(rng.standard_normal((3, 4, 4)))
    weights = weights + weights.mT
    slope, step = m.chain(psi, m.covariance(psi), weights), 1e-6
    for k, move in enumerate(step * torch.eye(psi.shape[1], dtype=F64)):
        difference = (weights * (m.covariance(psi + move) - m.covariance(psi - move))).sum((1, 2)) / (2 * step)
        torch.testing.assert_close(slope[:, k], difference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("formula", "make"),
    [
        ("matern52", lambda m: whitened.NoUTurn(m, 4)),
        ("arccosine", lambda m: whitened.Hamiltonian(m, 4)),
        ("rbf * periodic", joint.KHR),
        ("linear", joint.Surrogate),
        ("matern32", lambda m: schemes.scheme("asis", m, None, "mh", (0, 2))),
    ],
)
def test_the_joint_distribution(formula, make):
    geweke.check(make, model(formula, 1500), {"theta": 0.5, "sufficient": 0.5}, rounds=6)


def test_what_a_formula_cannot_be_served_with_is_refused():
    assert Hyperparameters(kernel="matern52 * periodic", sampler="nuts").impossible("binary") == ""
    reason = "kernel matern32 is for theta mh, psi unknown, and no sum, which has several variances"
    assert Hyperparameters(kernel="matern32", theta="smmala").impossible("binary") == reason
    assert "no sum" in Hyperparameters(kernel="rbf + linear").impossible("binary")
