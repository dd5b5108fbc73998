"""Langevin dynamics with ULISSE: gradients without bias, the schedule and the freezing rule, the posterior it finds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from cases import CONF
from gpbench import config, streams
from gpbench.methods import gp_pcg, sgld_ulisse
from gpbench.methods.base import State
from gpbench.methods.training_rows import Batch
from gpbench.sampling import diagnostics
from gpbench.solvers import conjugate_gradients, ulisse
from gpbench.streams import Key

KEY = Key("smooth", "common", 0)


def rows(n=30) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, n, 2, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(1, n, 1, generator=generator, dtype=torch.float64)
    return Batch(x, torch.sin(2 * x[..., :1]) + 0.3 * x[..., 1:] + noise, torch.ones(1, n, dtype=torch.float64))


def method(**settings) -> sgld_ulisse.Method:
    return sgld_ulisse.Method(sgld_ulisse.Hyperparameters(**{"subset": 20} | settings), "regression")


def log_posterior(made: sgld_ulisse.Method, psi: torch.Tensor, train: Batch) -> torch.Tensor:
    """log p(psi | y) `[R]` of psi `[R, P]` but for a constant, by dense factors."""
    params = sgld_ulisse.named(psi)
    covariance = made.given.dense.covariance(
        params, train.x.expand(len(psi), -1, -1), torch.ones(len(psi), train.x.shape[1])
    )
    y = train.y[0, :, 0].expand(len(psi), -1)
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    return evidence + made.prior.log_density(psi).sum(1)


def run(made: sgld_ulisse.Method, state: State, train: Batch, steps: int, first: int = 0, last: int | None = None):
    """Steps `first` to `last` of `steps`; draws of psi `[T, P]`."""
    draws, n = [], train.x.shape[1]
    for step in range(first, steps if last is None else last):
        shapes = made.noise_shapes(state, n, step, steps)
        normals = streams.normal(KEY, "noise", step, (1, shapes.size(n)), like=train.x)
        made.step(state, train, shapes.split(normals, n), step, steps)
        draws.append(state.params["psi"][0].numpy().copy())
    return np.array(draws)


@pytest.mark.parametrize("ard", [False, True])
def test_the_gradient_is_exact_on_average_over_all_probes(ard):
    """By enumeration of the signs of 5 rows, where solves converge; the prior is added by the step."""
    train = rows(5)
    made = method(ard=ard, num_probes=1, threshold=1e-10)
    psi = torch.tensor([0.2, -1.0, -0.5, *([-0.1] if ard else [])], dtype=torch.float64).requires_grad_()
    (exact,) = torch.autograd.grad(log_posterior(made, psi[None], train).sum() - made.prior.log_density(psi).sum(), psi)
    found = []
    for signs in itertools.product((-1.0, 1.0), repeat=5):
        probe, start = train.x.new_tensor(signs)[:, None], train.x.new_zeros(5, 2)
        found.append(made.gradient(psi, train.x[0], train.y[0], probe, start, train.x.new_full((3,), 0.5))[0])
    torch.testing.assert_close(torch.stack(found).mean(0), exact, rtol=1e-6, atol=1e-8)


def test_the_gradient_is_made_of_two_estimates_for_the_targets_and_one_for_every_probe(monkeypatch):
    """1/2 a_1^T dK_y a_2 - 1/(2 N_r) sum_j s_j^T dK_y r_j of any estimates, with dK_y by finite differences."""
    train, made, rng = rows(5), method(num_probes=3), np.random.default_rng(0)
    estimates, probes, psi = rng.standard_normal((5, 5)), rng.choice([-1.0, 1.0], (5, 3)), np.array([0.2, -1.0, -0.5])
    given = property(lambda _: torch.from_numpy(estimates), lambda *_: None)
    monkeypatch.setattr(ulisse.Ulisse, "estimates", given, raising=False)
    start, uniform = train.x.new_zeros(5, 4), train.x.new_full((5,), 0.5)
    inputs = torch.from_numpy(psi), train.x[0], train.y[0], torch.from_numpy(probes), start, uniform
    found, quadratic, _ = made.gradient(*inputs)

    def covariance(psi):
        sigma, noise, tau = np.exp(psi)
        squares = np.square(train.x[0].numpy()[:, None] - train.x[0].numpy()).sum(-1)
        return sigma * np.exp(-tau * squares) + noise * np.eye(5)

    for p, step in enumerate(1e-6 * np.eye(3)):
        slope = (covariance(psi + step) - covariance(psi - step)) / 2e-6
        expected = 0.5 * estimates[:, 0] @ slope @ estimates[:, 1]
        expected -= np.einsum("ij,ik,kj->", estimates[:, 2:], slope, probes) / 6
        assert float(found[p]) == pytest.approx(expected, rel=1e-6)
    assert float(quadratic) == pytest.approx(train.y[0, :, 0].numpy() @ estimates[:, 0])


def test_the_start_is_the_maximum_for_a_subset_and_M_its_inverse_hessian():
    train, made = rows(12), method()
    mode, root = made.mode_and_root(train.x[0], train.y[0, :, 0])
    assert (
        torch.autograd.functional.jacobian(lambda p: log_posterior(made, p[None], train).sum(), mode).abs().max() < 0.1
    )

    def slope(psi):
        psi = psi.clone().requires_grad_()
        return torch.autograd.grad(log_posterior(made, psi[None], train).sum(), psi)[0]

    step = 1e-5 * torch.eye(3, dtype=torch.float64)
    hessian = torch.stack([(slope(mode + e) - slope(mode - e)) / 2e-5 for e in step])
    torch.testing.assert_close(root @ root.mT, (-hessian).inverse(), rtol=1e-4, atol=1e-6)


def test_chains_of_a_posterior_share_the_subset_and_start_apart():
    train, made = rows(), method()
    one, two = (made.init(train, KEY._replace(replica=r)) for r in range(2))
    assert torch.equal(one.buffers["root"], two.buffers["root"])
    assert not torch.equal(one.params["psi"], two.params["psi"])


def test_steps_fall_as_published():
    """In 40,000 steps e_t = a / (b + t): of concrete from 0.1 to 1e-4, a = 4.0040 and b = 40.040; of census, of whose
    rows the published metric takes 1,000, from 0.05 to 5e-6, a = 0.20002 and b = 4.0004. From twice the part of S
    where that is less."""
    made = method(subset=500, burn_in=0.9)
    none = torch.zeros((), dtype=torch.float64)
    for step in (0, 1000, 30_000):
        assert float(made.step_size(none, 1030, step, 40_000)) == pytest.approx(4.0040 / (40.040 + step), rel=1e-4)
    of_census = config.compose(CONF, "method", "sgld_ulisse_2015_census").hyper
    census = sgld_ulisse.Method(replace(of_census, burn_in=0.9), "regression")
    for step in (0, 1000, 30_000):
        expected = 0.20002 / (4.0004 + step)
        assert float(census.step_size(none, 22_784, step, 40_000)) == pytest.approx(expected, rel=1e-4)
    assert float(made.step_size(none, 50_000, 0, 40_000)) == pytest.approx(0.02)
    assert made.step_size(none, 1030, 36_000, 40_000) == made.step_size(none, 1030, 39_999, 40_000)
    assert float(made.step_size(none + 0.03, 1030, 30_000, 40_000)) == pytest.approx(0.03)


@pytest.mark.parametrize(("noise", "frozen"), [(0.0, True), (0.25, True), (0.35, False)])
def test_steps_stay_once_the_noise_of_gradients_is_small(noise, frozen):
    """0.1 / 4 noise^2 is 0.002 at noise 0.283; V is over a window, whatever the mean gradient is."""
    made = method()
    memory = made.init(rows(), KEY).memory
    signs = torch.tensor([(-1.0) ** step for step in range(sgld_ulisse.WINDOW)], dtype=torch.float64)
    size, mean = torch.tensor(0.1), torch.tensor([3.0, 0.0, 1.0], dtype=torch.float64)
    for step, sign in enumerate(signs):
        assert memory["frozen"] == 0
        gradient = mean + noise * sign * torch.tensor([1.0, 0.0, 0.0])
        made.freeze(memory, 0, gradient, torch.eye(3, dtype=torch.float64), size, step)
    assert bool(memory["frozen"] == size) == frozen
    assert not memory["gradient_square"].any()


def test_a_step_is_that_of_langevin_dynamics(monkeypatch):
    """psi' = psi + e/2 M d log p(psi) + e^1/2 M^1/2 normal where the data say nothing; log p: Gamma, of log psi."""
    train, made = rows(), method(first_step=0.1, last_step=0.01, shape=2.0, rate=3.0)
    state = made.init(train, KEY)
    solution = conjugate_gradients.solve(torch.clone, train.x[0, :, :1], tolerance=1.0, cap=1)
    nothing = torch.zeros(3, dtype=torch.float64), torch.zeros(()), solution._replace(x=torch.zeros(30, 5).double())
    monkeypatch.setattr(made, "gradient", lambda *_: nothing)
    psi, root = state.params["psi"][0], state.buffers["root"][0]
    normals = streams.normal(KEY, "noise", 1, (1, made.noise_shapes(state, 30, 1, 100).size(30)), like=train.x)
    noise = made.noise_shapes(state, 30, 1, 100).split(normals, 30)
    size = made.step_size(torch.zeros((), dtype=torch.float64), 30, 1, 100)
    drift = root @ root.mT @ (2.0 - 3.0 * psi.exp())
    expected = psi + size / 2 * drift + size.sqrt() * (root @ noise.fixed[0, :3])
    made.step(state, train, noise, 1, 100)
    torch.testing.assert_close(state.params["psi"][0], expected, rtol=1e-12, atol=1e-12)


