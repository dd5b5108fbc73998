"""R-hat and effective sample sizes of chains whose answers are known."""

import numpy as np
import pytest
from scipy.signal import lfilter

from gpbench.errors import UserError
from gpbench.sampling import diagnostics

CHAINS, DRAWS = 4, 5000


def autoregressive(rho: float, seed: int = 0, quantities: int = 3) -> np.ndarray:
    """Stationary AR(1) chains `[chains, draws, quantities]` of variance 1."""
    noise = np.random.default_rng(seed).standard_normal((CHAINS, DRAWS, quantities))
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=1)


@pytest.mark.parametrize("rho", [-0.3, 0.0, 0.5, 0.9])
def test_effective_sample_size_of_autoregressive_chains(rho):
    # the mean of an AR(1) chain is worth N (1 - rho) / (1 + rho) independent draws
    found = diagnostics.summary(autoregressive(rho))
    expected = CHAINS * DRAWS * (1 - rho) / (1 + rho)
    assert found["ess_bulk"].shape == found["ess_tail"].shape == found["r_hat"].shape == (3,)
    np.testing.assert_allclose(found["ess_bulk"], expected, rtol=0.15)
    assert (np.abs(found["r_hat"] - 1) < 0.01).all()


def test_chains_that_disagree_are_found_out():
    draws = autoregressive(0.5)
    draws[:2, :, 0] += 1.0  # in location
    draws[:2, :, 1] *= 3.0  # in scale, which only the folded ranks show
    found = diagnostics.summary(draws)
    assert (found["r_hat"][:2] > 1.1).all()
    assert found["r_hat"][2] < 1.01
    assert found["ess_bulk"][0] < 0.05 * found["ess_bulk"][2]
    assert found["ess_tail"][1] < 0.05 * found["ess_tail"][2]


def test_a_drift_within_chains_is_found_out():
    draws = autoregressive(0.0)[:, :, 0] + np.linspace(0, 2, DRAWS)
    assert diagnostics.summary(draws)["r_hat"] > 1.1


def test_quantities_have_any_shape_and_nan_stays_with_its_own():
    draws = autoregressive(0.5, quantities=4).reshape(CHAINS, DRAWS, 2, 2)
    draws[0, 0, 0, 0] = np.nan
    found = diagnostics.summary(draws)
    for values in found.values():
        assert np.isnan(values).tolist() == [[True, False], [False, False]]


def test_single_chains_have_no_r_hat_but_a_size():
    found = diagnostics.summary(autoregressive(0.5)[:1])
    assert np.isnan(found["r_hat"]).all()
    np.testing.assert_allclose(found["ess_bulk"], DRAWS / 3, rtol=0.2)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (100,)])
def test_short_chains_are_refused_in_one_line(shape):
    with pytest.raises(UserError, match="keep at least 4 draws a chain"):
        diagnostics.summary(np.zeros(shape))
