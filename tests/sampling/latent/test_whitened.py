"""HMC and NUTS of (psi, nu): the gradient, the joint-distribution test, chains apart, what is counted and kept."""

import company
import geweke
import numpy as np
import pytest
import torch

from gpbench.gp import latent_likelihoods, linalg
from gpbench.sampling import hmc, nuts
from gpbench.sampling.latent import whitened

F64 = torch.float64


def hamiltonian(model):
    return whitened.Hamiltonian(model, 4)


def no_u_turn(model, depth=4):
    return whitened.NoUTurn(model, depth)


@pytest.mark.parametrize("settings", [{}, {"ard": False}, {"variance": 2.0}])
@pytest.mark.parametrize("name", latent_likelihoods.NAMED)
def test_the_gradient(name, settings):
    model, psi, f = company.chains(name, 3, **settings)
    size, rng = sum(hamiltonian(model).shape), np.random.default_rng(0)
    scale = torch.from_numpy(rng.uniform(0.5, 1.5, (3, size)))
    density, at = whitened.Density(model, scale), torch.from_numpy(0.5 * rng.standard_normal((3, size)))
    point, step = density(at), 1e-6
    for k, move in enumerate(step * torch.eye(size, dtype=F64)):
        difference = (density(at + move).value - density(at - move).value) / (2 * step)
        torch.testing.assert_close(point.gradient[:, k], difference, rtol=1e-5, atol=1e-6)
    some = torch.tensor([2, 0])
    for one, other in zip(density(at[some], some), point, strict=True):
        torch.testing.assert_close(one, other[some])
    psi, nu = (scale * at).split([psi.shape[1], f.shape[1]], 1)
    torch.testing.assert_close(point.extra, linalg.multiply(model.factor(psi), nu))


@pytest.mark.parametrize("make", [hamiltonian, no_u_turn])
@pytest.mark.parametrize("name", ["logit", "volatility"])
def test_the_joint_distribution(name, make):
    geweke.check(make, geweke.model(name, chains=2000, variance=geweke.INVERSE), {"theta": 0.4}, rounds=8)


@pytest.mark.slow
def test_a_trajectory_that_always_goes_over_to_its_last_subtree_fails_the_test(monkeypatch):
    merged = nuts._merged
    monkeypatch.setattr(nuts, "_merged", lambda w, p, f, u, c: merged(w, p, f, 1e-30 * u, c))
    geweke.fails(no_u_turn, geweke.model("poisson", chains=8000), {"theta": 1.2}, rounds=6)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(("name", "make"), [("logit", hamiltonian), ("poisson", no_u_turn)])
@pytest.mark.parametrize("cached", [1, 40, 10**6])
@pytest.mark.slow
def test_chains_do_not_depend_on_each_other(name, make, dtype, cached, monkeypatch):
    monkeypatch.setattr(whitened, "CACHED", cached)
    company.check(make, name, {"theta.step_size": 0.3}, dtype)