def test_solves_start_from_the_last_plain_iterates_and_probes_are_redrawn():
    train, made = rows(), method(probe_steps=3)
    state = made.init(train, KEY)
    run(made, state, train, 6, last=2)
    probes, before = state.memory["probes"].clone(), state.memory["solutions"].clone()
    assert set(probes.unique().tolist()) == {-1.0, 1.0}
    seen = []
    solve = conjugate_gradients.solve

    def watched(product, b, **settings):
        seen.append((b, settings["start"], solve(product, b, **settings)))
        return seen[-1][2]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conjugate_gradients, "solve", watched)
        run(made, state, train, 6, first=2, last=4)
    (b, start, solution), (_, fresh, _) = seen
    assert torch.equal(b, torch.cat([train.y, probes], 2)[0])
    assert torch.equal(start, before[0])
    assert torch.equal(fresh[:, 0], solution.x[:, 0])  # y goes on
    assert not fresh[:, 1:].any()
    assert not torch.equal(state.memory["probes"], probes)


@pytest.mark.slow
def test_with_exact_gradients_it_finds_the_posterior(monkeypatch):
    """Means and standard deviations on 25 rows, against importance sampling by the exact evidence."""
    train, made = rows(25), method(subset=25, first_step=0.2, last_step=0.1, burn_in=0.1)
    solution = conjugate_gradients.solve(torch.clone, train.x[0, :, :1], tolerance=1.0, cap=1)

    def exact(psi, x, y, *_):
        leaf = psi.clone().requires_grad_()
        with torch.enable_grad():
            log_evidence = log_posterior(made, leaf[None], train).sum() - made.prior.log_density(leaf).sum()
        return torch.autograd.grad(log_evidence, leaf)[0], psi.new_zeros(()), solution._replace(x=x.new_zeros(25, 5))

    monkeypatch.setattr(made, "gradient", exact)
    draws = run(made, made.init(train, KEY), train, 2000)[200:]
    mode, root = made.mode_and_root(train.x[0], train.y[0, :, 0])
    wide = torch.distributions.MultivariateNormal(mode, 2.25 * root @ root.mT)
    normal = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    psi = mode + 1.5 * normal @ root.mT
    weights = (log_posterior(made, psi, train) - wide.log_prob(psi)).softmax(0)
    assert 1 / weights.square().sum() > 3000
    mean = weights @ psi
    sd = (weights @ (psi - mean).square()).sqrt()
    error = draws.std(0) / diagnostics.geyer_ess(draws) ** 0.5
    assert (np.abs(draws.mean(0) - mean.numpy()) < 4 * error + 0.05 * sd.numpy()).all()
    np.testing.assert_allclose(draws.std(0), sd, rtol=0.25)


