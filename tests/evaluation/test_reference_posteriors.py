"""Draws against a reference posterior: right ones agree within their Monte Carlo errors, wrong ones do not."""

import numpy as np
import pytest
from scipy import stats

from gpbench.data.simulated import generators, posteriors
from gpbench.evaluation.posteriors import compare, limit
from gpbench.sampling import diagnostics

LEVELS = (np.arange(40) + 0.5) / 40
NORMAL = {"mean": 1.0, "sd": 2.0, "mean_error": 0.02, "sd_error": 0.015, "ess_bulk": 10_000.0}
NORMAL = NORMAL | {"quantiles": stats.norm.ppf(LEVELS, 1.0, 2.0).tolist()}


def standard(size: int = 5000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((4, size))


def autoregressive(coefficient: float, size: int = 20_000) -> np.ndarray:
    """Chains of unit variance."""
    noise, values = standard(size), np.zeros((4, size))
    for t in range(1, size):
        values[:, t] = coefficient * values[:, t - 1] + np.sqrt(1 - coefficient**2) * noise[:, t]
    return values[:, 100:]


@pytest.mark.parametrize("draws", [standard(), autoregressive(0.9)], ids=["independent", "autocorrelated"])
def test_right_draws_agree(draws):
    found = compare(1 + 2 * draws, NORMAL)
    assert abs(found["z"]) < 3
    assert abs(found["sd_ratio"] - 1) < 3 * found["sd_ratio_error"]
    assert found["wasserstein"] < 3 * found["wasserstein_noise"]


def test_errors_know_the_autocorrelation():
    # of the mean of an AR(1) chain: sqrt((1 + a) / (1 - a) / T)
    draws = autoregressive(0.9)
    expected = np.sqrt(19 / draws.size)
    assert float(diagnostics.monte_carlo_errors(draws)["mean"]) == pytest.approx(expected, rel=0.1)
    assert np.isnan(diagnostics.monte_carlo_errors(draws[:, :3])["mean"])


def test_errors_are_those_of_independent_draws():
    # sd / sqrt(T), and sd / sqrt(2 T) for the sd of a normal
    found = diagnostics.monte_carlo_errors(np.stack([standard(), 3 * standard()], -1))
    np.testing.assert_allclose(found["mean"] * np.sqrt(20_000), [1, 3], rtol=0.05)
    np.testing.assert_allclose(found["sd"] * np.sqrt(40_000), [1, 3], rtol=0.05)


def test_a_shift_and_a_scale_are_seen_in_their_own_columns():
    shifted, wide = compare(1.4 + 2 * standard(), NORMAL), compare(1 + 3 * standard(), NORMAL)
    # 0.4 in errors of 2 / sqrt(20,000) and 0.02; W_1 of a shift is the shift
    assert shifted["z"] == pytest.approx(0.4 / np.hypot(2 / np.sqrt(20_000), 0.02), rel=0.05)
    assert shifted["wasserstein"] == pytest.approx(0.2, abs=0.02)
    assert abs(wide["z"]) < limit(1)
    assert wide["sd_ratio"] == pytest.approx(1.5, abs=4 * wide["sd_ratio_error"])
    assert wide["sd_ratio_error"] == pytest.approx(np.hypot(3 / np.sqrt(40_000), 0.015) / 2, rel=0.05)
    # W_1 of N(0, 1.5^2) and N(0, 1): 0.5 E|Z|, of which levels from 1/80 on hold all but a little
    assert wide["wasserstein"] == pytest.approx(0.5 * np.sqrt(2 / np.pi), abs=0.02)


def test_the_noise_of_the_distance_is_that_of_independent_draws():
    found = [compare(1 + 2 * standard(500, seed), NORMAL | {"ess_bulk": np.inf}) for seed in range(60)]
    seen, expected = (np.mean([one[name] for one in found]) for name in ("wasserstein", "wasserstein_noise"))
    assert seen == pytest.approx(expected, rel=0.15)
    of_both = compare(1 + 2 * standard(500), NORMAL | {"ess_bulk": found[0]["ess_bulk"]})["wasserstein_noise"]
    assert of_both == pytest.approx(np.sqrt(2) * found[0]["wasserstein_noise"]), "as many draws on either side"


def test_without_quantiles_there_is_no_distance():
    found = compare(standard(), {name: value for name, value in NORMAL.items() if name != "quantiles"})
    assert np.isnan(found["wasserstein"])
    assert np.isfinite(found["z"])


def test_the_limit_grows_with_the_numbers():
    # the largest of k independent |z| exceeds it in one of a hundred sets
    z = np.abs(np.random.default_rng(0).standard_normal((20_000, 50))).max(1)
    assert (z > limit(50)).mean() == pytest.approx(0.01, abs=0.003)
    assert limit(1) == pytest.approx(stats.norm.ppf(0.995))


@pytest.mark.parametrize("name", posteriors.names())
def test_every_reference_says_how_it_was_made_and_may_be_trusted(name):
    found = posteriors.read(name)
    assert {"blackjax", "jax", "arviz"} <= set(found["settings"]["versions"])
    assert all(value["r_hat"] < 1.01 and value["ess_bulk"] > 1000 for value in found["quantities"].values())
    held = sum(len(value) for value in found["held"].values())
    unknown = len(found["quantities"])
    rows, psi = len(found["y"]), len(found["settings"]["problem"]["psi"])
    integrated_out = found["settings"]["problem"]["likelihood"] == "gaussian"
    latents = 0 if integrated_out else rows
    assert unknown + held == latents + psi or (held == rows and unknown == rows + psi)  # f follows from psi and nu
    assert {len(value["quantiles"]) for value in found["quantities"].values()} == {len(LEVELS)}
    if name in posteriors.whole():
        x, y, _ = generators.draw(posteriors.PREFIX + name)
        np.testing.assert_array_equal(x, found["x"])
        np.testing.assert_array_equal(y, found["y"])
