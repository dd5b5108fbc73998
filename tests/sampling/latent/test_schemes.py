"""What settings make of the samplers of (f, psi): which transitions, how many of each, with which numbers."""

import company
import pytest
import torch

from gpbench.methods.mcmc_gp import Hyperparameters
from gpbench.sampling.latent import counting, joint, latents, parameters, schemes, whitened
from gpbench.sampling.latent import pseudo_marginal as pm

F64 = torch.float64
F, GIVEN_F, GIVEN_NU = latents.Hamiltonian, parameters.Sufficient, parameters.Ancillary
"""Updates of f, and of psi given f or nu."""


def made(**settings):
    """The operator of the settings for the probit likelihood and variances of a Gamma prior."""
    of_model = {"variance": 2.0} if settings["sampler"] == "estimator" else {}
    return schemes.sampler(Hyperparameters(likelihood="probit", **settings), company.chains("probit", 2, **of_model)[0])


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        ("latents", [F] * 2),
        ("theta_given_f", [F] * 2 + [GIVEN_F] * 3),
        ("theta_given_nu", [F] * 2 + [GIVEN_NU] * 3),
        ("sa", [F] * 2 + [GIVEN_F] * 3),
        ("aa", [F] * 2 + [GIVEN_NU] * 3),
        ("asis", [F] * 2 + [GIVEN_F, GIVEN_NU] * 3),
        ("surr", [F] * 2 + [joint.Surrogate] * 3),
        ("khr", [joint.KHR] * 3),
        ("pm", [pm.PseudoMarginal] * 3 + [F] * 2),
        ("marginal", [pm.Marginal] * 3),
    ],
)
def test_updates_are_as_many_and_in_the_order_of_a_scheme(sampler, expected):
    parts = made(sampler=sampler, latent_updates=2, theta_updates=3, latents="hmc", leapfrogs=7).parts
    assert [type(getattr(part, "conditional", part)) for part in parts] == expected
    assert {part.leapfrogs for part in parts if isinstance(part, F)} <= {7}


def test_estimates_are_of_as_many_draws_and_of_the_share_that_are_set():
    (walk,) = made(sampler="pm", latents="none", num_importance=5, defensive=0.2).parts
    assert (walk.per_row, walk.share) == (5, 0.2)
    grid = made(sampler="estimator", outputscale=2.0, num_importance=6, grid_low=-2, grid_high=0.5, grid_points=6)
    assert grid.grid.tolist() == pytest.approx([-2, -1.5, -1, -0.5, 0, 0.5])
    assert grid.num_importance == 6


def test_trajectories_are_of_the_length_set():
    fixed, doubled = made(sampler="hmc", leapfrogs=7), made(sampler="nuts", doublings=3)
    assert (type(fixed), fixed.leapfrogs) == (whitened.Hamiltonian, 7)
    assert (type(doubled), doubled.depth) == (whitened.NoUTurn, 3)


def test_means_are_over_transitions_and_of_what_no_transition_reports_there_is_none():
    sums = counting.start(torch.zeros(2, dtype=F64))
    for acceptance in ([0.2, 1.0], [0.4, 0.0]):
        sums = counting.add(sums, {"theta.acceptance": torch.tensor(acceptance, dtype=F64), "cholesky": 3.0})
    found = counting.means(sums)
    assert found["acceptance_theta"].tolist() == pytest.approx([0.3, 0.5])
    assert (found["cholesky"].tolist(), found["product"].tolist()) == ([3, 3], [0, 0])
    assert found["acceptance_latents"].isnan().all()
