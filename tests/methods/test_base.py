"""What methods share: which states of a chain are kept, and how the noise of a step is cut."""

import numpy as np
import pytest
import torch

from gpbench.methods import mcmc_svgp
from gpbench.methods.base import Shapes


@pytest.mark.parametrize(("steps", "burn_in", "num_samples"), [(100, 0.3, 7), (100, 0.3, 70), (50, 0.5, 64), (9, 0, 2)])
def test_states_are_kept_evenly_after_burn_in_and_the_last_one_is(steps, burn_in, num_samples):
    made = mcmc_svgp.Method(mcmc_svgp.Hyperparameters(burn_in=burn_in, num_samples=num_samples), "regression")
    kept = [step for step in range(1, steps + 1) if made.keep(step, steps)]
    after = steps - round(burn_in * steps)
    assert len(kept) == min(num_samples, after)
    assert kept[-1] == steps
    gaps = np.diff([steps - after, *kept])
    assert gaps.max() - gaps.min() <= 1


def test_burn_in_leaves_a_step():
    made = mcmc_svgp.Method(mcmc_svgp.Hyperparameters(burn_in=0.9), "regression")
    assert [made.burn_in(steps) for steps in (1, 3, 10)] == [0, 2, 9]


def test_noise_of_rows_comes_last_so_that_padding_takes_none():
    shapes = Shapes((2, 3), (4,))
    assert shapes.size(5) == 26
    long = torch.arange(2 * 26.0).view(2, 26)
    fixed, per_row = shapes.split(long, 5)
    short_fixed, short_rows = shapes.split(long[:, :18], 3)
    assert torch.equal(fixed, short_fixed)
    assert torch.equal(per_row[:, :3], short_rows)
    assert fixed[1].flatten().tolist() == list(range(26, 32))
