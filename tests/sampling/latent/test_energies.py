"""E-BFMI of chains by HMC and NUTS from the potentials of their draws, against ArviZ on energies of transitions."""

import warnings

import company
import numpy as np
import pytest
import torch
from scipy import special

from cases import Case
from gpbench import streams
from gpbench.methods import mcmc_gp
from gpbench.methods.training_rows import Batch
from gpbench.sampling.latent import counting, whitened
from gpbench.sampling.latent.model import Generator
from gpbench.study.fitting import energies

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz

F64 = torch.float64


def chain(make, transitions, seed=0):
    """Potentials and energies as transitions begin, `[R, T]`, of three chains near their modes, and d."""
    model, psi, f = company.chains("logit", 3)
    operator, rng = make(model), np.random.default_rng(seed)
    state = operator.init(model.state(psi, f)) | {"theta.step_size": torch.full((3,), 0.3, dtype=F64)}
    potentials, begins = [], []
    for _ in range(transitions):
        fixed = torch.from_numpy(rng.standard_normal((3, operator.fixed)))
        by_row = torch.from_numpy(rng.standard_normal((3, f.shape[1], 1)))
        potential = energies.potential(model, state["psi"], state["f"])
        torch.testing.assert_close(potential, -state["theta.value"])
        momentum = torch.cat([fixed[:, : psi.shape[1]], by_row[:, :, 0]], 1)
        potentials.append(potential)
        begins.append(potential + 0.5 * momentum.square().sum(1))
        state = operator.step(state, Generator(fixed, by_row))[0]
    return torch.stack(potentials, 1), torch.stack(begins, 1), psi.shape[1] + f.shape[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda model: whitened.Hamiltonian(model, 8),
        lambda model: whitened.NoUTurn(model, 4),
    ],
    ids=["hmc", "nuts"],
)
def test_it_estimates_that_of_the_energies(make):
    potentials, begins, d = chain(make, 1500)
    ours = np.array([float(energies.e_bfmi(values[100:], d)) for values in potentials])
    expected = arviz.bfmi(begins[:, 100:].numpy())
    # either is a ratio of moments of 1,400 draws, of some hundred effective ones
    np.testing.assert_allclose(ours, expected, rtol=0.15)


def test_of_a_normal_posterior_it_is_one_and_of_heavy_tails_small():
    rng = np.random.default_rng(0)
    normal = torch.from_numpy(rng.standard_normal((20_000, 10)))
    assert float(energies.e_bfmi(0.5 * normal.square().sum(1), 10)) == pytest.approx(1, abs=0.03)
    # Student's t with two degrees of freedom: U = -3/2 log B, B ~ Beta(1, 1/2), Var[log B] = psi'(1) - psi'(3/2)
    heavy = torch.from_numpy(rng.standard_t(2, (20_000, 100))).square().div(2).log1p().mul(1.5).sum(1)
    variance = 2.25 * (special.polygamma(1, 1) - special.polygamma(1, 1.5))
    assert float(energies.e_bfmi(heavy, 100)) == pytest.approx(1 / (variance + 0.5), abs=0.02)
    assert torch.isnan(energies.e_bfmi(normal[:1, 0], 10))


@pytest.mark.parametrize(
    ("name", "task", "settings"),
    [
        ("mcmc_gp", "binary", {"sampler": "hmc", "latents": "none", "burn_in": 0.2}),
        ("mcmc_gp_counts", "counts", {"sampler": "nuts", "latents": "none", "doublings": 3, "burn_in": 0.2}),
    ],
)
def test_a_fit_reports_that_of_its_draws(name, task, settings, tmp_path_factory):
    case = Case(name, task, tmp_path_factory, hyper=settings, few=True)
    outcome = case.alone[0]
    assert 0 < outcome.info["sampler"]["e_bfmi"] <= 2


def test_a_chain_that_had_ended_when_it_was_resumed_reports_it():
    """No transition has told the method its rows then."""
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.random((1, 12, 2))), torch.from_numpy(rng.integers(0, 2, (1, 12, 1))).double()
    hyper = mcmc_gp.Hyperparameters(sampler="hmc", latents="none")
    found = []
    for resumed in (False, True):
        method = mcmc_gp.Method(hyper, "binary")
        state = method.init(Batch(x, y, torch.ones(1, 12, dtype=F64)), streams.Key("toy", "toy", 0))
        draws = torch.from_numpy(np.random.default_rng(1).standard_normal((6, 1, 14)))
        state.samples = {"psi": [*draws[:, :, :2]], "f": [*(0.01 * draws[:, :, 2:])]}
        state.memory = counting.start(state.params["psi"][:, 0])
        method.batch = None if resumed else method.batch
        found.append(energies.report(method, state, 0)["e_bfmi"])
    assert found[0] == found[1]
    assert np.isfinite(found[0])


def test_other_samplers_report_none(tmp_path_factory):
    assert "e_bfmi" not in Case("mcmc_gp", "binary", tmp_path_factory, few=True).alone[0].info["sampler"]