def test_predictions_are_those_of_the_exact_gp_at_kept_parameters():
    train, made = rows(), method()
    state = made.init(train, KEY)
    kept = state.params["psi"] + torch.tensor([[0.0, 0.1, -0.2]], dtype=torch.float64)
    state.samples = {"psi": [state.params["psi"], kept]}
    x = train.x[:, :5] + 0.1
    found = made.predict(state, x, KEY)
    for s, psi in enumerate(state.samples["psi"]):
        one = made.given.dense.predict(State(sgld_ulisse.named(psi), state.buffers), x, KEY)
        np.testing.assert_allclose(found.component_mean[s], one.mean(), atol=1e-4)
        np.testing.assert_allclose(found.component_variance[s], one.variance(), atol=1e-4)
    assert isinstance(made.given, gp_pcg.Method)
    assert state.memory["unsolved_test"] == 0
    made.given.hyper = replace(made.given.hyper, cap=1, preconditioner="none")
    made.predict(state, x, KEY)
    assert state.memory["unsolved_test"] > 0


@pytest.mark.parametrize("case", ["one row", "repeated rows", "no noise"])
def test_awkward_rows_end_with_numbers(case):
    train = rows(1 if case == "one row" else 20)
    if case == "repeated rows":
        train = Batch(train.x[:, :1].expand(-1, 20, -1), train.y[:, :1].expand(-1, 20, -1), train.weight)
    if case == "no noise":
        train = Batch(train.x, train.x[..., :1], train.weight)
    made = method()
    state = made.init(train, KEY)
    assert np.isfinite(run(made, state, train, 30)).all()
    assert made.predict(state, train.x, KEY).is_finite()


def test_settings_that_no_chain_can_use_are_refused():
    refused = sgld_ulisse.Hyperparameters(weights="constant", weight=0.5).impossible("regression")
    assert refused.startswith("weights=constant need a weight of at least 1")
    assert "first_step" in sgld_ulisse.Hyperparameters(first_step=1e-4).impossible("regression")
    assert not sgld_ulisse.Hyperparameters(weights="constant").impossible("regression")
