"""Methods that try solvers: rows, caps, precision, and what their settings ask of preconditioners and of ULISSE."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gpbench.gp import kernels
from gpbench.methods import cg_prior, pcg_grid, systems
from gpbench.streams import Key

KEY = Key("smooth", "common", 0)
X = torch.linspace(-2, 2, 49, dtype=torch.float64)[:, None]
KERNEL = kernels.Kernel("rbf", {"lengthscale": torch.ones(1).double(), "outputscale": torch.ones(()).double()})


def test_some_rows_are_distinct_and_inputs_keep_their_targets():
    x, y = systems.some_rows(X, X[:, 0].square(), 40, KEY)
    assert len(x.unique()) == 40
    assert torch.equal(y, x[:, 0].square())
    assert torch.equal(systems.some_rows(X, X[:, 0], 40, KEY)[0], x)
    assert systems.some_rows(X, X[:, 0], None, KEY)[0] is X


@pytest.mark.parametrize(("within", "last"), [(None, 9), (SimpleNamespace(inner=7), 2)])
def test_iterations_within_the_preconditioner_count_for_the_cap(within, last):
    ends, residual = systems.capped(within, 10), torch.ones(3)
    over = [ends(i, residual, residual).all().item() for i in range(last + 1)]
    assert over == [False] * last + [True]


def test_a_matrix_in_single_precision_is_rounded():
    v = torch.randn(49, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    double, single = (systems.Stored(KERNEL, X, 0.1, dtype)(v) for dtype in (torch.float64, torch.float32))
    torch.testing.assert_close(double, KERNEL.covariance(X, X) @ v + 0.1 * v)
    assert single.dtype == torch.float64
    assert 1e-8 < (single - double).abs().max() < 1e-4


@pytest.mark.parametrize(("rank", "expected"), [(None, 7), (5, 5)])
def test_a_preconditioner_has_the_root_of_the_rows_for_its_rank_or_the_one_set(rank, expected, monkeypatch):
    ranks = []
    monkeypatch.setattr(pcg_grid.preconditioners, "build", lambda name, product, rank, generator: ranks.append(rank))
    made = pcg_grid.Method(pcg_grid.Hyperparameters(preconditioner="nystrom", rank=rank), "regression")
    made.preconditioner(systems.Stored(KERNEL, X, 0.1), torch.Generator())
    assert ranks == [expected]


def test_systems_are_drawn_from_the_gamma_prior():
    """Mean shape / rate and variance shape / rate^2 of sigma, tau and lambda."""
    made = cg_prior.Method(cg_prior.Hyperparameters(solver="none", shape=3.0, rate=6.0), "regression")
    rng = np.random.default_rng(0)
    found = [made.draw(X[:3], rng)[2] for _ in range(400)]
    for name in ("sigma", "tau", "lambda"):
        drawn = np.array([one[name] for one in found])
        assert drawn.mean() == pytest.approx(0.5, abs=5 * drawn.std() / 20)
        assert drawn.var() == pytest.approx(3 / 36, rel=0.4)


def test_ulisse_may_stop_at_a_residual_of_q_a_row(monkeypatch):
    thresholds, estimator = [], cg_prior.ulisse.Ulisse
    monkeypatch.setattr(cg_prior.ulisse, "Ulisse", lambda *of: thresholds.append(of[1]) or estimator(*of))
    made = cg_prior.Method(cg_prior.Hyperparameters(solver="ulisse", q=0.3), "regression")
    made.estimate(systems.Stored(KERNEL, X, 0.1), X, torch.full((2,), 0.5, dtype=torch.float64))
    assert thresholds == [pytest.approx(0.3 * 7)]
