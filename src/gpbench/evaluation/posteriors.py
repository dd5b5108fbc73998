"""How far the draws of a sampler are from a reference posterior, number by number, in Monte Carlo errors."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import ndtri

from gpbench.sampling import diagnostics

CHANCE = 0.01
"""Probability that the largest z-score of a right sampler exceeds `limit`."""


def compare(draws: np.ndarray, reference: Mapping[str, Any]) -> dict[str, float]:
    """Of one number: draws `[chains, T]` against its mean, sd, errors, effective draws and quantiles.

    z: difference of means in their combined error; sd_ratio, with its error; wasserstein: W_1 of the two laws in sds of
    the reference, from its quantiles (NaN without them), and wasserstein_noise, what two right samples of as many
    effective draws are apart on average, sqrt(2 / pi) int sqrt(F (1 - F)) dx sqrt(1 / ess + 1 / ess_ref) / sd."""
    error, known = diagnostics.monte_carlo_errors(draws), diagnostics.summary(draws)
    sd, ess = reference["sd"], float(known["ess_bulk"])
    apart = {"wasserstein": math.nan, "wasserstein_noise": math.nan}
    if "quantiles" in reference:
        theirs = np.array(reference["quantiles"])
        levels = (np.arange(len(theirs)) + 0.5) / len(theirs)
        spread = np.sqrt(levels * (1 - levels)) @ np.gradient(theirs)
        apart["wasserstein"] = float(np.abs(np.quantile(draws, levels) - theirs).mean() / sd)
        apart["wasserstein_noise"] = math.sqrt(2 / math.pi * (1 / ess + 1 / reference["ess_bulk"])) * spread / sd
    return {
        "mean": float(draws.mean()),
        "z": float((draws.mean() - reference["mean"]) / math.hypot(error["mean"], reference["mean_error"])),
        "sd_ratio": float(draws.std() / sd),
        "sd_ratio_error": math.hypot(error["sd"], reference["sd_error"]) / sd,
        **apart,
        "ess_bulk": ess,
        "r_hat": float(known["r_hat"]),
    }


def limit(numbers: int) -> float:
    """What the largest |z| of so many numbers exceeds by chance with probability `CHANCE` at most (Bonferroni)."""
    return float(-ndtri(CHANCE / (2 * numbers)))
