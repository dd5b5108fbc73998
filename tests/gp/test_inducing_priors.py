"""Priors of inducing inputs: values by hand, and what a gradient sees of them."""

import math

import numpy as np
import pytest
import torch

from gpbench.gp import inducing_priors, kernels, linalg

Z = torch.tensor(
    [[[0.0, 0.0], [0.3, 0.0], [0.3, 0.4], [2.0, 0.0]], [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]],
    dtype=torch.float64,
)


def log_prior(name: str, z: torch.Tensor) -> torch.Tensor:
    one = z.new_ones(len(z))
    kzz = kernels.rbf(z, z, one[:, None].expand(-1, 2), 0.7 * one)
    return inducing_priors.log_prior(name, z, linalg.cholesky(kzz, "z", 1e-6 * one))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # squares by hand: 0.09 + 0.25 + 4 and 1 + 1 + 2
        ("normal", [-2.17, -2.0]),
        ("uniform", [0.0, 0.0]),
        # distances below 0.5 among the first four: 0.3 and 0.4 (0.5 itself is not below)
        ("strauss", [2 * math.log(0.5), 0.0]),
    ],
)
def test_values(name, expected):
    torch.testing.assert_close(log_prior(name, Z), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_dpp_is_the_log_determinant_of_the_kernel_matrix():
    for z, value in zip(Z.numpy(), log_prior("dpp", Z), strict=True):
        squares = ((z[:, None] - z[None]) ** 2).sum(-1)
        _, expected = np.linalg.slogdet(0.7 * np.exp(-0.5 * squares) + 1e-6 * np.eye(4))
        assert value.item() == pytest.approx(expected, rel=1e-9)


def test_dpp_drives_inputs_apart_and_its_gradient_is_finite_where_two_coincide():
    z = Z.clone()
    z[0, 1] = z[0, 0] + torch.tensor([1e-3, 0.0])
    z.requires_grad_()
    (gradient,) = torch.autograd.grad(log_prior("dpp", z).sum(), z)
    assert gradient.isfinite().all()
    assert gradient[0, 0, 0] < 0 < gradient[0, 1, 0]


def test_strauss_counts_close_pairs_but_no_gradient_sees_it():
    z = Z.clone().requires_grad_()
    near, far = log_prior("strauss", Z), log_prior("strauss", 10 * Z)
    assert near[0] < far[0] == 0
    assert not log_prior("strauss", z).requires_grad


def test_normal_is_the_only_one_that_falls_far_from_the_origin():
    far = {name: (log_prior(name, 1e3 * Z) - log_prior(name, Z)).min() for name in ("normal", "uniform", "dpp")}
    assert far["normal"] < -1e6
    assert far["uniform"] == 0
    assert far["dpp"] > 0