def test_steps_of_hmc_vary_by_a_fifth_and_are_relative_to_the_scales(monkeypatch):
    """Leapfrog steps of (psi, nu) = s z from the gradient of (psi, nu) itself, the second transition from its kept
    gradient."""
    gains = []
    monkeypatch.setattr(hmc, "acceptance", lambda gain: torch.ones_like(gains.append(gain) or gain))
    model, psi, f = company.chains("logit", 20)
    operator, rng = hamiltonian(model), np.random.default_rng(0)
    state, size = geweke.start(operator, psi, f, {"theta": 0.1}), sum(operator.shape)
    scale = state["theta.scale"] = torch.from_numpy(rng.uniform(0.5, 1.5, (20, size)))
    density, w = whitened.Density(model, torch.ones_like(scale)), state["theta.position"]
    for _ in range(2):
        noise = torch.from_numpy(rng.standard_normal((20, operator.fixed + f.shape[1])))
        same = geweke.packed(noise, f.shape[1], 1)
        p = torch.cat([same.normal(psi.shape[1]), same.latent()], 1)
        step = 0.1 * (0.8 + 0.4 * same.uniforms(2)[:, 1:])
        before = density(w).value - 0.5 * p.square().sum(1)
        for _ in range(4):
            half = p + 0.5 * step * scale * density(w).gradient
            w = w + step * scale * half
            p = half + 0.5 * step * scale * density(w).gradient
        state, _ = operator.step(state, geweke.packed(noise, f.shape[1], 1))
        torch.testing.assert_close(state["theta.position"], w, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(gains[-1], density(w).value - 0.5 * p.square().sum(1) - before, rtol=1e-7, atol=1e-7)


class Normal:
    """N(0, I), and the chains and positions that it was asked for."""

    def __init__(self):
        self.seen = []

    def __call__(self, position, chains=None):
        self.seen.append(len(position) if chains is None else chains.tolist())
        return hmc.Point(position, -0.5 * position.square().sum(1), -position)


def trajectory(step_size, depth=6, seed=0):
    """A transition of NUTS on N(0, I) in two dimensions, and its density."""
    rng, density, size = np.random.default_rng(seed), Normal(), torch.tensor(step_size, dtype=F64)
    normal, momentum = (torch.from_numpy(rng.standard_normal((len(size), 2))) for _ in range(2))
    uniforms = torch.from_numpy(rng.random((len(size), nuts.uniforms_needed(depth))))
    start = density(normal)
    density.seen.clear()
    return nuts.step(start, density, momentum, uniforms, size, depth), density


def test_a_chain_that_is_done_is_left_out():
    moved, density = trajectory([0.02, 0.5, 0.5, 2.5])
    counts = moved.leapfrogs.long().tolist()
    assert len(set(counts)) > 1
    assert len(density.seen) == max(counts)
    asked = [part if isinstance(part, list) else range(part) for part in density.seen]
    assert [sum(chain in part for part in asked) for chain in range(4)] == counts
    assert not moved.divergent.any()


@pytest.mark.parametrize("step_size", [0.1, 0.3, 0.8])
def test_a_trajectory_goes_on_until_it_turns(step_size):
    """Half a circle in phase space, pi / step_size steps, and at most two doublings more."""
    moved, _ = trajectory([step_size] * 200, depth=8)
    assert moved.leapfrogs.max() <= 4 * np.pi / step_size
    assert moved.leapfrogs.mean() >= 0.5 * np.pi / step_size
    assert moved.acceptance.mean() > 0.9


def error_of_nuts(chains=8000, size=0.5):
    """Of the mean of |w|^2 under N(0, I), in standard errors, after transitions from draws of it."""
    density, rng = Normal(), np.random.default_rng(0)
    point = density(torch.from_numpy(rng.standard_normal((chains, 2))))
    for _ in range(6):
        momentum = torch.from_numpy(rng.standard_normal((chains, 2)))
        uniforms = torch.from_numpy(rng.random((chains, nuts.uniforms_needed(5))))
        point = nuts.step(point, density, momentum, uniforms, torch.full((chains,), size, dtype=F64), 5).point
    return float(point.position.square().sum(1).mean() - 2) / (4 / chains) ** 0.5


@pytest.mark.parametrize("size", [0.3, 0.9, 1.5])
@pytest.mark.slow
def test_draws_of_nuts_are_those_of_the_density(size):
    assert abs(error_of_nuts(size=size)) < 3.5


def test_without_the_check_of_subtrees_they_are_not(monkeypatch):
    counted = nuts._counted
    monkeypatch.setattr(nuts, "_counted", lambda *of: (counted(*of)[0], torch.zeros_like(of[3])))
    assert error_of_nuts() > 20


def by_definition(position, momentum, step_size, uniforms, depth):
    """Where a transition of NUTS on N(0, I) ends, its mean acceptance and its number of leapfrog steps, by all dyadic
    parts of every doubling (hoffman2014, betancourt2017)."""

    def turns(part):
        along = np.sum(part, 0) - (part[0] + part[-1]) / 2
        return part[0] @ along <= 0 or part[-1] @ along <= 0

    directions, merges, draws = np.split(uniforms, [depth, 2 * depth])
    path, ends, acceptances = [momentum], {True: (position, momentum), False: (position, momentum)}, []
    drawn, log_weight, energy = position, 0.0, (position @ position + momentum @ momentum) / 2
    for doubling in range(depth):
        forwards, added, log_part, of_part = directions[doubling] < 0.5, [], -np.inf, None
        size, (w, p) = step_size if forwards else -step_size, ends[forwards]
        while len(added) < 2**doubling:
            half = p - size / 2 * w
            w = w + size * half
            p = half - size / 2 * w
            gain = energy - (w @ w + p @ p) / 2
            log_part = np.logaddexp(log_part, gain)
            of_part = w if draws[len(acceptances)] < np.exp(gain - log_part) else of_part
            acceptances.append(min(np.exp(gain), 1))
            added.append(p)
            parts = [added[-(2**k) :] for k in range(1, doubling + 1) if len(added) % 2**k == 0]
            if any(map(turns, parts)):
                return drawn, np.mean(acceptances), len(acceptances)
        drawn = of_part if merges[doubling] < np.exp(log_part - log_weight) else drawn
        log_weight = np.logaddexp(log_weight, log_part)
        ends[forwards], path = (w, p), path + added if forwards else added[::-1] + path
        if turns(path):
            break
    return drawn, np.mean(acceptances), len(acceptances)


@pytest.mark.parametrize(("step_size", "depth"), [(0.3, 6), (1.5, 6), (0.1, 3)])
def test_a_trajectory_is_that_of_its_definition(step_size, depth):
    """A third of the long steps would be others where the momenta at the ends counted in full."""
    rng, chains = np.random.default_rng(0), 300
    position, momentum = rng.standard_normal((2, chains, 2))
    uniforms = rng.random((chains, nuts.uniforms_needed(depth)))
    size = torch.full((chains,), step_size, dtype=F64)
    start = Normal()(torch.from_numpy(position))
    moved = nuts.step(start, Normal(), torch.from_numpy(momentum), torch.from_numpy(uniforms), size, depth)
    given = zip(position, momentum, uniforms, strict=True)
    drawn, acceptances, counts = zip(*(by_definition(w, p, step_size, u, depth) for w, p, u in given), strict=True)
    assert len(set(counts)) > 1
    assert moved.leapfrogs.tolist() == list(counts)
    np.testing.assert_allclose(moved.point.position, drawn, rtol=0, atol=1e-10)
    np.testing.assert_allclose(moved.acceptance, acceptances)


def one_step(loss):
    """A transition of one leapfrog step from 0 in one dimension that loses so many nats: by e^4/8 with momentum 1."""
    size = torch.tensor([(8 * loss) ** 0.25], dtype=F64)
    uniforms = torch.full((1, nuts.uniforms_needed(1)), 0.4, dtype=F64)
    return nuts.step(Normal()(torch.zeros(1, 1, dtype=F64)), Normal(), torch.ones(1, 1, dtype=F64), uniforms, size, 1)


def test_a_thousand_nats_are_a_divergence():
    assert [one_step(loss).divergent.item() for loss in (900, 1100)] == [False, True]
    # a step of 1.6 from rest at 60 gains (1.6^4 / 4 - 1.6^6 / 16) 60^2 / 2 = 1062
    start, size = Normal()(torch.full((1, 1), 60.0, dtype=F64)), torch.full((1,), 1.6, dtype=F64)
    gained = nuts.step(start, Normal(), torch.zeros(1, 1, dtype=F64), torch.full((1, 3), 0.4, dtype=F64), size, 1)
    assert (gained.acceptance.item(), gained.divergent.item()) == (1, False)


def test_a_trajectory_goes_over_to_a_subtree_of_the_same_weight():
    """With probability min(1, weight of the subtree / weight of what was before), betancourt2017: not one half."""
    chains = 400
    uniforms = torch.from_numpy(np.random.default_rng(0).random((chains, nuts.uniforms_needed(1))))
    uniforms[:, 1] = torch.linspace(0.001, 0.999, chains)  # of going over
    zero, one = torch.zeros(chains, 1, dtype=F64), torch.ones(chains, 1, dtype=F64)
    for loss in (1e-9, 1.0):
        size = torch.full((chains,), (8 * loss) ** 0.25, dtype=F64)
        moved = nuts.step(Normal()(zero), Normal(), one, uniforms, size, 1)
        share = (moved.point.position != 0).double().mean().item()
        assert share == pytest.approx(np.exp(-loss), abs=0.005)


def test_divergent_transitions_are_counted_and_stay():
    rng = np.random.default_rng(1)
    for make in (hamiltonian, no_u_turn):
        model, psi, f = company.chains("poisson", 6)
        operator = make(model)
        state = geweke.start(operator, psi, f, {"theta": 50.0})
        after, info = geweke.advance(operator, state, np.random.default_rng(0))
        assert (info["divergent"] == 1).all()
        for name in ("psi", "f", "theta.position", "theta.gradient"):
            assert torch.equal(after[name], state[name])
        _, info = geweke.advance(operator, geweke.start(operator, psi, f, {"theta": 0.05}), np.random.default_rng(0))
        assert (info["divergent"] == 0).all()
        assert torch.equal(info["cholesky"] * 2, info["inverse"])
    # a small probability is none of zero
    _, info = geweke.advance(hamiltonian(model), geweke.start(hamiltonian(model), psi, f, {"theta": 0.6}), rng)
    assert ((info["theta.acceptance"] > 0) & (info["theta.acceptance"] < 0.5)).any()
    assert torch.equal(info["divergent"] == 1, info["theta.acceptance"] == 0)


def test_jitter_is_noted_for_the_chain_that_needs_it(monkeypatch):
    monkeypatch.setattr(whitened, "CACHED", 1)
    model, psi, f = company.chains("logit", 4)
    density = whitened.Density(model, torch.ones(4, psi.shape[1] + f.shape[1], dtype=F64))
    position = torch.cat([psi, f], 1)
    position[2, 0] = torch.nan
    linalg.events()
    density(position)
    density(position[2:], torch.tensor([2, 3]))
    assert [(event["name"], event["replica"], event["times"]) for event in linalg.events()] == [("K", 2, 2)]
