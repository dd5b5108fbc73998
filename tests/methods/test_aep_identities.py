"""Identities of approximate EP on the toy. Golden numbers are closed forms or maximisations of the formulas in NumPy,
written and run apart from this program, six decimals."""

import aep_cases as toy
import gp_cases as cases
import numpy as np
import pytest
import torch
from scipy.stats import norm

from gpbench.gp import layers
from gpbench.methods import aep, svgp
from gpbench.methods.base import State


def phi(mean: np.ndarray, covariance: np.ndarray) -> float:
    """Log-partition function 1/2 log |S| + 1/2 m^T S^-1 m, without the 2 pi."""
    return 0.5 * (np.linalg.slogdet(covariance)[1] + mean @ np.linalg.solve(covariance, mean))


def from_natural(precision: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    covariance = np.linalg.inv(precision)
    return covariance @ shift, covariance


def test_prior_leaves_the_normalisers_alone():
    state = toy.state(toy.layer("layer1"), toy.layer("layer2", lengthscale=0.9, outputscale=0.8))
    assert toy.energy(state) == pytest.approx(-5.994154, abs=1e-6)
    assert toy.energy(state) == pytest.approx(norm.logpdf(toy.Y, scale=np.sqrt(0.85)).sum(), abs=1e-9)


@pytest.mark.parametrize(("power", "golden"), [(1.0, -4.699464), (0.5, -5.607201), (1e-7, -8.979415)])
def test_the_evidence_of_power_ep_is_that_of_fitc_and_goes_to_the_bound_of_titsias(power, golden):
    """The reference of the next test, on five rows that differ."""
    assert toy.power_ep(toy.X, toy.Y, power) == pytest.approx(golden, abs=2e-6)
    assert power > 1e-3 or golden == pytest.approx(cases.TITSIAS_BOUND, abs=1e-6)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("power", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("at", [0.5, -0.2])
def test_tied_factors_of_rows_alike_give_power_ep(at, power, rows):
    """Then each row has the same factor as where every row has one of its own, and the energy is stationary there."""
    x, y = np.full(rows, at), np.full(rows, toy.Y[3])
    state = toy.state(toy.layer("layer1", toy.exact_sites(x, y, power)), rows=rows)
    assert toy.energy(state, x, y, power=power) == pytest.approx(toy.power_ep(x, y, power), abs=1e-9)
    sites = [state.params[f"layer1.site_{part}"].requires_grad_() for part in ("factor", "shift")]
    batch = cases.training_set(*(torch.tensor(part)[:, None] for part in (x, y))).full()
    loss = toy.method(power=power).loss(state, batch, torch.empty(1, 0))
    for slope in torch.autograd.grad(loss.sum(), sites):
        assert slope.abs().max() < 1e-9


def test_tied_factors_at_the_exact_posterior_are_above_fitc():
    energy = toy.energy(toy.state(toy.layer("layer1", toy.exact_sites())))
    assert toy.fitc() == pytest.approx(toy.FITC_EVIDENCE, abs=1e-6)
    assert energy == pytest.approx(toy.TIED_ENERGY, abs=1e-6)


def test_predictions_at_the_exact_posterior_are_those_of_fitc():
    """By dense algebra, with the noise of y (snelson2006, equation 8)."""
    state, x = toy.state(toy.layer("layer1", toy.exact_sites())), np.array([-2.0, -0.3, 0.4, 5.0])
    found = toy.method().predict(state, torch.tensor(x)[None, :, None], cases.keys(1)[0])
    cross, new = toy.kernel(toy.Z, toy.X), toy.kernel(toy.Z, x)
    weight = cross / (toy.projection()[1] + cases.NOISE_VARIANCE)
    both = toy.KZZ + weight @ cross.T
    np.testing.assert_allclose(found.mean()[:, 0], new.T @ np.linalg.solve(both, weight @ toy.Y), atol=1e-6)
    known = (new * (np.linalg.solve(toy.KZZ, new) - np.linalg.solve(both, new))).sum(0)
    expected = cases.OUTPUTSCALE - known + cases.NOISE_VARIANCE
    np.testing.assert_allclose(found.variance()[:, 0], expected, rtol=1e-6)


def maximised(start: int, copies: int = 1) -> State:
    """The state at the largest energy over its sites for copies of the toy's rows, from a random start."""
    state = toy.state(toy.layer("layer1"), rows=5 * copies)
    generator = torch.Generator().manual_seed(start)
    names = ["layer1.site_factor", "layer1.site_shift"]
    for name in names:
        value = torch.randn(state.params[name].shape, generator=generator, dtype=torch.float64)
        state.params[name] = value.requires_grad_()
    free = [state.params[name] for name in names]
    settings = {"tolerance_grad": 1e-11, "tolerance_change": 1e-14}
    optimiser = torch.optim.LBFGS(free, max_iter=2000, line_search_fn="strong_wolfe", **settings)
    batch, ours = cases.training_set(cases.X, cases.Y, [list(range(5)) * copies]).full(), toy.method()

    def closure():
        optimiser.zero_grad()
        loss = ours.loss(state, batch, torch.empty(1, 0)).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return State({name: value.detach() for name, value in state.params.items()}, state.buffers)


@pytest.mark.parametrize("start", range(3))
def test_tied_maximum_is_not_fitc(start):
    state = maximised(start)
    assert toy.energy(state) == pytest.approx(toy.TIED_MAXIMUM, abs=1e-6)
    mean, variance = toy.moments(state, toy.Z)
    np.testing.assert_allclose(mean, [-0.882093, 0, 0.882093], atol=2e-6)
    np.testing.assert_allclose(np.sqrt(variance), [0.372325, 0.326350, 0.372325], atol=2e-6)
    mean, variance = toy.moments(state, np.array([0.25]))
    np.testing.assert_allclose([mean[0], variance[0]], [0.304327, 0.210844], atol=2e-6)


def test_at_the_tied_maximum_q_has_the_mean_moments_of_the_tilted_distributions():
    """E_q u and E_q u u^T are means over rows of those of cavity(u) N(y_n; a_n^T u, d_n + noise), by dense algebra."""
    state, root = maximised(0), np.linalg.cholesky(toy.KZZ)
    factor, shift = (part[0, 0].numpy() for part in toy.method().sites(state, "layer1"))
    q, (mean, covariance) = [], from_natural(np.eye(3) + 0.8 * factor @ factor.T, 0.8 * shift)
    cavity_mean, cavity = root @ mean, root @ covariance @ root.T
    for a, d, y in zip(toy.projection()[0].T, toy.projection()[1], toy.Y, strict=True):
        gain = cavity @ a / (a @ cavity @ a + d + cases.NOISE_VARIANCE)
        tilted = cavity_mean + gain * (y - a @ cavity_mean)
        q.append(np.vstack([tilted, cavity - np.outer(gain, a @ cavity) + np.outer(tilted, tilted)]))
    first, *second = np.mean(q, 0)
    mean, covariance = from_natural(np.eye(3) + factor @ factor.T, shift)
    np.testing.assert_allclose(root @ mean, first, atol=1e-6)
    np.testing.assert_allclose(root @ (covariance + np.outer(mean, mean)) @ root.T, second, atol=1e-6)


def test_predictions_of_the_exact_posteriors():
    at = np.array([0.25])
    for sites, golden in ((toy.exact_sites(), (0.311039, 0.156836)), (toy.titsias_sites(), (0.342187, 0.145115))):
        mean, variance = toy.moments(toy.state(toy.layer("layer1", sites)), at)
        np.testing.assert_allclose([mean[0], variance[0]], golden, atol=1e-6)


def parametric_predictive(state: State, x: np.ndarray, y: np.ndarray) -> float:
    """sum_n log int p(y_n | f) q(f_n) df - KL[q || p], which large N leads to; KL in whitened coordinates."""
    mean, variance = toy.moments(state, x)
    fit = norm.logpdf(y, mean, np.sqrt(variance + cases.NOISE_VARIANCE)).sum()
    ours = toy.method()
    q = aep.posterior(*ours.sites(state, "layer1"), "layer1")
    m, covariance = q.mean.flatten().numpy(), (q.root @ q.root.mT)[0, 0].numpy()
    return fit - 0.5 * (np.trace(covariance) + m @ m - 3 - np.linalg.slogdet(covariance)[1])


@pytest.mark.slow
def test_many_rows_give_the_parametric_predictive_objective():
    """At the largest energy the gap falls as 1/N."""
    gaps = []
    for copies in (6, 60):
        x, y = np.tile(toy.X, copies), np.tile(toy.Y, copies)
        state = maximised(0, copies)
        gaps.append(toy.energy(state, x, y) - parametric_predictive(state, x, y))
    assert 0.05 < gaps[1] / gaps[0] < 0.2, gaps


def test_power_to_zero_gives_the_bound_of_svgp():
    """At FITC's posterior, and at Titsias' the value of its bound; the gap is proportional to the power."""
    batch = cases.training_set(cases.X, cases.Y).full()
    for sites in (toy.exact_sites(), toy.titsias_sites()):
        state = toy.state(toy.layer("layer1", sites))
        q = aep.posterior(*toy.method().sites(state, "layer1"), "layer1")
        same = layers.init_layer("layer1", cases.Z[None], 1, torch.ones(1).double(), 1.0) | state.params
        same |= {"layer1.whitened_mean": q.mean.permute(1, 2, 0), "layer1.whitened_chol": q.root.transpose(0, 1)}
        shallow = svgp.Method(svgp.Hyperparameters(num_inducing=3, jitter=1e-15), "regression")
        bound = -float(cases.flat_loss(shallow, State(same), batch, torch.empty(1, 0)))
        gaps = [toy.energy(state, power=power) - bound for power in (1e-3, 1e-4)]
        assert gaps[0] == pytest.approx(10 * gaps[1], rel=0.02)
        assert abs(gaps[1]) < 1e-2
    assert bound == pytest.approx(cases.TITSIAS_BOUND, abs=1e-6)


def test_identity_in_the_hidden_layer_is_one_layer():
    hidden = toy.layer("layer1", outputscale=1e-13)
    deep = toy.state(hidden, toy.layer("layer2", toy.exact_sites()))
    deep.params["layer1.log_noise_variance"] = toy.scalar(-60.0)
    deep.buffers["layer1.mean_map"] = torch.ones(1, 1, 1).double()
    one = toy.energy(toy.state(toy.layer("layer1", toy.exact_sites())))
    assert toy.energy(deep, mean_function="linear") == pytest.approx(one, abs=1e-9)


def test_two_layers_propagate_the_cavity():
    sites = toy.exact_sites()
    state = toy.state(toy.layer("layer1", sites), toy.layer("layer2", sites))
    ours = toy.method(2)
    cavities = []
    for name in ours.names:
        factor, shift = ours.sites(state, name)
        q, _ = aep.cavity(aep.posterior(factor, shift, name), shift, toy.scalar(0.2), name)
        cavities.append(ours.layer(state, name, q))
    hidden_mean, hidden_variance = (
        part.flatten().numpy() for part in toy.method(1).propagate(state, cavities[:1], cases.X[None])
    )
    hidden_variance = hidden_variance + 0.01  # of the hidden layer's noise
    mean, variance = ours.propagate(state, cavities, cases.X[None])
    np.testing.assert_allclose(hidden_mean, [-0.893798, -0.594629, 0, 0.594629, 0.893798], atol=1e-6)
    np.testing.assert_allclose(hidden_variance, [0.066570, 0.293274, 0.063341, 0.293274, 0.066570], atol=1e-6)
    np.testing.assert_allclose(mean.flatten(), [-0.801146, -0.492235, 0, 0.492235, 0.801146], atol=1e-6)
    total = variance.flatten().numpy() + cases.NOISE_VARIANCE
    np.testing.assert_allclose(total, [0.232687, 0.435713, 0.275438, 0.435713, 0.232687], atol=1e-6)
    assert toy.energy(state) == pytest.approx(-10.004133, abs=1e-6)


@pytest.mark.parametrize("power", [1.0, 0.3])
@pytest.mark.parametrize("rows", [5, 100_000])
def test_energy_of_a_layer_is_the_difference_of_log_partitions(power, rows):
    """-phi(0, K) + (1 - N/a) phi(m, S) + N/a phi(m_c, S_c), as printed, in coordinates of u."""
    root, shift = toy.exact_sites()
    fraction = power / rows
    inverse = np.linalg.inv(toy.KZZ)
    q, cavity = (from_natural(inverse + b * root @ root.T, b * shift) for b in (1.0, 1 - fraction))
    expected = -phi(np.zeros(3), toy.KZZ) + (1 - 1 / fraction) * phi(*q) + phi(*cavity) / fraction
    ours = toy.method()
    factor, white = ours.sites(toy.state(toy.layer("layer1", (root, shift))), "layer1")
    _, energy = aep.cavity(aep.posterior(factor, white, "l"), white, toy.scalar(fraction), "l")
    # the printed form cancels to eps N / a phi, about 1e-9 of this
    assert float(energy) == pytest.approx(expected, rel=1e-12 * rows)


def test_residual_form_of_a_linear_mean_is_a_prior_with_that_mean():
    """p(u) = N(Z w, K): cavity K^-1 Z w + b t_u, t_u = t + T Z w; m_c - Z w and the energy are those of u - Z w."""
    root, shift = toy.exact_sites()
    precision, inverse, offset = root @ root.T, np.linalg.inv(toy.KZZ), 0.7 * toy.Z
    rows, b = 5, 0.8
    shift_u = shift + precision @ offset
    q, cavity = (from_natural(inverse + f * precision, inverse @ offset + f * shift_u) for f in (1.0, b))
    expected = -phi(offset, toy.KZZ) + (1 - rows) * phi(*q) + rows * phi(*cavity)
    ours = toy.method()
    factor, white = ours.sites(toy.state(toy.layer("layer1", (root, shift))), "layer1")
    residual, energy = aep.cavity(aep.posterior(factor, white, "l"), white, toy.scalar(1 - b), "l")
    assert float(energy) == pytest.approx(expected, abs=1e-9)
    mean = np.linalg.cholesky(toy.KZZ) @ residual.mean.flatten().numpy()
    np.testing.assert_allclose(cavity[0] - offset, mean, atol=1e-10)
