"""How probable it is that two methods differ by more than matters: Bayesian tests with a region of practical
equivalence (ROPE) that was fixed before any score was seen (benavoli2017).

Differences are those of `Rope.scale(loss)`: of MNLL and error rate themselves, of the logarithm of an RMSE.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr

from gpbench.evaluation.compare import LOST, paired_mean

DRAWS = 10_000  # from a posterior over data sets: a probability near DECIDED is known to 0.002 (one standard error)
DECIDED = 0.95  # the probability from which on a pair counts as decided


@dataclass(frozen=True)
class Rope:
    """Differences of at most `half_width` on the scale of `scale(loss)` do not matter; `in_words` for readers."""

    half_width: float
    scale: Callable[[np.ndarray], np.ndarray]
    in_words: str


# One percent in each: of the density of a test row (papers print two decimals of MNLL), of the size of an error, of the
# test rows (the ROPE of benavoli2017 for accuracies). The logarithm is finite for an RMSE of 0.
ROPES = {
    "mnll": Rope(0.01, np.positive, "0.01 nats"),
    "rmse": Rope(
        float(np.log(1.01)), lambda rmse: np.log(np.maximum(rmse, np.finfo(float).tiny)), "1 % of the smaller"
    ),
    "error": Rope(0.01, np.positive, "0.01"),
}


@dataclass(frozen=True)
class Posterior:
    """Probabilities that a is better, that both are practically equal, and that b is better; they add up to 1."""

    a_better: float
    equal: float
    b_better: float


@lru_cache(maxsize=8)
def _weights(n: int, draws: int) -> np.ndarray:
    """Draws `[draws, 1 + n]` of Dirichlet(1/2, 1, ..., 1), the same for all pairs of methods."""
    return np.random.default_rng(0).dirichlet([0.5] + [1.0] * n, draws)


def signed_rank_posterior(a: ArrayLike, b: ArrayLike, metric: str, draws: int = DRAWS) -> Posterior:
    """Bayesian signed-rank test of two methods over data sets, losses `[n]`: where does a typical data set lie?

    The probability that, of the three regions (a lower by more than the ROPE, within it, b lower), one is the most
    probable for the mean of two data sets drawn from the population. The population is a Dirichlet process: weights
    w ~ Dirichlet(1/2, 1, ..., 1) of a difference of 0, the prior's, and of the n observed; a region has probability
    sum_ij w_i w_j [(z_i + z_j)/2 in it]. ValueError for an infinite or missing loss. Source: benavoli2014."""
    rope = ROPES[metric]
    observed = rope.scale(np.asarray(a, float)) - rope.scale(np.asarray(b, float))
    if not np.isfinite(observed).all():
        raise ValueError("the Bayesian signed-rank test needs finite losses")
    differences = np.concatenate([[0.0], observed])
    walsh = (differences[:, None] + differences) / 2
    weights = _weights(len(observed), draws)
    # a mean on the border, but for rounding, counts half on either side
    beyond = np.stack([-walsh, walsh]) - rope.half_width
    below, above = np.heaviside(np.where(np.abs(beyond) < LOST * rope.half_width, 0, beyond), 0.5)
    left, right = (((weights @ region) * weights).sum(axis=1) for region in (below, above))
    chances = np.stack([left, 1 - left - right, right])
    first = np.isclose(chances, chances.max(axis=0), rtol=0, atol=1e-12)
    return Posterior(*(first / first.sum(axis=0)).mean(axis=1).tolist())


def correlated_t_posterior(a: ArrayLike, b: ArrayLike, test_fraction: float, metric: str) -> Posterior:
    """Bayesian correlated t test of two methods over random splits `[n]` of one data set.

    The mean difference has the posterior t_{n-1}(mean, error^2), error^2 = (1/n + rho/(1 - rho)) s^2, with the
    correlation of two splits rho = test_fraction; its mass below, within and above the ROPE (1/2, 0, 1/2 where the
    error is infinite), all NaN where the metric has no ROPE. Splits that either lacks (NaN) are left out; UserErrors as
    `paired_mean`. Source: benavoli2017."""
    if (rope := ROPES.get(metric)) is None:
        return Posterior(np.nan, np.nan, np.nan)
    mean, error, n = paired_mean(rope.scale(np.asarray(a, float)), rope.scale(np.asarray(b, float)), test_fraction)
    if error == 0:
        return Posterior(0.0, 1.0, 0.0)
    below = float(stdtr(n - 1, (-rope.half_width - mean) / error))
    above = float(stdtr(n - 1, (mean - rope.half_width) / error))
    return Posterior(below, 1 - below - above, above)


def decision(posterior: Posterior) -> str:
    """The field of a posterior that is at least as probable as DECIDED, or 'undecided'."""
    return next((name for name, chance in vars(posterior).items() if chance >= DECIDED), "undecided")
