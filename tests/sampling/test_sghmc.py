"""The SGHMC operator against its stationary law and a plain scalar loop."""

import numpy as np
import pytest
import torch

from gpbench.sampling import sghmc


@pytest.mark.parametrize(("friction", "h", "variance"), [(0.05, 2.0, 2.0526), (0.2, 1.0, 1.3846)])
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
