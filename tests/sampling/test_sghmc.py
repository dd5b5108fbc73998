"""The SGHMC operator against its stationary law and a plain scalar loop."""

import numpy as np
import pytest
import torch

from gpbench.methods.training_rows import TrainingSet
from gpbench.sampling import sghmc


@pytest.mark.parametrize(("friction", "h", "variance"), [(0.05, 2.0, 2.0526), (0.2, 1.0, 1.3846)])
@pytest.mark.slow
def test_stationary_variance_on_a_gaussian(friction, h, variance):
    # 1 / (1 - h / (2 (2 - b))): bsgp derivation, solved by hand from the two-by-two Lyapunov equation
    chains, generator = 20_000, torch.Generator().manual_seed(0)
    params = {"theta": torch.zeros(chains, 2, dtype=torch.float64)}
    memory, squares = sghmc.init(params), []
    for step in range(600):
        noise = torch.randn(chains, 2, generator=generator, dtype=torch.float64)
        params, memory = sghmc.step(
            params, dict(params), memory, noise, torch.ones(chains), step_size=h**0.5, friction=friction, adapt=False
        )
        if step >= 300 and step % 100 == 99:
            squares.append(params["theta"].square().mean().item())
    # 3 x 40,000 nearly independent squares: standard error 0.4 %
    assert np.mean(squares) == pytest.approx(variance, rel=0.016)


@pytest.mark.parametrize(("part", "stays"), [(0.99, True), (1.01, False)])
@pytest.mark.parametrize("friction", [0.05, 0.2])
def test_steps_are_stable_as_long_as_h_is_below_twice_two_minus_the_friction(friction, part, stays):
    # without noise the recursion of theta and momentum is linear, with eigenvalues within the unit circle until then
    params = {"theta": torch.ones(1, 1, dtype=torch.float64)}
    memory, step_size = sghmc.init(params), (part * 2 * (2 - friction)) ** 0.5
    for _ in range(2000):
        params, memory = sghmc.step(
            params, dict(params), memory, torch.zeros(1, 1), torch.ones(1), step_size=step_size, friction=friction,
            adapt=False,
        )  # fmt: skip
    assert (params["theta"].abs().item() < 1e-3) if stays else (params["theta"].abs().item() > 1e3)


@pytest.mark.parametrize("batch_size", [None, 20, 5])
@pytest.mark.slow
def test_mini_batches_widen_the_posterior_of_a_mean_by_their_noise(batch_size):
    # y_n ~ N(theta, 1), theta ~ N(0, 1): the recursion is linear, and a mini-batch of B rows, drawn with replacement,
    # adds N^2 var(y) / B to the variance of the gradient: times 1 + e^2 N var(y) / (2 b B), beside the term in h
    rows, chains, e, b = 100, 4_000, 0.1, 0.1
    generator = torch.Generator().manual_seed(0)
    y = 3 + torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    zero, one = torch.zeros(chains, 1, dtype=torch.float64), torch.ones(chains, 1, dtype=torch.float64)
    number = torch.full((chains,), float(rows), dtype=torch.float64)
    places = torch.arange(rows).expand(chains, rows)
    data = TrainingSet(torch.zeros_like(y), y, places, number.long(), zero, one, zero, one)
    precision, mean = 1.0 + rows, y.sum().item() / (1.0 + rows)
    noise = 0.0 if batch_size is None else y.var(correction=0).item() / batch_size
    wider = (1 + e**2 * rows * noise / (2 * b)) / (1 - e**2 * precision / rows / (2 * (2 - b)))
    params, squares, means = {"theta": torch.full((chains, 1), mean, dtype=torch.float64)}, [], []
    memory = sghmc.init(params)
    for step in range(700):
        positions = torch.randint(rows, (chains, batch_size or 1), generator=generator)
        batch = data.take(places if batch_size is None else positions)
        slope = params["theta"] + (batch.weight * (params["theta"] - batch.y[..., 0])).sum(1, keepdim=True)
        kick = torch.randn(chains, 1, generator=generator, dtype=torch.float64)
        params, memory = sghmc.step(
            params, {"theta": slope}, memory, kick, number, step_size=e, friction=b, adapt=False
        )
        if step % 100 == 99 and step > 200:
            squares.append((params["theta"] - mean).square().mean().item())
            means.append(params["theta"].mean().item())
    # 5 x 4,000 nearly independent draws: standard error 1 % of the variance
    assert np.mean(squares) * precision == pytest.approx(wider, rel=0.04)
    assert np.mean(means) == pytest.approx(mean, abs=4 * (wider / precision / 20_000) ** 0.5)
    if batch_size is None:
        assert wider == pytest.approx(1, abs=0.003)


def test_burn_in_follows_the_published_recursion():
    rng = np.random.default_rng(0)
    params = {"a": torch.from_numpy(rng.standard_normal((1, 1))), "b": torch.from_numpy(rng.standard_normal((1, 1)))}
    memory, num_data, e, b = sghmc.init(params), 7.0, 0.1, 0.3
    theta = np.concatenate([p.numpy()[0] for p in params.values()])
    p, g, s, tau = np.zeros(2), np.ones(2), np.ones(2), np.ones(2)
    for step in range(20):
        gradient, noise = num_data * rng.standard_normal(2), rng.standard_normal(2)
        adapt = step < 15
        if adapt:
            rho, scaled = 1 / (tau + 1), gradient / num_data
            tau, g, s = 1 + tau * (1 - g**2 / s), (1 - rho) * g + rho * scaled, (1 - rho) * s + rho * scaled**2
        mass = 1 / np.sqrt(s)
        p = p - e**2 * mass * gradient / num_data - b * p + np.sqrt(2 * b * e**2 * mass / num_data) * noise
        theta = theta + p
        params, memory = sghmc.step(
            params,
            {"b": torch.tensor([[gradient[1]]]), "a": torch.tensor([[gradient[0]]])},
            memory,
            torch.from_numpy(noise)[None],
            torch.tensor([num_data], dtype=torch.float64),
            step_size=e,
            friction=b,
            adapt=adapt,
        )
    np.testing.assert_allclose(sghmc.flatten(params)[0], theta, rtol=1e-12)


def test_flatten_is_inverted_with_leading_axes():
    params = {"scalar": torch.randn(3), "matrix": torch.randn(3, 2, 4)}
    flat = sghmc.flatten(params)
    assert flat.shape == (3, 9)
    for name, value in sghmc.unflatten(flat, params).items():
        torch.testing.assert_close(value, params[name], rtol=0, atol=0)
    stacked = sghmc.unflatten(flat.expand(5, 3, 9), params)
    assert stacked["matrix"].shape == (5, 3, 2, 4)
    assert stacked["scalar"].shape == (5, 3)


def test_a_diverged_chain_leaves_the_others_alone():
    params = {"theta": torch.tensor([[1.0], [float("nan")], [2.0]], dtype=torch.float64)}
    keep = torch.tensor([0, 2])
    noise, n = torch.randn(3, 1, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    settings = {"step_size": 0.1, "friction": 0.1, "adapt": True}
    together, _ = sghmc.step(params, dict(params), sghmc.init(params), noise, n, **settings)
    healthy = {"theta": params["theta"][keep]}
    alone, _ = sghmc.step(healthy, dict(healthy), sghmc.init(healthy), noise[keep], n[keep], **settings)
    torch.testing.assert_close(together["theta"][keep], alone["theta"], rtol=0, atol=0)
    assert together["theta"][1].isnan().all()
