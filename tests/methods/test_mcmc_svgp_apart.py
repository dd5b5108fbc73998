"""Chains of `mcmc_svgp` that start apart, against those that start together."""

import numpy as np
import pytest
import torch
from gp_cases import X, Y, keys, training_set

from gpbench.methods import mcmc_svgp, mcmc_svgp_apart
from gpbench.sampling.sghmc import flatten

CHAINS = 400
SETTINGS = {"num_inducing": 3, "iterations": 20, "leapfrogs": 4, "num_samples": 8}


def started(module, **hyper):
    """Chains of one split at their start."""
    method = module.Method(module.Hyperparameters(**SETTINGS | hyper), "regression")
    data = training_set(X, Y, [list(range(5))] * CHAINS)
    return method, method.start(data, [keys(1)[0]._replace(replica=r) for r in range(CHAINS)])


def test_theta_is_spread_about_the_optimum_and_inducing_inputs_are_shared():
    method, state = started(mcmc_svgp_apart, apart=0.5)
    together, of_all = (flatten(method.theta(one.params)).numpy() for one in (started(mcmc_svgp)[1], state))
    deviations = of_all - together
    # of 400 chains: 4 errors of a mean, 0.5 / 20, and of an sd, 0.5 / sqrt(800); coordinates do not move together
    assert np.abs(deviations.mean(0)).max() < 4 * 0.5 / 20
    np.testing.assert_allclose(deviations.std(0), 0.5, atol=4 * 0.5 / np.sqrt(800))
    correlation = np.corrcoef(deviations.T) - np.eye(deviations.shape[1])
    assert np.abs(correlation).max() < 4 / 20
    z = state.buffers[mcmc_svgp.Z]
    torch.testing.assert_close(z, z[:1].expand_as(z), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_not_apart_is_mcmc_svgp_bit_for_bit_and_v_is_that_of_it():
    plain = started(mcmc_svgp)[1]
    for apart in (0.0, 1.0):
        state = started(mcmc_svgp_apart, apart=apart)[1]
        names = state.params if apart == 0 else [mcmc_svgp.V]
        for name in names:
            assert torch.equal(state.params[name], plain.params[name]), name


def test_a_chain_starts_where_it_does_alone():
    method, state = started(mcmc_svgp_apart)
    data = training_set(X, Y, [list(range(5))])
    alone = method.start(data, [keys(1)[0]._replace(replica=7)])
    torch.testing.assert_close(flatten(method.theta(alone.params))[0], flatten(method.theta(state.params))[7])
