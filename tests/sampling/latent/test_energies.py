"""E-BFMI: against ArviZ, of energies given and of those of chains by HMC and NUTS."""

import warnings

import company
import numpy as np
import pytest
import torch

from cases import Case
from gpbench.gp import linalg
from gpbench.sampling.latent import counting, whitened
from gpbench.sampling.latent.model import Generator

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz

F64 = torch.float64


def counted(energies: np.ndarray) -> torch.Tensor:
    """E-BFMI by `counting` of energies `[R, T]`."""
    sums = counting.start(torch.zeros(len(energies), dtype=F64))
    for column in energies.T:
        sums |= counting.add(sums, {"energy": torch.from_numpy(column.copy())})
    return counting.means(sums)["e_bfmi"]


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("memory", [0.0, 0.95])
def test_it_is_that_of_arviz(offset, memory):
    """Of energies of three chains with and without memory, and where they are large beside their spread."""
    rng, energies = np.random.default_rng(0), np.zeros((3, 300))
    for t in range(1, 300):
        energies[:, t] = memory * energies[:, t - 1] + rng.normal(size=3)
    energies = energies * [[1.0], [5.0], [0.1]] + offset
    expected = arviz.bfmi(energies)
    np.testing.assert_allclose(counted(energies), expected, rtol=1e-9 if not offset else 1e-6)
    assert (expected < 0.3).all() == (memory > 0)  # what it tells apart


def test_without_energies_or_with_a_single_one_it_is_nan():
    sums = counting.start(torch.zeros(2, dtype=F64))
    for _ in range(3):
        sums |= counting.add(sums, {"cholesky": 1.0})
    assert counting.means(sums)["e_bfmi"].isnan().all()
    assert counting.means(sums)["cholesky"].eq(1).all()
    assert counted(np.ones((2, 1))).isnan().all()


def test_nan_stays_in_its_chain():
    energies = np.random.default_rng(0).normal(size=(3, 20))
    expected = counted(energies)
    energies[1, 7] = np.nan
    found = counted(energies)
    assert found[1].isnan()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("make", [lambda m: whitened.Hamiltonian(m, 4), lambda m: whitened.NoUTurn(m, 3)])
def test_the_energy_of_a_transition(make):
    """|p|^2/2 + |nu|^2/2 - log p(y | f) - log p(psi) before it, nu = L^-1 f, whatever the scale."""
    model, psi, f = company.chains("logit", 3)
    operator, rng = make(model), np.random.default_rng(0)
    state = operator.init(model.state(psi, f))
    scale = torch.from_numpy(rng.uniform(0.5, 1.5, state["theta.scale"].shape))
    fixed = torch.from_numpy(rng.standard_normal((3, operator.fixed)))
    by_row = torch.from_numpy(rng.standard_normal((3, f.shape[1], 1)))
    _, info = operator.step(state | {"theta.scale": scale}, Generator(fixed, by_row))
    nu = linalg.solve(model.factor(psi), f)
    momentum = torch.cat([fixed[:, : psi.shape[1]], by_row[:, :, 0]], 1)
    kinetic = 0.5 * momentum.square().sum(1)
    expected = kinetic + 0.5 * nu.square().sum(1) - model.log_lik(f) - model.log_prior(psi)
    torch.testing.assert_close(info["energy"], expected)


@pytest.mark.parametrize(
    ("name", "task", "settings"),
    [
        ("mcmc_gp", "binary", {"sampler": "hmc", "latents": "none", "burn_in": 0.2}),
        ("mcmc_gp_counts", "counts", {"sampler": "nuts", "latents": "none", "doublings": 3, "burn_in": 0.2}),
    ],
)
def test_a_fit_reports_that_of_its_transitions_after_burn_in(name, task, settings, tmp_path_factory, monkeypatch):
    energies, add = [], counting.add

    def noted(sums, info):
        energies.append(info["energy"].numpy().copy())
        return add(sums, info)

    monkeypatch.setattr(counting, "add", noted)
    case = Case(name, task, tmp_path_factory, hyper=settings, few=True)
    (outcome,) = case.alone[:1]
    energies = np.stack(energies, 1)[:, : case.steps - round(0.2 * case.steps)]
    assert energies.shape == (1, 12)
    assert outcome.info["sampler"]["e_bfmi"] == pytest.approx(arviz.bfmi(energies)[0], rel=1e-9)


def test_other_samplers_report_none(tmp_path_factory):
    outcome = Case("mcmc_gp", "binary", tmp_path_factory, few=True).alone[0]
    assert np.isnan(outcome.info["sampler"]["e_bfmi"])
