"""One row per test point and target: what a fit predicts there and how it scores; metrics need these rows alone."""

from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from gpbench.errors import UserError
from gpbench.predictive.counts import Counts
from gpbench.predictive.distributions import Categorical, GaussianMixture, Predictive
from gpbench.predictive.scale_mixtures import ScaleMixture

LEVELS = np.arange(1, 100) / 100
QUANTILE_COLUMNS = [f"q{percent:02d}" for percent in range(1, 100)]
COMPONENTS_LIMIT_BYTES = 50_000_000


def pointwise(
    predictive: Predictive,
    y: ArrayLike,
    *,
    task: str,
    scaled_by: tuple[ArrayLike, ArrayLike] | None = None,
    rows: ArrayLike,
) -> pd.DataFrame:
    """Table of the N test points, one replica: a row for each point and, within it, for each of P targets.

    y `[N]` or `[N, P]` in original units (class numbers in classification); rows `[N]` their numbers in the data set;
    scaled_by = (shift, scale), scalars or `[P]`, where the predictive is of (y - shift) / scale, else None.
    Regression columns: row, output (0..P-1), y, mean, sd, log_density, log_density_scaled, log_density_draws (mean over
    the components of their log densities), pit, crps, q01..q99, of each target's marginal and in original units but for
    log_density_scaled = log_density + log scale.
    Classification columns: row, y, p0..p{C-1}, log_density, modal.
    Counts columns: row, output, y, mean, sd, log_density, pit = P(Y < y) + P(Y = y)/2, whose mean is 1/2 where the
    predictive is right though it is not uniform.
    Raises UserError for classes of several targets, ValueError for a predictive or targets that are not finite."""
    y, rows = np.asarray(y, dtype=np.float64), np.asarray(rows)
    y = y.reshape(len(y), -1)
    if rows.shape != y.shape[:1]:
        raise ValueError(f"rows {rows.shape} and y {y.shape} differ in length")
    if not (predictive.is_finite() and np.isfinite(y).all()):
        raise ValueError("predictive or targets are not finite: check is_finite() and mark the fit diverged")
    if task == "regression":
        shift, scale = scaled_by if scaled_by is not None else (0.0, 1.0)
        predictive = cast(GaussianMixture, predictive).affine(scale=scale, shift=shift)
        return _regression(predictive, y, rows, np.log(scale))
    if task == "counts":
        return _counts(cast(Counts, predictive), y, rows)
    if y.shape[1] != 1:
        raise UserError(f"classification scores one target, got {y.shape[1]}; choose one by `outputs` in the protocol")
    return _classification(cast(Categorical, predictive), y[:, 0], rows)


def components(predictive: Predictive) -> dict[str, np.ndarray]:
    """Components in float32, in the units of `predictive`; empty where they exceed `COMPONENTS_LIMIT_BYTES`.

    GaussianMixture: mean, variance `[S, N, P]`; Categorical: probs `[S, N, C]`; Counts: rate `[S, N, P]` and
    weights `[S]`; ScaleMixture: mean `[N, P]`, variance `[K, N, P]` and weights `[K]`."""
    if isinstance(predictive, GaussianMixture):
        arrays = {"mean": predictive.component_mean, "variance": predictive.component_variance}
    elif isinstance(predictive, ScaleMixture):
        mean, variance = predictive.component_mean, predictive.component_variance
        arrays = {"mean": mean, "variance": variance, "weights": predictive.weights}
    elif isinstance(predictive, Counts):
        arrays = {"rate": predictive.component_rate, "weights": predictive.weights}
    else:
        arrays = {"probs": cast(Categorical, predictive).component_probs}
    if 4 * sum(array.size for array in arrays.values()) > COMPONENTS_LIMIT_BYTES:
        return {}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def _regression(predictive: GaussianMixture, y: np.ndarray, rows: np.ndarray, log_scale: np.ndarray) -> pd.DataFrame:
    scores = _moments(predictive, y, rows)
    scores["log_density_scaled"] = scores["log_density"] + log_scale
    # what is no mixture is its only draw
    mixture = isinstance(predictive, GaussianMixture)
    scores["log_density_draws"] = _mean_over_draws(predictive, y) if mixture else scores["log_density"]
    scores |= {"pit": predictive.cdf(y), "crps": predictive.crps(y)}
    scores |= dict(zip(QUANTILE_COLUMNS, predictive.quantile(LEVELS), strict=True))
    return pd.DataFrame({name: values.ravel() for name, values in scores.items()})


def _mean_over_draws(predictive: GaussianMixture, y: np.ndarray) -> np.ndarray:
    """Mean over the components of their log densities, one at a time: there may be many."""
    components = zip(predictive.component_mean, predictive.component_variance, strict=True)
    logs = sum((y - mean) ** 2 / variance + np.log(2 * np.pi * variance) for mean, variance in components)
    return -0.5 * logs / len(predictive.component_mean)


def _counts(predictive: Counts, y: np.ndarray, rows: np.ndarray) -> pd.DataFrame:
    scores = _moments(predictive, y, rows)
    scores["pit"] = predictive.cdf(y) - np.exp(scores["log_density"]) / 2
    return pd.DataFrame({name: values.ravel() for name, values in scores.items()})


def _moments(predictive: GaussianMixture | Counts, y: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The columns that regression and counts share, each `[N, P]`."""
    return {
        "row": np.broadcast_to(rows[:, None], y.shape),
        "output": np.broadcast_to(np.arange(y.shape[1]), y.shape),
        "y": y,
        "mean": predictive.mean(),
        "sd": np.sqrt(predictive.variance()),
        "log_density": predictive.log_prob(y),
    }


def _classification(predictive: Categorical, y: np.ndarray, rows: np.ndarray) -> pd.DataFrame:
    probabilities = predictive.probabilities()
    named = {f"p{number}": probabilities[:, number] for number in range(probabilities.shape[1])}
    log_density = predictive.log_prob(y)
    return pd.DataFrame(
        {"row": rows, "y": y.astype(np.int64), **named, "log_density": log_density, "modal": predictive.modal()}
    )
